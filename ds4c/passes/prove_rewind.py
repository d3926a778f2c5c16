"""`prove-rewind`: executes every phase of every planned ring and finds no row that a rewind would spoil."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.state_ops import StateOp, states_of
from ds4c.ir.types import StateKind
from ds4c.passes.plan import Plan
from ds4c.passes.plan_state import read_set
from ds4c.passes.windows import prove


@dataclass(frozen=True)
class ProveRewind(ModulePass):
    """Uses nothing of how the capacities were derived; states with equal contracts are proved once.

    The horizon is that of the plan, and one token more, since the token before the target of a rewind may
    be evaluated again for its logits.
    """

    name = "prove-rewind"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raise `PassFailedException` with a counter-example if a ring is too small; changes nothing."""
        plan = Plan.of(op, self.name)
        proved: set[tuple[str, int, int]] = set()
        for decl in states_of(op):
            if decl.state_kind in (StateKind.RING, StateKind.OPAQUE):
                self._prove(decl, plan.horizon, proved)

    def _prove(self, decl: StateOp, horizon: int, proved: set[tuple[str, int, int]]) -> None:
        if decl.capacity is None:
            raise PassFailedException(
                f"{self.name}: @{decl.state_name}: expected a planned capacity, got none; "
                "run plan-state first"
            )
        key = (str(decl.reads), decl.row_every, decl.capacity)
        if key in proved:
            return
        bad = prove(read_set(decl), decl.capacity, horizon + 1)
        if bad is not None:
            raise PassFailedException(
                f"{self.name}: @{decl.state_name}: expected {decl.capacity} rows to serve every rewind of "
                f"{horizon} tokens, got {bad}"
            )
        proved.add(key)
