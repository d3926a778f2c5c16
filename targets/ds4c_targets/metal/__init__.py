"""The metal target: one text of all kernels, compiled on the device at the first load."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ds4c_targets.gpu.target import GpuTarget


def _inputs(variants: Sequence[str]) -> tuple[str, ...]:
    return ("kernels.metal",)


def _finish(folder: Path, variants: Sequence[str], log: Callable[[str], None]) -> tuple[str, ...]:
    return ("kernels.metal",)


TARGET = GpuTarget("metal", Path(__file__).parent, _inputs, _finish)
