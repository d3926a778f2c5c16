"""The demo model as torch modules whose parameter names are those of transformers' `DeepseekV4ForCausalLM`.

A state dict of `Network` therefore loads there and back without a table. The mathematics is in `layers.py`.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layers
from layers import NEVER, NetworkConfig, Rope, rms_norm


class IndexerUse(Enum):
    """What the indexer does in a forward pass."""

    OFF = 0
    """All visible rows take part; the indexer gets no loss."""

    LEARN = 1
    """All visible rows take part; the indexer learns their attention weights."""

    SELECT = 2
    """Only the best `index_topk` rows take part, as in inference; the indexer goes on learning."""


EAGER: dict[str, Callable[..., Any]] = {
    "attention_site": layers.attention_site,
    "feed_forward_input": layers.feed_forward_input,
    "stream_write": layers.stream_write,
}
"""The three parts of a block that are worth `torch.compile` (most of the time is in the streams)."""


def compiled() -> dict[str, Callable[..., Any]]:
    """The same parts compiled for fixed shapes; the first call takes minutes."""
    return {name: torch.compile(part, dynamic=False) for name, part in EAGER.items()}


def matrix(rows: int, columns: int, std: float | None = None) -> nn.Linear:
    """A projection without bias, normal with `std` (default: one over the root of its inputs)."""
    linear = nn.Linear(columns, rows, bias=False)
    nn.init.normal_(linear.weight, std=columns**-0.5 if std is None else std)
    return linear


def parameter(*shape: int, std: float) -> nn.Parameter:
    """A normally distributed parameter."""
    return nn.Parameter(torch.randn(shape) * std)


class Compressor(nn.Module):
    """Weights that turn a window of tokens into one row; overlapping windows use two sets of channels."""

    def __init__(self, c: NetworkConfig, ratio: int, width: int) -> None:
        super().__init__()
        channels = width * (2 if ratio == 4 else 1)
        self.kv_proj = matrix(channels, c.hidden_size)
        self.gate_proj = matrix(channels, c.hidden_size, std=0.02)
        self.kv_norm = nn.RMSNorm(width)
        self.position_bias = parameter(ratio, channels, std=0.1)


class Indexer(Compressor):
    """A compressor of its own for index keys, the index queries and the head weights."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__(c, 4, c.index_dim)
        self.q_b_proj = matrix(c.index_heads * c.index_dim, c.query_rank)
        self.scorer = nn.Module()
        self.scorer.weights_proj = matrix(c.index_heads, c.hidden_size)


class Attention(nn.Module):
    """Weights of the attention of one layer."""

    def __init__(self, c: NetworkConfig, ratio: int) -> None:
        super().__init__()
        out_rank = c.output_groups * c.output_rank
        self.q_a_proj = matrix(c.query_rank, c.hidden_size)
        self.q_a_norm = nn.RMSNorm(c.query_rank)
        self.q_b_proj = matrix(c.heads * c.head_dim, c.query_rank)
        self.kv_proj = matrix(c.head_dim, c.hidden_size)
        self.kv_norm = nn.RMSNorm(c.head_dim)
        self.o_a_proj = matrix(out_rank, c.heads * c.head_dim // c.output_groups)
        self.o_b_proj = matrix(c.hidden_size, out_rank, std=0.3 * out_rank**-0.5)
        self.sinks = nn.Parameter(torch.zeros(c.heads))
        if ratio:
            self.compressor = Compressor(c, ratio, c.head_dim)
        if ratio == 4:
            self.compressor.indexer = Indexer(c)


class StreamSite(nn.Module):
    """Control of one site of the hyper-connections.

    The mixing matrix starts near the identity and the read and write weights differ between streams: with
    zeros all streams would start equal and stay equal for long.
    """

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        n = c.streams
        self.fn = parameter((2 + n) * n, n * c.hidden_size, std=0.02)
        self.base = nn.Parameter(torch.cat((0.5 * torch.randn(2 * n), 2.5 * torch.eye(n).flatten())))
        self.scale = nn.Parameter(torch.full((3,), 0.5))


class StreamHead(nn.Module):
    """Control of the last collapse of the streams."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        self.hc_fn = parameter(c.streams, c.streams * c.hidden_size, std=0.02)
        self.hc_base = nn.Parameter(torch.zeros(c.streams))
        self.hc_scale = nn.Parameter(torch.full((1,), 0.5))


class Router(nn.Module):
    """Scores of the experts; a hash layer picks them by token id, the others by score plus bias."""

    tid2eid: Tensor
    e_score_correction_bias: Tensor

    def __init__(self, c: NetworkConfig, by_hash: bool) -> None:
        super().__init__()
        self.weight = parameter(c.experts, c.hidden_size, std=c.hidden_size**-0.5)
        if by_hash:
            self.register_buffer("tid2eid", torch.zeros(c.vocab_size, c.experts_per_token, dtype=torch.long))
        else:
            self.register_buffer("e_score_correction_bias", torch.zeros(c.experts))


class Experts(nn.Module):
    """The routed experts as two stacked tensors."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        self.gate_up_proj = parameter(c.experts, 2 * c.expert_width, c.hidden_size, std=c.hidden_size**-0.5)
        self.down_proj = parameter(c.experts, c.hidden_size, c.expert_width, std=0.3 * c.expert_width**-0.5)


class SharedExpert(nn.Module):
    """The expert that every token runs through."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        self.gate_proj = matrix(c.expert_width, c.hidden_size)
        self.up_proj = matrix(c.expert_width, c.hidden_size)
        self.down_proj = matrix(c.hidden_size, c.expert_width, std=0.3 * c.expert_width**-0.5)


class MixtureOfExperts(nn.Module):
    """Routed experts plus the shared one; keeps how many tokens each expert got in the last pass."""

    load: Tensor

    def __init__(self, c: NetworkConfig, by_hash: bool) -> None:
        super().__init__()
        self.c, self.by_hash = c, by_hash
        self.gate = Router(c, by_hash)
        self.experts = Experts(c)
        self.shared_experts = SharedExpert(c)

    def route(self, x: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Expert numbers and weights `[tokens, experts_per_token]`; the bias chooses, the score weighs."""
        scores = torch.sqrt(F.softplus(x @ self.gate.weight.t()) + 1e-12)
        if self.by_hash:
            assert ids is not None
            chosen = self.gate.tid2eid[ids.reshape(-1)]
        else:
            biased = scores.detach() + self.gate.e_score_correction_bias
            chosen = biased.topk(self.c.experts_per_token, -1)[1]
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.c.routed_scale

    def forward(self, h: Tensor, ids: Tensor | None) -> Tensor:
        """`[B, T, d]` to `[B, T, d]`; `ids` are needed in hash layers only."""
        c, x = self.c, h.reshape(-1, h.shape[-1])
        chosen, weights = self.route(x, ids)
        order = chosen.reshape(-1).argsort()
        token = order // c.experts_per_token
        self.load = torch.bincount(chosen.reshape(-1), minlength=c.experts)
        outputs: list[Tensor] = []
        for expert, inputs in enumerate(x.index_select(0, token).split(self.load.tolist())):
            gate_up = inputs @ self.experts.gate_up_proj[expert].t()
            gate, up = gate_up[:, : c.expert_width], gate_up[:, c.expert_width :]
            outputs.append(layers.swiglu(gate, up, c.swiglu_limit) @ self.experts.down_proj[expert].t())
        weighted = torch.cat(outputs) * weights.reshape(-1).index_select(0, order).unsqueeze(1)
        routed = torch.zeros_like(x).index_add(0, token, weighted)
        shared = self.shared_experts
        inner = layers.swiglu(shared.gate_proj(x), shared.up_proj(x), c.swiglu_limit)
        return (routed + shared.down_proj(inner)).view_as(h)


class Block(nn.Module):
    """One layer: attention site and expert site on the residual streams."""

    def __init__(self, c: NetworkConfig, ratio: int, by_hash: bool) -> None:
        super().__init__()
        self.c, self.ratio = c, ratio
        self.self_attn = Attention(c, ratio)
        self.mlp = MixtureOfExperts(c, by_hash)
        self.attn_hc, self.ffn_hc = StreamSite(c), StreamSite(c)
        self.input_layernorm = nn.RMSNorm(c.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size)

    def attention_weights(self) -> dict[str, Tensor]:
        """Parameters of the attention by name, as the functions of `layers.py` take them."""
        return dict(self.self_attn.named_parameters())

    def select(self, X: Tensor, rope: Rope) -> tuple[Tensor, Tensor | None]:
        """Index scores `[B, T, N]`, and the additive mask of the best rows (None while all rows fit)."""
        c, w = self.c, self.attention_weights()
        with torch.no_grad():
            u, _, _ = layers.stream_read(X, dict(self.attn_hc.named_parameters()), c)
            h = rms_norm(u, self.input_layernorm.weight)
            low_rank = rms_norm(h @ w["q_a_proj.weight"].t(), w["q_a_norm.weight"])
        scores = layers.index_scores(h, low_rank, w, c, rope)
        T, N = scores.shape[1:]
        if N <= c.index_topk:
            return scores, None
        visible = scores.detach().masked_fill(~layers.visible_rows(T, N, 4), NEVER)
        threshold = visible.topk(c.index_topk, -1)[0][..., -1:]
        return scores, torch.where(visible >= threshold, 0.0, NEVER)

    def index_loss(self, scores: Tensor, row_weights: Tensor, selection: Tensor | None) -> Tensor:
        """KL divergence from the attention weights of the compressed rows to the index scores.

        Top-k has no gradient, so this is all that the indexer learns from. The first eight positions, which
        see at most two rows, are left out.
        """
        B, T, N = scores.shape
        target = row_weights.detach().transpose(2, 3).reshape(B, T, self.c.heads, N).sum(2)
        target = target / (target.sum(-1, keepdim=True) + 1e-9)
        scores = scores.masked_fill(~layers.visible_rows(T, N, 4), NEVER)
        log_probabilities = torch.log_softmax(scores if selection is None else scores + selection, -1)
        return (target * ((target + 1e-9).log() - log_probabilities)).sum(-1)[:, 8:].mean()

    def forward(
        self, X: Tensor, ids: Tensor | None, rope: Rope, parts: dict[str, Callable[..., Any]], use: IndexerUse
    ) -> tuple[Tensor, Tensor | None]:
        """New streams `[B, T, n, d]` and the index loss of a ratio-4 layer."""
        c, w, scores, selection, loss = self.c, self.attention_weights(), None, None, None
        has_indexer = self.ratio == 4
        if has_indexer and use is IndexerUse.SELECT:
            scores, selection = self.select(X, rope)
        attention_hc = dict(self.attn_hc.named_parameters())
        norm = self.input_layernorm.weight
        out = parts["attention_site"](X, self.ratio, c, w, attention_hc, norm, rope, selection)
        if has_indexer and use is not IndexerUse.OFF:
            if scores is None:
                scores = layers.index_scores(out.normed.detach(), out.low_rank.detach(), w, c, rope)
            loss = self.index_loss(scores, out.row_weights, selection)
        ffn_hc = dict(self.ffn_hc.named_parameters())
        f, write, M = parts["feed_forward_input"](
            out.streams, c, ffn_hc, self.post_attention_layernorm.weight
        )
        return parts["stream_write"](out.streams, self.mlp(f, ids), write, M), loss


class Trunk(nn.Module):
    """Everything but the output head (transformers calls it `model`)."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(Block(c, ratio, i < c.hash_layers) for i, ratio in enumerate(c.ratios))
        self.hc_head = StreamHead(c)
        self.norm = nn.RMSNorm(c.hidden_size)


class Output(NamedTuple):
    """Result of a forward pass over whole sequences."""

    logits: Tensor
    index_losses: list[Tensor]
    streams: Tensor
    captured: list[Tensor]


class Network(nn.Module):
    """The whole model."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        self.lm_head = matrix(c.vocab_size, c.hidden_size)
        self.parts: dict[str, Callable[..., Any]] = dict(EAGER)
        self._ropes: dict[int, tuple[Rope, Rope]] = {}

    def blocks(self) -> list[Block]:
        """The layers, with their type."""
        return [block for block in self.model.layers if isinstance(block, Block)]

    def ropes(self, tokens: int) -> tuple[Rope, Rope]:
        """Rotations of positions 0 .. tokens - 1: of layers without compression, and of those with."""
        if tokens not in self._ropes:
            c, positions = self.c, torch.arange(tokens, dtype=torch.float64).view(-1, 1)
            plain = layers.inverse_frequencies(c.rope_dim, c.rope_theta)
            yarn = layers.inverse_frequencies(
                c.rope_dim, c.compress_rope_theta, (c.yarn_original, c.yarn_factor)
            )
            tables = [
                Rope((positions * f).cos().float(), (positions * f).sin().float()) for f in (plain, yarn)
            ]
            self._ropes[tokens] = (tables[0], tables[1])
        return self._ropes[tokens]

    def forward(self, ids: Tensor, use: IndexerUse = IndexerUse.OFF, capture: Sequence[int] = ()) -> Output:
        """Run whole sequences `[B, T]` from position 0; T is a multiple of the window and of every ratio.

        `capture` names the layers whose mean stream is returned (the drafters read them).
        """
        B, T = ids.shape
        plain, compressed = self.ropes(T)
        X = self.model.embed_tokens(ids).unsqueeze(2).expand(B, T, self.c.streams, self.c.hidden_size)
        losses: list[Tensor] = []
        captured: list[Tensor] = []
        for i, block in enumerate(self.blocks()):
            X, loss = block(X, ids, compressed if block.ratio else plain, self.parts, use)
            if loss is not None:
                losses.append(loss)
            if i in capture:
                captured.append(X.mean(2))
        h = layers.stream_collapse(X, dict(self.model.hc_head.named_parameters()), self.c.eps)
        return Output(self.lm_head(rms_norm(h, self.model.norm.weight)), losses, X, captured)
