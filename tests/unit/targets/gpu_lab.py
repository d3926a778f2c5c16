"""The lab of the GPU targets: the same interface as `kernel_lab`, the emitted texts on the emulator.

`on_gpu("test_row_kernels")` gives the tests of a module of the cpu target, run on GPU kernels: the module is
loaded once more with this lab in the place of the other.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import unit.targets.kernel_lab as cpu_lab
from unit.targets.kernel_lab import *  # noqa: F403  # what the tests import from there

from ds4c.ir.kernel import BlockLayout, KernelSpec, Operand
from ds4c_runtime.device.emulator.mode import CHECKED, FAST, Mode
from ds4c_runtime.device.emulator.program import EmulatedProgram, ProgramCall, Uninitialised, compile_text
from ds4c_runtime.launches import Extent, Function, Param
from ds4c_targets.cuda import TARGET
from ds4c_targets.gpu.layout import ROW, SPLIT

VARIANTS = os.environ.get("DS4C_TEST_VARIANTS", "cuda,metal,checked cuda").split(",")
"""Languages and modes in which each kernel runs.

Checked Metal runs in `make test-more` only (`test_gpu_checked_metal.py`). Both languages are printed from
the same functions, and what the checked mode adds to them is the same (`hooks.h`, `checker.h`, flags, gaps
between shared arrays), so what it finds in a kernel in one it finds in the other. `test_emulator*.py` checks
the mode itself in both.
"""
MODES: dict[str, Mode] = {"checked": CHECKED, "": FAST}


def weight(op: str, name: str, *shape: int, dtype: str = "float32") -> Operand:
    return Operand(name, "weight", dtype, shape, TARGET.weight_layout(op, name, dtype, shape))


def spec(op: str, operands: list[Operand], **attrs: Any) -> KernelSpec:
    made = KernelSpec(op, tuple(sorted(attrs.items())), tuple(operands))
    size = TARGET.scratch_bytes(made)
    if not size:
        return made
    return KernelSpec(op, made.attrs, (*made.operands, Operand("scratch", "scratch", "uint8", (size,))))


def has_avx512() -> bool:
    return False


@dataclass
class Lab:
    """Kernels by a short name."""

    folder: Path
    specs: dict[str, KernelSpec] = field(default_factory=dict)
    programs: dict[str, EmulatedProgram] = field(default_factory=dict)
    parts: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, made: KernelSpec) -> None:
        self.specs[name] = made

    def emitted(self) -> dict[str, list[Any]]:
        """Launches of every kernel by its short name."""
        from ds4c_targets.gpu.emit import emit_kernel

        if not self.parts:
            tuning = TARGET.description.tuning
            by_symbol = {s.symbol: emit_kernel(s, tuning) for s in self.specs.values()}
            self.parts = {name: by_symbol[s.symbol] for name, s in self.specs.items()}
        return self.parts

    def program(self, variant: str) -> EmulatedProgram:
        if variant not in self.programs:
            from ds4c_targets.gpu.text import cuda_text, metal_text

            mode, _, kind = variant.rpartition(" ")
            parts = {p.name: p for several in self.emitted().values() for p in several}
            functions = [p.function for p in parts.values()]
            text = cuda_text(functions) if kind == "cuda" else metal_text(functions)
            (self.folder / f"kernels.{kind}").write_text(text)
            # Each kernel runs a few times on a few rows: compiling it well costs more than it saves.
            self.programs[variant] = compile_text(
                text, kind, [described(p) for p in parts.values()], MODES[mode], quick=True
            )
        return self.programs[variant]

    def call(self, name: str, variant: str = "cuda", **arrays: np.ndarray) -> None:
        """Run a kernel; every operand but the scratch is given by name, weights unpacked."""
        variant = "cuda" if variant == "generic" else variant  # the default of the other lab
        made = self.specs[name]
        memory = {o.name: operand_bytes(o, arrays) for o in made.operands}
        parts = self.emitted()[name]
        ends = part_ends(parts, memory)
        extent = None if variant.endswith("metal") else extent_of(made, arrays)
        calls = []
        for part in parts:
            buffers: list[Any] = []
            for b in part.bindings:
                piece = memory[b.operand][b.offset : ends[b.operand, b.offset]]
                is_scratch = made.operand(b.operand).role == "scratch"
                buffers.append(Uninitialised(piece) if is_scratch else piece)
            grid = tuple(dim.most if extent is None else dim.blocks(extent) for dim in part.grid)
            calls.append(ProgramCall(part.name, buffers, grid))
        self.program(variant).run(calls)

    def check_code(self) -> None:
        """No sum of a product is left to contraction, and only exact functions are called."""
        for name, parts in self.emitted().items():
            for part in parts:
                check_function(name, part.function)


def described(part: Any) -> Function:
    names = [v.name for v in part.function.params]
    params = tuple(Param(n, b.dtype) for n, b in zip(names, part.bindings, strict=True))
    return Function(part.name, part.name, params, part.threads, part.shared_bytes)


def operand_bytes(operand: Operand, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Memory of an operand as bytes; that of weights may not be written."""
    if operand.role == "scratch":
        return cpu_lab.aligned(operand.shape, np.uint8)
    array = arrays[operand.name]
    if operand.role != "weight":
        return array.reshape(-1).view(np.uint8)
    if operand.layout in (ROW, SPLIT):  # others come as the blocks of a file
        assert array.shape == operand.shape
    packed = TARGET.pack(array, operand.layout)
    assert packed.nbytes == TARGET.packed_bytes(operand.layout, operand.dtype, operand.shape)
    found = cpu_lab.placed(packed).reshape(-1).view(np.uint8)
    found.flags.writeable = False
    return found


def part_ends(parts: list[Any], memory: dict[str, np.ndarray]) -> dict[tuple[str, int], int]:
    """Where the memory of each binding ends: where the next one of its operand begins."""
    starts: dict[str, set[int]] = {}
    for part in parts:
        for b in part.bindings:
            starts.setdefault(b.operand, set()).add(b.offset)
    ends: dict[tuple[str, int], int] = {}
    for operand, several in starts.items():
        ordered = sorted(several)
        for start, end in zip(ordered, [*ordered[1:], len(memory[operand])], strict=True):
            ends[operand, start] = end
    return ends


def extent_of(made: KernelSpec, arrays: dict[str, np.ndarray]) -> Extent | None:
    """Rows and tokens of the step that a call is, as the runtime tells them; None if it has neither."""
    rows, tokens = 0, 0
    for operand in made.operands:
        if operand.role == "block" and operand.name == "at":
            layout = BlockLayout(*operand.shape)
            numbers = arrays[operand.name].reshape(-1)
            rows = int(numbers[0])
            if made.op == "append":  # its block is one of windows, the extent that of a step
                rows *= made.operand("state").every
            tokens = int(numbers[layout.positions : layout.positions + rows].max(initial=0)) + 1
        elif operand.role in ("count", "rows"):
            rows = max(rows, int(arrays[operand.name].reshape(-1)[0]))
    return Extent(max(1, rows), tokens) if rows else None


EXACT = {"fma", "sqrt", "nearbyint", "reinterpret", "tvm_warp_shuffle", "tvm_storage_sync", "bitwise_xor",
         "bitwise_and", "bitwise_or", "bitwise_not", "shift_left", "shift_right", "if_then_else"}  # fmt: skip


def check_function(name: str, function: Any) -> None:
    """No product, named or not, is an operand of a plain sum; no function is called but the exact ones."""
    import tvm_ffi
    from tvm import ir
    from tvm.tirx import Add, Bind, Mul, Sub

    products: list[Any] = []

    def is_product(value: Any) -> bool:
        return isinstance(value, Mul) or any(value.same_as(p) for p in products)

    def visit(node: Any) -> None:
        if isinstance(node, Bind) and "float" in str(node.var.ty) and isinstance(node.value, Mul):
            products.append(node.var)
        if isinstance(node, Add | Sub) and "float" in str(node.ty):
            assert not is_product(node.a), f"{name}: sum of a product"
            assert not is_product(node.b), f"{name}: sum of a product"
        if isinstance(node, ir.Call):
            called = getattr(node.op, "name", "").removeprefix("tirx.")
            assert called in EXACT, f"{name}: calls {called}"

    tvm_ffi.structural_walk(function.body, visit)


def on_gpu(module: str) -> dict[str, Any]:
    """Tests and fixtures of a module of kernel tests, on this lab."""
    path = Path(__file__).with_name(f"{module}.py")
    found = importlib.util.spec_from_file_location(f"gpu_{module}", path)
    assert found is not None
    assert found.loader is not None
    loaded = importlib.util.module_from_spec(found)
    sys.modules[loaded.__name__] = loaded  # dataclasses look there
    sys.modules[cpu_lab.__name__] = sys.modules[__name__]
    try:
        found.loader.exec_module(loaded)
    finally:
        sys.modules[cpu_lab.__name__] = cpu_lab
    names = [n for n in vars(loaded) if n.startswith("test_") or n == "lab" or n.endswith("_lab")]
    return {name: vars(loaded)[name] for name in names}
