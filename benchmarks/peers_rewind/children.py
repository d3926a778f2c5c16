"""Runs the worker of one engine and one way; an engine that ends its process costs one cell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.own import ROOT, environment
from benchmarks.peers_rewind.grid import DETAIL, Cell, Outcome, Result, from_json
from benchmarks.peers_rewind.installed import python_of
from benchmarks.peers_rewind.ways import Variant, Way

START_SECONDS = 120.0
CELL_SECONDS = 5.0
"""A process may take this long to start, and this long per cell; most cells take a tenth of a second."""

MOST_ENDS = 3
"""Processes of one way that may end; the cells after that are not tried."""


class WorkerError(Exception):
    """A worker ended before its first cell; the message is its last line on stderr."""


@dataclass
class Measured:
    """All cells of one way.

    Attributes:
        version: what the engine calls itself.
        results: one for every cell, in the order of the grid.
    """

    way: Way
    version: str = ""
    results: list[Result] = field(default_factory=list[Result])


@dataclass(frozen=True)
class Ended:
    """What one process left behind."""

    lines: list[dict[str, Any]]
    reason: str


def measure(
    way: Way,
    cells: Sequence[Cell],
    files: Mapping[str, str],
    prompt: Path | None = None,
    command: Sequence[str] | None = None,
) -> Measured:
    """Measure cells, in a new process after each one that ended.

    Args:
        way: engine and way.
        cells: the grid.
        files: `checkpoint`, `gguf`, `binaries`, `horizon-8`, `horizon-2`.
        prompt: where the logits of a prompt go (`.npy`), if anywhere.
        command: the process to run instead of the worker; for tests.

    Raises:
        WorkerError: the engine cannot be loaded.
    """
    out = Measured(way)
    left, ends = list(cells), 0
    while left:
        job = {
            "engine": way.engine,
            "way": way.name,
            "files": dict(files),
            "cells": [[str(c.variant), c.position, c.drafted] for c in left],
            "prompt": "" if prompt is None else str(prompt),
        }
        limit = START_SECONDS + CELL_SECONDS * len(left)
        ended = _run(command or _command(way), job, limit)
        out.version = next((line["version"] for line in ended.lines if "version" in line), out.version)
        done = [from_json(line["result"]) for line in ended.lines if "result" in line]
        begun = [line["begin"] for line in ended.lines if "begin" in line]
        out.results += done
        left = left[len(done) :]
        if not left:
            break
        if not begun:
            raise WorkerError(f"{way.engine} {way.name}: expected it to start, got: {ended.reason}")
        ends += 1
        lost = left if ends == MOST_ENDS else left[:1]
        reasons = [ended.reason, *["not tried after that"] * (len(lost) - 1)]
        out.results += [Result(c, Outcome.ABORTED, detail=r) for c, r in zip(lost, reasons, strict=True)]
        left = left[len(lost) :]
    return out


def _command(way: Way) -> list[str]:
    return [str(python_of(way.engine)), "-m", "benchmarks.peers_rewind.worker"]


def _environment(is_ours: bool) -> dict[str, str]:
    """One thread; no debugger that writes a backtrace for a minute; ours only where it is wanted."""
    out = environment() if is_ours else {**os.environ, "PYTHONPATH": str(ROOT)}
    return {**out, "OMP_NUM_THREADS": "1", "GGML_NO_BACKTRACE": "1", "HF_HUB_OFFLINE": "1"}


def _run(command: Sequence[str], job: Mapping[str, Any], limit: float) -> Ended:
    """Run one process to its end or to the limit."""
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+", errors="replace") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=stderr,
            cwd=ROOT,
            env=_environment(job["engine"] != "mlx"),
            text=True,
        )
        try:
            process.communicate(json.dumps(job), timeout=limit)
            reason = ""
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            reason = f"no end within {limit:.0f} s"
        told.seek(0)
        stderr.seek(0)
        lines = [json.loads(line) for line in told.read().splitlines() if line.endswith("}")]
        return Ended(lines, reason or _reason(process.returncode, stderr.read()))


def _reason(status: int, stderr: str) -> str:
    """How a process ended, and its last line."""
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    words = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = next((line for line in reversed(words) if "ASSERT" in line or "rror" in line), "")
    return f"{how}{': ' if said else ''}{said[-DETAIL:]}"


def control(results: Sequence[Result]) -> list[Result]:
    """The cells without a wrong token."""
    return [r for r in results if r.cell.drafted == 0]


def grid(results: Sequence[Result], variant: Variant) -> list[Result]:
    """The cells of a variant that rewound."""
    return [r for r in results if r.cell.variant is variant and r.cell.drafted]
