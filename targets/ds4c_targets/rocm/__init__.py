"""The rocm target: a code object for each architecture."""

from collections.abc import Sequence
from pathlib import Path

from ds4c_targets.gpu.target import GpuTarget
from ds4c_targets.rocm.binaries import finish, object_name


def _objects(variants: Sequence[str]) -> tuple[str, ...]:
    return tuple(object_name(name) for name in variants)


TARGET = GpuTarget("rocm", Path(__file__).parent, _objects, finish)
