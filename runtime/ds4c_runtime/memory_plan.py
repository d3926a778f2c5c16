"""How much memory an artifact takes with a number of sessions, and how many pages a budget buys."""

from __future__ import annotations

from dataclasses import dataclass

from ds4c_runtime.errors import InvalidRequestError, MemoryBudgetError
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.snapshot_pool import MOST_BYTES, default_session_bytes

SNAPSHOT_SHARE = 4
"""With a budget, at most one part in that many of what is left after the fixed part goes to snapshots."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes in bytes. `fixed` is weights, workspace, io and slots; pages and snapshots come on top."""

    fixed: int
    page: int
    page_count: int
    snapshots: int

    @property
    def total(self) -> int:
        """Everything the engine allocates or maps."""
        return self.fixed + self.page * self.page_count + self.snapshots


def plan_memory(
    manifest: Manifest, max_sessions: int, budget: int | None, snapshot_budget: int | None = None
) -> MemoryPlan:
    """Choose the number of pages and the bytes of snapshots.

    Without a budget, enough for `max_sessions` full sessions. With one, what it buys: snapshots at most a
    quarter of what is left after the fixed part unless `snapshot_budget` says otherwise, pages the rest.

    Raises:
        InvalidRequestError: `max_sessions` below 1, `snapshot_budget` negative or beyond 128 GiB.
        MemoryBudgetError: the budget does not hold the fixed part, the pages of one full session and the
            snapshots asked for.
    """
    if max_sessions < 1:
        raise InvalidRequestError(
            f"engine not loaded: expected at least 1 session, got {max_sessions}", field="max_sessions"
        )
    if snapshot_budget is not None and not 0 <= snapshot_budget <= MOST_BYTES:
        raise InvalidRequestError(
            f"engine not loaded: expected a snapshot budget of 0 to {MOST_BYTES} bytes, "
            f"got {snapshot_budget}",
            field="snapshot_budget",
        )
    arenas, limits = manifest.arenas, manifest.limits
    slots = max_sessions * arenas.state_slot
    fixed = arenas.weights + arenas.workspace + arenas.io + slots
    wanted = max_sessions * limits.pages_per_session
    of_snapshots = min(max_sessions * default_session_bytes(manifest), MOST_BYTES)
    snapshots = _round64(of_snapshots if snapshot_budget is None else snapshot_budget)
    if budget is None:
        return MemoryPlan(fixed, arenas.page, wanted, snapshots)
    asked = 0 if snapshot_budget is None else snapshots
    needed = fixed + limits.pages_per_session * arenas.page + asked
    if budget < needed:
        raise MemoryBudgetError(
            f"engine not loaded: expected a memory budget of at least {needed} bytes (weights "
            f"{arenas.weights}, workspace and io {arenas.workspace + arenas.io}, slots of {max_sessions} "
            f"sessions {slots}, pages of one full session {needed - fixed - asked}, snapshots {asked}), got "
            f"{budget}; grant more memory or allow fewer sessions",
            needed=needed,
            budget=budget,
        )
    if snapshot_budget is None:
        least = limits.pages_per_session * arenas.page
        spare = min((budget - fixed) // SNAPSHOT_SHARE, budget - fixed - least)
        snapshots = min(snapshots, spare // 64 * 64)
    left = budget - fixed - snapshots
    affordable = left // arenas.page if arenas.page else wanted
    return MemoryPlan(fixed, arenas.page, min(wanted, affordable), snapshots)


def _round64(size: int) -> int:
    return -(-size // 64) * 64
