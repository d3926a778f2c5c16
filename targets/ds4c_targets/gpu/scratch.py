"""Which ops and shapes have a kernel, and how much scratch each needs; no tvm here."""

from __future__ import annotations

from collections.abc import Callable

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.gpu.attention_plan import AttentionPlan
from ds4c_targets.gpu.index_plan import IndexPlan
from ds4c_targets.gpu.scratch_hyper import hyper_bytes
from ds4c_targets.gpu.scratch_moe import moe_bytes, route_bytes
from ds4c_targets.gpu.tuning import Tuning

Need = Callable[[KernelSpec, Tuning], int]

OPS = frozenset(
    "add add_position_bias append attention causal_conv delta_gates embed fork gated_delta gated_linear "
    "gated_norm grouped_linear hc_collapse hc_enter hc_mix hc_post hc_pre head_norm index_select linear "
    "moe_experts multi_linear norm_rope pool read_rows restore rms_norm rope rope_table route_hash "
    "route_top snapshot snapshot_rows swiglu take_rows windows write".split()
)
"""Ops with a kernel."""

_NEEDS: dict[str, Need] = {
    "attention": lambda spec, tuning: AttentionPlan.of(spec, tuning).scratch_bytes,
    "index_select": lambda spec, tuning: IndexPlan.of(spec, tuning).scratch_bytes,
    "moe_experts": moe_bytes,
    "route_hash": route_bytes,
    "route_top": route_bytes,
    "hc_collapse": hyper_bytes,
    "hc_enter": hyper_bytes,
    "hc_mix": hyper_bytes,
}


def round64(size: int) -> int:
    """The next multiple of 64."""
    return (size + 63) // 64 * 64


def scratch_bytes(spec: KernelSpec, tuning: Tuning) -> int:
    """Scratch of a kernel in bytes, a multiple of 64; all of it may be shared by the launches of the kernel.

    Raises:
        TargetError: there is no kernel for the op or for one of its dimensions.
    """
    if spec.op not in OPS:
        raise TargetError(f"gpu kernel: expected one of {', '.join(sorted(OPS))}, got {spec.op}")
    need = _NEEDS.get(spec.op)
    return round64(need(spec, tuning)) if need else 0
