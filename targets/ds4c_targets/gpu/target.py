"""Answers of a GPU target to the compiler (`ds4c.passes.target.Target`): cuda, rocm and metal."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ds4c.ir.kernel import KernelSpec, Program
from ds4c_runtime.launches import LAUNCHES_NAME
from ds4c_targets.gpu import layout as layouts
from ds4c_targets.gpu.description import Description, read_description
from ds4c_targets.gpu.scratch import scratch_bytes

Finish = Callable[[Path, Sequence[str], Callable[[str], None]], Sequence[str]]
"""`finish(folder, variants, log)`: makes binaries of what the child wrote; gives the files to ship."""


@dataclass(frozen=True)
class GpuTarget:
    """Code generator for one family of GPUs.

    Attributes:
        name: `cuda`, `rocm` or `metal`.
        folder: where its `target.yaml` is.
        inputs: files that the compiling child writes for some variants, besides the plan of launches.
        finish: makes the binaries.
    """

    name: str
    folder: Path
    inputs: Callable[[Sequence[str]], Sequence[str]]
    finish: Finish

    @cached_property
    def description(self) -> Description:
        """Contents of `target.yaml`."""
        return read_description(self.folder / "target.yaml")

    def fusions(self) -> tuple[str, ...]:
        """Fusion passes this target wants, in order."""
        return self.description.passes

    def weight_layout(self, op: str, operand: str, dtype: str, shape: tuple[int, ...]) -> str:
        """`split` for float64, the layout of a format with blocks, `row` for everything else."""
        return layouts.weight_layout(dtype)

    def packed_bytes(self, layout: str, dtype: str, shape: tuple[int, ...]) -> int:
        """Size of a packed weight in bytes."""
        return layouts.packed_bytes(layout, dtype, shape)

    def pack(self, array: NDArray[Any], layout: str) -> NDArray[Any]:
        """Packed form of a weight (`layout.py`)."""
        return layouts.pack(array, layout)

    def scratch_bytes(self, spec: KernelSpec) -> int:
        """Scratch of a kernel in bytes; `TargetError` if there is no kernel for the spec."""
        return scratch_bytes(spec, self.description.tuning)

    def resolve_variant(self, variant: str) -> str:
        """Names of variants joined by `+`; empty or `all` means every one of the description.

        Raises:
            TargetError: an unknown name.
        """
        return "+".join(v.name for v in self.description.select(variant))

    def variants(self) -> tuple[str, ...]:
        """Names of the variants, the best first."""
        return tuple(v.name for v in self.description.variants)

    def variant_features(self, variant: str) -> tuple[str, ...]:
        """Architectures that the binaries of a variant run on."""
        return tuple(v.name for v in self.description.select(variant))

    def runtime_files(self) -> tuple[tuple[str, Path], ...]:
        """None: a driver and the launcher of the runtime are all that an artifact needs."""
        return ()

    def build_kernels(
        self,
        program: Program,
        variant: str,
        folder: Path,
        log: Callable[[str], None] | None = None,
        cache: str = "",
    ) -> None:
        """Compile a program into an artifact folder: text, binaries and `launches.json`; nothing is cached.

        Raises:
            CompileError: a compiler failed, died or is not installed.
            TargetError: there is no kernel for a spec.
        """
        from ds4c.lower.child import publish, run_child
        from ds4c.lower.program_json import program_to_json

        for spec in program.kernels.values():
            self.scratch_bytes(spec)
        chosen = self.description.select(variant)
        names = [v.name for v in chosen]
        with tempfile.TemporaryDirectory(prefix="ds4c-compile-", ignore_cleanup_errors=True) as temporary:
            work = Path(temporary)
            request = {
                "program": program_to_json(program),
                "folder": str(work),
                "kind": self.name,
                "tuning": dataclasses.asdict(self.description.tuning),
                "architectures": [[v.name, v.wave] for v in chosen],
                "limits": [dataclasses.asdict(v.limits) for v in chosen],
            }
            made = [LAUNCHES_NAME, *self.inputs(names)]
            run_child("ds4c_targets.gpu.compile", request, [work / name for name in made])
            shipped = self.finish(work, names, log or _silent)
            for name in (LAUNCHES_NAME, *shipped):
                publish(work / name, folder / name, 0o644)


def _silent(line: str) -> None:
    """The log of a caller that wants none."""
