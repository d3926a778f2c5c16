"""The cuda target: the text of all kernels, a cubin for each architecture, and PTX of the newest."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ds4c_targets.gpu.target import GpuTarget


def _inputs(variants: Sequence[str]) -> tuple[str, ...]:
    return ("kernels.cu",)


def _finish(folder: Path, variants: Sequence[str], log: Callable[[str], None]) -> tuple[str, ...]:
    return ("kernels.cu",)


TARGET = GpuTarget("cuda", Path(__file__).parent, _inputs, _finish)
