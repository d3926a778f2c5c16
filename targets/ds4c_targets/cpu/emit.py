"""Kernel emitters by op name; this is the only module of the target that needs tvm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.cpu.args import VARIANTS, Args
from ds4c_targets.cpu.kernels import attention, hyper, index, linear, moe, norm, pool, recurrent, state

EMITTERS: dict[str, Callable[[Args], None]] = {
    "linear": linear.linear,
    "multi_linear": linear.multi_linear,
    "grouped_linear": linear.grouped_linear,
    "gated_linear": linear.gated_linear,
    "rms_norm": norm.rms_norm,
    "head_norm": norm.head_norm,
    "rope_table": norm.rope_table,
    "rope": norm.rope,
    "norm_rope": norm.norm_rope,
    "add": norm.add_rows,
    "add_position_bias": norm.add_position_bias,
    "swiglu": norm.swiglu,
    "embed": norm.embed,
    "take_rows": norm.take_rows,
    "hc_mix": hyper.hc_mix,
    "hc_pre": hyper.hc_pre,
    "hc_enter": hyper.hc_enter,
    "hc_post": hyper.hc_post,
    "hc_collapse": hyper.hc_collapse,
    "windows": state.windows,
    "read_rows": state.read_rows,
    "write": state.write,
    "append": state.append,
    "fork": state.fork,
    "snapshot": state.snapshot,
    "snapshot_rows": state.snapshot_rows,
    "restore": state.restore,
    "pool": pool.pool,
    "attention": attention.attention,
    "index_select": index.index_select,
    "route_top": moe.route_top,
    "route_hash": moe.route_hash,
    "moe_experts": moe.moe_experts,
    "causal_conv": recurrent.causal_conv,
    "delta_gates": recurrent.delta_gates,
    "gated_delta": recurrent.gated_delta,
    "gated_norm": recurrent.gated_norm,
}


def emit_kernel(spec: KernelSpec, variant: str) -> Any:
    """The TIR function of a kernel, named by the spec's symbol.

    Raises:
        TargetError: the target has no kernel for that op or shape.
    """
    if spec.op not in EMITTERS:
        raise TargetError(f"cpu kernel: expected an op of {sorted(EMITTERS)}, got {spec.op}")
    args = Args(spec, VARIANTS[variant])
    EMITTERS[spec.op](args)
    return args.b.finish(spec.symbol)
