"""Kernel emitters by op name; with the builder the only module of the target that needs tvm."""

from __future__ import annotations

from collections.abc import Callable

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.gpu.args import Part
from ds4c_targets.gpu.kernels import (
    attention,
    elementwise,
    hyper,
    index,
    linear,
    moe,
    norm,
    pool,
    recurrent,
    rope,
    route,
    state,
)
from ds4c_targets.gpu.tuning import Tuning

Emitter = Callable[[KernelSpec, Tuning], list[Part]]

EMITTERS: dict[str, Emitter] = {
    "add": elementwise.add,
    "add_position_bias": elementwise.add_position_bias,
    "append": state.append,
    "causal_conv": recurrent.causal_conv,
    "delta_gates": recurrent.delta_gates,
    "embed": elementwise.embed,
    "fork": state.fork,
    "gated_delta": recurrent.gated_delta,
    "gated_linear": linear.gated_linear,
    "gated_norm": recurrent.gated_norm,
    "grouped_linear": linear.grouped_linear,
    "hc_collapse": hyper.hc_collapse,
    "hc_enter": hyper.hc_enter,
    "hc_mix": hyper.hc_mix,
    "hc_post": hyper.hc_post,
    "hc_pre": hyper.hc_pre,
    "head_norm": norm.head_norm,
    "linear": linear.linear,
    "moe_experts": moe.moe_experts,
    "multi_linear": linear.multi_linear,
    "norm_rope": rope.norm_rope,
    "attention": attention.attention,
    "index_select": index.index_select,
    "pool": pool.pool,
    "read_rows": state.read_rows,
    "restore": state.restore,
    "rms_norm": norm.rms_norm,
    "rope": rope.rope,
    "rope_table": rope.rope_table,
    "route_hash": route.route_hash,
    "route_top": route.route_top,
    "snapshot": state.snapshot,
    "snapshot_rows": state.snapshot_rows,
    "swiglu": elementwise.swiglu,
    "take_rows": elementwise.take_rows,
    "windows": state.windows,
    "write": state.write,
}


def emit_kernel(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """The launches of a kernel, in order.

    Raises:
        TargetError: the target has no kernel for that op or shape.
    """
    if spec.op not in EMITTERS:
        raise TargetError(f"gpu kernel: expected an op of {sorted(EMITTERS)}, got {spec.op}")
    return EMITTERS[spec.op](spec, tuning)
