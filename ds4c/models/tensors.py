"""What a table of checkpoint tensors says of each: shape and use. Knows no model."""

from dataclasses import dataclass
from enum import StrEnum


class TensorRole(StrEnum):
    """What a tensor is used for, which decides the types it may be stored in.

    MATRIX: weight of a linear layer or an embedding; any float type, quantised in shipped models.
    CONTROL: norms, sinks, biases, gates and hyper-connections; published as float32 or bfloat16.
    INDEX: expert ids by token; int32 or int64.
    """

    MATRIX = "matrix"
    CONTROL = "control"
    INDEX = "index"

    @property
    def is_integer(self) -> bool:
        """Say whether the tensor holds whole numbers rather than floats."""
        return self is TensorRole.INDEX


@dataclass(frozen=True)
class TensorSpec:
    """Shape (`[out, in]` for matrices) and role of one tensor; ids of an INDEX tensor are below `limit`."""

    shape: tuple[int, ...]
    role: TensorRole
    limit: int = 0

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


Item = tuple[str, TensorSpec]


def matrix(name: str, *shape: int) -> Item:
    """Entry of a MATRIX tensor."""
    return name, TensorSpec(shape, TensorRole.MATRIX)


def control(name: str, *shape: int) -> Item:
    """Entry of a CONTROL tensor."""
    return name, TensorSpec(shape, TensorRole.CONTROL)
