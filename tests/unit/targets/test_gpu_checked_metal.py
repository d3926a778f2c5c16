"""The kernels of the labs as Metal text in the checked mode: the long form of `VARIANTS` of `gpu_lab`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in Path(__file__).parent.glob("test_gpu_*.py")
    if "gpu_lab import" in path.read_text()
    and path.stem not in ("test_gpu_packages", "test_gpu_matrix", Path(__file__).stem)
)
"""Those of the lab; packages run nothing, matrix instructions are CUDA's."""


def test_the_files_of_kernels_are_found() -> None:
    assert len(FILES) >= 9


@pytest.mark.parametrize("file", FILES)
def test_kernels_keep_the_rules_in_metal_too(file: str) -> None:
    """In a process of its own, since tests read the variants when they are imported."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not more and not full",
        file,
    ]
    environment = {
        **os.environ,
        "DS4C_TEST_VARIANTS": "metal,checked metal",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
