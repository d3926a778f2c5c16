"""What a weight format says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import TargetError

if TYPE_CHECKING:
    from ds4c_targets.common.expr import Expr
    from ds4c_targets.gpu.args import Args


@dataclass(frozen=True)
class Vector:
    """Consecutive channels of a row.

    A weight is `value * unit * scale`. Products are summed before they are scaled, so a value costs one fma.

    Attributes:
        values: float32 of each channel; not named, so that unused ones cost nothing.
        scale: float32 of the whole vector; None where the values are the weights.
        unit: a power of two that the decoder leaves out.
    """

    values: Sequence[Expr]
    scale: Expr | None = None
    unit: float = 1.0


class Format:
    """A weight format; matrices `[..., N, K]` count as `N` rows in all.

    Attributes:
        name: dtype of operands.
        layout: name of what `pack` makes.
    """

    name: str
    layout: str

    def vector(self, width: int) -> int:
        """Channels that one lane loads at once, of rows of `width` channels; a divisor of `width`.

        Raises:
            TargetError: the format has no rows of that width.
        """
        raise NotImplementedError

    def packed_bytes(self, rows: int, width: int) -> int:
        """Size of a packed matrix."""
        raise NotImplementedError

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """Packed form of a matrix as it comes from a file."""
        raise NotImplementedError

    def load(self, args: Args, operand: str, row: Expr, vector: Expr) -> Vector:
        """Vector number `vector` of a row (both from 0; the row counts over all matrices of the operand)."""
        raise NotImplementedError


class RowFormat(Format):
    """Numbers of one size, row by row as they come."""

    layout = "row"

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size

    def vector(self, width: int) -> int:
        """As many channels as 16 bytes hold, fewer where rows do not begin at multiples of that."""
        channels = 16 // self._size
        while width % channels:
            channels //= 2
        return channels

    def packed_bytes(self, rows: int, width: int) -> int:
        """No padding."""
        return rows * width * self._size

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return np.ascontiguousarray(array)


def check_blocks(name: str, width: int, block: int) -> None:
    """Raise `TargetError` unless rows are whole blocks."""
    if width % block:
        raise TargetError(f"{name} weight: expected rows of whole blocks of {block}, got {width} channels")


def parts(*sizes: int) -> tuple[int, ...]:
    """Where the second part begins and the following ones, and the size of all; multiples of 64 bytes."""
    ends: list[int] = []
    for size in sizes:
        ends.append(((ends[-1] if ends else 0) + size + 63) // 64 * 64)
    return tuple(ends)
