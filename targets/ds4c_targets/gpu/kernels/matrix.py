"""Products of float16 weights by matrix units: the activations are rounded to float16 for it.

A result is the sum of its tiles of 16 channels in order, whatever rows stand beside it, so its bits do not
depend on the number of token rows. They are not those of `product.py`: a tuning asks for this by name.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.tirx import op, stmt

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, cast, i32, i64, tirx
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.matrix import FORMS, LaneMap, MatrixForm
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import Tuning
from ds4c_targets.gpu.words import load_words


def matrix_form(spec: KernelSpec, tuning: Tuning) -> MatrixForm | None:
    """The form that does a linear, if the tuning names one and it can.

    Raises:
        TargetError: the tuning names an unknown form.
    """
    if not tuning.matrix:
        return None
    if tuning.matrix not in FORMS:
        raise TargetError(f"gpu tuning: expected matrix of {', '.join(FORMS)}, got {tuning.matrix}")
    form, w = FORMS[tuning.matrix], spec.operand("w")
    return form if w.dtype == "float16" and w.shape[1] % form.depth == 0 else None


def matrix_linear(spec: KernelSpec, tuning: Tuning, form: MatrixForm) -> list[Part]:
    """`y = w @ x`; a warp does `form.rows` output rows for `tuning.matrix_tokens` token rows."""
    args = Args(spec, tuning)
    b, (rows, _) = args.b, args.shape("w")
    warps, tokens = b.threads // form.lanes, tuning.matrix_tokens
    args.grid = (Dim(-(-rows // (form.rows * warps))), args.rows("x", per=tokens), ONE)
    count = b.let(args["count"][0])
    first = b.let(b.by * tokens)
    warp = b.let(tirx.truncdiv(b.tx, i32(form.lanes)))
    row = b.let((b.bx * warps + warp) * form.rows)
    with b.when((first < count) & (row < rows)):
        with b.when(count - first <= form.columns):
            _Tile(args, form, row, first, count).run(1)
        with b.otherwise():
            _Tile(args, form, row, first, count).run(-(-tokens // form.columns))
    return [args.finish()]


class _Tile:
    """Output rows from `row` for token rows from `first`; rows past the last ones are those again."""

    def __init__(self, args: Args, form: MatrixForm, row: Expr, first: Expr, count: Expr) -> None:
        self.args, self.form, self.b = args, form, args.b
        self.row, self.first, self.count = row, first, count
        self.rows, self.width = args.shape("w")
        self.lane = args.b.let(tirx.truncmod(args.b.tx, i32(form.lanes)))

    def run(self, tiles: int) -> None:
        """Products of `tiles` tiles of tokens, and their results."""
        b, form = self.b, self.form
        sums = [b.local(form.held[2]) for _ in range(tiles)]
        for acc in sums:
            for i in range(form.held[2]):
                acc[i] = 0.0
        with b.loop(self.width // form.depth) as step:
            at = b.let(step * form.depth)
            a = self._weights(at)
            for tile, acc in enumerate(sums):
                multiply(b, form, a, self._tokens(at, tile), acc)
        for tile, acc in enumerate(sums):
            self._store(tile, acc)

    def _weights(self, at: Expr) -> Buf:
        def load(row: Expr, channel: Expr, lanes: int) -> list[Expr]:
            place = i64(tirx.Min(self.row + row, i32(self.rows - 1))) * (self.width // 2)
            half = tirx.truncdiv(at + channel, i32(2))
            words = load_words(self.args, "w", _whole(place + i64(half), lanes // 2), lanes // 2)
            pairs = [self.b.let(op.reinterpret("float16x2", word)) for word in words]
            return [tirx.Shuffle([pair], [i]) for pair in pairs for i in range(2)]

        return self._operand(self.form.a, self.form.held[0], load)

    def _tokens(self, at: Expr, tile: int) -> Buf:
        start = self.first + tile * self.form.columns

        def load(token: Expr, channel: Expr, lanes: int) -> list[Expr]:
            place = i64(tirx.Min(start + token, self.count - 1)) * self.width + i64(at + channel)
            values = self.b.elements(self.args["x"].load(_whole(place, min(lanes, 4)), min(lanes, 4)))
            return [cast(value, "float16") for value in values]

        return self._operand(self.form.b, self.form.held[1], load)

    def _operand(self, of: LaneMap, held: int, load: Callable[..., list[Expr]]) -> Buf:
        """Elements of a lane; as many at once as are neighbours, at most 4."""
        found, lanes = self.b.local(held, "float16"), min(self.form.run, 4)
        for i in range(0, held, lanes):
            row, channel = of(self.lane, i)
            for k, value in enumerate(load(row, i32(channel), lanes)):
                found[i + k] = value
        return found

    def _store(self, tile: int, acc: Buf) -> None:
        out = self.args["y"]
        for i in range(self.form.held[2]):
            row, token = self.form.d(self.lane, i)
            n = self.b.let(self.row + row)
            t = self.b.let(self.first + tile * self.form.columns + token)
            with self.b.when((n < self.rows) & (t < self.count)):
                out[i64(t) * self.rows + i64(n)] = acc[i]


def _whole(at: Expr, lanes: int) -> Expr:
    """An index that is a multiple of `lanes`, written so that the code generator sees it."""
    return tirx.truncdiv(at, i64(lanes)) * i64(lanes)


def multiply(b: GpuKernel, form: MatrixForm, a: Buf, right: Buf, acc: Buf) -> None:
    """`acc += a @ right.T` by the lanes of a warp together."""
    if not form.is_intrinsic:
        call = op.call_extern("int32", form.function, acc.buffer.data, a.buffer.data, right.buffer.data)
        b.emit(stmt.Evaluate(call))
        return
    operands = [a.load(0, form.held[0]), right.load(0, form.held[1]), acc.load(0, form.held[2])]
    zeros = [i32(0)] * form.zeros
    acc.store(0, op.call_llvm_pure_intrin(f"float32x{form.held[2]}", form.function, *operands, *zeros))
