"""Element types as NumPy names them, and back."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType, bf16, f32, f64, i32
from xdsl.ir import Attribute

_NAMES: tuple[tuple[Attribute, str, int], ...] = (
    (f32, "float32", 4),
    (bf16, "bfloat16", 2),
    (i32, "int32", 4),
    (f64, "float64", 8),
)


def element_name(tensor: Attribute) -> str:
    """`float32`, `bfloat16`, `int32` or `float64`."""
    assert isinstance(tensor, TensorType)
    for attr, name, _ in _NAMES:
        if tensor.element_type == attr:
            return name
    raise KeyError(str(tensor.element_type))


def element_bytes(name: str) -> int:
    """Size of an element by its NumPy name."""
    return next(size for _, n, size in _NAMES if n == name)
