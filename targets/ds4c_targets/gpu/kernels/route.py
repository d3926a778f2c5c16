"""Routing: a warp does one row, experts are dealt out to the lanes."""

from __future__ import annotations

from collections.abc import Sequence

from ds4c.ir.kernel import KernelSpec
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, add, f32, i32, i64, mul, select, tirx
from ds4c_targets.common.mathlib import softplus
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.rows import per_row
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP, Tuning

_NEVER = -3.4e38  # below every score; marks chosen experts and lanes without one
_TINY = 1e-20


def route_hash(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Experts from the table of the token; weights from their scores. Lane `i` does choice `i`."""
    args = Args(spec, tuning, threads=WARP)
    b, (choices, experts) = args.b, (args.shape("table")[1], args.shape("logits")[1])
    with per_row(args, "logits") as t:
        entry = b.let(i64(args["tokens"][t]) * choices + tirx.Min(b.lane, i32(choices - 1)))
        expert = b.let(args["table"][entry])
        score = _score(b, args["logits"][i64(t) * experts + i64(expert)])
        _store(args, t, expert, score, [b.shuffle(score, i32(i)) for i in range(choices)])
    return [args.finish()]


def route_top(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """The best experts by biased score; the bias selects only."""
    args = Args(spec, tuning, threads=WARP)
    b, choices, experts = args.b, args.integer("top_k"), args.shape("logits")[1]
    slots = -(-experts // WARP)
    scores, keys = b.local(slots), b.local(slots)
    with per_row(args, "logits") as t:
        for slot in range(slots):
            expert = b.let(b.lane + slot * WARP)
            inside = b.let(tirx.Min(expert, i32(experts - 1)))
            scores[slot] = _score(b, args["logits"][i64(t) * experts + i64(inside)])
            key = b.let(scores[slot] + args["bias"].load(inside, 1))
            keys[slot] = select(expert < experts, key, f32(_NEVER))
        mine, chosen = b.variable(i32(0)), b.variable(f32(0.0))
        sums: list[Expr] = []
        for choice in range(choices):
            expert, score = _take_best(b, [(keys, scores, slot) for slot in range(slots)])
            mine[0] = select(_same(b.lane, choice), expert, mine[0])
            chosen[0] = select(_same(b.lane, choice), score, chosen[0])
            sums.append(score)
        _store(args, t, mine[0], chosen[0], sums)
    return [args.finish()]


def _score(b: GpuKernel, logit: Expr) -> Expr:
    """`sqrt(softplus(logit))`."""
    return b.let(b.sqrt(softplus(b, b.let(logit))))


def _same(a: Expr, number: int) -> Expr:
    return tirx.EQ(a, i32(number))


def _take_best(b: GpuKernel, slots: Sequence[tuple[Buf, Buf, int]]) -> tuple[Expr, Expr]:
    """Expert of the largest key, the lower one of equal ones, and its score; its key becomes `_NEVER`."""
    best, score, index = b.variable(f32(_NEVER)), b.variable(f32(0.0)), b.variable(i32(0))
    for keys, scores, slot in slots:
        larger = b.let(keys[slot] > best[0])
        index[0] = select(larger, b.lane + slot * WARP, index[0])
        score[0] = select(larger, scores[slot], score[0])
        best[0] = select(larger, keys[slot], best[0])
    step = WARP // 2
    while step:
        other = [b.exchange(v[0], step) for v in (best, index, score)]
        better = b.let((other[0] > best[0]) | (tirx.EQ(other[0], best[0]) & (other[1] < index[0])))
        for variable, value in zip((best, index, score), other, strict=True):
            variable[0] = select(better, value, variable[0])
        step //= 2
    for keys, _, slot in slots:
        keys[slot] = select(tirx.EQ(index[0], b.lane + slot * WARP), f32(_NEVER), keys[slot])
    return b.let(index[0]), b.let(score[0])


def _store(args: Args, t: Expr, expert: Expr, score: Expr, scores: Sequence[Expr]) -> None:
    """Lane `i` writes choice `i`; its weight is `score / (sum + 1e-20) * scale`, summed in order."""
    b, choices = args.b, len(scores)
    total: Expr = f32(0.0)
    for each in scores:
        total = b.let(total + each)
    weight = b.let(mul(args.number("scale"), score / add(_TINY, total)))
    with b.when(b.lane < choices):
        at = b.let(i64(t) * choices + b.lane)
        args["experts"][at] = expert
        args["weights"][at] = weight
