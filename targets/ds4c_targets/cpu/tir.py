"""A thin builder of TIR kernels: buffers, loops and exact arithmetic.

Kernels are Python functions that call a `Kernel`; there is no text and no schedule. What an op
computes stands in `kernels/`. Two rules keep the bits of a result independent of the CPU:

* the code generator may contract `a * b + c`, so a product is never an operand of a plain `+` or `-`
  here; every multiply-add is `fma`;
* nothing calls libm: transcendentals are the polynomials of `mathlib.py`.

Indices are int64 everywhere, so arenas may be larger than 2 GiB.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm.tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import op, stmt

tirx: Any = tvm.tirx  # its annotations refuse the plain numbers that its constructors take
Expr = Any
"""A TIR expression; tvm's own types are too loose to help, so this is a name only."""

LANES = 16
"""Width of every vector; an AVX2 target splits it in two without changing a bit."""

_MAX_LOCAL_BYTES = 1023  # a larger local buffer becomes heap memory (TVMBackendAllocWorkspace)


def i64(value: int | Expr) -> Expr:
    """An int64 constant, or a scalar expression cast to int64."""
    if isinstance(value, int):
        return tirx.IntImm("int64", value)
    return value if str(value.ty) == "int64" else tirx.Cast("int64", value)


def i32(value: int | Expr) -> Expr:
    """An int32 constant, or a scalar expression cast to int32."""
    if isinstance(value, int):
        return tirx.IntImm("int32", value)
    return value if str(value.ty) == "int32" else tirx.Cast("int32", value)


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.FloatImm("float32", float(value))


def lanes_of(value: Expr) -> int:
    """Number of lanes of an expression; 1 for a scalar."""
    return int(value.ty.dtype.lanes)


def splat(value: Expr | float, lanes: int = LANES) -> Expr:
    """A scalar (or float constant) in every lane."""
    scalar = f32(value) if isinstance(value, int | float) else value
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def like(value: Expr | float, other: Expr) -> Expr:
    """`value` with as many lanes as `other`."""
    if not isinstance(value, int | float) and lanes_of(value) == lanes_of(other):
        return value
    return splat(value, lanes_of(other))


def fma(a: Expr | float, b: Expr, c: Expr | float) -> Expr:
    """`a * b + c` rounded once; scalars are spread to the lanes of `b`."""
    return op.call_llvm_pure_intrin(str(b.ty), "llvm.fma", like(a, b), b, like(c, b))


def mul(a: Expr | float, b: Expr) -> Expr:
    """Product; must not feed a plain sum (see the module docstring)."""
    return like(a, b) * b


def add(a: Expr | float, b: Expr) -> Expr:
    """Sum of values that are not products."""
    return like(a, b) + b


def div(a: int | Expr, b: int | Expr) -> Expr:
    """Quotient of non-negative int64 values."""
    return op.truncdiv(i64(a), i64(b))


def mod(a: int | Expr, b: int | Expr) -> Expr:
    """Remainder of non-negative int64 values."""
    return op.truncmod(i64(a), i64(b))


def sqrt(value: Expr) -> Expr:
    """IEEE square root."""
    return op.call_llvm_pure_intrin(str(value.ty), "llvm.sqrt", value)


def vmax(a: Expr | float, b: Expr) -> Expr:
    """Larger value of each lane."""
    return tirx.Max(like(a, b), b)


def vmin(a: Expr | float, b: Expr) -> Expr:
    """Smaller value of each lane."""
    return tirx.Min(like(a, b), b)


def imin(a: int | Expr, b: int | Expr) -> Expr:
    """Smaller of two int64 values."""
    return tirx.Min(i64(a), i64(b))


def imax(a: int | Expr, b: int | Expr) -> Expr:
    """Larger of two int64 values."""
    return tirx.Max(i64(a), i64(b))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Lane-wise choice; both sides are computed, so neither may read out of bounds."""
    return tirx.Select(condition, yes, no)


def shuffle(value: Expr, order: list[int]) -> Expr:
    """Lanes of one vector in another order."""
    return tirx.Shuffle([value], order)


def shuffle2(a: Expr, b: Expr, order: list[int]) -> Expr:
    """Lanes of two joined vectors in another order."""
    return tirx.Shuffle([a, b], order)


def with_lanes(dtype: str, lanes: int) -> str:
    """Name of a vector type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def bits(value: Expr, dtype: str) -> Expr:
    """The same bits as another type of the same width."""
    return op.reinterpret(with_lanes(dtype, lanes_of(value)), value)


def cast(value: Expr, dtype: str) -> Expr:
    """Numeric conversion of every lane."""
    return tirx.Cast(with_lanes(dtype, lanes_of(value)), value)


class Buf:
    """Flat memory of one element type; reads and writes are recorded in the kernel that owns it."""

    def __init__(self, kernel: Kernel, buffer: Any, dtype: str) -> None:
        self._kernel = kernel
        self.buffer = buffer
        self.dtype = dtype

    def __getitem__(self, index: int | Expr) -> Expr:
        """One element."""
        return tirx.BufferLoad(self.buffer, [i64(index)])

    def __setitem__(self, index: int | Expr, value: Expr | float) -> None:
        """Write one element."""
        scalar: Expr = f32(value) if isinstance(value, float) else value
        self._kernel.emit(stmt.BufferStore(self.buffer, scalar, [i64(index)]))

    def load(self, index: int | Expr, lanes: int = LANES) -> Expr:
        """`lanes` elements from `index`; bfloat16 bits come as float32."""
        raw = self[index] if lanes == 1 else tirx.BufferLoad(self.buffer, [_ramp(index, lanes)])
        if self.dtype != "uint16":
            return raw
        wide = cast(raw, "uint32")
        return bits(op.shift_left(wide, like(tirx.IntImm("uint32", 16), wide)), "float32")

    def store(self, index: int | Expr, value: Expr) -> None:
        """Write all lanes of a value from `index`."""
        lanes = lanes_of(value)
        if lanes == 1:
            self[index] = value
        else:
            self._kernel.emit(stmt.BufferStore(self.buffer, value, [_ramp(index, lanes)]))

    def prefetch(self, index: int | Expr) -> None:
        """Ask for a cache line ahead of its use; an address past the end is harmless."""
        address = op.address_of(self[index])
        self._kernel.emit(stmt.Evaluate(op.call_intrin("void", "tirx.prefetch", address, 0, 3, 1)))


def _ramp(index: int | Expr, lanes: int) -> Expr:
    return tirx.Ramp(i64(index), i64(1), lanes)


class Kernel:
    """One kernel under construction: a list of statements for each open scope."""

    def __init__(self) -> None:
        self._params: list[Any] = []
        self._scopes: list[list[Any]] = [[]]
        self._count = 0

    def emit(self, statement: Any) -> None:
        """Append a statement to the innermost scope."""
        self._scopes[-1].append(statement)

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

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
        buffer = tirx.decl_buffer((elements,), dtype, name=self._name("local"))
        self.emit(stmt.AllocBuffer(buffer))
        return Buf(self, buffer, dtype)

    def let(self, value: Expr) -> Expr:
        """Name a value, so that it is computed once."""
        var = tirx.Var(self._name("v"), str(value.ty))
        self.emit(stmt.Bind(var, value))
        return var

    def variable(self, value: Expr) -> Buf:
        """A scalar that changes: a local of one element; read and write it as `v[0]`."""
        found = self.local(1, str(value.ty))
        found[0] = value
        return found

    @contextmanager
    def _scope(self) -> Generator[list[Any]]:
        body: list[Any] = []
        self._scopes.append(body)
        yield body
        self._scopes.pop()

    @contextmanager
    def _for(self, extent: int | Expr, kind: Any, start: int | Expr = 0) -> Generator[Expr]:
        var = tirx.Var(self._name("i"), "int64")
        with self._scope() as body:
            yield var
        length = i64(extent) if isinstance(start, int) and start == 0 else i64(extent) - i64(start)
        if body:
            self.emit(stmt.For(var, i64(start), length, kind, _seq(body)))

    def loop(self, extent: int | Expr, start: int | Expr = 0) -> Any:
        """`for i in [start, extent)`, in order."""
        return self._for(extent, stmt.ForKind.SERIAL, start)

    def unroll(self, extent: int) -> Any:
        """A loop that is written out, so that locals indexed by it are registers."""
        return self._for(extent, stmt.ForKind.UNROLLED)

    def parallel(self, extent: int | Expr) -> Any:
        """A loop whose rounds are shared out to the threads; no round may depend on another."""
        return self._for(extent, stmt.ForKind.PARALLEL)

    @contextmanager
    def when(self, condition: Expr) -> Generator[None]:
        """Statements that run only if the condition holds."""
        with self._scope() as body:
            yield
        if body:
            self.emit(stmt.IfThenElse(condition, _seq(body), None))

    @contextmanager
    def otherwise(self) -> Generator[None]:
        """The other branch of the `when` just closed."""
        with self._scope() as body:
            yield
        last = self._scopes[-1].pop()
        self.emit(stmt.IfThenElse(last.condition, last.then_case, _seq(body)))

    def finish(self, symbol: str) -> Any:
        """The complete function, a C symbol that takes the pointers and returns int32 0."""
        self.emit(stmt.Return(tirx.IntImm("int32", 0)))
        attrs = {"global_symbol": symbol, "calling_conv": 1, "tirx.noalias": True}
        body = _seq(self._scopes.pop())
        found = tvm.ir.make_node("ir.DictAttrs", **attrs)
        return tirx.PrimFunc(self._params, body, ret_type=PrimType("int32"), attrs=found)


def _seq(body: list[Any]) -> Any:
    return body[0] if len(body) == 1 else stmt.SeqStmt(body)
