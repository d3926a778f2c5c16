"""Pages and snapshots that branches share: nobody's tokens show in another branch, and nothing is kept twice.

The first two are the tests of decisions.md 6 of the design.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from artifacts import Build
from fake_executable import fake_machine, small_manifest
from fake_oracle import FakeOracle, random_tokens
from port import (
    Machine,
    Session,
    check,
    live_bytes,
    machine_behind,
    machine_like,
    memory_of,
    open_machine,
    poison_sessions,
)
from rewind_reference import Config, state_bytes
from sizes import more

from ds4c_runtime.manifest import Manifest
from ds4c_runtime.reports import RewindKind

CONTEXT = 4096


@dataclass
class Kit:
    """A device with a context of 4,096 tokens: compiled, or the fake one."""

    manifest: Manifest
    make: Callable[..., Machine[Any]]
    live_digest: Callable[[Session], bytes]
    vocab_size: int

    def tokens(self, count: int, seed: int) -> list[int]:
        return np.random.default_rng(seed).integers(0, self.vocab_size, count).tolist()

    @lru_cache  # noqa: B019
    def fresh(self, tokens: tuple[int, ...]) -> tuple[bytes, bytes]:
        """Logits and live rows of a session that never did anything else."""
        session = self.make(1, snapshot_bytes=0).open()
        session.prefill(tokens)
        return self.seen(session)

    def seen(self, session: Session) -> tuple[bytes, bytes]:
        row = session.logits()
        assert row is not None
        return row.tobytes(), self.live_digest(session)

    def check(self, session: Session) -> None:
        poison_sessions(session)
        assert self.seen(session) == self.fresh(session.history)

    def __hash__(self) -> int:
        return id(self)


def digest_of(rows: dict[str, bytes]) -> bytes:
    return hashlib.blake2b(b"".join(rows.values()), digest_size=16).digest()


def generate(session: Session, count: int, first: int) -> None:
    """Greedy, but for the first token, one step each."""
    token = first
    for _ in range(count):
        token = int(session.step([token])[0].argmax())


@lru_cache
def fake_kit() -> Kit:
    manifest = small_manifest(context=CONTEXT, max_rows=256, page_tokens=128, max_logit_rows=16)

    def live_digest(session: Session) -> bytes:
        return digest_of(live_bytes(machine_behind(session), session))

    return Kit(manifest, partial(machine_like, fake_machine(manifest)), live_digest, 1024)


def compiled_kit(model: Machine[Any], config: Config) -> Kit:
    def live_digest(session: Session) -> bytes:
        return digest_of(state_bytes(machine_behind(session), config, session))

    return Kit(model.manifest, partial(machine_like, model), live_digest, config.vocab_size)


@pytest.fixture(scope="module", params=["fake", more("tiny-8")])
def kit(request: pytest.FixtureRequest, built: Build) -> Kit:
    if request.param == "fake":
        return fake_kit()
    made = built(request.param, context=CONTEXT, rows=256)
    return compiled_kit(open_machine(made.artifact), made.config)


def test_pin_rewind_other_tokens_restore(kit: Kit) -> None:
    machine = kit.make(2)
    session, given = machine.open(), kit.tokens(1_000, 1)
    session.prefill(given)
    pinned = session.pin(position=1_000)
    before = kit.seen(session)
    session.rewind(500)
    generate(session, 600, kit.tokens(1, 2)[0])
    kit.check(session)
    other = session.pin(position=1_100)
    was_other = kit.seen(session)
    for info, want in ((pinned, before), (other, was_other), (pinned, before)):
        report = session.rewind_to_snapshot(info.snapshot_id)
        assert (report.kind, report.replayed_tokens) == (RewindKind.SNAPSHOT, 0)
        poison_sessions(session)
        assert kit.seen(session) == want
    assert session.history == tuple(given)
    session.prefill(kit.tokens(40, 3))
    kit.check(session)
    check(machine)


@pytest.mark.parametrize("who", ["parent", "child"])
def test_fork_rewind_other_tokens(kit: Kit, who: str) -> None:
    """One of the two goes back into what they share and generates other tokens; the other never notices."""
    machine = kit.make(2)
    parent, given = machine.open(), kit.tokens(1_000, 4)
    parent.prefill(given)
    child, _ = parent.fork()
    moves, stays = (parent, child) if who == "parent" else (child, parent)
    before = kit.seen(stays)
    moves.rewind(500)
    generate(moves, 600, kit.tokens(1, 5)[0])
    poison_sessions(stays)
    assert kit.seen(stays) == before
    assert stays.history == tuple(given)
    kit.check(moves)
    stays.rewind(700)
    kit.check(stays)
    stays.prefill(given[700:720])
    kit.check(stays)
    kit.check(moves)
    check(machine)


def test_a_hundred_children_cost_a_hundred_live_sets(kit: Kit) -> None:
    """Rings are copied; pages and snapshots are shared until somebody writes to them."""
    children, length = 100, 4_030
    page_tokens, arenas = kit.manifest.limits.page_tokens, kit.manifest.arenas
    own = -(-length // page_tokens)
    machine = kit.make(children + 1, pages=own + 2 + 2 * children)  # 3 sessions would not fit
    parent, given = machine.open(), kit.tokens(length, 6)
    parent.prefill(given)
    assert memory_of(machine).state_bytes == arenas.state_slot + own * arenas.page
    before, of_snapshots = memory_of(machine).state_bytes, memory_of(machine).snapshot_bytes
    assert of_snapshots > 0
    made: list[Session] = []
    for index in range(children):
        at = length - index % 5
        child, report = parent.fork(at)
        assert report.kind is RewindKind.IN_PLACE
        made.append(child)
    assert memory_of(machine).state_bytes - before == children * arenas.state_slot
    assert memory_of(machine).snapshot_bytes == of_snapshots
    whole = (arenas.state_slot + own * arenas.page) * children
    if arenas.page * own > 2 * arenas.state_slot:
        assert memory_of(machine).state_bytes - before < whole / 2
    check(machine)
    for index, child in enumerate(made):
        child.step([index % kit.vocab_size, (index * 7) % kit.vocab_size])
    # Each has one page of its own now: a copy of the one that it writes to.
    assert memory_of(machine).state_bytes - before == children * (arenas.state_slot + arenas.page)
    assert memory_of(machine).snapshot_bytes == of_snapshots
    for child in (*made[::9], parent):
        kit.check(child)
    far = made[::20]
    for child in far:  # by the snapshots of the parent
        report = child.rewind(2_050)
        assert report.base_position == 2_050 // page_tokens * page_tokens
        assert report.replayed_tokens == 2_050 % page_tokens
        kit.check(child)
    parent.close()
    for child in (*far, made[1]):
        kit.check(child)
    check(machine)
    for child in made:
        child.close()
    assert (memory_of(machine).state_bytes, memory_of(machine).snapshot_bytes) == (0, 0)
    assert memory_of(machine).free_pages == memory_of(machine).pages


def test_children_of_a_far_position_start_from_a_snapshot_and_share_its_pages(kit: Kit) -> None:
    machine = kit.make(6)
    parent, given = machine.open(), kit.tokens(2_000, 7)
    parent.prefill(given)
    used = memory_of(machine).state_bytes
    page, slot = kit.manifest.arenas.page, kit.manifest.arenas.state_slot
    for at in (1_024, 1_030, 128, 1_999):
        child, report = parent.fork(at)
        kit.check(child)
        assert report.replayed_tokens < kit.manifest.limits.page_tokens
        cost = memory_of(machine).state_bytes - used
        assert cost <= slot + page, "more than the page that is being written"
        child.close()
    kit.check(parent)
    check(machine)


ORACLE = FakeOracle()


@pytest.mark.parametrize("number", range(12))
def test_forks_and_rewinds_in_any_order(number: int) -> None:
    """Small pages, a horizon of 6: forks at any position of any session, between rewinds of all of them."""
    rng = np.random.default_rng(number)
    machine = fake_machine(max_sessions=9, snapshot_bytes=None if number % 3 else 0)
    first = machine.open()
    first.prefill(random_tokens(200, number))
    sessions = [first]
    for turn in range(40):
        session = sessions[rng.integers(len(sessions))]
        position = int(rng.integers(0, session.position + 1))
        choice = rng.integers(4)
        if choice == 0 and len(sessions) < 8:
            child, report = session.fork(position)
            assert (child.position, report.to_position) == (position, position)
            sessions.append(child)
        elif choice == 1:
            session.rewind(position)
        elif choice == 2:
            session.prefill(random_tokens(int(rng.integers(1, 56)), turn)[: 256 - session.position])
        elif len(sessions) > 2:
            sessions.remove(session)
            session.close()
        check(machine)
        if turn % 4 == 3:
            ORACLE.check(machine, *sessions)
    for session in sessions:
        session.close()
    assert memory_of(machine).free_pages == memory_of(machine).pages
    assert memory_of(machine).snapshot_bytes == 0


@pytest.mark.parametrize("order", ["up", "down", "mixed"])
def test_fork_at_every_position_in_any_order(order: str) -> None:
    machine = fake_machine(max_sessions=4)
    parent, given = machine.open(), random_tokens(140, 20)
    parent.prefill(given)
    positions = list(range(0, 141, 3))
    if order == "down":
        positions.reverse()
    if order == "mixed":
        positions = np.random.default_rng(1).permutation(positions).tolist()
    for at in positions:
        child, _ = parent.fork(at)
        grandchild, _ = child.fork(at // 2)
        child.prefill(random_tokens(5, at))
        ORACLE.check(machine, child, grandchild)
        child.rewind(max(0, at - 3))
        ORACLE.check(machine, parent, child, grandchild)
        grandchild.close()
        child.close()


def test_a_snapshot_outlives_the_session_that_took_it() -> None:
    machine = fake_machine()
    parent = machine.open()
    parent.prefill(random_tokens(100, 21))
    pinned = parent.pin(position=70)
    child, _ = parent.fork(90)
    assert pinned.snapshot_id in [s.snapshot_id for s in child.snapshots()]
    assert not any(s.is_pinned for s in child.snapshots()), "a pin is of one session"
    above = sum(s.bytes for s in parent.snapshots() if s.position > 90)
    used = memory_of(machine).snapshot_bytes
    parent.close()
    assert memory_of(machine).snapshot_bytes == used - above
    report = child.rewind(70)
    assert (report.kind, report.snapshot_id) == (RewindKind.SNAPSHOT, pinned.snapshot_id)
    ORACLE.check(machine, child)
    child.close()
    assert memory_of(machine).snapshot_bytes == 0
    check(machine)


def test_only_pages_that_are_written_count_as_needed() -> None:
    """Five pages of a parent and one free: who starts from a snapshot shares the others."""
    machine = fake_machine(max_sessions=3, page_count=6)
    parent = machine.open()
    parent.prefill(random_tokens(160, 22))
    child, _ = parent.fork()
    assert child.rewind(100).replayed_tokens == 4
    ORACLE.check(machine, parent, child)
    child.close()
    child, report = parent.fork(70)
    assert report.base_position == 64
    ORACLE.check(machine, parent, child)
    child.rewind(30, defer=True)  # whose next use needs the first page, which the parent has too
    child.prefill([1])
    ORACLE.check(machine, parent, child)
