"""The builder of GPU kernels: blocks, threads, shared memory, barriers, shuffles.

A kernel is a device function from the start: every barrier, shared array and parameter stands in the text
where it was written, and no TVM pass adds or moves one. Rules for authors:

* all indices of a block are known from `bx, by, bz, tx`; counts and positions are read from memory;
* `barrier` and the shuffles are reached by all threads of a block, or by none (shuffles: of a warp);
* nothing is read from shared memory inside the condition of `when`: name it with `let` first;
* loop variables are int32, indices of global memory become int64 by themselves: write products that can
  exceed 2**31 with `i64`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm.ir
from tvm.ir import PointerType, PrimType
from tvm.tirx import op, stmt

from ds4c_targets.common import builder
from ds4c_targets.common.builder import Buf, sequence
from ds4c_targets.common.expr import Expr, f32, lanes_of, select, tirx
from ds4c_targets.gpu.tuning import WARP

_EVERY_LANE = 0xFFFFFFFF
_SIZES = {"float32": 4, "int32": 4, "uint32": 4, "float16": 2, "uint16": 2, "uint8": 1}
_ALL = 1 << 40  # a buffer's size is not the kernel's business


class SharedBuf(Buf):
    """Shared or local memory: indices stay int32."""

    def __getitem__(self, index: int | Expr) -> Expr:
        """One element."""
        return tirx.BufferLoad(self.buffer, [_small(index)])

    def __setitem__(self, index: int | Expr, value: Expr | float) -> None:
        """Write one element."""
        scalar: Expr = f32(value) if isinstance(value, float) else value
        self._owner.emit(stmt.BufferStore(self.buffer, scalar, [_small(index)]))


def _small(index: int | Expr) -> Expr:
    return tirx.IntImm("int32", index) if isinstance(index, int) else index


class GpuKernel(builder.Builder):
    """One device function under construction.

    Attributes:
        bx, by, bz: indices of the block; int32.
        tx: index of the thread in its block; int32.
        lane, warp: lane in the warp, and warp of the block; int32.
    """

    local_scope = "local"
    index_dtype = "int32"

    def __init__(self, threads: int) -> None:
        super().__init__()
        assert threads % WARP == 0
        self.threads = threads
        self._params: list[Any] = []
        self._declared: list[Any] = []
        self._shared: list[Any] = []
        self.shared_bytes = 0
        self._blocks = [tirx.Var(f"block_{axis}", "int32") for axis in "xyz"]
        self.tx: Expr = tirx.Var("thread", "int32")
        self.bx, self.by, self.bz = self._blocks
        self.lane = self.let(op.truncmod(self.tx, WARP))
        self.warp = self.let(op.truncdiv(self.tx, WARP))

    def fma(self, a: Expr | float, b: Expr, c: Expr | float) -> Expr:
        """`a * b + c` rounded once."""
        return op.call_intrin("float32", "tirx.fma", _float(a), b, _float(c))

    def sqrt(self, value: Expr) -> Expr:
        """IEEE square root."""
        return op.sqrt(value)

    def rint(self, value: Expr) -> Expr:
        """The nearest whole number, of two the even one."""
        return op.nearbyint(value)

    def param(self, name: str, dtype: str) -> Buf:
        """A pointer parameter."""
        pointer = tirx.Var(name, PointerType(PrimType(dtype)))
        self._params.append(pointer)
        buffer = tirx.decl_buffer((_ALL,), dtype, name=f"{name}_buf", data=pointer)
        self._declared.append(stmt.DeclBuffer(buffer, data=pointer))
        return Buf(self, buffer, dtype)

    def local(self, elements: int, dtype: str = "float32") -> Buf:
        """Memory of a thread; registers when all indices are constants after unrolling."""
        found = super().local(elements, dtype)
        return SharedBuf(self, found.buffer, dtype)

    def shared(self, elements: int, dtype: str = "float32") -> Buf:
        """Memory of the block, for the whole kernel."""
        buffer = tirx.decl_buffer((elements,), dtype, name=self._name("shared"), scope="shared")
        self._shared.append(stmt.AllocBuffer(buffer))
        self.shared_bytes += elements * _SIZES[dtype]
        return SharedBuf(self, buffer, dtype)

    def barrier(self) -> None:
        """Every thread of the block arrives, and sees what the others wrote to shared memory (only)."""
        self.emit(stmt.Evaluate(op.call_intrin("int32", "tirx.tvm_storage_sync", "shared")))

    def shuffle(self, value: Expr, lane: Expr) -> Expr:
        """The value of another lane of the warp."""
        every = tirx.IntImm("uint32", _EVERY_LANE)
        kind = str(value.ty)
        # A variable, no name: ROCm's shuffle is pure, and passes would put its arguments where the name is
        # used, which doubles them with each step of a butterfly.
        call = op.call_intrin(kind, "tirx.tvm_warp_shuffle", every, value, lane, WARP, WARP)
        return self.variable(call)[0]

    def exchange(self, value: Expr, distance: int) -> Expr:
        """The value of the lane whose number differs in the bit `distance`."""
        return self.shuffle(value, op.bitwise_xor(self.lane, tirx.IntImm("int32", distance)))

    def warp_reduce(self, value: Expr, combine: Callable[[Expr, Expr], Expr], width: int = WARP) -> Expr:
        """Combine the values of `width` neighbouring lanes as a butterfly, distances descending.

        `combine` is commutative, so every lane gets the same bits.
        """
        found = self.let(value)
        step = width // 2
        while step:
            found = self.let(combine(found, self.exchange(found, step)))
            step //= 2
        return found

    def warp_sum(self, value: Expr) -> Expr:
        """Sum over the warp; `value` is no product."""
        return self.warp_reduce(value, lambda a, b: a + b)

    def warp_sums(self, values: Sequence[Expr]) -> Expr:
        """Sums of several values, 2**n of at most 32: lane `l` gets that of value `l * len(values) // 32`.

        Each has the bits of `warp_sum`, at the cost of little more than one.
        """
        count, step = len(values), WARP // 2
        assert count in (1, 2, 4, 8, 16, 32)
        found = list(values)
        while step:
            if len(found) > 1:
                half = len(found) // 2
                bit = op.bitwise_and(self.lane, tirx.IntImm("int32", step))
                upper = self.let(tirx.NE(bit, tirx.IntImm("int32", 0)))
                pairs = list(zip(found[:half], found[half:], strict=True))
                kept = [self.let(select(upper, b, a)) for a, b in pairs]
                sent = [self.let(select(upper, a, b)) for a, b in pairs]
                found = [self.let(k + self.exchange(s, step)) for k, s in zip(kept, sent, strict=True)]
            else:
                found = [self.let(found[0] + self.exchange(found[0], step))]
            step //= 2
        return found[0]

    def block_reduce(self, value: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
        """Combine the values of all threads: butterflies of warps, then warps ascending; all threads come."""
        part = self.warp_reduce(value, combine)
        warps = self.threads // WARP
        if warps == 1:
            return part
        parts = self.shared(warps, str(part.ty))
        with self.when(self.lane == 0):
            parts[self.warp] = part
        self.barrier()
        total = self.let(parts[0])
        for warp in range(1, warps):
            total = self.let(combine(total, parts[warp]))
        self.barrier()  # the caller may come here again
        return total

    def block_sum(self, value: Expr) -> Expr:
        """Sum over the block; `value` is no product."""
        return self.block_reduce(value, lambda a, b: a + b)

    def elements(self, vector: Expr) -> list[Expr]:
        """The elements of a loaded vector."""
        if lanes_of(vector) == 1:
            return [self.let(vector)]
        named = self.let(vector)
        return [tirx.Shuffle([named], [i]) for i in range(lanes_of(vector))]

    def finish(self, symbol: str) -> Any:
        """The complete device function."""
        body = sequence([*self._shared, *self._scopes.pop()])
        axes = [("threadIdx.x", self.tx, self.threads)]
        axes += [(f"blockIdx.{axis}", var, 1 << 30) for axis, var in zip("xyz", self._blocks, strict=True)]
        for name, var, extent in axes:
            thread = tirx.IterVar(_range(extent), var, 1, name)
            body = stmt.AttrStmt(thread, "thread_extent", tirx.IntImm("int32", extent), body)
        attrs = {
            "global_symbol": symbol,
            "calling_conv": 2,  # launched on a device
            "tirx.is_global_func": True,
            "tirx.kernel_launch_params": [name for name, _, _ in reversed(axes)],
            "tirx.noalias": True,
        }
        found = tvm.ir.make_node("ir.DictAttrs", **attrs)
        return tirx.PrimFunc(self._params, sequence([*self._declared, body]), attrs=found)


def _range(extent: int) -> Any:
    ir: Any = tvm.ir
    return ir.Range(0, extent)


def _float(value: Expr | float) -> Expr:
    return f32(value) if isinstance(value, int | float) else value
