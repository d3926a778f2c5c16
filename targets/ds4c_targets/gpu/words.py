"""Numbers of fewer than 32 bits inside 32-bit words, little-endian."""

from __future__ import annotations

from tvm.tirx import op

from ds4c_targets.common.expr import Expr, bits, cast, select, tirx
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


def signed_byte(word: Expr, number: int) -> Expr:
    """A byte of a word as float32."""
    return cast(cast(left(word, -8 * number), "int8"), "float32")


def two_e2m1(b: GpuKernel, word: Expr, number: int) -> list[Expr]:
    """The e2m1 numbers at bits `4 * number` and `4 * number + 16`, times 2**-14, as float32.

    Exponent and mantissa move to where those of a float16 begin: its smallest ones have the same rule.
    """
    signs = masked(left(word, 12 - 4 * number), 0x80008000)
    rest = masked(left(word, 9 - 4 * number), 0x0E000E00)
    return two_halves(b, either(signs, rest))


def power_of_two(exponent: Expr) -> Expr:
    """`2**(e - 127)` of a uint8 as float32; infinite for 255."""
    wide = cast(exponent, "uint32")
    return bits(select(tirx.EQ(wide, u32(0)), u32(0x00400000), left(wide, 23)), "float32")
