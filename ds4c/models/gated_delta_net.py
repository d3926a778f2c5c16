"""A gated delta net as a `ds4` module: a model whose state is one matrix a head, replaced by every token.

Source of every formula and shape: transformers `qwen3_next` (`modeling_qwen3_next.py`), restricted to its
`linear_attention` layers with a dense MLP; the recurrence is that of "Gated Delta Networks: Improving Mamba2
with Delta Rule" (2024). Tokens are taken one by one (`torch_recurrent_gated_delta_rule` there), so results do
not depend on how a prompt is cut into steps.

The state of a layer cannot be cut: it is declared opaque, one plane of all heads per token, and the query at
`p` reads the plane of `p - 1`. How it is rewound is not said here: it follows from kind and read set. A
step holds one plane per row in its workspace, which suits a small model.
"""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ds4c.ir.state_ops import StateOp
from ds4c.ir.types import BlockType, RowsType, StateKind, rows_tensor
from ds4c.models.builder import FunctionBuilder
from ds4c.models.gated_delta_config import GatedDeltaConfig
from ds4c.models.ir_weights import IrWeight

L2_EPS = 1e-6
"""Added to the square sum of a query or key before its root; fixed in the source."""
NO_CLAMP = 3.0e38
"""SwiGLU of this family has no limit; one near the largest float32 never acts."""


def past_reads(first: int, last: int) -> AffineMap:
    """The query at `p` reads the rows of positions `p - first .. p - last`."""
    p = AffineExpr.dimension(0)
    return AffineMap(1, 0, (p - first, p - last))


def declare_states(config: GatedDeltaConfig) -> list[StateOp]:
    """States of one session, layer by layer; then the host states."""
    out: list[StateOp] = []
    conv, plane = rows_tensor(config.conv_width), rows_tensor(config.plane_width)
    reach = past_reads(config.linear_conv_kernel_dim - 1, 0)
    for i in range(config.num_hidden_layers):
        out.append(StateOp.make(f"l{i}.conv", StateKind.RING, conv, 1, reach))
        out.append(StateOp.make(f"l{i}.delta", StateKind.OPAQUE, plane, 1, past_reads(1, 1)))
    out.append(StateOp.make("history", StateKind.HOST, rows_tensor(1, element=i32), 1, None))
    out.append(StateOp.make("logits", StateKind.HOST, rows_tensor(config.vocab_size), 1, None))
    return out


def build_module(config: GatedDeltaConfig, weights: dict[str, IrWeight]) -> ModuleOp:
    """Module with all states and `@step(tokens, at, logit_rows) -> logits [n, V]`."""
    table = {name: (w.dtype, w.shape) for name, w in weights.items()}
    ops: list[Operation] = [*declare_states(config), _Step(config, table).build()]
    return ModuleOp(ops)


class _Step:
    """Builds the step function of one model."""

    def __init__(self, config: GatedDeltaConfig, weights: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        self.config = config
        arguments = {"tokens": rows_tensor(element=i32), "at": BlockType(), "logit_rows": RowsType()}
        self.b = FunctionBuilder(arguments, weights)
        self.at = self.b.args["at"]

    def build(self) -> func.FuncOp:
        c, b = self.config, self.b
        x = b.embed(b.args["tokens"], "embed", 0)
        for layer in range(c.num_hidden_layers):
            p = f"layers.{layer}."
            x = b.add(x, self._net(layer, b.rms_norm(x, p + "input_norm", c.rms_norm_eps)))
            x = b.add(x, self._mlp(p, b.rms_norm(x, p + "mlp_norm", c.rms_norm_eps)))
        x = b.take_rows(x, b.args["logit_rows"])
        return b.finish("step", [b.linear(b.rms_norm(x, "norm", c.rms_norm_eps), "head")])

    def _net(self, layer: int, h: SSAValue) -> SSAValue:
        """Projections, short convolution, gated delta rule, gated norm, output projection."""
        c, b, p = self.config, self.b, f"layers.{layer}."
        raw, z = b.linear(h, p + "qkv"), b.linear(h, p + "z")
        decay, beta = b.delta_gates(b.linear(h, p + "a"), b.linear(h, p + "b"), p + "rate", p + "rate_bias")
        conv = b.open(f"l{layer}.conv")
        old = b.read_rows(conv, self.at, c.linear_conv_kernel_dim - 1, c.conv_width)
        qkv = b.causal_conv(old, raw, p + "conv", self.at)
        b.close(b.write(conv, raw, self.at))
        delta = b.open(f"l{layer}.delta")
        before = b.read_rows(delta, self.at, 1, c.plane_width)
        sizes = (c.linear_num_key_heads, c.linear_key_head_dim, c.value_width)
        o, planes = b.gated_delta(qkv, decay, beta, before, self.at, *sizes, L2_EPS)
        b.close(b.write(delta, planes, self.at))
        return b.linear(b.gated_norm(o, z, p + "net_norm", c.rms_norm_eps), p + "out")

    def _mlp(self, prefix: str, h: SSAValue) -> SSAValue:
        b = self.b
        hidden = b.swiglu(b.linear(h, prefix + "gate"), b.linear(h, prefix + "up"), NO_CLAMP)
        return b.linear(hidden, prefix + "down")
