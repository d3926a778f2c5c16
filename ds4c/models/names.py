"""Names of DeepSeek-V4 tensors: every known spelling mapped to the native one.

Three spellings exist: native (the published files), what `save_pretrained` of transformers writes
(native with a `model.` prefix and four differences), and the module names of a loaded transformers
model (experts fused into two tensors). Files and shapes are not looked at here.
"""

import re
from dataclasses import dataclass

_TOP_ALIASES = {
    "embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "hc_head.hc_fn": "hc_head_fn",
    "hc_head.hc_base": "hc_head_base",
    "hc_head.hc_scale": "hc_head_scale",
}

_LAYER_ALIASES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{
        f"{site}_hc.{leaf}": f"hc_{site}_{leaf}"
        for site in ("attn", "ffn")
        for leaf in ("fn", "base", "scale")
    },
    # save_pretrained renames every `.kv_norm.` to `.norm.`, also the one outside a compressor.
    "attn.norm.weight": "attn.kv_norm.weight",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.q_a_proj.weight": "attn.wq_a.weight",
    "self_attn.q_a_norm.weight": "attn.q_norm.weight",
    "self_attn.q_b_proj.weight": "attn.wq_b.weight",
    "self_attn.kv_proj.weight": "attn.wkv.weight",
    "self_attn.kv_norm.weight": "attn.kv_norm.weight",
    "self_attn.o_a_proj.weight": "attn.wo_a.weight",
    "self_attn.o_b_proj.weight": "attn.wo_b.weight",
    "self_attn.compressor.kv_proj.weight": "attn.compressor.wkv.weight",
    "self_attn.compressor.gate_proj.weight": "attn.compressor.wgate.weight",
    "self_attn.compressor.position_bias": "attn.compressor.ape",
    "self_attn.compressor.kv_norm.weight": "attn.compressor.norm.weight",
    "self_attn.compressor.indexer.q_b_proj.weight": "attn.indexer.wq_b.weight",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "attn.indexer.weights_proj.weight",
    "self_attn.compressor.indexer.kv_proj.weight": "attn.indexer.compressor.wkv.weight",
    "self_attn.compressor.indexer.gate_proj.weight": "attn.indexer.compressor.wgate.weight",
    "self_attn.compressor.indexer.position_bias": "attn.indexer.compressor.ape",
    "self_attn.compressor.indexer.kv_norm.weight": "attn.indexer.compressor.norm.weight",
    "mlp.gate.weight": "ffn.gate.weight",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.gate.tid2eid": "ffn.gate.tid2eid",
    "mlp.shared_experts.gate_proj.weight": "ffn.shared_experts.w1.weight",
    "mlp.shared_experts.down_proj.weight": "ffn.shared_experts.w2.weight",
    "mlp.shared_experts.up_proj.weight": "ffn.shared_experts.w3.weight",
}

_LAYER = re.compile(r"layers\.(0|[1-9][0-9]*)\.(.+)", re.DOTALL)
_FUSED = {
    "mlp.experts.gate_up_proj": ("w1", "w3"),
    "mlp.experts.down_proj": ("w2",),
}


@dataclass(frozen=True)
class FusedExperts:
    """A stored tensor `[E, len(parts) * rows, in]` that holds the parts of all experts of one layer.

    Attributes:
        prefix: Native prefix of the experts, such as `layers.3.ffn.experts.`.
        parts: Matrices stacked along the rows, in order.
    """

    prefix: str
    parts: tuple[str, ...]

    def native_name(self, expert: int, part: int) -> str:
        """Name of one matrix inside, by expert and index into `parts`."""
        return f"{self.prefix}{expert}.{self.parts[part]}.weight"


def is_draft_name(name: str) -> bool:
    """Say whether a stored tensor belongs to a draft layer (MTP or DSpark), not to the main model."""
    return name.removeprefix("model.").startswith("mtp.")


def native_name(name: str) -> str | FusedExperts:
    """Map a stored name of any spelling to the native one; unknown names come back unchanged."""
    bare = name.removeprefix("model.")
    layer = _LAYER.fullmatch(bare)
    if layer is None:
        return _TOP_ALIASES.get(bare, bare)
    prefix, rest = f"layers.{layer[1]}.", layer[2]
    if rest in _FUSED:
        return FusedExperts(f"{prefix}ffn.experts.", _FUSED[rest])
    return prefix + _LAYER_ALIASES.get(rest, rest)
