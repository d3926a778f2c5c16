"""Scratch of the experts: who uses which expert, hidden rows, results; and the limits of routing."""

from __future__ import annotations

from dataclasses import dataclass

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.gpu.tuning import WARP, Tuning


def _round64(size: int) -> int:
    return (size + 63) // 64 * 64


@dataclass(frozen=True)
class MoeScratch:
    """Sizes of a mixture; a use is a row with one of its choices, number `row * choices + choice`.

    Attributes:
        max_rows: rows of a step.
        choices: experts of a row.
        experts: experts in all.
        hidden: channels of a hidden row.
        width: channels of a row.
        tile: uses of one tile.
    """

    max_rows: int
    choices: int
    experts: int
    hidden: int
    width: int
    tile: int

    @staticmethod
    def of(spec: KernelSpec, tuning: Tuning) -> MoeScratch:
        """Sizes for a spec."""
        rows, choices = spec.operand("experts").shape
        experts, hidden, width = spec.operand("w1").shape
        return MoeScratch(rows, choices, experts, hidden, width, tuning.gemv_tokens)

    @property
    def max_uses(self) -> int:
        """Uses of the largest step."""
        return self.max_rows * self.choices

    @property
    def max_tiles(self) -> int:
        """Tiles of the largest step: each expert may have one that is not full."""
        return min(self.max_uses, self.max_uses // self.tile + self.experts)

    @property
    def tiles_offset(self) -> int:
        """int32 `[3, max_tiles]`: expert, place of the first use, place behind the last; after the number."""
        return 64

    @property
    def uses_offset(self) -> int:
        """int32 `[max_uses]`: uses of the first expert ascending, then of the next."""
        return self.tiles_offset + _round64(12 * self.max_tiles)

    @property
    def hidden_offset(self) -> int:
        """float32 `[max_uses, hidden]`."""
        return self.uses_offset + _round64(4 * self.max_uses)

    @property
    def results_offset(self) -> int:
        """float32 `[max_uses, width]`."""
        return self.hidden_offset + _round64(4 * self.max_uses * self.hidden)

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.results_offset + 4 * self.max_uses * self.width


def moe_bytes(spec: KernelSpec, tuning: Tuning) -> int:
    """Scratch of the experts."""
    return MoeScratch.of(spec, tuning).total_bytes


def route_bytes(spec: KernelSpec, tuning: Tuning) -> int:
    """None.

    Raises:
        TargetError: more choices than lanes.
    """
    choices = spec.operand("experts").shape[1]
    if choices > WARP:
        raise TargetError(f"gpu {spec.op}: expected at most {WARP} experts of a row, got {choices}")
    return 0
