"""Scratch sizes and the list of ops of the cpu target; needs no tvm."""

from __future__ import annotations

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec

OPS = frozenset(
    "embed take_rows linear multi_linear grouped_linear rms_norm head_norm rope_table rope norm_rope add "
    "add_position_bias swiglu gated_linear hc_mix hc_pre hc_enter hc_post hc_collapse windows read_rows write "
    "append pool index_select attention route_top route_hash moe_experts fork".split()
)
"""Ops with a kernel."""


def scratch_bytes(spec: KernelSpec) -> int:
    """Scratch of a kernel in bytes, a multiple of 64.

    Raises:
        TargetError: the target has no kernel for the op.
    """
    if spec.op not in OPS:
        raise TargetError(f"cpu kernel: expected one of {', '.join(sorted(OPS))}, got {spec.op}")
    return 0
