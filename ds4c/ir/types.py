"""Types of the `ds4` dialect: state versions, blocks of rows, row lists, and the kinds of state."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DYNAMIC_INDEX, SymbolRefAttr, TensorType, f32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.str_enum import StrEnum


class StateKind(StrEnum):
    """How a state is addressed, which decides how it is rewound."""

    RING = "ring"
    """Row of position `p` at slot row `p mod capacity`: a rewind within the horizon moves no data."""
    APPEND = "append"
    """Row `p // every`, a pure function of the tokens before its end: a rewind lowers the count."""
    OPAQUE = "opaque"
    """One whole value (a plane) per position, which cannot be cut: addressed and rewound as a ring."""
    HOST = "host"
    """Plain data of the session: tokens, random numbers, last logits."""


@irdl_attr_definition
class StateKindAttr(EnumAttribute[StateKind]):
    """`ring`, `append`, `opaque` or `host` in a state declaration."""

    name = "ds4.kind"


@irdl_attr_definition
class StateType(ParametrizedAttribute, TypeAttribute):
    """`!ds4.state<@l2.kv>`: a version of a declared state; the contract stands on the declaration."""

    name = "ds4.state"
    symbol: SymbolRefAttr

    @staticmethod
    def of(symbol: str) -> StateType:
        """Type of the versions of `@symbol`."""
        return StateType(SymbolRefAttr(symbol))

    @property
    def state_name(self) -> str:
        """Name of the declaration."""
        return self.symbol.string_value()


@irdl_attr_definition
class BlockType(ParametrizedAttribute, TypeAttribute):
    """`!ds4.block`: positions, segments and slots of the rows of a step (`ds4c.ir.block.Block`)."""

    name = "ds4.block"


@irdl_attr_definition
class RowsType(ParametrizedAttribute, TypeAttribute):
    """`!ds4.rows`: a list of row numbers of the step, those whose logits are wanted."""

    name = "ds4.rows"


@irdl_attr_definition
class MarksType(ParametrizedAttribute, TypeAttribute):
    """`!ds4.marks`: positions of a step at which snapshots are taken, and where their rows go."""

    name = "ds4.marks"


def rows_tensor(*widths: int, element: Attribute = f32) -> TensorType[Attribute]:
    """`tensor<?xW..xf32>`: one entry per row of a block (or of its windows, or wanted logits)."""
    return TensorType(element, [DYNAMIC_INDEX, *widths])


def widths(tensor: TensorType[Attribute]) -> tuple[int, ...]:
    """Static dimensions after the row dimension."""
    return tuple(tensor.get_shape()[1:])


def shape_text(shape: Sequence[int]) -> str:
    """`[?, 4, 64]`, for messages."""
    return "[" + ", ".join("?" if n == DYNAMIC_INDEX else str(n) for n in shape) + "]"
