"""What the passes may ask a target; the answers live in `ds4c_targets`.

Finding a target is by entry point (`ds4c.targets`), so the compiler imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec, Program


class Target(Protocol):
    """A code generator for one kind of device."""

    @property
    def name(self) -> str:
        """`cpu`, `cuda`, ..."""
        ...

    def fusions(self) -> tuple[str, ...]:
        """Names of the fusion passes this target wants, in order."""
        ...

    def weight_layout(self, op: str, operand: str, dtype: str, shape: tuple[int, ...]) -> str:
        """How a weight is packed for that operand of that op; `row` is plain row-major."""
        ...

    def packed_bytes(self, layout: str, dtype: str, shape: tuple[int, ...]) -> int:
        """Size of a packed weight in bytes, before rounding up to 64."""
        ...

    def pack(self, array: NDArray[Any], layout: str) -> NDArray[Any]:
        """Packed form of a weight: a C-contiguous array of `packed_bytes` bytes."""
        ...

    def scratch_bytes(self, spec: KernelSpec) -> int:
        """Scratch a kernel needs; raises `TargetError` if the target has no kernel for the spec."""
        ...

    def resolve_variant(self, variant: str) -> str:
        """Checks a variant name; empty means the best one the build machine can run."""
        ...

    def variants(self) -> tuple[str, ...]:
        """Names of the variants, the best first."""
        ...

    def variant_features(self, variant: str) -> tuple[str, ...]:
        """CPU features (as /proc/cpuinfo spells them) that code of this variant needs."""
        ...

    def runtime_files(self) -> tuple[tuple[str, Path], ...]:
        """Files the artifact must carry to run (name in the artifact, path here), with their licences."""
        ...

    def build_kernels(
        self,
        program: Program,
        variant: str,
        folder: Path,
        log: Callable[[str], None] | None = None,
        cache: str = "",
    ) -> None:
        """Compile a program, in a child process, into the files that a device loads.

        `cache` is a folder of what was compiled before, empty for none. It changes no result; a target may
        leave it alone.
        """
        ...


def target_names() -> tuple[str, ...]:
    """Names of the targets that are installed, sorted."""
    folders: list[str] = list(importlib.import_module("ds4c_targets").__path__)
    # a bare checkout has no entry points
    bare = {path.parent.name for folder in folders for path in Path(folder).glob("*/target.yaml")}
    return tuple(sorted({*entry_points(group="ds4c.targets").names, *bare}))


def get_target(name: str) -> Target:
    """Target by name.

    Raises:
        TargetError: there is no such target; the message lists the known ones.
    """
    for entry in entry_points(group="ds4c.targets", name=name):
        return entry.load()
    known = target_names()
    if name in known:
        return importlib.import_module(f"ds4c_targets.{name}").TARGET
    got = name or "an empty name"
    raise TargetError(f"target: expected one of {', '.join(known)}, got {got}; choose one of them")
