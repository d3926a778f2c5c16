"""DeepSeek-V4 as a `ds4` module: its states with their contracts, and the step function.

Source of every formula: DeepSeek's reference inference code and transformers `deepseek_v4`
(`modeling_deepseek_v4.py`); where they differ in rounding only, float32 without simulated
quantisation (the transformers form) is built. How a state is rewound is not said here: it follows
from kind and read set.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ds4c.ir.state_ops import StateOp
from ds4c.ir.types import BlockType, RowsType, StateKind, rows_tensor
from ds4c.models.builder import FunctionBuilder
from ds4c.models.config import ModelConfig
from ds4c.models.ir_weights import IrWeight


def _p() -> AffineExpr:
    return AffineExpr.dimension(0)


def raw_reads(window: int) -> AffineMap:
    """The query at `p` reads positions `p - window + 1 .. p`."""
    return AffineMap(1, 0, (_p() - (window - 1), _p()))


def roll_reads(every: int, lanes: int) -> AffineMap:
    """A closing window reads its own rows, with two lanes also those of the window before it."""
    return AffineMap(1, 0, ((_p() // every) * every - every * (lanes - 1), _p()))


def append_reads(every: int) -> AffineMap:
    """The query at `p` reads rows `0 .. (p + 1) // every - 1`."""
    return AffineMap(1, 0, (AffineExpr.constant(0), (_p() + 1) // every - 1))


def declare_states(config: ModelConfig) -> list[StateOp]:
    """States of one session, layer by layer; then the host states."""
    out: list[StateOp] = []
    for i in range(config.num_hidden_layers):
        ratio, lanes = config.ratio(i), config.lanes(i)
        raw = rows_tensor(config.head_dim)
        out.append(StateOp.make(f"l{i}.raw", StateKind.RING, raw, 1, raw_reads(config.sliding_window)))
        if ratio:
            out += _compressor_states(f"l{i}.", ratio, lanes, config.head_dim)
        if config.has_indexer(i):
            out += _compressor_states(f"l{i}.index_", ratio, lanes, config.index_head_dim)
    out.append(StateOp.make("history", StateKind.HOST, rows_tensor(1, element=i32), 1, None))
    out.append(StateOp.make("logits", StateKind.HOST, rows_tensor(config.vocab_size), 1, None))
    return out


def _compressor_states(prefix: str, every: int, lanes: int, width: int) -> list[StateOp]:
    roll = rows_tensor(lanes * width)
    return [
        StateOp.make(f"{prefix}kv", StateKind.RING, roll, every, roll_reads(every, lanes)),
        StateOp.make(f"{prefix}score", StateKind.RING, roll, every, roll_reads(every, lanes)),
        StateOp.make(f"{prefix}rows", StateKind.APPEND, rows_tensor(width), every, append_reads(every)),
    ]


@dataclass(frozen=True)
class _Shared:
    """Values that all layers use: windows and rope tables of the block."""

    tables: dict[str, SSAValue]
    windows: dict[int, SSAValue]
    window_tables: dict[int, SSAValue]


def build_module(config: ModelConfig, weights: dict[str, IrWeight]) -> ModuleOp:
    """Module with all states and `@step(tokens, at, logit_rows) -> logits [n, V]`."""
    table = {name: (w.dtype, w.shape) for name, w in weights.items()}
    ops: list[Operation] = [*declare_states(config), _Step(config, table).build()]
    return ModuleOp(ops)


class _Step:
    """Builds the step function of one model."""

    def __init__(self, config: ModelConfig, weights: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        self.config = config
        arguments = {"tokens": rows_tensor(element=i32), "at": BlockType(), "logit_rows": RowsType()}
        self.b = FunctionBuilder(arguments, weights)
        self.at = self.b.args["at"]
        self.tokens = self.b.args["tokens"]

    def build(self) -> func.FuncOp:
        c, b = self.config, self.b
        x = b.embed(self.tokens, "embed.weight", c.hc_mult)
        self.shared = self._shared()
        for layer in range(c.num_hidden_layers):
            x = self._layer(layer, x)
        x = b.take_rows(x, b.args["logit_rows"])
        h = b.hc_collapse(x, "hc_head_", c.hidden_size, c.hc_eps, c.rms_norm_eps)
        logits = b.linear(b.rms_norm(h, "norm.weight", c.rms_norm_eps), "head.weight")
        return b.finish("step", [logits])

    def _shared(self) -> _Shared:
        ratios = sorted({r for r in self.config.compress_ratios if r})
        kinds = {"compress" if r else "main" for r in self.config.compress_ratios}
        tables = {kind: self.b.rope_table(self.at, kind) for kind in sorted(kinds)}
        windows = {r: self.b.windows(self.at, r) for r in ratios}
        window_tables = {r: self.b.rope_table(windows[r], "compress") for r in ratios}
        return _Shared(tables, windows, window_tables)

    def _layer(self, layer: int, x: SSAValue) -> SSAValue:
        x = self._site(layer, x, "attn")
        return self._site(layer, x, "ffn")

    def _site(self, layer: int, x: SSAValue, site: str) -> SSAValue:
        """One hyper-connection site around attention or experts."""
        c, b, p = self.config, self.b, f"layers.{layer}."
        pre, post, mix = b.hc_mix(
            x, f"{p}hc_{site}_", c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps
        )
        h = b.rms_norm(b.hc_pre(x, pre, c.hidden_size), f"{p}{site}_norm.weight", c.rms_norm_eps)
        y = self._attention(layer, h) if site == "attn" else self._experts(layer, h)
        return b.hc_post(x, y, post, mix)

    def _attention(self, layer: int, h: SSAValue) -> SSAValue:
        c, b, p = self.config, self.b, f"layers.{layer}.attn."
        heads, ratio = c.num_attention_heads, c.ratio(layer)
        table = self.shared.tables["compress" if ratio else "main"]
        qr = b.rms_norm(b.linear(h, p + "wq_a.weight"), p + "q_norm.weight", c.rms_norm_eps)
        q = b.rope(b.head_norm(b.linear(qr, p + "wq_b.weight"), heads, c.rms_norm_eps), table, heads)
        kv = b.rms_norm(b.linear(h, p + "wkv.weight"), p + "kv_norm.weight", c.rms_norm_eps)
        kv = b.rope(kv, table, 1)
        rows = self._compressor(layer, h, f"l{layer}.", p + "compressor.") if ratio else None
        selection = self._indexer(layer, h, qr, table) if c.has_indexer(layer) else None
        raw = b.open(f"l{layer}.raw")
        old = b.read_rows(raw, self.at, c.sliding_window - 1, c.head_dim)
        o = b.attention(
            q, p + "attn_sink", old, kv, self.at, c.head_dim**-0.5, c.sliding_window, rows, selection, ratio
        )
        b.close(b.write(raw, kv, self.at))
        o = b.rope(o, table, heads, inverse=True)
        return b.linear(b.grouped_linear(o, p + "wo_a.weight", c.o_groups), p + "wo_b.weight")

    def _compressor(self, layer: int, h: SSAValue, states: str, prefix: str) -> SSAValue:
        """Advances one compressor; the new version of its rows, which may be read at once."""
        b, ratio = self.b, self.config.ratio(layer)
        k = b.linear(h, prefix + "wkv.weight")
        s = b.add_position_bias(b.linear(h, prefix + "wgate.weight"), prefix + "ape", self.at)
        kv, score, rows = (b.open(states + n) for n in ("kv", "score", "rows"))
        kv, score, rows = b.compressor_step(
            (k, s),
            b.weight(prefix + "norm.weight"),
            self.shared.window_tables[ratio],
            (kv, score, rows),
            self.at,
            self.shared.windows[ratio],
            self.config.lanes(layer),
            self.config.rms_norm_eps,
        )
        for value in (kv, score, rows):
            b.close(value)
        return rows

    def _indexer(self, layer: int, h: SSAValue, qr: SSAValue, table: SSAValue) -> SSAValue:
        c, b, p = self.config, self.b, f"layers.{layer}.attn.indexer."
        rows = self._compressor(layer, h, f"l{layer}.index_", p + "compressor.")
        q = b.rope(b.linear(qr, p + "wq_b.weight"), table, c.index_n_heads)
        scale = c.index_head_dim**-0.5 * c.index_n_heads**-0.5
        weights = b.linear(h, p + "weights_proj.weight")
        return b.select(q, weights, rows, self.at, c.ratio(layer), scale, c.index_topk)

    def _experts(self, layer: int, h: SSAValue) -> SSAValue:
        c, b, p = self.config, self.b, f"layers.{layer}.ffn."
        logits = b.linear(h, p + "gate.weight")
        if c.is_hash(layer):
            chosen = b.route_hash(logits, self.tokens, p + "gate.tid2eid", c.routed_scaling_factor)
        else:
            chosen = b.route_top(logits, p + "gate.bias", c.num_experts_per_tok, c.routed_scaling_factor)
        routed = b.moe_experts(h, *chosen, p + "experts.", c.swiglu_limit)
        s = p + "shared_experts."
        gate, up = b.linear(h, s + "w1.weight"), b.linear(h, s + "w3.weight")
        shared = b.linear(b.swiglu(gate, up, c.swiglu_limit), s + "w2.weight")
        return b.add(routed, shared)
