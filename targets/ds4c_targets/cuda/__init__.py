"""The cuda target: the text of all kernels, a cubin for each architecture, and PTX of the newest."""

from collections.abc import Sequence
from pathlib import Path

from ds4c_targets.cuda.binaries import TEXT_NAME, finish
from ds4c_targets.gpu.target import GpuTarget


def _inputs(variants: Sequence[str]) -> tuple[str, ...]:
    return (TEXT_NAME,)


TARGET = GpuTarget("cuda", Path(__file__).parent, _inputs, finish)
