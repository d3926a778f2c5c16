"""Builds one function of a `ds4` module op by op, inferring result types.

One method an op; names and meanings are those of `ds4c.ir`. Knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    Float64Type,
    FloatAttr,
    FunctionType,
    StringAttr,
    TensorType,
    bf16,
    f32,
    f64,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ds4c.ir import attention_ops as ao
from ds4c.ir import recurrent_ops as ro
from ds4c.ir import state_ops as so
from ds4c.ir import tensor_ops as to
from ds4c.ir.types import BlockType, rows_tensor

ELEMENTS: Mapping[str, Attribute] = {"float32": f32, "bfloat16": bf16, "int32": i32, "float64": f64}


def float_attr(value: float) -> FloatAttr[Float64Type]:
    """A float64 attribute."""
    return FloatAttr(value, 64)


def int_attr(value: int) -> so.Int:
    """An int64 attribute."""
    return so.Int(value, 64)


class FunctionBuilder:
    """Appends ops to the body of a function.

    Args:
        arguments: types of the arguments by name; their values are `args[name]`.
        weights: IR weight name -> (dtype, shape).
    """

    def __init__(
        self, arguments: Mapping[str, Attribute], weights: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> None:
        self.block = Block(arg_types=list(arguments.values()))
        self.args = dict(zip(arguments, self.block.args, strict=True))
        for name, value in self.args.items():
            value.name_hint = name
        self._weights = weights
        self._loaded: dict[str, SSAValue] = {}

    def emit(self, op: Operation) -> tuple[SSAValue, ...]:
        """Append an op; its results."""
        self.block.add_op(op)
        return tuple(op.results)

    def _one(self, op: Operation) -> SSAValue:
        return self.emit(op)[0]

    def finish(self, name: str, results: Sequence[SSAValue]) -> func.FuncOp:
        """The function, returning `results`."""
        self.block.add_op(func.ReturnOp(*results))
        types = FunctionType.from_lists([a.type for a in self.block.args], [r.type for r in results])
        return func.FuncOp(name, types, Region(self.block))

    def weight(self, name: str) -> SSAValue:
        """A weight by IR name; one op per function however often it is asked for."""
        if name not in self._loaded:
            dtype, shape = self._weights[name]
            op = to.WeightOp(
                properties={"weight": StringAttr(name)}, result_types=[TensorType(ELEMENTS[dtype], shape)]
            )
            self._loaded[name] = self._one(op)
        return self._loaded[name]

    def weight_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight."""
        return self._weights[name][1]

    # ------------------------------------------------------------ blocks and states

    def windows(self, at: SSAValue, every: int) -> SSAValue:
        """Windows that close in a block."""
        return self._one(
            to.WindowsOp(operands=[at], properties={"every": int_attr(every)}, result_types=[BlockType()])
        )

    def open(self, state: str) -> SSAValue:
        """Current version of a state."""
        return self._one(so.OpenOp.of(state))

    def close(self, value: SSAValue) -> None:
        """Make a version the current one."""
        self.emit(so.CloseOp(operands=[value]))

    def read_rows(self, state: SSAValue, at: SSAValue, span: int, width: int) -> SSAValue:
        """Old rows of a ring, `[B, span, width]`."""
        return self._one(
            so.ReadRowsOp(
                operands=[state, at],
                properties={"span": int_attr(span)},
                result_types=[rows_tensor(span, width)],
            )
        )

    def write(self, state: SSAValue, rows: SSAValue, at: SSAValue) -> SSAValue:
        """Next version of a ring."""
        return self._one(so.WriteOp(operands=[state, rows, at], result_types=[state.type]))

    def compressor_step(
        self,
        rows: tuple[SSAValue, SSAValue],
        gain: SSAValue,
        table: SSAValue,
        states: tuple[SSAValue, SSAValue, SSAValue],
        at: SSAValue,
        windows: SSAValue,
        lanes: int,
        eps: float,
    ) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Next versions of a compressor's rings (kv, score) and rows."""
        op = so.CompressorStepOp(
            operands=[*rows, gain, table, *states, at, windows],
            properties={"lanes": int_attr(lanes), "eps": float_attr(eps)},
            result_types=[s.type for s in states],
        )
        kv, score, out = self.emit(op)
        return kv, score, out

    # ------------------------------------------------------------ tensor ops

    def embed(self, tokens: SSAValue, table: str, copies: int) -> SSAValue:
        """Embedding rows, repeated; `copies` 0 is one row without a dimension of copies."""
        width = self.weight_shape(table)[1]
        return self._one(
            to.EmbedOp(
                operands=[tokens, self.weight(table)],
                properties={"copies": int_attr(copies)},
                result_types=[rows_tensor(copies, width) if copies else rows_tensor(width)],
            )
        )

    def take_rows(self, x: SSAValue, rows: SSAValue) -> SSAValue:
        """Rows whose logits are wanted."""
        return self._one(to.TakeRowsOp(operands=[x, rows], result_types=[x.type]))

    def linear(self, x: SSAValue, weight: str) -> SSAValue:
        """Matrix product."""
        y = rows_tensor(self.weight_shape(weight)[0])
        return self._one(to.LinearOp(operands=[x, self.weight(weight)], result_types=[y]))

    def grouped_linear(self, x: SSAValue, weight: str, groups: int) -> SSAValue:
        """Matrix product by groups."""
        return self._one(
            to.GroupedLinearOp(
                operands=[x, self.weight(weight)],
                properties={"groups": int_attr(groups)},
                result_types=[rows_tensor(self.weight_shape(weight)[0])],
            )
        )

    def rms_norm(self, x: SSAValue, gain: str, eps: float) -> SSAValue:
        """Norm with gain."""
        return self._one(
            to.RmsNormOp(
                operands=[x, self.weight(gain)],
                properties={"eps": float_attr(eps)},
                result_types=[x.type],
            )
        )

    def head_norm(self, x: SSAValue, heads: int, eps: float) -> SSAValue:
        """Weightless norm of each head."""
        return self._one(
            to.HeadNormOp(
                operands=[x],
                properties={"heads": int_attr(heads), "eps": float_attr(eps)},
                result_types=[x.type],
            )
        )

    def rope_table(self, at: SSAValue, table: str) -> SSAValue:
        """Cosines and sines of a block, from weights `rope.<table>.coarse` and `.fine`."""
        coarse, fine = f"rope.{table}.coarse", f"rope.{table}.fine"
        return self._one(
            to.RopeTableOp(
                operands=[at, self.weight(coarse), self.weight(fine)],
                result_types=[rows_tensor(*self.weight_shape(fine)[1:])],
            )
        )

    def rope(self, x: SSAValue, table: SSAValue, heads: int, inverse: bool = False) -> SSAValue:
        """Rotation."""
        return self._one(
            to.RopeOp(
                operands=[x, table],
                properties={"heads": int_attr(heads), "inverse": int_attr(int(inverse))},
                result_types=[x.type],
            )
        )

    def add(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Sum."""
        return self._one(to.AddOp(operands=[x, y], result_types=[x.type]))

    def add_position_bias(self, x: SSAValue, bias: str, at: SSAValue) -> SSAValue:
        """Plus the bias row of the position."""
        return self._one(to.AddPositionBiasOp(operands=[x, self.weight(bias), at], result_types=[x.type]))

    def swiglu(self, gate: SSAValue, up: SSAValue, clamp: float) -> SSAValue:
        """Clamped SwiGLU."""
        return self._one(
            to.SwigluOp(
                operands=[gate, up], properties={"clamp": float_attr(clamp)}, result_types=[gate.type]
            )
        )

    def hc_mix(
        self, x: SSAValue, prefix: str, copies: int, iters: int, eps: float, norm_eps: float
    ) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Control vector from weights `<prefix>fn`, `base`, `scale`."""
        op = to.HcMixOp(
            operands=[x, *(self.weight(prefix + p) for p in ("fn", "base", "scale"))],
            properties={
                "iters": int_attr(iters),
                "eps": float_attr(eps),
                "norm_eps": float_attr(norm_eps),
            },
            result_types=[rows_tensor(copies), rows_tensor(copies), rows_tensor(copies, copies)],
        )
        pre, post, mix = self.emit(op)
        return pre, post, mix

    def hc_pre(self, x: SSAValue, pre: SSAValue, width: int) -> SSAValue:
        """Sublayer input."""
        return self._one(to.HcPreOp(operands=[x, pre], result_types=[rows_tensor(width)]))

    def hc_post(self, x: SSAValue, y: SSAValue, post: SSAValue, mix: SSAValue) -> SSAValue:
        """Next streams."""
        return self._one(to.HcPostOp(operands=[x, y, post, mix], result_types=[x.type]))

    def hc_collapse(self, x: SSAValue, prefix: str, width: int, eps: float, norm_eps: float) -> SSAValue:
        """One vector from the streams."""
        return self._one(
            to.HcCollapseOp(
                operands=[x, *(self.weight(prefix + p) for p in ("fn", "base", "scale"))],
                properties={"eps": float_attr(eps), "norm_eps": float_attr(norm_eps)},
                result_types=[rows_tensor(width)],
            )
        )

    # ------------------------------------------------------------ recurrent layers

    def causal_conv(self, old: SSAValue, own: SSAValue, taps: str, at: SSAValue) -> SSAValue:
        """Short convolution over old and own rows, then silu."""
        return self._one(ro.CausalConvOp(operands=[old, own, self.weight(taps), at], result_types=[own.type]))

    def delta_gates(self, a: SSAValue, b: SSAValue, rate: str, bias: str) -> tuple[SSAValue, SSAValue]:
        """Decay and step size of every head."""
        op = ro.DeltaGatesOp(
            operands=[a, b, self.weight(rate), self.weight(bias)], result_types=[a.type, b.type]
        )
        decay, beta = self.emit(op)
        return decay, beta

    def gated_delta(
        self,
        qkv: SSAValue,
        decay: SSAValue,
        beta: SSAValue,
        old: SSAValue,
        at: SSAValue,
        key_heads: int,
        key_width: int,
        value_width: int,
        eps: float,
    ) -> tuple[SSAValue, SSAValue]:
        """Gated delta rule: outputs of all heads, and the plane after every row."""
        op = ro.GatedDeltaOp(
            operands=[qkv, decay, beta, old, at],
            properties={
                "key_heads": int_attr(key_heads),
                "key_width": int_attr(key_width),
                "eps": float_attr(eps),
            },
            result_types=[rows_tensor(value_width), rows_tensor(key_width * value_width)],
        )
        o, planes = self.emit(op)
        return o, planes

    def gated_norm(self, x: SSAValue, gate: SSAValue, gain: str, eps: float) -> SSAValue:
        """Norm of each head with a gain, times silu of the gate."""
        return self._one(
            ro.GatedNormOp(
                operands=[x, gate, self.weight(gain)],
                properties={"eps": float_attr(eps)},
                result_types=[x.type],
            )
        )

    # ------------------------------------------------------------ attention and experts

    def select(
        self,
        q: SSAValue,
        weights: SSAValue,
        rows: SSAValue,
        at: SSAValue,
        every: int,
        scale: float,
        top_k: int,
    ) -> SSAValue:
        """Indexer: scores and selection."""
        scores = self._one(
            ao.IndexScoresOp(
                operands=[q, weights, rows, at],
                properties={"every": int_attr(every), "scale": float_attr(scale)},
                result_types=[rows_tensor(DYNAMIC_INDEX)],
            )
        )
        return self._one(
            ao.SelectRowsOp(
                operands=[scores, at],
                properties={"every": int_attr(every), "top_k": int_attr(top_k)},
                result_types=[rows_tensor(top_k, element=i32)],
            )
        )

    def attention(
        self,
        q: SSAValue,
        sink: str,
        old: SSAValue,
        own: SSAValue,
        at: SSAValue,
        scale: float,
        window: int,
        rows: SSAValue | None = None,
        selection: SSAValue | None = None,
        every: int = 0,
    ) -> SSAValue:
        """Attention over window and compressed rows."""
        optional = [[v] if v is not None else [] for v in (rows, selection)]
        return self._one(
            ao.AttentionOp(
                operands=[[q], [self.weight(sink)], [old], [own], *optional, [at]],
                properties={
                    "scale": float_attr(scale),
                    "window": int_attr(window),
                    "every": int_attr(every),
                },
                result_types=[q.type],
            )
        )

    def route_top(self, logits: SSAValue, bias: str, top_k: int, scale: float) -> tuple[SSAValue, SSAValue]:
        """Scored routing."""
        op = to.RouteTopOp(
            operands=[logits, self.weight(bias)],
            properties={"top_k": int_attr(top_k), "scale": float_attr(scale)},
            result_types=[rows_tensor(top_k, element=i32), rows_tensor(top_k)],
        )
        experts, weights = self.emit(op)
        return experts, weights

    def route_hash(
        self, logits: SSAValue, tokens: SSAValue, table: str, scale: float
    ) -> tuple[SSAValue, SSAValue]:
        """Routing by token id."""
        top_k = self.weight_shape(table)[1]
        op = to.RouteHashOp(
            operands=[logits, tokens, self.weight(table)],
            properties={"scale": float_attr(scale)},
            result_types=[rows_tensor(top_k, element=i32), rows_tensor(top_k)],
        )
        experts, weights = self.emit(op)
        return experts, weights

    def moe_experts(
        self, x: SSAValue, experts: SSAValue, weights: SSAValue, prefix: str, clamp: float
    ) -> SSAValue:
        """Sum of the chosen experts with weights `<prefix>w1`, `w3`, `w2`."""
        return self._one(
            to.MoeExpertsOp(
                operands=[x, experts, weights, *(self.weight(prefix + p) for p in ("w1", "w3", "w2"))],
                properties={"clamp": float_attr(clamp)},
                result_types=[x.type],
            )
        )
