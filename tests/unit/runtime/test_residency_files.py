"""What an engine's calls do to files and pages: trials, what is set aside, pins, counts, ends of turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_input.helpers import entries, flip
from fake_executable import fake_engine, small_manifest
from port import break_end_of_turns, check, check_room, die, engine_history, fail_next_call, set_disk_budget
from unit.runtime.store.crashes import failing
from unit.runtime.test_engine import ids_only
from unit.runtime.test_residency import Kept, feed, fresh_tokens, next_tokens, tokens

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import BackendFailedError, MemoryBudgetError, StoreFailedError
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.session import Session


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    for engine in made.engines:
        die(engine)


# --- files that were read, and what is set aside


def suffixes(kept: Kept) -> list[str]:
    return sorted(path.name.partition(".")[2] for path in kept.folder.iterdir() if path.suffix)


READERS: dict[str, Callable[[Engine, str], object]] = {
    "list": lambda e, _: e.list_snapshots("s"),
    "plan": lambda e, _: e.plan_rewind("s", to=3),
    "pin": lambda e, i: e.pin_snapshot("s", snapshot_id=i),
    "unpin": lambda e, i: e.unpin_snapshot("s", i),
    "rewind": lambda e, _: e.rewind("s", to=32),
    "fork": lambda e, _: e.fork("s"),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_crash_after_calls_that_evaluate_nothing_costs_no_state(
    kept: Kept, reader: Callable[[Engine, str], object]
) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))
    pinned = engine.pin_snapshot("s", position=50).snapshot_id
    die(engine)
    for _ in range(3):
        engine = kept.engine()
        reader(engine, pinned)
        assert suffixes(kept).count("state") == 1
        die(engine)
    assert [s.snapshot_id for s in kept.engine().list_snapshots("s")][-1] == pinned
    assert kept.said == []


def test_a_file_without_a_snapshot_at_the_position_is_accepted_after_a_good_turn(kept: Kept) -> None:
    """The logits were not held when the session was parked, so the last snapshot had to do."""
    engine = kept.engine(max_sessions=3, max_resident=1)
    engine.open_session("s")
    feed(engine, "s", tokens(150))
    engine.rewind("s", to=147)
    engine.open_session("other")
    engine.close_session("other")
    next_tokens(engine, "s")
    assert suffixes(kept) == ["log", "state"]
    die(engine)
    again = kept.engine(max_sessions=3, max_resident=1)
    assert again.list_snapshots("s")[-1].position >= 128
    assert kept.said == []


def while_running(kept: Kept, engine: Engine, session_id: str) -> list[list[str]]:
    """The files at each event of a generation."""
    seen: list[list[str]] = []
    engine.run(ids_only(session_id=session_id, tokens=()), on_event=lambda _: seen.append(suffixes(kept)))
    return seen


@pytest.mark.parametrize("user", ["s", "fork"])
def test_a_file_is_on_trial_in_the_first_turn_only(kept: Kept, user: str) -> None:
    for turns in (0, 1):
        engine = kept.engine()
        if not turns:
            engine.open_session("s")
            feed(engine, "s", tokens(50))
        assert engine.save_session("s")
        die(engine)
        engine = kept.engine()
        if user == "fork":
            engine.fork("s", new_id="fork")
        for _ in range(turns):
            next_tokens(engine, user)
        assert any("trial" in names for names in while_running(kept, engine, user)) == (not turns)
        assert "state" in suffixes(kept)
        if user == "fork":
            engine.close_session("fork")
        die(engine)


def test_a_fork_that_fails_condemns_the_file_of_its_parent(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))
    engine.shutdown()
    again = kept.engine()
    again.fork("s", new_id="t")
    fail_next_call(again)
    with pytest.raises(BackendFailedError):
        next_tokens(again, "t")
    assert "state.bad" in suffixes(kept)
    assert next_tokens(again, "s") == fresh_tokens(tokens(50))


def test_a_shutdown_leaves_no_file_on_trial(kept: Kept) -> None:
    """The last save of a session may run a step; there is no room for its file."""
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))
    engine.shutdown()
    engine = kept.engine()
    engine.rewind("s", to=48, defer=True)
    set_disk_budget(engine, 0)
    engine.list_snapshots("s")
    engine.shutdown()
    assert suffixes(kept) == ["log", "state"]


def test_closing_deletes_what_was_set_aside_too(kept: Kept) -> None:
    engine = kept.engine()
    for name in "ab":
        engine.open_session(name)
        feed(engine, name, tokens(50))
    engine.shutdown()
    for path in [*kept.folder.glob("*.state"), *kept.folder.glob("*.log")]:
        flip(path, -1)
    again = kept.engine()
    for name in "ab":
        again.list_snapshots(name)
    assert suffixes(kept) == ["log", "log", "log.bad", "log.bad", "state.bad", "state.bad"]
    held = sum(path.stat().st_size for path in kept.folder.glob("*.bad"))
    assert again.load_info().stored_bytes_used == held
    again.close_session("a")
    assert suffixes(kept) == ["log", "log.bad", "state.bad"]
    again.close_session("b")
    assert entries(kept.folder) == ["lock"]


def test_what_was_set_aside_gives_way_first(kept: Kept) -> None:
    engine = kept.engine()
    for name in "ab":
        engine.open_session(name)
        feed(engine, name, tokens(50))
        engine.save_session(name)
    die(engine)
    size = max(path.stat().st_size for path in kept.folder.glob("*.state"))
    for path in kept.folder.glob("*.state"):
        flip(path, -1)
    budget = 2 * size + size // 2
    again = kept.engine(budget=budget)
    again.list_snapshots("a")
    first = next(kept.folder.glob("*.bad"))
    os.utime(first, (1, 1))
    again.list_snapshots("b")
    assert suffixes(kept).count("state.bad") == 2
    next_tokens(again, "a")
    assert again.save_session("a")
    assert not first.exists(), "the oldest goes first"
    assert again.load_info().stored_bytes_used <= budget
    die(again)
    kept.engine(budget=0)
    assert "state.bad" not in suffixes(kept)


def test_unpinning_lasts(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))
    pinned = engine.pin_snapshot("s", position=50)
    engine.unpin_snapshot("s", pinned.snapshot_id)
    state = next(kept.folder.glob("*.state"))
    written = state.stat().st_mtime_ns
    engine.unpin_snapshot("s", pinned.snapshot_id)
    assert state.stat().st_mtime_ns == written, "it was not pinned"
    die(engine)
    assert not any(s.is_pinned for s in kept.engine().list_snapshots("s"))


def test_a_session_that_a_reader_brings_back_says_so(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))
    engine.shutdown()
    again = kept.engine()
    assert not again.get_session("s").is_resident
    again.list_snapshots("s")
    info = again.get_session("s")
    assert (info.is_resident, info.state_valid) == (True, True)
    assert info.state_bytes > again.manifest.arenas.state_slot


# --- turns


def test_the_end_of_a_turn_costs_its_new_tokens(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(150))

    def whole(_: object) -> tuple[int, ...]:
        raise AssertionError("the whole history was asked for")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "history", property(whole))
        feed(engine, "s", tokens(3))
        engine.rewind("s", to=20)
        feed(engine, "s", tokens(4))
        assert engine.save_session("s")
    die(engine)
    assert engine_history(kept.engine(), "s") == tokens(150)[:20] + tokens(4)


def test_a_bug_at_the_end_of_a_turn_leaves_the_sessions_free(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))

    with monkeypatch.context() as patch:
        break_end_of_turns(engine, patch, ZeroDivisionError())
        for call in (
            lambda: next_tokens(engine, "s"),
            lambda: engine.rewind("s", drop=1),
            lambda: engine.fork("s", new_id="t"),
        ):
            with pytest.raises(ZeroDivisionError):
                call()
    assert not any(info.is_busy for info in engine.list_sessions())
    feed(engine, "s", tokens(1))


def rewinds(engine: Engine) -> dict[tuple[str, ...], float]:
    return {key: n for key, n in engine.counters.rewinds.rewinds.values().items() if n}


def test_a_save_that_rebuilds_is_counted(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(150))
    engine.rewind("s", to=100, defer=True)
    engine.save_session("s")
    assert rewinds(engine) == {("snapshot_replay", "client"): 1}
    engine.close_session("s")
    assert rewinds(engine) == {("snapshot_replay", "client"): 1}


def test_a_close_that_fails_counts_nothing(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(150))
    engine.rewind("s", to=100, defer=True)
    with failing(0), pytest.raises(StoreFailedError):
        engine.close_session("s")
    assert rewinds(engine) == {}
    engine.close_session("s")
    assert rewinds(engine) == {("deferred", "client"): 1}


def test_a_call_that_changes_nothing_parks_nobody() -> None:
    """Eight pages: five are pinned, two held; seven could never be free."""
    manifest = small_manifest()
    with fake_engine(manifest=manifest, max_sessions=4) as engine:
        fixed, page = engine.limits.memory.fixed, engine.limits.memory.page
    budget = fixed + 8 * page + 30_016
    with fake_engine(
        manifest=manifest, max_sessions=4, memory_budget=budget, snapshot_budget=30_016
    ) as engine:
        for name in "abcd":
            engine.open_session(name)
        feed(engine, "a", tokens(150))
        engine.pin_snapshot("a", position=150)
        feed(engine, "b", tokens(30))
        feed(engine, "c", tokens(30, 1))
        with pytest.raises(MemoryBudgetError):
            feed(engine, "d", tokens(200, 2))
        assert all(info.is_resident for info in engine.list_sessions())
        assert engine.counters.session_evictions.values() == {("disk",): 0, ("history",): 0}
        check_room(engine, "d", 0, 3 * 32)
        assert all(info.is_resident for info in engine.list_sessions()), "a check parks nobody"
        feed(engine, "d", tokens(96, 2))
        assert engine.counters.session_evictions.values()["history",] > 0
        check(engine)


def test_reasons_are_those_of_the_last_rebuild(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(80))
    engine.shutdown()
    flip(next(kept.folder.glob("*.state")), -1)
    again = kept.engine()
    assert again.plan_rewind("s", to=10).rebuild_reason is RebuildReason.INTEGRITY_FAILED
    result = again.run(ids_only(session_id="s", tokens=()))
    assert result.started is not None
    assert result.started.rewind is not None
    assert result.started.rewind.rebuild_reason is RebuildReason.INTEGRITY_FAILED
    plan = again.plan_rewind("s", to=10)
    assert (plan.kind, plan.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.NO_SNAPSHOT)
