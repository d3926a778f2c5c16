"""The pool of snapshots: bytes, holders and pages are counted right whatever happens; the memory plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from fake_executable import FakeDevice, FakeMachine, fake_machine, small_manifest
from fake_oracle import FakeOracle, random_tokens
from port import engine_session, largest_snapshot, memory_of, set_snapshot_limits

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import InvalidRequestError, MemoryBudgetError
from ds4c_runtime.history import History
from ds4c_runtime.manifest import Live, Manifest
from ds4c_runtime.memory_plan import plan_memory
from ds4c_runtime.snapshot import SnapshotLayout, SnapshotOrigin
from ds4c_runtime.snapshot_pool import MOST_BYTES, SnapshotPool, default_session_bytes
from ds4c_runtime.snapshot_ring import SnapshotRing
from ds4c_runtime.transport import CopyMode

ORACLE = FakeOracle()
VOCAB = 1024


class Pool:
    """A pool with pages that are only numbers; whether each is given back exactly once is seen at the end."""

    def __init__(self, mode: CopyMode, largest: int, session: int = 100) -> None:
        self.manifest = small_manifest()
        layout = SnapshotLayout(self.manifest)
        self.held: Counter[int] = Counter()
        self.pool = SnapshotPool(
            self.manifest,
            FakeDevice(self.manifest),
            budget=largest * layout.largest() + 40,
            session_bytes=session * layout.largest(),
            mode=mode,
            release_pages=self.release,
        )
        self.next_page = 0

    def release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.held[page] -= 1
            assert self.held[page] == 0, "given back twice"
            del self.held[page]

    def page(self) -> int:
        self.next_page += 1
        self.held[self.next_page] = 1
        return self.next_page

    def take(self, ring: SnapshotRing, position: int, rng: np.random.Generator) -> bool:
        """Take a snapshot where none is, sometimes a pinned one; or let the kernel fail."""
        pool = self.pool
        reserved = pool.reserve(ring, position, 256)
        if reserved is None:
            return False
        if rng.random() < 0.2 or ring.at(position) is not None:
            pool.cancel(reserved)
            return False
        logits = rng.random(VOCAB, dtype=np.float32)
        entry = pool.keep(ring, reserved, HISTORY, 0, [self.page()], logits, SnapshotOrigin.CLIENT)
        entry.is_pinned = rng.random() < 0.1
        staged, is_copy = pool.staged(entry.snapshot)
        assert np.array_equal(pool.logits(staged, position, VOCAB), logits)
        if is_copy:
            pool.unstage(staged)
        return True


HISTORY = History("", random_tokens(256, 1))


@pytest.mark.parametrize("mode", CopyMode)
@pytest.mark.parametrize("largest", [1, 2, 5, 9])
def test_random_use_counts_right(mode: CopyMode, largest: int) -> None:
    made = Pool(mode, largest, session=3)
    pool, rng = made.pool, np.random.default_rng(largest)
    rings = [pool.open() for _ in range(3)]
    taken = refused = 0
    for _ in range(500):
        ring = rings[rng.integers(3)]
        position = int(rng.integers(1, 257))
        choice = rng.integers(10)
        if choice < 6:
            has_taken = made.take(ring, position, rng)
            taken, refused = taken + has_taken, refused + (not has_taken)
        elif choice == 6 and len(ring):
            pool.drop(ring, ring.entries[rng.integers(len(ring))])
        elif choice == 7 and (every := pool.evictable()):
            pool.evict(every[rng.integers(len(every))][1].snapshot)
        elif choice == 8:
            pool.thin(ring, 256)
        else:
            pool.close(ring)
            rings.remove(ring)
            rings.append(pool.open())
            pool.share(rings[0], rings[-1], position)
        assert pool.bytes_used <= pool.budget
        assert all(r.bytes <= pool.session_bytes for r in rings)
        pool.check_integrity()
    # On the host half the budget is the arena that copies start from.
    assert (taken > 100) == (largest > 1 or mode is CopyMode.DEVICE)
    assert refused
    for ring in list(rings):
        pool.close(ring)
    while pool.poll(wait=True):
        pass
    assert (pool.bytes_used, made.held) == (0, Counter())
    pool.check_integrity()


@pytest.mark.parametrize("mode", CopyMode)
def test_nothing_is_kept_without_room(mode: CopyMode) -> None:
    made = Pool(mode, 0)
    assert made.pool.reserve(made.pool.open(), 10, 10) is None
    machine = fake_machine(snapshot_bytes=0, copy_mode=mode)
    session = machine.open()
    session.prefill(random_tokens(100, 2))
    assert session.take_snapshot() is None
    with pytest.raises(MemoryBudgetError, match=r"expected room for [0-9]+ bytes, got none"):
        session.pin(position=100)
    ORACLE.check(machine, session)


def fill(pool: SnapshotPool, ring: SnapshotRing, positions: Sequence[int], made: Pool) -> list[int]:
    kept = []
    for position in positions:
        reserved = pool.reserve(ring, position, max(positions))
        if reserved is not None:
            logits = np.zeros(VOCAB, np.float32)
            pool.keep(ring, reserved, HISTORY, 0, [made.page()], logits, SnapshotOrigin.CLIENT)
            kept.append(position)
    return kept


def test_pinned_snapshots_refuse_to_give_way() -> None:
    made = Pool(CopyMode.DEVICE, 3)
    pool = made.pool
    one, other = pool.open(), pool.open()
    fill(pool, one, [64, 128, 192], made)
    for entry in one.entries:
        entry.is_pinned = True
    assert fill(pool, other, [32, 64], made) == []
    one.entries[1].is_pinned = False
    assert fill(pool, other, [32], made) == [32]
    assert [e.position for e in one.entries] == [64, 192]
    assert pool.counts() == (1, 2)


def test_who_gives_way_first() -> None:
    """Branches that were left, then the session that holds the most bytes."""
    made = Pool(CopyMode.DEVICE, 4)
    pool = made.pool
    one, other = pool.open(), pool.open()
    fill(pool, one, [64, 128, 192], made)
    one.leave(128)
    assert fill(pool, other, [64, 100], made) == [64, 100]
    assert not one.left, "what was left went, of another session too"
    fill(pool, other, [120, 150, 170, 200], made)
    assert abs(one.bytes - other.bytes) <= 2 * pool.layout.largest(), "about equal shares"
    assert one.was_evicted
    assert other.was_evicted
    pool.check_integrity()


def test_one_session_does_not_take_more_than_its_share() -> None:
    made = Pool(CopyMode.DEVICE, 9, session=2)
    ring = made.pool.open()
    fill(made.pool, ring, [32, 64, 96, 128], made)
    assert ring.bytes <= made.pool.session_bytes
    assert len(ring) == 2


def test_several_snapshots_of_one_step_count_together() -> None:
    machine = fake_machine(small_manifest(max_rows=128, page_tokens=16))
    most = 3 * largest_snapshot(machine.manifest)
    set_snapshot_limits(machine, session_bytes=most)
    session = machine.open()
    session.step(random_tokens(120, 1))  # over seven positions
    assert 0 < sum(s.bytes for s in session.snapshots()) <= most
    ORACLE.check(machine, session)


def test_room_for_one_costs_one_however_many_share_it() -> None:
    """What is given up frees bytes only if all who hold it lose it; then no second one has to go."""
    largest = SnapshotLayout(small_manifest()).largest()
    machine = fake_machine(max_sessions=6, snapshot_bytes=6 * largest)
    parent = machine.open()
    parent.prefill(random_tokens(190, 1))
    parent.take_snapshot()
    children = [parent.fork()[0] for _ in range(4)]
    pinned = parent.pin(position=64)
    for number, child in enumerate(children):
        child.prefill(random_tokens(5, number))  # over 192
        snapshots = {s.snapshot_id: s for c in (parent, *children) for s in c.snapshots()}
        assert sum(s.bytes for s in snapshots.values()) == memory_of(machine).snapshot_bytes
        assert len(snapshots) == 6, "one came, one went"
        assert pinned.snapshot_id in snapshots
        assert len(parent.snapshots()) >= 6 - number - 1
    ORACLE.check(machine, parent, *children)


@pytest.mark.parametrize("mode", [CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED])
def test_a_copy_that_goes_on_is_waited_for_before_a_snapshot_is_given_up(mode: CopyMode) -> None:
    made = Pool(mode, 12)
    ring = made.pool.open()
    positions = [16, 48, 80, 112, 144]  # more than the arena has room for at once
    assert fill(made.pool, ring, positions, made) == positions
    assert len(ring) == len(positions)


def test_snapshots_of_the_same_id_are_not_the_same() -> None:
    """As a session that came back from a file and its fork have them: one that goes leaves the other."""
    made = Pool(CopyMode.DEVICE, 4)
    one, other = made.pool.open(), made.pool.open()
    fill(made.pool, one, [64], made)
    fill(made.pool, other, [64], made)
    other.branch[0].snapshot.snapshot_id = one.branch[0].snapshot.snapshot_id
    other.branch[0].is_pinned = True
    assert [e.snapshot for _, e in made.pool.evictable()] == [one.branch[0].snapshot]
    made.pool.evict(one.branch[0].snapshot)
    assert (len(one), len(other)) == (0, 1)


def test_shared_snapshots_are_kept_until_the_last_holder_goes() -> None:
    made = Pool(CopyMode.DEVICE, 4)
    pool = made.pool
    one = pool.open()
    fill(pool, one, [32, 64, 128], made)
    used, other = pool.bytes_used, pool.open()
    pool.share(one, other, 64)
    assert [e.position for e in other.entries] == [32, 64]
    pool.close(one)
    assert 0 < pool.bytes_used < used
    assert len(made.held) == 2
    pool.check_integrity()
    pool.close(other)
    assert (pool.bytes_used, made.held) == (0, Counter())


@pytest.mark.parametrize("position", [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 100, 255, 256])
def test_layout_holds_live_rows_only(position: int) -> None:
    manifest = small_manifest()
    layout = SnapshotLayout(manifest)
    live = [min(position, position - max(0, r.live.first(position))) for r in manifest.rings]
    assert layout.rows(position).tolist() == live
    assert live[1] in range(8)
    assert live[2] == position % 16
    parts = layout.parts(position)
    edges = [*parts.rings.tolist(), parts.logits, parts.total]
    assert all(edge % 64 == 0 for edge in edges)
    for rows, start, end in zip([*live, VOCAB / 4], edges, edges[1:], strict=False):
        assert end - start == -(-rows * 16 // 64) * 64
    assert parts.total <= layout.largest()


def test_the_largest_snapshot_is_the_largest() -> None:
    for live in (Live(1, 7), Live(4, 4), Live(16, 0), Live(128, 3)):
        manifest = small_manifest(window=live.back + 1 if live.align == 1 else 5)
        layout = SnapshotLayout(manifest)
        assert layout.largest() == max(layout.parts(p).total for p in range(1, 700))


# ----------------------------------------------------------------------------------------------- memory plan


def allocated(machine: FakeMachine) -> int:
    return machine.device.allocated + memory_of(machine).snapshot_host_bytes


@pytest.mark.parametrize("mode", CopyMode)
@pytest.mark.parametrize("budget", [None, 400_000, 900_000])
@pytest.mark.parametrize("snapshots", [None, 0, 50_000, 50_001])
def test_counted_bytes_are_allocated_bytes(mode: CopyMode, budget: int | None, snapshots: int | None) -> None:
    manifest = small_manifest()
    plan = plan_memory(manifest, 3, budget, snapshots)
    device = FakeDevice(manifest)
    engine = Engine(
        manifest, device, None, max_sessions=3, memory_budget=budget, snapshot_budget=snapshots,
        copy_mode=mode,
    )  # fmt: skip
    try:
        assert engine.limits.memory == plan
        assert budget is None or plan.total <= budget
        if mode is CopyMode.DEVICE:
            assert device.allocated + manifest.arenas.weights == plan.total
        else:
            assert device.allocated <= plan.total - plan.snapshots // 2
        for number in range(3):
            engine.open_session(f"s{number}")
            engine_session(engine, f"s{number}").prefill(random_tokens(200, number))
            info, memory = engine.load_info(), memory_of(engine)
            assert info.state_bytes_used == memory.state_bytes <= info.state_bytes_budget
            assert info.snapshot_bytes_used == memory.snapshot_bytes <= info.snapshot_bytes_budget
            assert device.allocated + memory.snapshot_host_bytes + manifest.arenas.weights <= plan.total
            pages = -(-200 // 32) * (number + 1)
            want = (number + 1) * manifest.arenas.state_slot + pages * manifest.arenas.page
            assert memory.state_bytes == want
    except MemoryBudgetError:
        assert budget is not None
        assert plan.page_count < 3 * 7
    finally:
        engine.shutdown(5)


def test_what_a_plan_refuses() -> None:
    manifest = small_manifest()
    with pytest.raises(InvalidRequestError, match="at least 1 session"):
        plan_memory(manifest, 0, None)
    with pytest.raises(InvalidRequestError, match=r"snapshot budget of 0 to .* bytes, got -1"):
        plan_memory(manifest, 1, None, -1)
    whole = plan_memory(manifest, 1, None, 0)
    exact = whole.total
    assert plan_memory(manifest, 1, exact, 0) == whole
    with pytest.raises(MemoryBudgetError, match=f"at least {exact} bytes") as refused:
        plan_memory(manifest, 1, exact - 1, 0)
    assert refused.value.metadata == {"needed": str(exact), "budget": str(exact - 1)}
    with pytest.raises(MemoryBudgetError, match="snapshots 64"):
        plan_memory(manifest, 1, exact, 64)


def test_a_pool_that_kernels_cannot_address_is_refused() -> None:
    manifest = small_manifest()
    with pytest.raises(InvalidRequestError, match=r"expected a snapshot budget of 0 to \d+ bytes"):
        plan_memory(manifest, 1, None, MOST_BYTES + 1)
    assert plan_memory(manifest, 1 << 24, None).snapshots <= MOST_BYTES


def test_snapshots_take_at_most_a_quarter_and_never_the_pages_of_a_session() -> None:
    manifest = small_manifest()
    least = plan_memory(manifest, 2, None, 0)
    needed = least.fixed + manifest.limits.pages_per_session * least.page
    for spare in (0, 64, 1_000, 50_000, 10**7):
        plan = plan_memory(manifest, 2, needed + spare)
        assert plan.total <= needed + spare
        assert plan.page_count >= manifest.limits.pages_per_session
        assert plan.snapshots <= (needed + spare - plan.fixed) // 4
        assert plan.snapshots % 64 == 0
    assert plan.snapshots == 2 * default_session_bytes(manifest)


@pytest.mark.parametrize("context", [32, 256, 4_096, 16_384, 131_072])
def test_the_default_budget_holds_what_the_rule_keeps(context: int) -> None:
    manifest: Manifest = small_manifest(context=context, page_tokens=32 if context == 32 else 128)
    layout = SnapshotLayout(manifest)
    aligned = layout.parts(context // layout.interval * layout.interval).total
    count = default_session_bytes(manifest) // aligned
    assert count >= min(context, 8_192) // layout.interval + 8
