"""Ops of recurrent layers: short convolution, gates, gated delta rule, gated norm.

The rows before the block come from `ds4.read_rows` and are zero before position 0; the rows of the block go
back through `ds4.write`. So a recurrent layer needs no op of its own for state, and none for rewind. The
meaning of each op is the function of the same name in `ds4c.ir.numpy_recurrent_ops`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr, TensorType
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ds4c.ir.state_ops import Int
from ds4c.ir.tensor_ops import expect, shape
from ds4c.ir.types import BlockType

_FORMAT = "operands attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class CausalConvOp(IRDLOperation):
    """Silu of the convolution, channel by channel, of each row and the `K - 1` rows before it."""

    name = "ds4.causal_conv"
    old = operand_def(TensorType)
    own = operand_def(TensorType)
    taps = operand_def(TensorType)
    at = operand_def(BlockType)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """Old `[B, K-1, C]`, own `[T, C]`, taps `[K, C]` -> `[T, C]`."""
        taps, width = shape(self.taps)
        expect(self, "own", (width,), shape(self.own)[1:])
        expect(self, "old", (taps - 1, width), shape(self.old)[1:])
        expect(self, "result", (width,), shape(self.y)[1:])


@irdl_op_definition
class DeltaGatesOp(IRDLOperation):
    """What each head forgets and learns: `exp(-rate * softplus(a + bias))` and `sigmoid(b)`."""

    name = "ds4.delta_gates"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    rate = operand_def(TensorType)
    bias = operand_def(TensorType)
    decay = result_def(TensorType)
    beta = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, H]`, `[T, H]`, `[H]`, `[H]` -> `[T, H]` twice."""
        heads = shape(self.a)[1:]
        expect(self, "b", heads, shape(self.b)[1:])
        expect(self, "rate", heads, shape(self.rate))
        expect(self, "bias", heads, shape(self.bias))
        expect(self, "decay", heads, shape(self.decay)[1:])
        expect(self, "beta", heads, shape(self.beta)[1:])


@irdl_op_definition
class GatedDeltaOp(IRDLOperation):
    """Gated delta rule, token by token within a segment; yields outputs and the plane after every row.

    A plane is `[value heads, key channels, value channels]`, flat; `old` holds the one before the block.
    """

    name = "ds4.gated_delta"
    qkv = operand_def(TensorType)
    decay = operand_def(TensorType)
    beta = operand_def(TensorType)
    old = operand_def(TensorType)
    at = operand_def(BlockType)
    key_heads = prop_def(Int)
    key_width = prop_def(Int)
    eps = prop_def(FloatAttr)
    o = result_def(TensorType)
    planes = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`qkv` `[T, 2*Hk*K + Hv*V]`, gates `[T, Hv]`, old `[B, 1, Hv*K*V]` -> `[T, Hv*V]`, `[T, Hv*K*V]`."""
        heads, (width,) = shape(self.decay)[1], shape(self.o)[1:]
        key_heads, key_width = self.key_heads.value.data, self.key_width.value.data
        if heads % key_heads:
            raise VerifyException(
                f"{self.name}: value heads: expected a multiple of {key_heads} key heads, got {heads}"
            )
        if width % heads:
            raise VerifyException(
                f"{self.name}: expected outputs of whole channels for {heads} heads, got {width}"
            )
        expect(self, "beta", (heads,), shape(self.beta)[1:])
        expect(self, "qkv", (2 * key_heads * key_width + width,), shape(self.qkv)[1:])
        expect(self, "old", (1, key_width * width), shape(self.old)[1:])
        expect(self, "planes", (key_width * width,), shape(self.planes)[1:])


@irdl_op_definition
class GatedNormOp(IRDLOperation):
    """Root-mean-square norm of each head with one gain for all, times silu of the gate."""

    name = "ds4.gated_norm"
    x = operand_def(TensorType)
    gate = operand_def(TensorType)
    gain = operand_def(TensorType)
    eps = prop_def(FloatAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _FORMAT

    def verify_(self) -> None:
        """`[T, H*V]` twice, gain `[V]` -> `[T, H*V]`."""
        (width,), (each,) = shape(self.x)[1:], shape(self.gain)
        if width % each:
            raise VerifyException(
                f"{self.name}: expected a width divisible by the gain's {each}, got {width}"
            )
        expect(self, "gate", (width,), shape(self.gate)[1:])
        expect(self, "result", (width,), shape(self.y)[1:])


RECURRENT_OPS = (CausalConvOp, DeltaGatesOp, GatedDeltaOp, GatedNormOp)
