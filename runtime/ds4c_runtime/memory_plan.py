"""How much memory an artifact takes with a number of sessions, and how many pages a budget buys."""

from __future__ import annotations

from dataclasses import dataclass

from ds4c_runtime.errors import InvalidRequestError, MemoryBudgetError
from ds4c_runtime.manifest import Manifest


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes in bytes. `fixed` is weights, workspace, io and slots; pages come on top."""

    fixed: int
    page: int
    page_count: int

    @property
    def total(self) -> int:
        """Everything the engine allocates or maps."""
        return self.fixed + self.page * self.page_count


def plan_memory(manifest: Manifest, max_sessions: int, budget: int | None) -> MemoryPlan:
    """Choose the number of pages: enough for `max_sessions` full sessions, or what the budget buys.

    Raises:
        InvalidRequestError: `max_sessions` below 1.
        MemoryBudgetError: the budget does not hold the fixed part and the pages of one full session.
    """
    if max_sessions < 1:
        raise InvalidRequestError(
            f"engine not loaded: expected at least 1 session, got {max_sessions}", field="max_sessions"
        )
    arenas, limits = manifest.arenas, manifest.limits
    slots = max_sessions * arenas.state_slot
    fixed = arenas.weights + arenas.workspace + arenas.io + slots
    wanted = max_sessions * limits.pages_per_session
    if budget is None:
        return MemoryPlan(fixed, arenas.page, wanted)
    needed = fixed + limits.pages_per_session * arenas.page
    if budget < needed:
        raise MemoryBudgetError(
            f"engine not loaded: expected a memory budget of at least {needed} bytes (weights "
            f"{arenas.weights}, workspace and io {arenas.workspace + arenas.io}, slots of {max_sessions} "
            f"sessions {slots}, pages of one full session {needed - fixed}), got {budget}; grant more memory "
            "or allow fewer sessions",
            needed=needed,
            budget=budget,
        )
    affordable = (budget - fixed) // arenas.page if arenas.page else wanted
    return MemoryPlan(fixed, arenas.page, min(wanted, affordable))
