"""Ops that declare, open, read, write, snapshot and rewind states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    AffineMapAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from ds4c.ir.traits import StateAccess, StateSymbolUser, WrittenOnce
from ds4c.ir.types import BlockType, MarksType, StateKind, StateKindAttr, StateType, shape_text

Int = IntegerAttr[I64]


@irdl_op_definition
class StateOp(IRDLOperation):
    """Declares a state of the session and the contract that every rewind follows from.

    `ds4.state @l2.kv ring : tensor<?x128xf32> every 4 reads affine_map<(d0) -> (...)>`

    `every` is how many tokens one row stands for (append) or after how many tokens a reader of a ring
    fires; `reads` maps the position of a query to the first and last row it reads. `plan-state` fills the
    capacity (first dimension), `live` (position -> first row that must be kept) and `offset` (bytes in
    the slot of a session, or in a page).
    """

    name = "ds4.state"
    sym_name = prop_def(SymbolNameConstraint())
    kind = prop_def(StateKindAttr)
    row = prop_def(TensorType)
    every = prop_def(Int)
    reads = opt_prop_def(AffineMapAttr)
    live = opt_prop_def(AffineMapAttr)
    offset = opt_prop_def(Int)
    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name $kind `:` $row `every` $every (`reads` $reads^)? (`live` $live^)? "
        "(`offset` $offset^)? attr-dict"
    )

    @staticmethod
    def make(name: str, kind: StateKind, row: TensorType, every: int, reads: AffineMap | None) -> StateOp:
        """Declaration without a plan."""
        props: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "kind": StateKindAttr(kind),
            "row": row,
            "every": Int(every, 64),
        }
        if reads is not None:
            props["reads"] = AffineMapAttr(reads)
        return StateOp(properties=props)

    @property
    def state_kind(self) -> StateKind:
        """Kind of the state."""
        return self.kind.data

    @property
    def state_name(self) -> str:
        """Symbol without `@`."""
        return self.sym_name.data

    @property
    def row_every(self) -> int:
        """Tokens per row."""
        return self.every.value.data

    @property
    def capacity(self) -> int | None:
        """Rows, or None before plan-state."""
        first = self.row.get_shape()[0]
        return None if first == DYNAMIC_INDEX else first

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.row.get_shape()[1:])

    def set_capacity(self, rows: int) -> None:
        """Fix the number of rows."""
        self.row = TensorType(self.row.element_type, [rows, *self.row.get_shape()[1:]])

    def window(self, position: int) -> tuple[int, int]:
        """First and last row that the query at `position` reads; the first may be negative."""
        assert self.reads is not None
        first, last = self.reads.data.eval([position], [])
        return first, last

    def live_begin(self, position: int) -> int:
        """First row that must exist at `position`; needs plan-state."""
        assert self.live is not None
        return self.live.data.eval([position], [])[0]

    def verify_(self) -> None:
        """Contract: read set (unless host), `every` >= 1, a row of at least one static dimension."""
        what = f"ds4.state @{self.state_name}"
        if self.row_every < 1:
            raise VerifyException(f"{what}: expected every >= 1, got {self.row_every}")
        shape = self.row.get_shape()
        if len(shape) < 2 or any(n == DYNAMIC_INDEX or n < 1 for n in shape[1:]):
            raise VerifyException(f"{what}: expected a row tensor<?xW..>, got {shape_text(shape)}")
        if shape[0] != DYNAMIC_INDEX and shape[0] < 1:
            raise VerifyException(f"{what}: expected a capacity >= 1, got {shape[0]}")
        if self.reads is None:
            if self.state_kind is not StateKind.HOST:
                raise VerifyException(f"{what}: expected a read set for kind {self.state_kind}, got none")
            return
        reads = self.reads.data
        if reads.num_dims != 1 or reads.num_symbols != 0 or len(reads.results) != 2:
            raise VerifyException(
                f"{what}: expected reads to be a map (position) -> (first, last), got {reads}"
            )


def states_of(module: ModuleOp) -> Iterator[StateOp]:
    """Declarations in program order."""
    return (op for op in module.body.block.ops if isinstance(op, StateOp))


def find_state(module: ModuleOp, name: str) -> StateOp:
    """Declaration by name; `KeyError` if there is none."""
    for op in states_of(module):
        if op.state_name == name:
            return op
    raise KeyError(name)


@irdl_op_definition
class OpenOp(IRDLOperation):
    """Current version of a state at function entry: `%s = ds4.open : !ds4.state<@l2.kv>`."""

    name = "ds4.open"
    res = result_def(StateType)
    traits = traits_def(MemoryReadEffect(), StateSymbolUser(), WrittenOnce())
    assembly_format = "attr-dict `:` type($res)"

    @staticmethod
    def of(state: str) -> OpenOp:
        """Open `@state`."""
        return OpenOp(result_types=[StateType.of(state)])


@irdl_op_definition
class CloseOp(IRDLOperation):
    """Makes a version the current one at function exit: `ds4.close %s1 : !ds4.state<@l2.kv>`."""

    name = "ds4.close"
    value = operand_def(StateType)
    traits = traits_def(MemoryWriteEffect(), StateSymbolUser(), StateAccess(writes=("value",)))
    assembly_format = "$value attr-dict `:` type($value)"


@irdl_op_definition
class ReadRowsOp(IRDLOperation):
    """Rows of a ring (planes of an opaque state) before the block, `span` per segment.

    They are read before the block's rows are written; rows before position 0 are zero.
    """

    name = "ds4.read_rows"
    state = operand_def(StateType)
    at = operand_def(BlockType)
    span = prop_def(Int)
    rows = result_def(TensorType)
    traits = traits_def(Pure(), StateSymbolUser(by_position=("state",)), StateAccess(reads=("state",)))
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class WriteOp(IRDLOperation):
    """Rows (or planes) of the block go to slot rows `position mod capacity`; yields the next version."""

    name = "ds4.write"
    T: ClassVar = VarConstraint("T", BaseAttr(StateType))
    state = operand_def(T)
    rows = operand_def(TensorType)
    at = operand_def(BlockType)
    res = result_def(T)
    traits = traits_def(
        Pure(), StateSymbolUser(by_position=("state",)), StateAccess(writes=("state",)), WrittenOnce()
    )
    assembly_format = "$state `,` $rows `at` $at attr-dict `:` type($state) `,` type($rows)"


@irdl_op_definition
class AppendOp(IRDLOperation):
    """Rows of the windows that the block closes go to rows `position // every` of an append state.

    `at` is the block of windows that `ds4.windows` yields.
    """

    name = "ds4.append"
    T: ClassVar = VarConstraint("T", BaseAttr(StateType))
    state = operand_def(T)
    rows = operand_def(TensorType)
    at = operand_def(BlockType)
    res = result_def(T)
    traits = traits_def(
        Pure(), StateSymbolUser(append=("state",)), StateAccess(writes=("state",)), WrittenOnce()
    )
    assembly_format = "$state `,` $rows `at` $at attr-dict `:` type($state) `,` type($rows)"


@irdl_op_definition
class CompressorStepOp(IRDLOperation):
    """Whole compressor transition of a block (macro; `expand-macros` takes it apart).

    Pools the windows that close (old ring rows, then own rows), norms and rotates the pooled rows, appends
    them, and writes the block's rows to the two rings. `table` is the rope table of the windows.
    """

    name = "ds4.compressor_step"
    A: ClassVar = VarConstraint("A", BaseAttr(StateType))
    B: ClassVar = VarConstraint("B", BaseAttr(StateType))
    C: ClassVar = VarConstraint("C", BaseAttr(StateType))
    kv_rows = operand_def(TensorType)
    score_rows = operand_def(TensorType)
    gain = operand_def(TensorType)
    table = operand_def(TensorType)
    kv = operand_def(A)
    score = operand_def(B)
    rows = operand_def(C)
    at = operand_def(BlockType)
    windows = operand_def(BlockType)
    lanes = prop_def(Int)
    eps = prop_def(FloatAttr)
    kv_out = result_def(A)
    score_out = result_def(B)
    rows_out = result_def(C)
    traits = traits_def(
        Pure(),
        StateSymbolUser(ring=("kv", "score"), append=("rows",)),
        StateAccess(reads=("kv", "score"), writes=("kv", "score", "rows")),
        WrittenOnce(),
    )
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "`(` $kv_rows `,` $score_rows `,` $gain `,` $table `)` `state` `(` $kv `,` $score `,` $rows `)` "
        "`at` $at `windows` $windows attr-dict `:` type($kv_rows) `,` type($score_rows) `,` type($gain) `,` "
        "type($table) `,` type($kv) `,` type($score) `,` type($rows)"
    )


@irdl_op_definition
class SnapshotOp(IRDLOperation):
    """Live rows of one slot at a position: ring rows `[live(at), at)`, append rows `[0, at // every)`."""

    name = "ds4.snapshot"
    state = operand_def(StateType)
    slot = operand_def(IndexType)
    at = operand_def(IndexType)
    res = result_def(TensorType)
    traits = traits_def(Pure(), StateSymbolUser(), StateAccess(reads=("state",)))
    assembly_format = "$state `slot` $slot `at` $at attr-dict `:` type($state) `->` type($res)"


@irdl_op_definition
class SnapshotRowsOp(IRDLOperation):
    """Copies of live rows at positions inside a block, taken before the block's rows are written.

    For each mark `c` of a segment whose block begins at `p < c`: ring rows `[live(c), p)` and the block's own
    rows `[p, c)`. A ring alone could not give them, since a long block writes over its own first rows.
    """

    name = "ds4.snapshot_rows"
    state = operand_def(StateType)
    rows = operand_def(TensorType)
    at = operand_def(BlockType)
    marks = operand_def(MarksType)
    traits = traits_def(
        MemoryWriteEffect(), StateSymbolUser(by_position=("state",)), StateAccess(reads=("state",))
    )
    assembly_format = "$state `,` $rows `at` $at `marks` $marks attr-dict `:` type($state) `,` type($rows)"


@irdl_op_definition
class RestoreOp(IRDLOperation):
    """Puts the rows of a snapshot back; every other row of the slot becomes undefined and is never read."""

    name = "ds4.restore"
    T: ClassVar = VarConstraint("T", BaseAttr(StateType))
    state = operand_def(T)
    rows = operand_def(TensorType)
    slot = operand_def(IndexType)
    at = operand_def(IndexType)
    res = result_def(T)
    traits = traits_def(Pure(), StateSymbolUser(), StateAccess(writes=("state",)), WrittenOnce())
    assembly_format = "$state `,` $rows `slot` $slot `at` $at attr-dict `:` type($state) `,` type($rows)"


@irdl_op_definition
class ForkOp(IRDLOperation):
    """Copies rows of one slot to another.

    Ring rows `[live(first), at)`; append rows below `at // every` are shared (the runtime shares pages) or
    copied.
    """

    name = "ds4.fork"
    T: ClassVar = VarConstraint("T", BaseAttr(StateType))
    state = operand_def(T)
    source = operand_def(IndexType)
    target = operand_def(IndexType)
    first = operand_def(IndexType)
    at = operand_def(IndexType)
    res = result_def(T)
    traits = traits_def(
        Pure(), StateSymbolUser(), StateAccess(reads=("state",), writes=("state",)), WrittenOnce()
    )
    assembly_format = "$state `from` $source `to` $target `first` $first `at` $at attr-dict `:` type($state)"


@irdl_op_definition
class RewindOp(IRDLOperation):
    """New position; legal iff `max(floor, high_water - horizon) <= to <= position`. Moves no data.

    `high_water` is one past the highest row written, `floor` the position below which rows do not exist.
    """

    name = "ds4.rewind"
    to = operand_def(IndexType)
    position = operand_def(IndexType)
    high_water = operand_def(IndexType)
    floor = operand_def(IndexType)
    horizon = prop_def(Int)
    res = result_def(IndexType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$to `from` $position `high_water` $high_water `floor` $floor `horizon` $horizon attr-dict"
    )

    @staticmethod
    def make(
        to: SSAValue, position: SSAValue, high_water: SSAValue, floor: SSAValue, horizon: int
    ) -> RewindOp:
        """Rewind with the horizon of the plan."""
        return RewindOp(
            operands=[to, position, high_water, floor],
            properties={"horizon": Int(horizon, 64)},
            result_types=[IndexType()],
        )


STATE_OPS = (
    StateOp,
    OpenOp,
    CloseOp,
    ReadRowsOp,
    WriteOp,
    AppendOp,
    CompressorStepOp,
    SnapshotOp,
    SnapshotRowsOp,
    RestoreOp,
    ForkOp,
    RewindOp,
)
