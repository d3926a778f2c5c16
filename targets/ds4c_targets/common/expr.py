"""TIR expressions in the words of the kernels: exact arithmetic on scalars and vectors.

Kernels are Python functions that call a builder (`builder.py`); there is no text and no schedule. Two rules
keep the bits of a result independent of the device:

* a code generator may contract `a * b + c`, so a product is never an operand of a plain `+` or `-`; every
  multiply-add is the builder's `fma`;
* nothing calls a mathematics library: transcendentals are the polynomials of `mathlib.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm.tirx
from tvm.tirx import op

tirx: Any = tvm.tirx  # its annotations refuse the plain numbers that its constructors take
Expr = Any
"""A TIR expression; tvm's own types are too loose to help, so this is a name only."""

LANES = 16
"""Width of every vector of the cpu target; an AVX2 machine splits it in two without changing a bit."""


def i64(value: int | Expr) -> Expr:
    """An int64 constant, or a scalar expression cast to int64."""
    if isinstance(value, int):
        return tirx.IntImm("int64", value)
    return value if str(value.ty) == "int64" else tirx.Cast("int64", value)


def i32(value: int | Expr) -> Expr:
    """An int32 constant, or a scalar expression cast to int32."""
    if isinstance(value, int):
        return tirx.IntImm("int32", value)
    return value if str(value.ty) == "int32" else tirx.Cast("int32", value)


def f32(value: float) -> Expr:
    """A float32 constant, as its bits where seven digits (all that Metal text shows) do not tell it."""
    exact = np.float32(value)
    if np.float32(f"{exact:e}") == exact:
        return tirx.FloatImm("float32", float(exact))
    return op.reinterpret("float32", tirx.IntImm("uint32", int(exact.view(np.uint32))))


def lanes_of(value: Expr) -> int:
    """Number of lanes of an expression; 1 for a scalar."""
    return int(value.ty.dtype.lanes)


def splat(value: Expr | float, lanes: int = LANES) -> Expr:
    """A scalar (or float constant) in every lane."""
    scalar = f32(value) if isinstance(value, int | float) else value
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def like(value: Expr | float, other: Expr) -> Expr:
    """`value` with as many lanes as `other`."""
    if not isinstance(value, int | float) and lanes_of(value) == lanes_of(other):
        return value
    return splat(value, lanes_of(other))


def mul(a: Expr | float, b: Expr) -> Expr:
    """Product; must not feed a plain sum (see the module docstring)."""
    return like(a, b) * b


def add(a: Expr | float, b: Expr) -> Expr:
    """Sum of values that are not products."""
    return like(a, b) + b


def div(a: int | Expr, b: int | Expr) -> Expr:
    """Quotient of non-negative int64 values."""
    return op.truncdiv(i64(a), i64(b))


def mod(a: int | Expr, b: int | Expr) -> Expr:
    """Remainder of non-negative int64 values."""
    return op.truncmod(i64(a), i64(b))


def vmax(a: Expr | float, b: Expr) -> Expr:
    """Larger value of each lane."""
    return tirx.Max(like(a, b), b)


def vmin(a: Expr | float, b: Expr) -> Expr:
    """Smaller value of each lane."""
    return tirx.Min(like(a, b), b)


def imin(a: int | Expr, b: int | Expr) -> Expr:
    """Smaller of two int64 values."""
    return tirx.Min(i64(a), i64(b))


def imax(a: int | Expr, b: int | Expr) -> Expr:
    """Larger of two int64 values."""
    return tirx.Max(i64(a), i64(b))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Lane-wise choice; both sides are computed, so neither may read out of bounds."""
    return tirx.Select(condition, yes, no)


def shuffle(value: Expr, order: list[int]) -> Expr:
    """Lanes of one vector in another order."""
    return tirx.Shuffle([value], order)


def shuffle2(a: Expr, b: Expr, order: list[int]) -> Expr:
    """Lanes of two joined vectors in another order."""
    return tirx.Shuffle([a, b], order)


def with_lanes(dtype: str, lanes: int) -> str:
    """Name of a vector type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def bits(value: Expr, dtype: str) -> Expr:
    """The same bits as another type of the same width."""
    return op.reinterpret(with_lanes(dtype, lanes_of(value)), value)


def cast(value: Expr, dtype: str) -> Expr:
    """Numeric conversion of every lane."""
    return tirx.Cast(with_lanes(dtype, lanes_of(value)), value)


def ramp(index: int | Expr, lanes: int) -> Expr:
    """`lanes` consecutive indices from `index`."""
    return tirx.Ramp(i64(index), i64(1), lanes)
