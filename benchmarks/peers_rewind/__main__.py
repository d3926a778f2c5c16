"""`python -m benchmarks.peers_rewind`: measure the grid and write the page."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from benchmarks.own import ROOT
from benchmarks.peers_rewind import table
from benchmarks.peers_rewind.children import Measured, WorkerError, measure
from benchmarks.peers_rewind.files import add_llama, make_own
from benchmarks.peers_rewind.grid import Outcome, cells
from benchmarks.peers_rewind.installed import missing
from benchmarks.peers_rewind.ways import LABELS, WAYS

POSITIONS = (*range(48, 52), *range(124, 128), *range(300, 304))
"""Every phase mod 4: inside the window, across its end and the end of a group of 128, and beyond it."""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers_rewind", description=__doc__)
    parser.add_argument("--engines", nargs="*", choices=list(LABELS), default=list(LABELS), metavar="ENGINE")
    parser.add_argument("--positions", nargs="+", type=int, default=list(POSITIONS), metavar="P")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "peers.md")
    return parser.parse_args(given)


def agreement(engine: str, ours: Path, theirs: Path) -> table.Agreement:
    """Compare the logits of the prompt."""
    rows = np.abs(np.load(ours) - np.load(theirs)).max(axis=1)
    return table.Agreement(engine, len(rows), float(np.median(rows)), float(rows.max()))


def main(given: Sequence[str]) -> int:
    """Entry; 1 if ours is not exact in every cell."""
    options = arguments(given)
    engines = ["ds4c", *(e for e in options.engines if e != "ds4c")]
    absent = [reason for e in engines if (reason := missing(e)) is not None]
    engines = [e for e in engines if missing(e) is None]
    measured: list[Measured] = []
    agreements: list[table.Agreement] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        files = make_own(folder)
        if "llama" in engines:
            files = add_llama(folder, files)
        for way in (way for way in WAYS if way.engine in engines):
            begun, prompt = time.monotonic(), folder / f"{way.engine}.npy"
            wanted = None if prompt.exists() else prompt
            try:
                found = measure(way, cells(way, options.positions), files, wanted)
            except WorkerError as error:
                absent.append(str(error))
                continue
            measured.append(found)
            if wanted and way.engine != "ds4c":
                agreements.append(agreement(way.engine, folder / "ds4c.npy", prompt))
            print(f"{way.engine} {way.name}: {time.monotonic() - begun:.0f} s", flush=True)
    text = table.document(measured, agreements, absent, machine(), options.positions)
    write(options.output, text)
    print(options.output)
    ours = [r for m in measured if m.way.engine == "ds4c" for r in m.results]
    return int(any(r.outcome is not Outcome.EXACT for r in ours))


def write(path: Path, text: str) -> None:
    """Put a file in place whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    staging.write_text(text)
    staging.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
