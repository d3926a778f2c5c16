"""Numbers of fewer than 32 bits inside 32-bit words, little-endian."""

from __future__ import annotations

from tvm.tirx import op

from ds4c_targets.common.expr import Expr, bits, cast, tirx
from ds4c_targets.gpu.args import Args
from ds4c_targets.gpu.tir import GpuKernel


def u32(value: int) -> Expr:
    """A uint32 constant."""
    return tirx.IntImm("uint32", value)


def left(value: Expr, by: int) -> Expr:
    """Bits of a uint32 towards the high end; to the low end for a negative distance."""
    if by == 0:
        return value
    return op.shift_left(value, u32(by)) if by > 0 else op.shift_right(value, u32(-by))


def masked(value: Expr, mask: int) -> Expr:
    """Some bits of a uint32."""
    return op.bitwise_and(value, u32(mask))


def either(a: Expr, b: Expr) -> Expr:
    """Bits of both."""
    return op.bitwise_or(a, b)


def load_words(args: Args, operand: str, at: Expr, count: int, offset: int = 0) -> list[Expr]:
    """1, 2 or 4 words at word `at` behind byte `offset` of an operand."""
    return args.b.elements(args.view(operand, "uint32", offset).load(at, count))


def two_halves(b: GpuKernel, word: Expr) -> list[Expr]:
    """The two float16 of a word as float32, denormal ones too."""
    pair = b.let(op.reinterpret("float16x2", word))
    return [cast(tirx.Shuffle([pair], [i]), "float32") for i in range(2)]


def two_bfloats(word: Expr) -> list[Expr]:
    """The two bfloat16 of a word as float32."""
    return [bits(left(word, 16), "float32"), bits(masked(word, 0xFFFF0000), "float32")]
