"""Lightning indexer: scores of all visible compressed rows and the numbers of the best ones."""

from __future__ import annotations

from tvm.tirx import op

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, bits, div, f32, i32, i64, mul, select, tirx, vmax
from ds4c_targets.common.views import Pages
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.index_plan import IndexPlan
from ds4c_targets.gpu.kernels.select import select_level, take_all
from ds4c_targets.gpu.tuning import WARP, Tuning

_VECTOR = 4


def index_select(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Row numbers of the `top_k` best visible rows, ascending, padded with -1; ties to the lower row."""
    plan = IndexPlan.of(spec, tuning)
    if not plan.sizes:
        return [take_all(spec, tuning, plan)]
    levels = [select_level(spec, tuning, plan, level) for level in range(len(plan.sizes))]
    return [_score(spec, tuning, plan), *levels]


def _score(spec: KernelSpec, tuning: Tuning, plan: IndexPlan) -> Part:
    """Sort keys of the rows of a tile for one query; a query that takes every row needs none."""
    args = Args(spec, tuning, "score", plan.warps * WARP)
    b, at, every = args.b, args.block("at"), args.integer("every")
    tiles = Dim(-(-plan.count // plan.tile), "tokens", per=every * plan.tile)
    args.grid = (tiles, args.rows("q"), ONE)
    with b.when(i64(b.by) < at.rows()):
        visible = b.let(i32(div(at.position(b.by) + i64(1), every)))
        first = b.let(b.bx * plan.tile)
        with b.when((visible > plan.top_k) & (first < visible)):
            _Tile(args, plan, visible, first).run()
    return args.finish()


class _Tile:
    """Rows from `first` for one query: a lane has a row, a warp some heads of 32 rows."""

    def __init__(self, args: Args, plan: IndexPlan, visible: Expr, first: Expr) -> None:
        self.args, self.plan, self.b = args, plan, args.b
        self.visible, self.first, b = visible, first, args.b
        self.row_group = b.let(op.truncmod(b.warp, plan.row_groups))
        self.head_group = b.let(op.truncdiv(b.warp, plan.row_groups))
        self.stride = plan.stage + _VECTOR  # rows begin at different banks
        self.rows = b.shared(plan.tile * self.stride)
        self.all_heads = plan.warps // plan.row_groups * plan.warp_heads
        self.queries = b.shared(self.all_heads * plan.stage)
        self.pages = Pages.of(args, "rows", args.block("at").segment(b.by))

    def run(self) -> None:
        """Dot products over the channels, a stage at a time; then the sum over heads."""
        b, plan = self.b, self.plan
        places = self._places()
        dots = b.local(plan.warp_heads)
        for h in range(plan.warp_heads):
            dots[h] = 0.0
        with b.loop(-(-plan.width // plan.stage)) as stage:
            channel = b.let(stage * plan.stage)
            self._load_rows(places, channel)
            self._load_queries(channel)
            b.barrier()
            with b.loop(plan.stage // _VECTOR) as v:
                self._multiply(dots, v)
            b.barrier()
        self._finish(dots)

    def _places(self) -> Buf:
        """Elements of the rows that this warp loads; dead rows get that of the last visible one."""
        b, plan = self.b, self.plan
        turns = -(-plan.tile // plan.warps)
        places = b.local(turns, "int64")
        for turn in range(turns):
            row = self.first + b.warp + turn * plan.warps
            places[turn] = self.pages.row(b.let(tirx.Min(row, self.visible - 1)))
        return places

    def _load_rows(self, places: Buf, channel: Expr) -> None:
        b, plan = self.b, self.plan
        inside = b.let((b.lane < plan.stage) & (channel + b.lane < plan.width))
        for turn in range(-(-plan.tile // plan.warps)):
            row = b.let(b.warp + turn * plan.warps)
            with b.when((row < plan.tile) & (b.lane < plan.stage)):
                at = b.let(row * self.stride + b.lane)
                with b.when(inside & (self.first + row < self.visible)):
                    self.rows[at] = self.pages.buf[places[turn] + channel + b.lane]
                with b.otherwise():
                    self.rows[at] = 0.0

    def _load_queries(self, channel: Expr) -> None:
        b, plan, args = self.b, self.plan, self.args
        total = self.all_heads * plan.stage
        start = b.let(i64(b.by) * (plan.heads * plan.width))
        with b.loop(-(-total // b.threads)) as turn:
            i = b.let(turn * b.threads + b.tx)
            with b.when(i < total):
                head, c = b.let(op.truncdiv(i, plan.stage)), b.let(channel + op.truncmod(i, plan.stage))
                with b.when((head < plan.heads) & (c < plan.width)):
                    self.queries[i] = args["q"][start + head * plan.width + c]
                with b.otherwise():
                    self.queries[i] = 0.0

    def _multiply(self, dots: Buf, vector: Expr) -> None:
        """Four channels of this lane's row with the heads of the warp."""
        b, plan = self.b, self.plan
        row = self.row_group * WARP + b.lane
        values = b.elements(self.rows.load(row * self.stride + vector * _VECTOR, _VECTOR))
        for h in range(plan.warp_heads):
            at = (self.head_group * plan.warp_heads + h) * plan.stage + vector * _VECTOR
            for value, q in zip(values, b.elements(self.queries.load(at, _VECTOR)), strict=True):
                dots[h] = b.fma(q, value, dots[h])

    def _finish(self, dots: Buf) -> None:
        """Sum over heads, those of a warp first; scores become keys."""
        b, plan, args = self.b, self.plan, self.args
        total = b.variable(f32(0.0))
        scale = args.number("scale")
        for h in range(plan.warp_heads):
            head = b.let(self.head_group * plan.warp_heads + h)
            at = i64(b.by) * plan.heads + tirx.Min(head, i32(plan.heads - 1))
            weight = select(head < plan.heads, mul(scale, args["weights"][at]), f32(0.0))
            total[0] = b.fma(weight, vmax(0.0, dots[h]), total[0])
        groups = plan.warps // plan.row_groups
        totals = b.shared(groups * plan.tile)
        totals[self.head_group * plan.tile + self.row_group * WARP + b.lane] = total[0]
        b.barrier()
        with b.when((b.tx < plan.tile) & (self.first + b.tx < self.visible)):
            score = b.variable(totals[b.tx])
            for group in range(1, groups):
                score[0] = score[0] + totals[b.tx + group * plan.tile]
            keys = args.view("scratch", "uint32")
            keys[i64(b.by) * plan.count + i64(self.first + b.tx)] = _key(score[0])


def _key(score: Expr) -> Expr:
    """A uint32 that orders as the score does; -0 is 0."""
    raw = bits(select(score < f32(0.0), score, vmax(0.0, score)), "uint32")
    sign = tirx.IntImm("uint32", 1 << 31)
    return select(score < f32(0.0), op.bitwise_not(raw), op.bitwise_or(raw, sign))
