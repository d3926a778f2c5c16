"""The rocm target: a code object for each architecture."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ds4c_targets.gpu.target import GpuTarget


def _objects(variants: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"kernels.{name}.o" for name in variants)


def _finish(folder: Path, variants: Sequence[str], log: Callable[[str], None]) -> tuple[str, ...]:
    return ()


TARGET = GpuTarget("rocm", Path(__file__).parent, _objects, _finish)
