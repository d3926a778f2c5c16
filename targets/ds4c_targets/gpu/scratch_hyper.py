"""Scratch of hyper-connections: the dot products of slices of a row."""

from __future__ import annotations

from dataclasses import dataclass

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.gpu.tuning import WARP, Tuning


@dataclass(frozen=True)
class HyperScratch:
    """Sizes of one control vector.

    Attributes:
        max_rows: rows of a step.
        streams: copies of a row.
        width: channels of a copy.
        parts: entries of the control vector.
        slice_width: channels of a slice.
    """

    max_rows: int
    streams: int
    width: int
    parts: int
    slice_width: int

    @staticmethod
    def of(spec: KernelSpec, tuning: Tuning) -> HyperScratch:
        """Sizes for a spec.

        Raises:
            TargetError: a number of streams that has no kernel.
        """
        rows, streams, width = spec.operand("x").shape
        if streams not in (1, 2, 4):
            raise TargetError(f"gpu {spec.op}: expected streams 1, 2 or 4, got {streams}")
        return HyperScratch(rows, streams, width, spec.operand("fn").shape[0], tuning.hyper_channels)

    @property
    def channels(self) -> int:
        """Channels of all copies."""
        return self.streams * self.width

    @property
    def slices(self) -> int:
        """Slices of a row."""
        return -(-self.channels // self.slice_width)

    @property
    def total_bytes(self) -> int:
        """float32 `[max_rows, slices, 32]`: products in order, then the sum of squares."""
        return self.max_rows * self.slices * WARP * 4


def hyper_bytes(spec: KernelSpec, tuning: Tuning) -> int:
    """Scratch of a kernel with a control vector."""
    return HyperScratch.of(spec, tuning).total_bytes
