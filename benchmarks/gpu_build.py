"""Builds without weights of the shapes of DeepSeek-V4 for every GPU target: seconds, memory, sizes, launches.

`python -m benchmarks.gpu_build [--models flash,pro] [--targets cuda,rocm,metal] [--json FILE]`: a table.
The file is written after each build; rows of other builds in it stay, so one command need not do them all.
Each build is a process of its own; its memory is the largest resident set of that process or of one below it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds4c_runtime.launches import LaunchPlan

CONTEXT, ROWS, LOGIT_ROWS, HORIZON = 65536, 256, 64, 64


@dataclass(frozen=True)
class Built:
    """What one build took: seconds, largest resident set in MiB, and what it made (sizes in KiB)."""

    model: str
    target: str
    seconds: float
    memory_mib: float
    kernels: int
    functions: int
    launches: int
    files_kib: dict[str, float]


def build(model: str, target_name: str, folder: Path) -> int:
    """Run the pipeline and compile the kernels into a folder; gives the number of kernels."""
    from ds4c.ir.dialect import make_context
    from ds4c.models.deepseek_v4 import build_module
    from ds4c.models.ir_weights import ir_weights
    from ds4c.models.presets import PRESETS
    from ds4c.passes.pipeline import PipelineOptions, pipeline
    from ds4c.passes.program import program_of
    from ds4c.passes.target import get_target

    name, _, variant = target_name.partition(":")
    target = get_target(name)
    config = PRESETS[model]
    module = build_module(config, ir_weights(config, CONTEXT, lambda name: "bfloat16"))
    options = PipelineOptions(target=name, context=CONTEXT, horizon=HORIZON, rows=ROWS, logit_rows=LOGIT_ROWS)
    for item in pipeline(options):
        item.apply(make_context(), module)
    program = program_of(module)
    target.build_kernels(program, target.resolve_variant(variant), folder)
    return len(program.kernels)


def measure(model: str, target: str) -> Built:
    """Build in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="ds4c-bench-") as work:
        started = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.gpu_build", "--one", model, target, work]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        seconds = time.perf_counter() - started
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        plan = LaunchPlan.read(Path(work))
        sizes = {f.name: round(f.stat().st_size / 1024, 1) for f in sorted(Path(work).iterdir())}
        return Built(
            model,
            target,
            round(seconds, 1),
            round(said["memory_kib"] / 1024),
            said["kernels"],
            len(plan.functions),
            len(plan.entry("step").launches),
            sizes,
        )


def table(rows: Sequence[Built]) -> str:
    """Markdown."""
    head = ["model", "target", "seconds", "MiB", "kernels", "functions", "launches a step", "files (KiB)"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        files = ", ".join(f"{name} {size:.0f}" for name, size in r.files_kib.items())
        cells = [r.model, r.target, r.seconds, r.memory_mib, r.kernels, r.functions, r.launches, files]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _one(model: str, target: str, folder: str) -> None:
    kernels = build(model, target, Path(folder))
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"kernels": kernels, "memory_kib": max(usage)}))


def _keep(row: Built, path: Path) -> None:
    """Put a row into a file in place of the one of the same model and target."""
    rows = [Built(**each) for each in json.loads(path.read_text())] if path.exists() else []
    others = [r for r in rows if (r.model, r.target) != (row.model, row.target)]
    kept = sorted([*others, row], key=lambda r: (r.model, r.target))
    path.write_text(json.dumps([asdict(r) for r in kept], indent=1) + "\n")


def main() -> None:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="flash,pro")
    parser.add_argument("--targets", default="cuda,rocm,metal")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _one(*given.one)
        return
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    rows: list[Built] = []
    for model in given.models.split(","):
        for target in given.targets.split(","):
            rows.append(measure(model, target))
            if given.json:
                _keep(rows[-1], given.json)
    print(table(rows))


if __name__ == "__main__":
    main()
