"""The two drafters: the MTP block, which guesses one token further, and DSpark, which guesses five at once.

Both read the frozen main model and share its embedding and head. A drafter block is a layer without
compression whose raw window holds rows of the drafter itself.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layers
from layers import NEVER, NetworkConfig, Rope, rms_norm
from network import EAGER, Block, IndexerUse, Network, StreamHead, matrix, parameter

CAPTURED_LAYERS = (3, 4, 5)
"""Layers whose mean stream DSpark reads."""

BLOCK = 5
MARKOV_RANK = 32


class Drafter(nn.Module):
    """What both have: one block, a collapse of the streams, a norm before the shared head."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__()
        self.c = c
        self.block = Block(c, 0, by_hash=False)
        self.head = StreamHead(c)
        self.norm = nn.RMSNorm(c.hidden_size)

    def start_from(self, main: Network) -> None:
        """Copy the last layer, the part of its attention that has no compressor, and the final norm."""
        source = main.blocks()[-1].state_dict()
        self.block.load_state_dict({name: source[name] for name in self.block.state_dict()})
        self.norm.load_state_dict(main.model.norm.state_dict())

    def collapse(self, X: Tensor) -> Tensor:
        """`[..., n, d]` to `[..., d]`."""
        return layers.stream_collapse(X, dict(self.head.named_parameters()), self.c.eps)

    def window_rows(self, X: Tensor, rope: Rope) -> Tensor:
        """The raw rows `[B, T, D]` that the block makes of its input streams."""
        w = self.block.attention_weights()
        u, _, _ = layers.stream_read(X, dict(self.block.attn_hc.named_parameters()), self.c)
        return layers.raw_rows(rms_norm(u, self.block.input_layernorm.weight), w, rope)

    def stage(self, X: Tensor, positions: Tensor, context: Tensor, exists: Tensor, rope: Rope) -> Tensor:
        """Run the block on `Q` tokens of `N` places that see a context and each other, both ways.

        Args:
            X: Streams `[N, Q, n, d]`.
            positions: `[N, Q]`.
            context: Raw rows before the tokens `[N, K, D]`.
            exists: Which rows of the context are inside the sequence, `[N, K]`.
            rope: Tables of all positions.

        Returns:
            New streams `[N, Q, n, d]`.
        """
        c, block, w = self.c, self.block, self.block.attention_weights()
        N, Q = positions.shape
        here = rope.at(positions)
        u, write, M = layers.stream_read(X, dict(block.attn_hc.named_parameters()), c)
        h = rms_norm(u, block.input_layernorm.weight)
        _, q = layers.query(h, w, c, here)
        rows = torch.cat((context, layers.raw_rows(h, w, here)), 1)
        mask = torch.cat((exists, torch.ones(N, Q, dtype=torch.bool)), 1)
        scores = (q.reshape(N, Q * c.heads, -1) @ rows.transpose(1, 2)).view(
            N, Q, c.heads, -1
        ) * c.head_dim**-0.5
        sinks = w["sinks"].view(1, 1, c.heads, 1).expand(N, Q, c.heads, 1)
        weights = torch.softmax(
            torch.cat((scores.masked_fill(~mask.view(N, 1, 1, -1), NEVER), sinks), -1), -1
        )
        out = (weights[..., :-1].reshape(N, Q * c.heads, -1) @ rows).view(N, Q, c.heads, -1)
        y = layers.project_output(layers.rotate(out, here.reversed().per_head()), w, c)
        X = layers.stream_write(X, y, write, M)
        ffn_hc = dict(block.ffn_hc.named_parameters())
        f, write, M = layers.feed_forward_input(X, c, ffn_hc, block.post_attention_layernorm.weight)
        return layers.stream_write(X, block.mlp(f, None), write, M)


def gather_context(rows: Tensor, sequence: Tensor, first: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Rows at positions `[first, first + count)` of each place, `[N, count, D]`, and which of them exist."""
    positions = first.unsqueeze(1) + torch.arange(count)
    return rows[sequence.unsqueeze(1), positions.clamp(min=0)], positions >= 0


class Mtp(Drafter):
    """Multi-token prediction: streams of position p and token p + 1 give the token at p + 2."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__(c)
        d = c.hidden_size
        self.e_proj = matrix(d, d, std=0.3 * d**-0.5)
        self.h_proj = matrix(d, d)
        nn.init.eye_(self.h_proj.weight)
        self.enorm, self.hnorm = nn.RMSNorm(d), nn.RMSNorm(d)

    def start_from(self, main: Network) -> None:
        """As the base, and the collapse of the main model."""
        super().start_from(main)
        self.head.load_state_dict(main.model.hc_head.state_dict())

    def input(self, X: Tensor, tokens: Tensor, embedding: Tensor) -> Tensor:
        """Streams of the block from those of the main model and the next tokens."""
        embedded = self.e_proj(rms_norm(F.embedding(tokens, embedding), self.enorm.weight))
        return embedded.unsqueeze(-2) + self.h_proj(rms_norm(X, self.hnorm.weight))

    def depth_one(
        self, X: Tensor, next_tokens: Tensor, embedding: Tensor, rope: Rope
    ) -> tuple[Tensor, Tensor]:
        """Over whole sequences: input and output streams `[B, T, n, d]`."""
        entered = self.input(X, next_tokens, embedding)
        left, _ = self.block(entered, None, rope, EAGER, IndexerUse.OFF)
        return entered, left

    def deeper(
        self,
        X: Tensor,
        rows: Tensor,
        sequence: Tensor,
        position: Tensor,
        tokens: Tensor,
        embedding: Tensor,
        rope: Rope,
    ) -> tuple[Tensor, Tensor]:
        """One more guess: from streams `[N, n, d]` of `position` and the token at `position + 2`.

        Returns:
            Input streams `[N, 1, n, d]` and output streams `[N, n, d]` of position + 1.
        """
        W = self.c.window
        context, exists = gather_context(rows, sequence, position + 2 - W, W - 1)
        entered = self.input(X, tokens, embedding).unsqueeze(1)
        return entered, self.stage(entered, (position + 1).unsqueeze(1), context, exists, rope)[:, 0]

    def logits(self, X: Tensor, head: Tensor) -> Tensor:
        """Logits of the guess."""
        return rms_norm(self.collapse(X), self.norm.weight) @ head.t()


class DSpark(Drafter):
    """A block drafter: the last token and four noise tokens, denoised in one pass into five guesses."""

    def __init__(self, c: NetworkConfig) -> None:
        super().__init__(c)
        d = c.hidden_size
        self.main_proj = matrix(d, len(CAPTURED_LAYERS) * d)
        self.main_norm = nn.RMSNorm(d)
        self.markov_w1 = parameter(c.vocab_size, MARKOV_RANK, std=0.5)
        self.markov_w2 = parameter(c.vocab_size, MARKOV_RANK, std=0.05)
        self.confidence = nn.Parameter(torch.zeros(1, d + MARKOV_RANK))

    def context_rows(self, captured: list[Tensor], rope: Rope) -> Tensor:
        """Raw rows `[B, T, D]` made of the captured features."""
        w = self.block.attention_weights()
        mixed = rms_norm(self.main_proj(torch.cat(captured, -1)), self.main_norm.weight)
        return layers.raw_rows(mixed, w, rope)

    def features(
        self,
        rows: Tensor,
        sequence: Tensor,
        anchor: Tensor,
        known: Tensor,
        noise: int,
        embedding: Tensor,
        rope: Rope,
    ) -> Tensor:
        """Features `[N, BLOCK, d]` of the five slots after `anchor`, whose token is `known`."""
        c, N = self.c, len(anchor)
        ids = torch.full((N, BLOCK), noise)
        ids[:, 0] = known
        X = F.embedding(ids, embedding).unsqueeze(2).expand(N, BLOCK, c.streams, c.hidden_size)
        context, exists = gather_context(rows, sequence, anchor - c.window, c.window)
        positions = anchor.unsqueeze(1) + torch.arange(BLOCK)
        return self.collapse(self.stage(X, positions, context, exists, rope))

    def markov(self, tokens: Tensor) -> Tensor:
        """Embedding of the token before a slot, for the bias of its logits and its confidence."""
        return F.embedding(tokens, self.markov_w1)

    def logits(self, features: Tensor, before: Tensor, head: Tensor) -> Tensor:
        """Logits of each slot."""
        return rms_norm(features, self.norm.weight) @ head.t() + before @ self.markov_w2.t()

    def confidence_logit(self, features: Tensor, before: Tensor) -> Tensor:
        """Log-odds that the main model accepts the slot."""
        return (torch.cat((features, before), -1) @ self.confidence.t()).squeeze(-1)


# Names of a block in DeepSeek's own checkpoints, in the order in which the prefixes are tried.
_NATIVE_PREFIXES: Mapping[str, str] = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_a_proj": "attn.wq_a",
    "self_attn.q_a_norm": "attn.q_norm",
    "self_attn.q_b_proj": "attn.wq_b",
    "self_attn.kv_proj": "attn.wkv",
    "self_attn.kv_norm": "attn.kv_norm",
    "self_attn.o_a_proj": "attn.wo_a",
    "self_attn.o_b_proj": "attn.wo_b",
    "self_attn.sinks": "attn.attn_sink",
    "attn_hc.": "hc_attn_",
    "ffn_hc.": "hc_ffn_",
    "mlp.gate.weight": "ffn.gate.weight",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.shared_experts.gate_proj": "ffn.shared_experts.w1",
    "mlp.shared_experts.up_proj": "ffn.shared_experts.w3",
    "mlp.shared_experts.down_proj": "ffn.shared_experts.w2",
}

_NATIVE_OWN: Mapping[str, str] = {
    "head.hc_": "hc_head_",
    "markov_w": "markov_head.markov_w",
    "confidence": "confidence_head.proj",
}


def _native_block(block: Block, c: NetworkConfig) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for name, value in block.state_dict().items():
        if name == "mlp.experts.gate_up_proj":
            for expert in range(c.experts):
                named[f"ffn.experts.{expert}.w1.weight"] = value[expert, : c.expert_width]
                named[f"ffn.experts.{expert}.w3.weight"] = value[expert, c.expert_width :]
        elif name == "mlp.experts.down_proj":
            for expert in range(c.experts):
                named[f"ffn.experts.{expert}.w2.weight"] = value[expert]
        else:
            prefix = next(prefix for prefix in _NATIVE_PREFIXES if name.startswith(prefix))
            named[_NATIVE_PREFIXES[prefix] + name.removeprefix(prefix)] = value
    return named


def native_names(drafter: Drafter) -> dict[str, Tensor]:
    """All tensors of a drafter under the names of DeepSeek's own checkpoints (`mtp.0.`)."""
    named = _native_block(drafter.block, drafter.c)
    for name, value in drafter.state_dict().items():
        if name.startswith("block."):
            continue
        for own, native in _NATIVE_OWN.items():
            if name.startswith(own):
                name = native + name.removeprefix(own)
                break
        named[name if name.endswith(".weight") or name.startswith("hc_head") else name + ".weight"] = value
    return {f"mtp.0.{name}": value.contiguous() for name, value in named.items()}


def load_native(drafter: Drafter, tensors: Mapping[str, Tensor]) -> None:
    """Fill a drafter from tensors under native names; every name must match."""
    own = native_names(drafter)
    if own.keys() != tensors.keys():
        raise RuntimeError(f"drafter: expected equal names, got {sorted(own.keys() ^ tensors.keys())}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])  # a view of the parameter, slices of the stacked experts included
