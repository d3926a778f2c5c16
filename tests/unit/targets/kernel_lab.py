"""Compiles several kernels into one library and calls them one by one on NumPy arrays."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import shared_cache

from ds4c.ir.block import Block
from ds4c.ir.kernel import ROWS_OFFSET, Arg, BlockLayout, Call, EntryPoint, KernelSpec, Operand, Program
from ds4c.lower.program_json import program_to_json
from ds4c_targets.cpu import TARGET
from ds4c_targets.cpu.target import description, host_features

os.environ.setdefault("TVM_NUM_THREADS", "2")
BF16 = np.dtype(ml_dtypes.bfloat16)
COUNT = Operand("count", "count", "int32", (1,))


def act(name: str, role: str, *shape: int, dtype: str = "float32") -> Operand:
    return Operand(name, role, dtype, shape)


def weight(op: str, name: str, *shape: int, dtype: str = "float32") -> Operand:
    return Operand(name, "weight", dtype, shape, TARGET.weight_layout(op, name, dtype, shape))


def block_operand(name: str, max_rows: int, max_segments: int) -> Operand:
    return Operand(name, "block", "int32", (max_rows, max_segments))


def spec(op: str, operands: list[Operand], **attrs: Any) -> KernelSpec:
    made = KernelSpec(op, tuple(sorted(attrs.items())), tuple(operands))
    size = TARGET.scratch_bytes(made)
    if not size:
        return made
    return KernelSpec(op, made.attrs, (*made.operands, Operand("scratch", "scratch", "uint8", (size,))))


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def placed(array: np.ndarray) -> np.ndarray:
    out = aligned(array.shape, array.dtype)
    out[...] = array
    return out


def count_buffer(count: int) -> np.ndarray:
    out = aligned((16,), np.int32)
    out[0] = count
    return out


def rows_buffer(rows: list[int], size: int) -> np.ndarray:
    out = aligned((ROWS_OFFSET + size,), np.int32)
    out[0] = len(rows)
    out[ROWS_OFFSET : ROWS_OFFSET + len(rows)] = rows
    return out


def block_buffer(block: Block, max_rows: int, max_segments: int) -> np.ndarray:
    layout = BlockLayout(max_rows, max_segments)
    out = aligned((layout.size,), np.int32)
    out[...] = -7
    rows, segments = block.num_rows, len(block.slots)
    out[0], out[1] = rows, segments
    out[layout.positions : layout.positions + rows] = block.positions
    out[layout.row_segment : layout.row_segment + rows] = block.row_segment
    out[layout.segment_starts : layout.segment_starts + segments + 1] = block.segment_starts
    out[layout.slots : layout.slots + segments] = block.slots
    return out


def nans(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    out = aligned(shape, dtype)
    out[...] = np.nan if np.issubdtype(dtype, np.floating) else -99
    return out


def with_dead_rows(array: np.ndarray, max_rows: int) -> np.ndarray:
    """The array in a buffer of `max_rows` rows; the others hold NaN."""
    out = nans(max_rows, *array.shape[1:], dtype=array.dtype)
    out[: len(array)] = array
    return out


def bf16(array: np.ndarray) -> np.ndarray:
    return array.astype(BF16)


def load_runtime() -> None:
    package = importlib.util.find_spec("tvm")
    assert package is not None
    assert package.origin is not None
    library = Path(package.origin).parent / "lib" / "libtvm_runtime.so"
    # a second copy aborts the process: an artifact loaded by an earlier test has brought its own
    if not hasattr(ctypes.CDLL(None), "TVMBackendParallelLaunch"):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@dataclass
class Lab:
    """Kernels by a short name."""

    folder: Path
    specs: dict[str, KernelSpec] = field(default_factory=dict)
    modules: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, made: KernelSpec) -> None:
        self.specs[name] = made

    def program(self) -> Program:
        entries = []
        for name, made in self.specs.items():
            arenas = tuple(o.name for o in made.operands)
            call = Call(made.symbol, tuple(Arg(arena, 0) for arena in arenas))
            entries.append(EntryPoint(name, arenas, (call,)))
        return Program({s.symbol: s for s in self.specs.values()}, tuple(entries))

    def module(self, variant: str) -> Any:
        if variant not in self.modules:
            import tvm_ffi

            load_runtime()
            text = program_to_json(self.program())
            name = f"{shared_cache.digest(text, variant)}.so"  # also a variant's description is of the digest
            path = shared_cache.entry("kernels", name, lambda path: self.compile(text, variant, path))
            self.modules[variant] = tvm_ffi.load_module(str(path))
        return self.modules[variant]

    def compile(self, program: str, variant: str, path: Path) -> None:
        """Compile a program to a library, in this process: one import of tvm for all labs."""
        from ds4c.lower.compile import run

        folder = self.folder / variant
        folder.mkdir()
        request = {
            "program": program,
            "emitter": "ds4c_targets.cpu.emit",
            "variant": variant,
            "llvm": description()["variants"][variant]["llvm"],
            "output": str(folder / "library.so"),
        }
        run(request)
        shutil.move(request["output"], path)

    def check_code(self) -> None:
        """No sum of a product is left to contraction, no libm, no fast-math flag, no heap."""
        from ds4c.lower.codegen import compile_functions
        from ds4c_targets.cpu.emit import emit_kernel

        for name, made in self.specs.items():
            llvm = description()["variants"]["avx512"]["llvm"]
            text = compile_functions([emit_kernel(made, "avx512")], llvm).inspect_source("ll")
            for body in text.split("\ndefine ")[1:]:
                products = set(re.findall(r"(%[\w.]+) = fmul", body))
                sums = " ".join(re.findall(r"= f(?:add|sub) ([^\n]*)", body))
                assert not products & set(re.findall(r"%[\w.]+", sums)), f"{name}: sum of a product"
            flags = re.findall(r"= f(?:add|mul|sub|div) (?:fast|contract|reassoc|nnan|ninf|nsz|arcp)", text)
            assert not flags, f"{name}: fast-math flags {set(flags)}"
            called = set(re.findall(r"call [^@\n]*@([\w.]+)", text))
            foreign = {c for c in called if not c.startswith(("llvm.", "__tvm_parallel_lambda", made.symbol))}
            assert not foreign, f"{name}: calls {foreign}"

    def call(self, name: str, variant: str = "generic", **arrays: np.ndarray) -> None:
        """Run a kernel; every operand but the scratch is given by name, weights unpacked."""
        import tvm_ffi

        given = []
        for operand in self.specs[name].operands:
            if operand.role == "scratch":
                array = aligned(operand.shape, np.uint8)
                array[...] = 0xFF
            else:
                array = arrays[operand.name]
            if operand.role == "weight":
                assert array.shape == operand.shape
                packed = TARGET.pack(array, operand.layout)
                assert packed.nbytes == TARGET.packed_bytes(operand.layout, operand.dtype, operand.shape)
                array = placed(packed)
            given.append(tvm_ffi.from_dlpack(array.reshape(-1).view(np.uint8)))
        self.module(variant)[name](*given)


def set_threads(count: int) -> None:
    """Worker threads of TVM's pool, at most two."""
    import tvm_ffi

    load_runtime()
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, count)


def has_avx512() -> bool:
    return host_features().issuperset(TARGET.variant_features("avx512"))


VARIANTS = ["generic", *(["avx512"] if has_avx512() else [])]


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-6) -> None:
    """Largest difference against the largest magnitude of the float64 result."""
    scale = max(1e-3, float(np.abs(want).max(initial=0)))
    worst = float(np.abs(got - want).max(initial=0)) / scale
    assert np.isfinite(got).all()
    assert worst <= tolerance, f"relative error {worst:.2e} above {tolerance:.0e}"
