"""Mixture of experts: routing, and the chosen experts over the rows that chose them."""

from __future__ import annotations

from collections.abc import Callable

from ds4c_targets.cpu.args import Args
from ds4c_targets.cpu.dot import panel_size
from ds4c_targets.cpu.heads import run_tasks
from ds4c_targets.cpu.mathlib import softplus, swiglu_of
from ds4c_targets.cpu.product import Product, panel_count, panel_of, product_task, store_lanes
from ds4c_targets.cpu.rows import channels, split
from ds4c_targets.cpu.scratch import MoeScratch, route_bytes
from ds4c_targets.cpu.tir import (
    LANES,
    Buf,
    Expr,
    add,
    div,
    f32,
    i32,
    i64,
    like,
    mod,
    mul,
    select,
    splat,
    sqrt,
    tirx,
    vmax,
)

_NEVER = -3.4e38  # below every score; marks chosen experts and padding
_TINY = 1e-20
_PARALLEL_WEIGHTS = 1 << 16


def _scores(args: Args, t: Expr, experts: int, at: Expr) -> None:
    """`sqrt(softplus(logit))` of every expert to the scratch."""
    b, logits, scores = args.b, args["logits"], args.scratch("float32")

    def body(c: Expr, n: int) -> None:
        scores.store(at + c, sqrt(softplus(b, b.let(logits.load(t * experts + c, n)))))

    channels(b, experts, body)


def _normalise(args: Args, t: Expr, choices: int) -> None:
    """Turn the chosen scores in `weights` into `score / (sum + 1e-20) * scale`."""
    b, weights = args.b, args["weights"]
    total = b.variable(f32(0.0))
    with b.loop(choices) as i:
        total[0] = total[0] + weights[t * choices + i]
    whole = b.let(add(_TINY, total[0]))
    with b.loop(choices) as i:
        at = b.let(t * choices + i)
        weights[at] = mul(args.number("scale"), weights[at] / whole)


def route_hash(args: Args) -> None:
    """Experts from the table of the token; weights from their scores."""
    b, (choices, experts) = args.b, (args.shape("table")[1], args.shape("logits")[1])

    def row(t: Expr, slot: Expr) -> None:
        scores, at = args.scratch("float32"), b.let(slot * (route_bytes(experts) // 4))
        _scores(args, t, experts, at)
        entry = b.let(i64(args["tokens"][t]) * choices)
        with b.loop(choices) as i:
            expert = b.let(args["table"][entry + i])
            args["experts"][t * choices + i] = expert
            args["weights"][t * choices + i] = scores[at + i64(expert)]
        _normalise(args, t, choices)

    run_tasks(b, args.count(), experts * 2, row)


def _best(args: Args, keys: Buf, at: Expr, vectors: int) -> Expr:
    """Index of the largest key; the lower index of equal ones."""
    b = args.b
    best, index = b.local(LANES), b.local(LANES, "int32")
    best.store(0, splat(_NEVER))
    index.store(0, splat(i32(0)))
    lanes = tirx.Ramp(i32(0), i32(1), LANES)
    with b.loop(vectors) as v:
        value = b.let(keys.load(at + v * LANES))
        here = lanes + like(i32(v * LANES), lanes)
        index.store(0, select(value > best.load(0), here, index.load(0)))
        best.store(0, vmax(best.load(0), value))
    top, found = b.variable(best[0]), b.variable(index[0])
    with b.loop(LANES, start=1) as lane:
        larger = (best[lane] > top[0]) | ((best[lane] == top[0]) & (index[lane] < found[0]))
        with b.when(larger):
            top[0] = best[lane]
            found[0] = index[lane]
    return b.let(i64(found[0]))


def route_top(args: Args) -> None:
    """The best experts by biased score; the bias selects only."""
    b, choices, experts = args.b, args.integer("top_k"), args.shape("logits")[1]
    vectors = panel_count(experts)

    def row(t: Expr, slot: Expr) -> None:
        scores, at = args.scratch("float32"), b.let(slot * (route_bytes(experts) // 4))
        keys_at = b.let(at + i64(vectors * LANES))
        scores.store(keys_at + i64((vectors - 1) * LANES), splat(_NEVER))
        _scores(args, t, experts, at)

        def key(c: Expr, n: int) -> None:
            scores.store(keys_at + c, add(scores.load(at + c, n), args["bias"].load(c, n)))

        channels(b, experts, key)
        with b.loop(choices) as i:
            expert = _best(args, scores, keys_at, vectors)
            args["experts"][t * choices + i] = i32(expert)
            args["weights"][t * choices + i] = scores[at + expert]
            scores[keys_at + expert] = _NEVER
        _normalise(args, t, choices)

    run_tasks(b, args.count(), experts * 2, row)


class _Work:
    """Who uses which expert: lists in scratch, written serially before the products."""

    def __init__(self, args: Args, plan: MoeScratch) -> None:
        self.args, self.plan, self.b = args, plan, args.b
        self.ints = args.scratch("int32")
        self.choices = args.shape("experts")[1]

    def build(self, count: Expr) -> Expr:
        """Uses of each expert in row order, and the experts in use; returns the number of these."""
        b, ints, plan, experts = self.b, self.ints, self.plan, self.args["experts"]
        uses = b.let(count * self.choices)
        with b.loop(plan.experts) as e:
            ints[plan.filled + e] = i32(0)
        with b.loop(uses) as u:
            cell = b.let(i64(experts[u]) + plan.filled)
            ints[cell] = ints[cell] + i32(1)
        total, active = b.variable(i32(0)), b.variable(i32(0))
        with b.loop(plan.experts) as e:
            size = b.let(ints[plan.filled + e])
            ints[plan.starts + e] = total[0]
            ints[plan.filled + e] = total[0]
            with b.when(size > i32(0)):
                ints[i64(active[0]) + (plan.active + 1)] = i32(e)
                active[0] = active[0] + i32(1)
            total[0] = total[0] + size
        ints[plan.starts + plan.experts] = total[0]
        with b.loop(uses) as u:
            cell = b.let(i64(experts[u]) + plan.filled)
            ints[i64(ints[cell]) + plan.uses_at] = i32(u)
            ints[cell] = ints[cell] + i32(1)
        return b.let(i64(active[0]))

    def use(self, at: Expr) -> Expr:
        """`row * choices + choice` of a list entry."""
        return i64(self.ints[at + self.plan.uses_at])

    def run(self, active: Expr, product: Callable[[Expr, Expr], Product], weights: int) -> None:
        """All tasks of all experts in use; `product(expert, first list entry)`."""
        b, plan, ints = self.b, self.plan, self.ints
        tasks = product(i64(0), i64(0)).tasks
        total = b.let(active * tasks)
        with b.parallel(total) if weights >= _PARALLEL_WEIGHTS else b.loop(total) as task:
            expert = b.let(i64(ints[div(task, tasks) + (plan.active + 1)]))
            first = b.let(i64(ints[plan.starts + expert]))
            count = b.let(i64(ints[plan.starts + expert + 1]) - first)
            made = product(expert, first)
            product_task(b, self.args.variant, made, count, b.let(mod(task, tasks)))


def moe_experts(args: Args) -> None:
    """Sum of the chosen experts in the order of the choices; only experts with rows are visited."""
    b, plan = args.b, MoeScratch.of(args.spec)
    work, count = _Work(args, plan), args.count()
    active = work.build(count)
    weights = work.choices * plan.hidden * plan.width
    work.run(active, lambda e, first: _hidden_product(args, plan, work, e, first), weights)
    work.run(active, lambda e, first: _result_product(args, plan, work, e, first), weights)
    results, y = args.scratch("float32"), args["y"]

    def row(t: Expr) -> None:
        def body(c: Expr, n: int) -> None:
            first = b.let((t * work.choices) * plan.width + c + i64(plan.results_at))
            total = results.load(first, n)
            for choice in range(1, work.choices):
                total = total + results.load(first + i64(choice * plan.width), n)
            y.store(t * plan.width + c, total)

        channels(b, plan.width, body)

    split(b, count, work.choices * plan.width // 8, row)


def _hidden_product(args: Args, plan: MoeScratch, work: _Work, expert: Expr, first: Expr) -> Product:
    """`swiglu(w1 @ x, w3 @ x) * routing weight` into the hidden rows."""
    b, hidden, clamp = args.b, args.scratch("float32"), args.number("clamp")

    def store(row: Expr, p: Expr, gate: Expr, up: Expr) -> None:
        use = b.let(work.use(first + row))
        value = mul(args["weights"][use], swiglu_of(b, gate, up, clamp))
        store_lanes(b, hidden, use * plan.hidden + i64(plan.hidden_at), p, plan.hidden, value)

    matrices = tuple(
        panel_of(args[w], plan.width, expert * _matrix_size(args[w], plan.hidden, plan.width))
        for w in ("w1", "w3")
    )
    return Product(
        args["x"],
        lambda row: div(work.use(first + row), work.choices) * plan.width,
        plan.width,
        matrices,
        panel_count(plan.hidden),
        store,
    )


def _result_product(args: Args, plan: MoeScratch, work: _Work, expert: Expr, first: Expr) -> Product:
    """`w2 @ hidden` into the result rows."""
    b, memory = args.b, args.scratch("float32")

    def store(row: Expr, p: Expr, value: Expr) -> None:
        at = b.let(work.use(first + row) * plan.width + i64(plan.results_at))
        store_lanes(b, memory, at, p, plan.width, value)

    w2 = args["w2"]
    return Product(
        memory,
        lambda row: work.use(first + row) * plan.hidden + i64(plan.hidden_at),
        plan.hidden,
        (panel_of(w2, plan.hidden, expert * _matrix_size(w2, plan.width, plan.hidden)),),
        panel_count(plan.width),
        store,
    )


def _matrix_size(w: Buf, rows: int, width: int) -> int:
    return panel_count(rows) * panel_size(w, width)
