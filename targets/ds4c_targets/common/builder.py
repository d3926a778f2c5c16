"""A thin builder of TIR kernels: buffers, loops and branches; targets add parameters and parallelism."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tvm.tirx import op, stmt

from ds4c_targets.common.expr import LANES, Expr, bits, cast, f32, i64, lanes_of, like, ramp, tirx


class Buf:
    """Flat memory of one element type; reads and writes are recorded in the builder that owns it."""

    def __init__(self, owner: Builder, buffer: Any, dtype: str) -> None:
        self._owner = owner
        self.buffer = buffer
        self.dtype = dtype

    def __getitem__(self, index: int | Expr) -> Expr:
        """One element."""
        return tirx.BufferLoad(self.buffer, [i64(index)])

    def __setitem__(self, index: int | Expr, value: Expr | float) -> None:
        """Write one element."""
        scalar: Expr = f32(value) if isinstance(value, float) else value
        self._owner.emit(stmt.BufferStore(self.buffer, scalar, [i64(index)]))

    def load(self, index: int | Expr, lanes: int = LANES) -> Expr:
        """`lanes` elements from `index`; bfloat16 bits come as float32."""
        raw = self[index] if lanes == 1 else tirx.BufferLoad(self.buffer, [ramp(index, lanes)])
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
            self._owner.emit(stmt.BufferStore(self.buffer, value, [ramp(index, lanes)]))

    def prefetch(self, index: int | Expr) -> None:
        """Ask for a cache line ahead of its use; an address past the end is harmless."""
        address = op.address_of(self[index])
        self._owner.emit(stmt.Evaluate(op.call_intrin("void", "tirx.prefetch", address, 0, 3, 1)))


class Builder:
    """One kernel under construction: a list of statements for each open scope."""

    local_scope = ""
    """Storage scope of locals."""
    index_dtype = "int64"
    """Type of loop variables."""

    def __init__(self) -> None:
        self._scopes: list[list[Any]] = [[]]
        self._count = 0

    def fma(self, a: Expr | float, b: Expr, c: Expr | float) -> Expr:
        """`a * b + c` rounded once; scalars are spread to the lanes of `b`."""
        raise NotImplementedError

    def sqrt(self, value: Expr) -> Expr:
        """IEEE square root."""
        raise NotImplementedError

    def rint(self, value: Expr) -> Expr:
        """The nearest whole number, of two the even one."""
        raise NotImplementedError

    def emit(self, statement: Any) -> None:
        """Append a statement to the innermost scope."""
        self._scopes[-1].append(statement)

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def local(self, elements: int, dtype: str = "float32") -> Buf:
        """Memory of this scope; it becomes registers when all indices are constants after unrolling."""
        buffer = tirx.decl_buffer((elements,), dtype, name=self._name("local"), scope=self.local_scope)
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

    def _index(self, value: int | Expr) -> Expr:
        if isinstance(value, int):
            return tirx.IntImm(self.index_dtype, value)
        return value if str(value.ty) == self.index_dtype else tirx.Cast(self.index_dtype, value)

    @contextmanager
    def _for(self, extent: int | Expr, kind: Any, start: int | Expr = 0) -> Generator[Expr]:
        var = tirx.Var(self._name("i"), self.index_dtype)
        with self._scope() as body:
            yield var
        end, first = self._index(extent), self._index(start)
        length = end if isinstance(start, int) and start == 0 else end - first
        if body:
            self.emit(stmt.For(var, first, length, kind, sequence(body)))

    def loop(self, extent: int | Expr, start: int | Expr = 0) -> Any:
        """`for i in [start, extent)`, in order."""
        return self._for(extent, stmt.ForKind.SERIAL, start)

    def unroll(self, extent: int) -> Any:
        """A loop that is written out, so that locals indexed by it are registers."""
        return self._for(extent, stmt.ForKind.UNROLLED)

    @contextmanager
    def when(self, condition: Expr) -> Generator[None]:
        """Statements that run only if the condition holds."""
        with self._scope() as body:
            yield
        if body:
            self.emit(stmt.IfThenElse(condition, sequence(body), None))

    @contextmanager
    def otherwise(self) -> Generator[None]:
        """The other branch of the `when` just closed."""
        with self._scope() as body:
            yield
        last = self._scopes[-1].pop()
        self.emit(stmt.IfThenElse(last.condition, last.then_case, sequence(body)))


def sequence(body: list[Any]) -> Any:
    """One statement of several."""
    return body[0] if len(body) == 1 else stmt.SeqStmt(body)
