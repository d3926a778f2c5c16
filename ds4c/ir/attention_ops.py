"""Ops that pool, score, select and attend over rows of states, and the kernel call they all end as."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AnyOf,
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from ds4c.ir.kernel import KernelSpec
from ds4c.ir.state_ops import Int
from ds4c.ir.tensor_ops import expect, shape
from ds4c.ir.traits import StateAccess, StateSymbolUser
from ds4c.ir.types import BlockType, StateType

OldRows = AnyOf((BaseAttr(TensorType), BaseAttr(StateType)))
"""Rows before the block: a tensor from `ds4.read_rows`, or the ring itself (after `fuse-reads`)."""


def _same_form(op: IRDLOperation, *values: SSAValue) -> None:
    forms = {type(v.type) for v in values}
    if len(forms) != 1:
        raise VerifyException(f"{op.name}: old rows: expected all tensors or all states, got a mixture")


@irdl_op_definition
class PoolOp(IRDLOperation):
    """Pooled rows of the windows that close in the block, from old ring rows and the block's own rows."""

    name = "ds4.pool"
    kv_old = operand_def(OldRows)
    kv = operand_def(TensorType)
    score_old = operand_def(OldRows)
    score = operand_def(TensorType)
    at = operand_def(BlockType)
    windows = operand_def(BlockType)
    every = prop_def(Int)
    lanes = prop_def(Int)
    rows = result_def(TensorType)
    traits = traits_def(
        Pure(), StateSymbolUser(ring=("kv_old", "score_old")), StateAccess(reads=("kv_old", "score_old"))
    )
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        """Own rows `[T, lanes*D]` -> `[J, D]`."""
        _same_form(self, self.kv_old, self.score_old)
        expect(self, "score", shape(self.kv)[1:], shape(self.score)[1:])
        expect(self, "result", (shape(self.kv)[1] // self.lanes.value.data,), shape(self.rows)[1:])


@irdl_op_definition
class IndexScoresOp(IRDLOperation):
    """Lightning-indexer scores of the visible rows (`-inf` elsewhere)."""

    name = "ds4.index_scores"
    q = operand_def(TensorType)
    weights = operand_def(TensorType)
    rows = operand_def(StateType)
    at = operand_def(BlockType)
    every = prop_def(Int)
    scale = prop_def(FloatAttr)
    scores = result_def(TensorType)
    traits = traits_def(Pure(), StateSymbolUser(append=("rows",)), StateAccess(reads=("rows",)))
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class SelectRowsOp(IRDLOperation):
    """Numbers of the best visible rows, ascending, -1 padded; ties go to the lower row."""

    name = "ds4.select_rows"
    scores = operand_def(TensorType)
    at = operand_def(BlockType)
    every = prop_def(Int)
    top_k = prop_def(Int)
    selection = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        """Selection `[T, top_k]`."""
        expect(self, "selection", (self.top_k.value.data,), shape(self.selection)[1:])


@irdl_op_definition
class IndexSelectOp(IRDLOperation):
    """`index_scores` and `select_rows` in one, made by `fuse-index-select`; scores stay in the kernel."""

    name = "ds4.index_select"
    q = operand_def(TensorType)
    weights = operand_def(TensorType)
    rows = operand_def(StateType)
    at = operand_def(BlockType)
    every = prop_def(Int)
    scale = prop_def(FloatAttr)
    top_k = prop_def(Int)
    selection = result_def(TensorType)
    traits = traits_def(Pure(), StateSymbolUser(append=("rows",)), StateAccess(reads=("rows",)))
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        """Selection `[T, top_k]`."""
        expect(self, "selection", (self.top_k.value.data,), shape(self.selection)[1:])


@irdl_op_definition
class AttentionOp(IRDLOperation):
    """Softmax with sink over the raw window (old rows, own rows) and, if given, compressed rows.

    Masks follow from positions only: the query at `p` sees `max(0, p-window+1) .. p` and rows
    `j < (p+1) // every`, of these only the selected ones if there is a selection.
    """

    name = "ds4.attention"
    q = operand_def(TensorType)
    sink = operand_def(TensorType)
    old = operand_def(OldRows)
    own = operand_def(TensorType)
    rows = opt_operand_def(StateType)
    selection = opt_operand_def(TensorType)
    at = operand_def(BlockType)
    scale = prop_def(FloatAttr)
    window = prop_def(Int)
    every = prop_def(Int)
    o = result_def(TensorType)
    traits = traits_def(
        Pure(), StateSymbolUser(ring=("old",), append=("rows",)), StateAccess(reads=("old", "rows"))
    )
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$q `,` $sink `raw` $old `own` $own (`rows` $rows^ `:` type($rows))? "
        "(`select` $selection^ `:` type($selection))? `at` $at attr-dict `:` type($q) `,` type($sink) `,` "
        "type($old) `,` type($own) `->` type($o)"
    )

    def verify_(self) -> None:
        """`q` `[T, H*D]` for sink `[H]` and rows of width D."""
        heads, width = shape(self.sink)[0], shape(self.own)[1]
        expect(self, "q", (heads * width,), shape(self.q)[1:])
        expect(self, "result", (heads * width,), shape(self.o)[1:])
        if (self.rows is None) != (self.every.value.data == 0):
            raise VerifyException(
                f"{self.name}: expected every = 0 exactly when there are no compressed rows"
            )
        if self.selection is not None and self.rows is None:
            raise VerifyException(f"{self.name}: a selection: expected compressed rows, got none")


@irdl_op_definition
class CallKernelOp(IRDLOperation):
    """Call of a kernel; the last level. Operands, states and results are in the order of the spec.

    SSA operands are the spec's activations, weights, blocks, row lists and the count; `buffers` names its
    ring and append states; `offsets` (from plan-buffers) are the addresses of all operands in their arenas.
    """

    name = "ds4.call_kernel"
    kernel = prop_def(StringAttr)
    spec = prop_def(StringAttr)
    buffers = prop_def(ArrayAttr[SymbolRefAttr])
    offsets = opt_prop_def(ArrayAttr[StringAttr])
    ins = var_operand_def()
    outs = var_result_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$kernel `(` $ins `)` `states` $buffers attr-dict `:` functional-type($ins, $outs)"

    @property
    def kernel_spec(self) -> KernelSpec:
        """The spec as data."""
        return KernelSpec.from_json(self.spec.data)

    def verify_(self) -> None:
        """The name is the digest of the spec."""
        want = self.kernel_spec.symbol
        if want != self.kernel.data:
            raise VerifyException(f"{self.name}: name: expected {want}, got {self.kernel.data}")


ATTENTION_OPS = (PoolOp, IndexScoresOp, SelectRowsOp, IndexSelectOp, AttentionOp, CallKernelOp)
