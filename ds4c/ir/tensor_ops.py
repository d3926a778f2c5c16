"""Pure per-row ops of the `ds4` dialect: products, norms, rotation, hyper-connections, experts.

Every activation is `tensor<?xW..xf32>`; the `?` is the number of rows of the block (or of its windows, or
of the wanted logits), which `ds4c.passes.row_space` follows through the ops. The meaning of each op is the
function of the same name in `ds4c.ir.numpy_ops`, whose docstring gives formula and source.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, StringAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
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
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ds4c.ir.state_ops import Int
from ds4c.ir.types import BlockType, RowsType, shape_text, widths

_FORMAT = "operands attr-dict `:` functional-type(operands, results)"


def shape(value: SSAValue) -> tuple[int, ...]:
    """Shape of a tensor value."""
    assert isinstance(value.type, TensorType)
    return tuple(value.type.get_shape())


def expect(op: IRDLOperation, what: str, expected: Sequence[int], got: Sequence[int]) -> None:
    """Raise `op: what: expected [..], got [..]` unless the shapes are equal."""
    if tuple(expected) != tuple(got):
        raise VerifyException(f"{op.name}: {what}: expected {shape_text(expected)}, got {shape_text(got)}")


def _width(value: SSAValue) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return widths(value.type)


@irdl_op_definition
class WeightOp(IRDLOperation):
    """A tensor of the checkpoint by name; `layout` and `offset` are filled by passes."""

    name = "ds4.weight"
    weight = prop_def(StringAttr)
    layout = opt_prop_def(StringAttr)
    offset = opt_prop_def(Int)
    res = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$weight (`layout` $layout^)? (`offset` $offset^)? attr-dict `:` type($res)"


@irdl_op_definition
class WindowsOp(IRDLOperation):
    """The windows of `every` tokens that close in a block, as a block of their own."""

    name = "ds4.windows"
    at = operand_def(BlockType)
    every = prop_def(Int)
    windows = result_def(BlockType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT


@irdl_op_definition
class EmbedOp(IRDLOperation):
    """Embedding rows, repeated for every hyper-connection copy; `copies` 0: one row, no such dimension."""

    name = "ds4.embed"
    tokens = operand_def(TensorType)
    table = operand_def(TensorType)
    copies = prop_def(Int)
    x = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T]`, `[V, d]` -> `[T, copies, d]`, or `[T, d]`."""
        copies, width = self.copies.value.data, shape(self.table)[1]
        expect(self, "result", (copies, width) if copies else (width,), _width(self.x))


@irdl_op_definition
class TakeRowsOp(IRDLOperation):
    """Rows of the block whose logits are wanted."""

    name = "ds4.take_rows"
    x = operand_def(TensorType)
    rows = operand_def(RowsType)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Widths are kept."""
        expect(self, "result", _width(self.x), _width(self.y))


@irdl_op_definition
class LinearOp(IRDLOperation):
    """`y = x @ w.T`."""

    name = "ds4.linear"
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, K]`, `[N, K]` -> `[T, N]`."""
        expect(self, "w", (shape(self.w)[0], *_width(self.x)), shape(self.w))
        expect(self, "result", (shape(self.w)[0],), _width(self.y))


@irdl_op_definition
class MultiLinearOp(IRDLOperation):
    """Several `linear` of one input (made by `fuse-linear`)."""

    name = "ds4.multi_linear"
    x = operand_def(TensorType)
    w = var_operand_def(TensorType)
    y = var_result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """As `linear`, for each weight."""
        if len(self.w) != len(self.y):
            raise VerifyException(f"{self.name}: expected {len(self.w)} results, got {len(self.y)}")
        for w, y in zip(self.w, self.y, strict=True):
            expect(self, "w", (shape(w)[0], *_width(self.x)), shape(w))
            expect(self, "result", (shape(w)[0],), _width(y))


@irdl_op_definition
class GroupedLinearOp(IRDLOperation):
    """Row block `g` of the weight meets channel block `g` of the input."""

    name = "ds4.grouped_linear"
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    groups = prop_def(Int)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, G*K]`, `[G*N, K]` -> `[T, G*N]`."""
        groups = self.groups.value.data
        expect(self, "w", (shape(self.w)[0], _width(self.x)[0] // groups), shape(self.w))
        expect(self, "result", (shape(self.w)[0],), _width(self.y))


@irdl_op_definition
class GatedLinearOp(IRDLOperation):
    """`swiglu(x @ w1.T, x @ w3.T)` (made by `fuse-gated-linear`)."""

    name = "ds4.gated_linear"
    x = operand_def(TensorType)
    w1 = operand_def(TensorType)
    w3 = operand_def(TensorType)
    clamp = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, K]`, `[N, K]`, `[N, K]` -> `[T, N]`."""
        expect(self, "w1", (shape(self.w1)[0], *_width(self.x)), shape(self.w1))
        expect(self, "w3", shape(self.w1), shape(self.w3))
        expect(self, "result", (shape(self.w1)[0],), _width(self.y))


@irdl_op_definition
class SwigluOp(IRDLOperation):
    """`silu(min(gate, clamp)) * clip(up, -clamp, clamp)`."""

    name = "ds4.swiglu"
    gate = operand_def(TensorType)
    up = operand_def(TensorType)
    clamp = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Equal widths."""
        expect(self, "up", _width(self.gate), _width(self.up))
        expect(self, "result", _width(self.gate), _width(self.y))


@irdl_op_definition
class RmsNormOp(IRDLOperation):
    """Root-mean-square norm with a gain."""

    name = "ds4.rms_norm"
    x = operand_def(TensorType)
    gain = operand_def(TensorType)
    eps = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, d]`, `[d]` -> `[T, d]`."""
        expect(self, "gain", _width(self.x), shape(self.gain))
        expect(self, "result", _width(self.x), _width(self.y))


@irdl_op_definition
class HeadNormOp(IRDLOperation):
    """Weightless root-mean-square norm of each head."""

    name = "ds4.head_norm"
    x = operand_def(TensorType)
    heads = prop_def(Int)
    eps = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Width divisible by the heads."""
        width, heads = _width(self.x)[0], self.heads.value.data
        if width % heads:
            raise VerifyException(f"{self.name}: expected a width divisible by {heads} heads, got {width}")
        expect(self, "result", _width(self.x), _width(self.y))


@irdl_op_definition
class RopeTableOp(IRDLOperation):
    """Cosines and sines of the positions of a block, by angle sums in float64."""

    name = "ds4.rope_table"
    at = operand_def(BlockType)
    coarse = operand_def(TensorType)
    fine = operand_def(TensorType)
    table = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[A, 2, r/2]`, `[S, 2, r/2]` -> `[T, 2, r/2]`."""
        expect(self, "fine", shape(self.coarse)[1:], shape(self.fine)[1:])
        expect(self, "result", shape(self.coarse)[1:], _width(self.table))


@irdl_op_definition
class RopeOp(IRDLOperation):
    """Rotates adjacent pairs of the last channels of each head; `inverse` 1 rotates back."""

    name = "ds4.rope"
    x = operand_def(TensorType)
    table = operand_def(TensorType)
    heads = prop_def(Int)
    inverse = prop_def(Int)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Head width of at least the rotated channels."""
        width = _width(self.x)[0] // self.heads.value.data
        if width < 2 * _width(self.table)[1]:
            raise VerifyException(
                f"{self.name}: expected a head width of at least {2 * _width(self.table)[1]}, got {width}"
            )
        expect(self, "result", _width(self.x), _width(self.y))


@irdl_op_definition
class NormRopeOp(IRDLOperation):
    """`rope` of `rms_norm` (with gain, one head) or of `head_norm` (made by `fuse-norm-rope`)."""

    name = "ds4.norm_rope"
    x = operand_def(TensorType)
    gain = opt_operand_def(TensorType)
    table = operand_def(TensorType)
    heads = prop_def(Int)
    eps = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$x (`gain` $gain^ `:` type($gain))? `table` $table attr-dict `:` type($x) `,` type($table) "
        "`->` type($y)"
    )

    def verify_(self) -> None:
        """Widths are kept."""
        if self.gain is not None:
            expect(self, "gain", _width(self.x), shape(self.gain))
        expect(self, "result", _width(self.x), _width(self.y))


@irdl_op_definition
class AddOp(IRDLOperation):
    """Elementwise sum."""

    name = "ds4.add"
    x = operand_def(TensorType)
    y = operand_def(TensorType)
    z = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Equal widths."""
        expect(self, "y", _width(self.x), _width(self.y))
        expect(self, "result", _width(self.x), _width(self.z))


@irdl_op_definition
class AddPositionBiasOp(IRDLOperation):
    """Adds bias row `position mod R`."""

    name = "ds4.add_position_bias"
    x = operand_def(TensorType)
    bias = operand_def(TensorType)
    at = operand_def(BlockType)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Bias `[R, W]` for `[T, W]`."""
        expect(self, "bias", (shape(self.bias)[0], *_width(self.x)), shape(self.bias))
        expect(self, "result", _width(self.x), _width(self.y))


@irdl_op_definition
class HcMixOp(IRDLOperation):
    """Control vector of a hyper-connection site (with Sinkhorn)."""

    name = "ds4.hc_mix"
    x = operand_def(TensorType)
    fn = operand_def(TensorType)
    base = operand_def(TensorType)
    scale = operand_def(TensorType)
    iters = prop_def(Int)
    eps = prop_def(FloatAttr)
    norm_eps = prop_def(FloatAttr)
    pre = result_def(TensorType)
    post = result_def(TensorType)
    mix = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`fn` `[(2+n)*n, n*d]` for `x` `[T, n, d]`."""
        _expect_hc_mix(self)
        expect(self, "pre", _width(self.x)[:1], _width(self.pre))


@irdl_op_definition
class HcPreOp(IRDLOperation):
    """Sublayer input: `sum_j pre[j] * x[j]`."""

    name = "ds4.hc_pre"
    x = operand_def(TensorType)
    pre = operand_def(TensorType)
    u = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, n, d]`, `[T, n]` -> `[T, d]`."""
        expect(self, "pre", _width(self.x)[:1], _width(self.pre))
        expect(self, "result", _width(self.x)[1:], _width(self.u))


@irdl_op_definition
class HcEnterOp(IRDLOperation):
    """`hc_mix`, `hc_pre` and the norm of the sublayer input (made by `fuse-hc-enter`)."""

    name = "ds4.hc_enter"
    x = operand_def(TensorType)
    fn = operand_def(TensorType)
    base = operand_def(TensorType)
    scale = operand_def(TensorType)
    gain = operand_def(TensorType)
    iters = prop_def(Int)
    eps = prop_def(FloatAttr)
    norm_eps = prop_def(FloatAttr)
    h = result_def(TensorType)
    post = result_def(TensorType)
    mix = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """As `hc_mix`; gain `[d]`."""
        _expect_hc_mix(self)
        expect(self, "gain", _width(self.x)[1:], shape(self.gain))
        expect(self, "result", _width(self.x)[1:], _width(self.h))


def _expect_hc_mix(op: HcMixOp | HcEnterOp) -> None:
    """Weights of the mixing coefficients, and the two of them that both operations give."""
    n, d = _width(op.x)
    expect(op, "fn", ((2 + n) * n, n * d), shape(op.fn))
    expect(op, "base", ((2 + n) * n,), shape(op.base))
    expect(op, "scale", (3,), shape(op.scale))
    expect(op, "post", (n,), _width(op.post))
    expect(op, "mix", (n, n), _width(op.mix))


@irdl_op_definition
class HcPostOp(IRDLOperation):
    """Next streams: `post[k]*y + sum_j mix[j,k]*x[j]`."""

    name = "ds4.hc_post"
    x = operand_def(TensorType)
    y = operand_def(TensorType)
    post = operand_def(TensorType)
    mix = operand_def(TensorType)
    out = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, n, d]`, `[T, d]` -> `[T, n, d]`."""
        n, d = _width(self.x)
        expect(self, "y", (d,), _width(self.y))
        expect(self, "post", (n,), _width(self.post))
        expect(self, "mix", (n, n), _width(self.mix))
        expect(self, "result", (n, d), _width(self.out))


@irdl_op_definition
class HcCollapseOp(IRDLOperation):
    """Final collapse of the streams to one vector."""

    name = "ds4.hc_collapse"
    x = operand_def(TensorType)
    fn = operand_def(TensorType)
    base = operand_def(TensorType)
    scale = operand_def(TensorType)
    eps = prop_def(FloatAttr)
    norm_eps = prop_def(FloatAttr)
    h = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`fn` `[n, n*d]` for `x` `[T, n, d]`."""
        n, d = _width(self.x)
        expect(self, "fn", (n, n * d), shape(self.fn))
        expect(self, "base", (n,), shape(self.base))
        expect(self, "scale", (1,), shape(self.scale))
        expect(self, "result", (d,), _width(self.h))


@irdl_op_definition
class RouteTopOp(IRDLOperation):
    """Scored routing: bias selects, unbiased scores weigh."""

    name = "ds4.route_top"
    logits = operand_def(TensorType)
    bias = operand_def(TensorType)
    top_k = prop_def(Int)
    scale = prop_def(FloatAttr)
    experts = result_def(TensorType)
    weights = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, E]` -> `[T, k]` twice."""
        expect(self, "bias", _width(self.logits), shape(self.bias))
        expect(self, "experts", (self.top_k.value.data,), _width(self.experts))
        expect(self, "weights", (self.top_k.value.data,), _width(self.weights))


@irdl_op_definition
class RouteHashOp(IRDLOperation):
    """Routing by token id."""

    name = "ds4.route_hash"
    logits = operand_def(TensorType)
    tokens = operand_def(TensorType)
    table = operand_def(TensorType)
    scale = prop_def(FloatAttr)
    experts = result_def(TensorType)
    weights = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Table `[V, k]` -> `[T, k]` twice."""
        expect(self, "experts", shape(self.table)[1:], _width(self.experts))
        expect(self, "weights", shape(self.table)[1:], _width(self.weights))


@irdl_op_definition
class MoeExpertsOp(IRDLOperation):
    """Sum of the chosen experts of each row."""

    name = "ds4.moe_experts"
    x = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = operand_def(TensorType)
    w1 = operand_def(TensorType)
    w3 = operand_def(TensorType)
    w2 = operand_def(TensorType)
    clamp = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`w1`, `w3` `[E, I, d]`, `w2` `[E, d, I]`."""
        e, i, d = shape(self.w1)
        expect(self, "x", (d,), _width(self.x))
        expect(self, "weights", _width(self.experts), _width(self.weights))
        expect(self, "w3", (e, i, d), shape(self.w3))
        expect(self, "w2", (e, d, i), shape(self.w2))
        expect(self, "result", (d,), _width(self.y))


TENSOR_OPS = (
    WeightOp,
    WindowsOp,
    EmbedOp,
    TakeRowsOp,
    LinearOp,
    MultiLinearOp,
    GroupedLinearOp,
    GatedLinearOp,
    SwigluOp,
    RmsNormOp,
    HeadNormOp,
    RopeTableOp,
    RopeOp,
    NormRopeOp,
    AddOp,
    AddPositionBiasOp,
    HcMixOp,
    HcPreOp,
    HcEnterOp,
    HcPostOp,
    HcCollapseOp,
    RouteTopOp,
    RouteHashOp,
    MoeExpertsOp,
)
