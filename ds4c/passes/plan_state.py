"""`plan-state`: capacities, live maps and offsets of all states, derived from read sets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import AffineMapAttr, ModuleOp
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.state_ops import Int, StateOp, states_of
from ds4c.ir.types import StateKind
from ds4c.passes.plan import Plan, round64
from ds4c.passes.windows import ReadSet, derive_capacity, prove

ELEMENT_BYTES = 4
"""States are float32."""

DEFAULT_PAGE_TOKENS = 128


@dataclass(frozen=True)
class PlanState(ModulePass):
    """Smallest rings for which a rewind of up to `horizon` tokens is exact by moving the position.

    The ring must also serve a step of the token before the target (logits after a rewind), so capacities are
    derived for a distance of `horizon + 1`; `prove-rewind` then executes them. A capacity that is already
    written down is checked, not changed.
    `page_tokens` 0 takes the smallest multiple of all compress ratios that is at least 128.
    """

    name = "plan-state"
    horizon: int = 64
    context: int = 4096
    rows: int = 256
    segments: int = 8
    logit_rows: int = 64
    page_tokens: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fill the declarations and put the `Plan` on the module."""
        _check_options(self)
        decls = [d for d in states_of(op) if d.state_kind is not StateKind.HOST]
        page_tokens = self._page_tokens(decls)
        marks = self.segments + -(-self.rows // page_tokens)
        plan = Plan(self.horizon, self.context, self.rows, self.segments, self.logit_rows, page_tokens, marks)
        slot = page = 0
        for decl in decls:
            decl.live = AffineMapAttr(live_map(decl))
            if decl.state_kind is StateKind.APPEND:
                decl.set_capacity(-(-self.context // decl.row_every))
                decl.offset = Int(page, 64)
                page += round64(page_tokens // decl.row_every * decl.width * ELEMENT_BYTES)
            else:
                decl.set_capacity(self._ring_capacity(decl))
                decl.offset = Int(slot, 64)
                assert decl.capacity is not None
                slot += round64(decl.capacity * decl.width * ELEMENT_BYTES)
        plan.with_sizes(slot_bytes=slot, page_bytes=page).store(op)

    def _page_tokens(self, decls: list[StateOp]) -> int:
        ratios = math.lcm(*(d.row_every for d in decls if d.state_kind is StateKind.APPEND), 1)
        if self.page_tokens == 0:
            return -(-DEFAULT_PAGE_TOKENS // ratios) * ratios
        if self.page_tokens % ratios:
            raise PassFailedException(
                f"plan-state: page_tokens: expected a multiple of {ratios}, got {self.page_tokens}"
            )
        return self.page_tokens

    def _ring_capacity(self, decl: StateOp) -> int:
        reads = read_set(decl)
        distance = self.horizon + 1
        need = derive_capacity(reads, distance)
        if decl.capacity is None or decl.capacity >= need:
            return decl.capacity or need
        raise PassFailedException(
            f"plan-state: @{decl.state_name} has capacity {decl.capacity}, needs {need} for horizon "
            f"{self.horizon}: {prove(reads, decl.capacity, distance)}"
        )


def _check_options(options: PlanState) -> None:
    for name in ("context", "rows", "segments", "logit_rows"):
        if getattr(options, name) < 1:
            raise PassFailedException(f"plan-state: {name}: expected >= 1, got {getattr(options, name)}")
    if options.horizon < 0:
        raise PassFailedException(f"plan-state: horizon: expected >= 0, got {options.horizon}")


def read_set(decl: StateOp) -> ReadSet:
    """IR-free form of the read set of a ring."""
    return ReadSet(decl.window, decl.row_every)


def live_map(decl: StateOp) -> AffineMap:
    """Position -> first row that must be kept: what the next query that fires reads first."""
    assert decl.reads is not None
    every = decl.row_every
    position = AffineExpr.dimension(0)
    fire = position if every == 1 else position // every * every + (every - 1)
    if decl.state_kind is StateKind.APPEND:
        fire = position
    first = AffineMap(1, 0, (decl.reads.data.results[0],))
    return first.compose(AffineMap(1, 0, (fire,)))


def live_form(decl: StateOp) -> tuple[int, int]:
    """The live map as `(align, back)`: first live row = `c // align * align - back`.

    Raises:
        PassFailedException: the read set has no such form; runtime and fork kernel know only this one.
    """
    align = decl.row_every
    back = -decl.live_begin(0)
    probes = (*range(3 * align), 4096 * align - 1, 4096 * align, 4096 * align + 1)
    if any(decl.live_begin(c) != c // align * align - back for c in probes):
        raise PassFailedException(
            f"plan-state: @{decl.state_name}: expected live rows of the form c // {align} * {align} - k, "
            f"got {decl.live}"
        )
    return align, back
