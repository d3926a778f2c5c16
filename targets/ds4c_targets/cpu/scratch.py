"""Which ops and shapes have a kernel, and how much scratch each needs; no tvm here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec

_LANES = 16

TASK_SLOTS = 16
"""Tasks that may run at once (`heads.run_tasks`); each has its own part of the scratch."""

SCORE_TILE = 8
"""Largest score tile of a variant; the last one may write that many rows past the end."""


def _round64(size: int) -> int:
    return (size + 63) // 64 * 64


@dataclass(frozen=True)
class AttentionScratch:
    """Scratch of one attention task: query panel, scores, places of compressed rows (bytes).

    Attributes:
        heads: number of heads.
        width: channels of a head.
        window: raw rows a query sees.
        compressed: compressed rows a query may see.
    """

    heads: int
    width: int
    window: int
    compressed: int

    @staticmethod
    def of(spec: KernelSpec) -> AttentionScratch:
        """Sizes for a spec."""
        rows = 0
        if spec.has("selection"):
            rows = spec.operand("selection").shape[1]
        elif spec.has("rows"):
            rows = int(spec.attr("context")) // int(spec.attr("every"))
        heads, width = spec.operand("sink").shape[0], spec.operand("own").shape[1]
        return AttentionScratch(heads, width, int(spec.attr("window")), rows)

    @property
    def scores_offset(self) -> int:
        """Start of the scores `[rows][16]` float32."""
        return self.width * _LANES * 4

    @property
    def places_offset(self) -> int:
        """Start of the places, int64."""
        return self.scores_offset + (self.window + self.compressed + SCORE_TILE) * _LANES * 4

    @property
    def task_bytes(self) -> int:
        """All of a task."""
        return self.places_offset + _round64(self.compressed * 8)


@dataclass(frozen=True)
class IndexScratch:
    """Scratch of one index_select task: query panels, weights, histogram, sort keys (bytes).

    Attributes:
        heads: indexer heads.
        width: channels of a head.
        rows: compressed rows a query may see.
    """

    heads: int
    width: int
    rows: int

    @staticmethod
    def of(spec: KernelSpec) -> IndexScratch:
        """Sizes for a spec."""
        heads, width = spec.operand("weights").shape[1], spec.operand("rows").shape[1]
        return IndexScratch(heads, width, int(spec.attr("context")) // int(spec.attr("every")))

    @property
    def panels(self) -> int:
        """Panels of 16 heads."""
        return -(-self.heads // _LANES)

    @property
    def weights_offset(self) -> int:
        """Start of the scaled head weights, float32."""
        return self.panels * self.width * _LANES * 4

    @property
    def histogram_offset(self) -> int:
        """Start of 256 int32 counters."""
        return self.weights_offset + self.panels * _LANES * 4

    @property
    def keys_offset(self) -> int:
        """Start of the int32 keys, which order as the scores do."""
        return self.histogram_offset + 256 * 4

    @property
    def task_bytes(self) -> int:
        """All of a task."""
        return self.keys_offset + _round64((self.rows + SCORE_TILE) * 4)


@dataclass(frozen=True)
class MoeScratch:
    """Scratch of moe_experts: work lists, hidden rows, result rows (bytes).

    Attributes:
        experts: number of experts.
        uses: most (row, choice) pairs.
        hidden: channels of an expert.
        width: channels of the model.
    """

    experts: int
    uses: int
    hidden: int
    width: int

    @staticmethod
    def of(spec: KernelSpec) -> MoeScratch:
        """Sizes for a spec."""
        experts, hidden, width = spec.operand("w1").shape
        rows, choices = spec.operand("experts").shape
        return MoeScratch(experts, rows * choices, hidden, width)

    @property
    def starts(self) -> int:
        """Element of the first use of each expert, int32 `[experts + 1]`."""
        return 0

    @property
    def filled(self) -> int:
        """Element of the fill counters, int32 `[experts]`."""
        return _round64(4 * (self.experts + 1)) // 4

    @property
    def active(self) -> int:
        """Element of the list of experts in use: a count, then their numbers, int32."""
        return self.filled + _round64(4 * self.experts) // 4

    @property
    def uses_at(self) -> int:
        """Element of the (row * choices + choice) list, int32."""
        return self.active + _round64(4 * (self.experts + 1)) // 4

    @property
    def hidden_at(self) -> int:
        """Element of the hidden rows, float32 `[uses, hidden]`."""
        return self.uses_at + _round64(4 * self.uses) // 4

    @property
    def results_at(self) -> int:
        """Element of the result rows, float32 `[uses, width]`."""
        return self.hidden_at + _round64(4 * self.uses * self.hidden) // 4

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return 4 * self.results_at + _round64(4 * self.uses * self.width)


def _expect(spec: KernelSpec, fits: bool, dimension: str, expected: str, got: object) -> None:
    if not fits:
        raise TargetError(f"cpu {spec.op}: expected {dimension} {expected}, got {got}")


def _check_grouped(spec: KernelSpec) -> int:
    each = spec.operand("w").shape[0] // int(spec.attr("groups"))
    _expect(spec, each % _LANES == 0, "output rows of a group", "a multiple of 16", each)
    return 0


def _check_streams(spec: KernelSpec) -> int:
    streams, width = spec.operand("x").shape[1:]
    _expect(spec, streams in (1, 2, 4), "streams", "1, 2 or 4", streams)
    _expect(spec, width % 2 == 0, "channels of a stream", "an even number", width)
    return 0


def _attention(spec: KernelSpec) -> int:
    plan = AttentionScratch.of(spec)
    _expect(spec, plan.width % _LANES == 0, "channels of a head", "a multiple of 16", plan.width)
    return TASK_SLOTS * plan.task_bytes


def route_bytes(experts: int) -> int:
    """Scratch of one routed row: scores and sort keys, whole vectors of float32."""
    return 2 * _round64(4 * experts)


def _route(spec: KernelSpec) -> int:
    return TASK_SLOTS * route_bytes(spec.operand("logits").shape[1])


def _none(spec: KernelSpec) -> int:
    return 0


_NEEDS: dict[str, Callable[[KernelSpec], int]] = {
    "attention": _attention,
    "grouped_linear": _check_grouped,
    "hc_collapse": _check_streams,
    "hc_enter": _check_streams,
    "hc_mix": _check_streams,
    "index_select": lambda spec: TASK_SLOTS * IndexScratch.of(spec).task_bytes,
    "route_hash": _route,
    "route_top": _route,
    "moe_experts": lambda spec: MoeScratch.of(spec).total_bytes,
}

OPS = frozenset(
    "add add_position_bias append attention causal_conv delta_gates embed fork gated_delta gated_linear "
    "gated_norm grouped_linear hc_collapse hc_enter hc_mix hc_post hc_pre head_norm index_select linear "
    "moe_experts multi_linear norm_rope pool read_rows restore rms_norm rope rope_table route_hash route_top "
    "snapshot snapshot_rows swiglu take_rows windows write".split()
)
"""Ops with a kernel."""


def scratch_bytes(spec: KernelSpec) -> int:
    """Scratch of a kernel in bytes, a multiple of 64.

    Raises:
        TargetError: the target has no kernel for the op or for one of its dimensions.
    """
    if spec.op not in OPS:
        raise TargetError(f"cpu kernel: expected one of {', '.join(sorted(OPS))}, got {spec.op}")
    return _NEEDS.get(spec.op, _none)(spec)
