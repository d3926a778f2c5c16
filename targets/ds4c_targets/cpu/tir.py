"""The builder of the cpu target: parameters, parallel loops, and multiply-adds as LLVM intrinsics.

Indices are int64 everywhere, so arenas may be larger than 2 GiB.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import PointerType, PrimType
from tvm.tirx import op, stmt

from ds4c_targets.common import builder
from ds4c_targets.common.builder import Buf, sequence
from ds4c_targets.common.expr import (
    LANES,
    Expr,
    add,
    bits,
    cast,
    div,
    f32,
    i32,
    i64,
    imax,
    imin,
    lanes_of,
    like,
    mod,
    mul,
    select,
    shuffle,
    shuffle2,
    splat,
    tirx,
    vmax,
    vmin,
    with_lanes,
)

_MAX_LOCAL_BYTES = 1023  # a larger local buffer becomes heap memory (TVMBackendAllocWorkspace)


def fma(a: Expr | float, b: Expr, c: Expr | float) -> Expr:
    """`a * b + c` rounded once; scalars are spread to the lanes of `b`."""
    return op.call_llvm_pure_intrin(str(b.ty), "llvm.fma", like(a, b), b, like(c, b))


def sqrt(value: Expr) -> Expr:
    """IEEE square root."""
    return op.call_llvm_pure_intrin(str(value.ty), "llvm.sqrt", value)


class Kernel(builder.Builder):
    """One kernel under construction."""

    def __init__(self) -> None:
        super().__init__()
        self._params: list[Any] = []

    def fma(self, a: Expr | float, b: Expr, c: Expr | float) -> Expr:
        """`a * b + c` rounded once; scalars are spread to the lanes of `b`."""
        return fma(a, b, c)

    def sqrt(self, value: Expr) -> Expr:
        """IEEE square root."""
        return sqrt(value)

    def rint(self, value: Expr) -> Expr:
        """The nearest whole number, of two the even one."""
        return op.call_llvm_pure_intrin(str(value.ty), "llvm.rint", value)

    def param(self, name: str, dtype: str, elements: int, views: tuple[str, ...] = ()) -> list[Buf]:
        """A pointer parameter, as a buffer of `dtype` and as one more buffer for each type of `views`.

        Views of different types must be used for disjoint parts: the compiler takes them as distinct.
        """
        pointer = tirx.Var(name, PointerType(PrimType(dtype)))
        self._params.append(pointer)
        found: list[Buf] = []
        for kind in (dtype, *views):
            data = pointer
            if kind != dtype:
                data = tirx.Var(f"{name}_{kind}", PointerType(PrimType(kind)))
                self.emit(stmt.Bind(data, op.reinterpret(PointerType(PrimType(kind)), pointer)))
            buffer = tirx.decl_buffer((max(1, elements),), kind, name=f"{name}_{kind}_buf", data=data)
            self.emit(stmt.DeclBuffer(buffer, data=data))
            found.append(Buf(self, buffer, kind))
        return found

    def local(self, elements: int, dtype: str = "float32") -> Buf:
        """Memory of this scope; it becomes registers when all indices are constants after unrolling."""
        size = elements * (8 if dtype in ("int64", "float64") else 4)
        assert size <= _MAX_LOCAL_BYTES, f"local buffer of {size} bytes would go to the heap"
        return super().local(elements, dtype)

    def parallel(self, extent: int | Expr) -> Any:
        """A loop whose rounds are shared out to the threads; no round may depend on another."""
        return self._for(extent, stmt.ForKind.PARALLEL)

    def finish(self, symbol: str) -> Any:
        """The complete function, a C symbol that takes the pointers and returns int32 0."""
        self.emit(stmt.Return(tirx.IntImm("int32", 0)))
        attrs = {"global_symbol": symbol, "calling_conv": 1, "tirx.noalias": True}
        body = sequence(self._scopes.pop())
        found = tvm.ir.make_node("ir.DictAttrs", **attrs)
        return tirx.PrimFunc(self._params, body, ret_type=PrimType("int32"), attrs=found)


__all__ = [
    "LANES", "Buf", "Expr", "Kernel", "add", "bits", "cast", "div", "f32", "fma", "i32", "i64", "imax",
    "imin", "lanes_of", "like", "mod", "mul", "op", "select", "shuffle", "shuffle2", "splat", "sqrt",
    "tirx", "vmax", "vmin", "with_lanes",
]  # fmt: skip
