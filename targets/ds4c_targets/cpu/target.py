"""Answers of the cpu target to the compiler (`ds4c.passes.target.Target`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec, Program
from ds4c_targets.common.description import read_mapping, wrong_description
from ds4c_targets.cpu import layout as layouts
from ds4c_targets.cpu.scratch import scratch_bytes

_FOLDER = Path(__file__).parent
_PANEL_OPS = {
    "linear",
    "multi_linear",
    "grouped_linear",
    "gated_linear",
    "moe_experts",
}


@cache
def description() -> dict[str, Any]:
    """Contents of `target.yaml`."""
    return read_description(_FOLDER / "target.yaml")


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of the target and check what is used of it.

    Raises:
        TargetError: the file cannot be read, is no YAML, or lacks something.
    """

    def wrong(expected: str, got: object) -> TargetError:
        return wrong_description(path, expected, got)

    given = read_mapping(path)
    variants, order = given.get("variants"), given.get("default_variant_order")
    if not isinstance(variants, dict) or "generic" not in variants:
        raise wrong("variants with one named generic", variants)
    for name, variant in cast(dict[str, Any], variants).items():
        if not isinstance(variant, dict) or not {"features", "llvm"} <= cast(dict[str, Any], variant).keys():
            raise wrong(f"features and llvm of variant {name}", variant)
    if not isinstance(order, list) or not set(cast(list[str], order)) <= set(cast(dict[str, Any], variants)):
        raise wrong("a default_variant_order of names of variants", order)
    return given


@cache
def host_features() -> frozenset[str]:
    """CPU features of this machine, as /proc/cpuinfo spells them; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = [line.partition(":")[2].split() for line in lines if line.startswith("flags")]
    return frozenset(flags[0]) if flags else frozenset()


@dataclass(frozen=True)
class CpuTarget:
    """Code generator for x86-64 processors."""

    name: str = "cpu"

    def fusions(self) -> tuple[str, ...]:
        """Fusion passes this target wants, in order."""
        return (
            "fuse-reads",
            "fuse-gated-linear",
            "fuse-hc-enter",
            "fuse-norm-rope",
            "fuse-index-select",
            "fuse-linear",  # last: the others look for single products
        )

    def weight_layout(self, op: str, operand: str, dtype: str, shape: tuple[int, ...]) -> str:
        """`panel16` for matrices of products, `row` for everything else."""
        matrix = op in _PANEL_OPS or (op in ("hc_mix", "hc_enter", "hc_collapse") and operand == "fn")
        return layouts.PANEL16 if matrix else layouts.ROW

    def packed_bytes(self, layout: str, dtype: str, shape: tuple[int, ...]) -> int:
        """Size of a packed weight in bytes."""
        return layouts.packed_bytes(layout, dtype, shape)

    def pack(self, array: NDArray[Any], layout: str) -> NDArray[Any]:
        """Packed form of a weight (`layout.py`)."""
        return layouts.pack(array, layout)

    def scratch_bytes(self, spec: KernelSpec) -> int:
        """Scratch of a kernel in bytes; `TargetError` if there is no kernel for the spec."""
        return scratch_bytes(spec)

    def resolve_variant(self, variant: str) -> str:
        """Checks a variant name; empty means the best one this machine can run.

        Raises:
            TargetError: unknown name, or empty on a machine that can run none.
        """
        variants = description()["variants"]
        if variant:
            if variant not in variants:
                raise TargetError(f"cpu variant: expected one of {', '.join(variants)}, got {variant}")
            return variant
        for name in description()["default_variant_order"]:
            if host_features().issuperset(variants[name]["features"]):
                return name
        lacking = sorted(set(variants["generic"]["features"]) - host_features())
        raise TargetError(
            f"cpu variant: expected a processor with the features of generic, got one without "
            f"{', '.join(lacking)}; name the variant to compile for another machine"
        )

    def variants(self) -> tuple[str, ...]:
        """Names of the variants, the best first."""
        return tuple(description()["default_variant_order"])

    def variant_features(self, variant: str) -> tuple[str, ...]:
        """CPU features, as /proc/cpuinfo spells them, that code of a variant needs."""
        return tuple(description()["variants"][self.resolve_variant(variant)]["features"])

    def runtime_files(self) -> tuple[tuple[str, Path], ...]:
        """TVM's runtime library, which kernels need for parallel loops, and its licence.

        Raises:
            TargetError: the apache-tvm package is not installed as expected.
        """
        try:
            files = distribution("apache-tvm").files or []
        except PackageNotFoundError:
            raise TargetError("cpu target: expected the package apache-tvm, got none; install it") from None
        wanted = {"libtvm_runtime.so": "libtvm_runtime.so", "LICENSE.tvm": "licenses/LICENSE"}
        found: list[tuple[str, Path]] = []
        for name, suffix in wanted.items():
            paths = [Path(str(f.locate())) for f in files if str(f).endswith(suffix)]
            if not paths:
                raise TargetError(f"cpu target: expected a file {suffix} in apache-tvm, got none")
            found.append((name, paths[0]))
        return tuple(found)

    def build_kernels(
        self,
        program: Program,
        variant: str,
        folder: Path,
        log: Callable[[str], None] | None = None,
        cache: str = "",
    ) -> None:
        """Compile a program to `kernels.so`; raises what `build_library` raises."""
        self.build_library(program, variant, str(folder / "kernels.so"), cache=cache)

    def build_library(
        self, program: Program, variant: str, path: str, log: Any = None, cache: str = ""
    ) -> None:
        """Compile a program to a shared library at `path`, in a child process.

        Raises:
            CompileError: the compiler failed or died; no file is left.
            TargetError: there is no kernel for a spec.
        """
        from ds4c.lower import Toolchain, build_library

        name = self.resolve_variant(variant)
        llvm = description()["variants"][name]["llvm"]
        for spec in program.kernels.values():
            self.scratch_bytes(spec)
        sources = (os.fspath(_FOLDER), os.fspath(_FOLDER.parent / "common"))
        toolchain = Toolchain("ds4c_targets.cpu.emit", name, llvm, sources)
        build_library(program, toolchain, path, log, cache)


TARGET = CpuTarget()
