"""Sessions of an engine that are parked, brought back, kept over a restart, and counted in bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_input.helpers import entries, flip
from fake_executable import FakeDevice, fake_engine, small_manifest
from port import (
    check,
    device_of,
    die,
    engine_history,
    engine_session,
    fail_next_call,
    is_on_trial,
    memory_of,
    pages_in_use,
    parked_sessions,
    resident_sessions,
)
from unit.runtime.store.crashes import failing
from unit.runtime.test_engine import ids_only, wait_for

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import (
    ArtifactError,
    BackendFailedError,
    ContextLengthError,
    InvalidRequestError,
    MemoryBudgetError,
    RuntimeFailure,
    SessionBusyError,
    SessionExistsError,
    StoreFailedError,
    UnknownSessionError,
)
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.requests import StopParams
from ds4c_runtime.store.history_log import read_log
from ds4c_runtime.store.session_store import Storage

NOTHING = StopParams(max_output_tokens=0)


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(2, 1024), k=count))


class Kept:
    """Engines on one folder, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[tuple[str, str]] = []
        self.engines: list[Engine] = []

    def engine(self, budget: int | None = None, **options: int) -> Engine:
        storage = Storage(self.folder, budget, lambda *each: self.said.append(each))
        self.engines.append(fake_engine(storage=storage, **options))
        return self.engines[-1]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    for engine in made.engines:
        die(engine)


def feed(engine: Engine, session_id: str, given: tuple[int, ...], owner: str = "") -> None:
    engine.run(ids_only(session_id=session_id, tokens=given, stop=NOTHING), owner)


def next_tokens(engine: Engine, session_id: str, owner: str = "") -> tuple[int, ...]:
    return engine.run(ids_only(session_id=session_id, tokens=()), owner).tokens


def fresh_tokens(history: tuple[int, ...]) -> tuple[int, ...]:
    """What a session that did nothing else says next."""
    with fake_engine(max_sessions=1) as engine:
        return engine.run(ids_only(tokens=history)).tokens


# --- restart


@pytest.mark.parametrize("end", [Engine.shutdown, die], ids=["shutdown", "killed"])
def test_sessions_come_back_after_a_restart(kept: Kept, end: Callable[[Engine], object]) -> None:
    engine = kept.engine()
    engine.open_session("a", "me", capacity=200)
    feed(engine, "a", tokens(100), "me")
    engine.rewind("a", "me", to=90)
    engine.fork("a", "me", at=70, new_id="b")
    engine.open_session("empty", idle_seconds=1.5)
    engine.run(ids_only())
    before = {info.session_id: info for owner in ("me", "") for info in engine.list_sessions(owner)}
    assert set(before) == {"a", "b", "empty"}
    end(engine)
    again = kept.engine()
    after = {info.session_id: info for owner in ("me", "") for info in again.list_sessions(owner)}
    for name, info in after.items():
        was = before[name]
        for field in ("position", "capacity", "digest", "parent_session_id", "forked_at", "epoch", "horizon"):
            assert getattr(info, field) == getattr(was, field), (name, field)
        assert abs(info.create_time - was.create_time) < 1e-3
        assert (info.is_busy, info.state_bytes) == (False, 0)
        assert info.state_valid == (end is Engine.shutdown and name != "empty")
    assert set(after) == set(before)
    assert again.idle_limits() == {("", "empty"): 1.5}
    with pytest.raises(UnknownSessionError):
        again.get_session("a")
    plan = again.plan_rewind("a", "me", to=90)
    if end is Engine.shutdown:
        assert plan.kind is RewindKind.NONE
    else:
        assert (plan.kind, plan.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.EVICTED)
    for name in ("a", "b"):
        expected = fresh_tokens(engine_history(again, name, "me"))
        assert next_tokens(again, name, "me") == expected
    feed(again, "empty", tokens(5))
    assert kept.said == []


def test_every_turn_is_on_the_disk_before_it_is_answered(kept: Kept) -> None:
    engine = kept.engine()

    def stored() -> list[int]:
        (path,) = kept.folder.glob("*.log")
        return read_log(path).tokens.tolist()

    engine.open_session("s")
    assert stored() == []
    seen: list[bool] = []
    for call in (
        lambda: engine.submit_generate(ids_only(session_id="s", tokens=tokens(50))).result().done,
        lambda: engine.submit_rewind("s", to=20),
        lambda: engine.submit_generate(ids_only(session_id="s", tokens=tokens(3))).result().done,
        lambda: engine.submit_rewind("s", drop=1, defer=True),
    ):
        future = call()
        future.add_done_callback(lambda _: seen.append(stored() == list(engine_history(engine, "s"))))
        future.result()
    wait_for(lambda: len(seen) == 4)
    assert all(seen)


def test_a_turn_that_fails_or_is_cancelled_is_stored_as_far_as_it_came(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    device = device_of(engine)
    fail_next_call(engine, 6)
    with pytest.raises(BackendFailedError):
        engine.run(ids_only(session_id="s"))
    position = engine.get_session("s").position
    assert position > 40
    device.step_delay_seconds = 0.02
    long = StopParams(max_output_tokens=200, ignore_eos=True)
    generation = engine.generate(ids_only(session_id="s", tokens=(), stop=long), bounded=False)
    wait_for(lambda: engine.get_session("s").position > position + 2)
    generation.cancel()
    generation.done.result()
    expected = engine_history(engine, "s")
    die(engine)
    assert engine_history(kept.engine(), "s") == expected


def test_snapshots_and_pins_come_back(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(150))
    engine.rewind("s", to=100)
    pinned = engine.pin_snapshot("s", position=50, label="mine")
    listed = engine.list_snapshots("s")
    die(engine)
    again = kept.engine()
    assert again.get_session("s").state_valid, "what is pinned is on the disk at once"
    back = again.list_snapshots("s")
    assert all(abs(s.create_time - was.create_time) < 1e-5 for s, was in zip(back, listed, strict=True))
    assert [dataclasses.replace(s, create_time=0) for s in back] == [
        dataclasses.replace(s, create_time=0) for s in listed
    ]
    info, report = again.rewind("s", to_snapshot=pinned.snapshot_id)
    assert (info.position, report.kind, report.snapshot_id) == (50, RewindKind.SNAPSHOT, pinned.snapshot_id)
    forwards = next(s for s in listed if s.position == 128)
    info, report = again.rewind("s", to_snapshot=forwards.snapshot_id)
    assert (info.position, report.kind) == (128, RewindKind.SNAPSHOT)
    assert next_tokens(again, "s") == fresh_tokens(tokens(150)[:128])


def test_closing_deletes_what_is_stored(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(50))
    assert engine.save_session("s")
    assert len(entries(kept.folder)) == 3
    with failing(0), pytest.raises(StoreFailedError):
        engine.close_session("s")
    assert not engine.get_session("s").is_busy
    assert next_tokens(engine, "s") == fresh_tokens(tokens(50))
    engine.close_session("s")
    assert entries(kept.folder) == ["lock"]
    engine.open_session("s")
    assert engine.get_session("s").position == 0


def test_an_engine_without_a_folder_saves_nothing(kept: Kept) -> None:
    with fake_engine() as engine:
        engine.open_session("s")
        feed(engine, "s", tokens(50))
        assert not engine.save_session("s")
    assert entries(kept.folder) == []


def test_two_engines_on_one_folder(kept: Kept) -> None:
    kept.engine()
    with pytest.raises(StoreFailedError, match="another process"):
        kept.engine()


def test_a_session_of_another_model_is_left_alone(kept: Kept) -> None:
    engine = kept.engine(context=200)
    engine.open_session("s")
    engine.shutdown()
    other = kept.engine(context=100)
    assert kept.kinds == ["foreign"]
    assert other.list_sessions() == []
    for call in (lambda: other.open_session("s"), lambda: other.fork("x", new_id="s")):
        with pytest.raises(SessionExistsError):
            call()
    other.shutdown()
    assert len(kept.engine(context=200).list_sessions()) == 1


# --- trouble with the disk


def test_a_full_disk_costs_no_turn(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is answered, the trouble is said once a turn, and the next turn writes both."""
    engine = kept.engine()
    engine.open_session("s")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        feed(engine, "s", tokens(50))
        assert kept.kinds == ["write"]
        assert engine.counters.store_errors.values()["write",] == 1
        assert "No space left on device" in kept.said[0][1]
        engine.open_session("new")
        feed(engine, "new", tokens(5))
    feed(engine, "s", tokens(3))
    feed(engine, "new", tokens(3))
    die(engine)
    again = kept.engine()
    assert engine_history(again, "s") == tokens(50) + tokens(3)
    assert engine_history(again, "new") == tokens(5) + tokens(3)


def test_a_bad_state_is_set_aside_and_the_session_rebuilt(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(80))
    engine.shutdown()
    (state,) = kept.folder.glob("*.state")
    flip(state, -1)
    again = kept.engine()
    result = again.run(ids_only(session_id="s", tokens=()))
    assert result.started is not None
    report = result.started.rewind
    assert report is not None
    assert (report.kind, report.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.INTEGRITY_FAILED)
    assert report.replayed_tokens == 80
    assert result.tokens == fresh_tokens(tokens(80))
    assert kept.kinds == ["integrity"]
    assert [p.suffixes for p in kept.folder.glob("*.bad")] == [[".state", ".bad"]]


def test_a_state_whose_first_use_fails_is_not_used_again(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(80))
    engine.shutdown()
    again = kept.engine()
    again.plan_rewind("s", to=80)
    fail_next_call(again)
    with pytest.raises(BackendFailedError):
        next_tokens(again, "s")
    assert [p.suffixes for p in kept.folder.glob("*.bad")] == [[".state", ".bad"]]
    assert again.list_snapshots("s") == []
    plan = again.plan_rewind("s", to=80)
    assert (plan.kind, plan.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.INTEGRITY_FAILED)
    assert next_tokens(again, "s")[1:] == fresh_tokens(engine_history(again, "s")[:81])[:9]


def test_states_of_damaged_weights_are_not_kept(kept: Kept) -> None:
    """The weights turned out wrong while sessions were parked; one of another run is as it was."""
    engine = kept.engine(max_sessions=3, max_resident=1)
    engine.open_session("before")
    feed(engine, "before", tokens(40))
    engine.shutdown()
    engine = kept.engine(max_sessions=3, max_resident=1)
    for name in "ab":
        engine.open_session(name)
        feed(engine, name, tokens(40))
    assert len(list(kept.folder.glob("*.state"))) == 2
    engine.failure = ArtifactError("weights.bin rejected: expected sha256 aa, got bb")
    engine.shutdown()
    assert len(list(kept.folder.glob("*.state"))) == 1
    again = kept.engine()
    assert [info.state_valid for info in again.list_sessions()] == [True, False, False]


def test_a_refused_request_is_no_proof(kept: Kept) -> None:
    engine = kept.engine()
    engine.open_session("s")
    feed(engine, "s", tokens(80))
    engine.shutdown()
    again = kept.engine()
    with pytest.raises(ContextLengthError):
        feed(again, "s", tokens(200))
    again.plan_rewind("s", to=80)
    with pytest.raises(RuntimeFailure):
        again.rewind("s", to_snapshot="none")
    assert is_on_trial(engine_session(again, "s")), "judged without a use"
    trials: list[int] = []
    request = ids_only(session_id="s", tokens=())
    again.run(request, on_event=lambda _: trials.append(len(list(kept.folder.glob("*.trial")))))
    assert max(trials) == 1
    assert len(list(kept.folder.glob("*.state"))) == 1


# --- memory


def test_more_sessions_than_slots(kept: Kept) -> None:
    """Six sessions take turns in two slots; each says what one says that never had to leave."""
    rng = random.Random(1)
    with fake_engine(max_sessions=6) as roomy:
        engines = [kept.engine(max_sessions=6, max_resident=2), fake_engine(max_sessions=6, max_resident=2)]
        for engine in (roomy, *engines):
            for name in "abcdef":
                engine.open_session(name)
        for number in range(40):
            name, kind = rng.choice("abcdef"), rng.random()
            position = roomy.get_session(name).position
            results: list[object] = []
            to = rng.randrange(max(0, position - 40), position + 1)
            for engine in (roomy, *engines):
                if kind < 0.3 and position:
                    info, _ = engine.rewind(name, to=to)
                    results.append((info.position, info.digest, info.epoch))
                elif position < 200:
                    results.append(engine.run(ids_only(session_id=name, tokens=tokens(20, number))).tokens)
                load = engine.load_info()
                assert load.resident_sessions <= (6 if engine is roomy else 2)
            assert results[1:] == results[:-1]
        for engine in engines:
            check(engine)
        engines[1].shutdown()
    assert kept.said == []


def test_the_cheapest_to_rebuild_is_parked_first_and_a_pinned_one_never() -> None:
    with fake_engine(max_sessions=5, max_resident=4) as engine:
        for name, count in (("long", 120), ("short", 30), ("pinned", 10), ("middle", 60)):
            engine.open_session(name)
            feed(engine, name, tokens(count))
        pinned = engine.pin_snapshot("pinned", position=10)

        engine.open_session("new")
        assert resident_sessions(engine) == {"long", "pinned", "middle", "new"}
        feed(engine, "new", tokens(90))
        feed(engine, "short", tokens(1))
        assert resident_sessions(engine) == {"long", "pinned", "new", "short"}
        engine.unpin_snapshot("pinned", pinned.snapshot_id)
        feed(engine, "middle", tokens(1))
        assert resident_sessions(engine) == {"long", "new", "short", "middle"}


def test_nothing_may_go() -> None:
    """All slots are pinned or busy: the refusal says that a retry may help, and it does."""
    with fake_engine(max_sessions=3, max_resident=2, step_delay_seconds=0.01) as engine:
        for name in "ab":
            engine.open_session(name)
            feed(engine, name, tokens(20))
        pinned = engine.pin_snapshot("a", position=20)
        long = StopParams(max_output_tokens=150, ignore_eos=True)
        running = engine.generate(ids_only(session_id="b", tokens=(), stop=long), bounded=False)
        for call in (lambda: engine.open_session("c"), lambda: engine.fork("a", new_id="c")):
            with pytest.raises(MemoryBudgetError, match="retry later") as refused:
                call()
            assert refused.value.retry
        assert [info.session_id for info in engine.list_sessions()] == ["a", "b"]
        running.cancel()
        running.done.result()
        engine.open_session("c")
        engine.unpin_snapshot("a", pinned.snapshot_id)
        assert next_tokens(engine, "b")
        assert engine.load_info().resident_sessions == 2


def test_pages_that_are_short_park_sessions() -> None:
    manifest = small_manifest()
    with fake_engine(manifest=manifest, max_sessions=4) as engine:
        fixed, page = engine.limits.memory.fixed, engine.limits.memory.page
    budget = fixed + 12 * page + 64_000
    with fake_engine(
        manifest=manifest, max_sessions=4, memory_budget=budget, snapshot_budget=64_000
    ) as engine:
        assert engine.limits.memory.page_count == 12
        for name in "abcd":
            engine.open_session(name)
            feed(engine, name, tokens(180))
        assert not engine.get_session("a").state_valid
        assert engine.get_session("d").state_valid
        result = engine.run(ids_only(session_id="a", tokens=()))
        assert result.started is not None
        assert result.started.rewind is not None
        assert result.started.rewind.rebuild_reason is RebuildReason.EVICTED
        assert result.tokens == fresh_tokens(tokens(180))
        check(engine)


def test_a_parked_session_comes_back_from_disk_without_a_step(kept: Kept) -> None:
    engine = kept.engine(max_sessions=2, max_resident=1)
    engine.open_session("a")
    feed(engine, "a", tokens(100))
    engine.open_session("b")
    info = engine.get_session("a")
    assert (info.state_bytes, info.state_valid, info.position) == (0, True, 100)
    assert not info.is_resident
    assert engine.counters.session_evictions.values() == {("disk",): 1, ("history",): 0}
    load = engine.load_info()
    (state,) = kept.folder.glob("*.state")
    assert (load.resident_sessions, load.parked_sessions) == (1, 1)
    assert load.stored_bytes_used == state.stat().st_size
    steps = len(device_of(engine).rows)
    assert engine.plan_rewind("a", to=100).kind is RewindKind.NONE
    assert engine.plan_rewind("a", to=70).base_position == 64
    assert len(device_of(engine).rows) == steps
    assert next_tokens(engine, "a") == fresh_tokens(tokens(100))


def test_beyond_the_disk_budget_there_is_only_the_history(kept: Kept) -> None:
    engine = kept.engine(budget=0, max_sessions=2, max_resident=1)
    engine.open_session("a")
    feed(engine, "a", tokens(100))
    engine.open_session("b")
    assert not engine.get_session("a").state_valid
    assert engine.counters.session_evictions.values() == {("disk",): 0, ("history",): 1}
    assert list(kept.folder.glob("*.state")) == []
    plan = engine.plan_rewind("a", to=100)
    assert (plan.kind, plan.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.EVICTED)


def test_a_session_that_is_being_changed_is_not_parked() -> None:
    """A long generation and others that come and go in the other slot."""
    with fake_engine(max_sessions=3, max_resident=2, step_delay_seconds=0.002) as engine:
        for name in "abc":
            engine.open_session(name)
        long = StopParams(max_output_tokens=120, ignore_eos=True)
        running = engine.generate(ids_only(session_id="a", tokens=tokens(30), stop=long), bounded=False)
        for name in "bcbc":
            feed(engine, name, tokens(10))
        with pytest.raises(SessionBusyError):
            feed(engine, "a", tokens(1))
        assert running.done.result().end_position == 150
        check(engine)


def test_calls_from_many_threads_on_few_slots(kept: Kept) -> None:
    engine = kept.engine(max_sessions=6, max_resident=2, max_running=2)
    failures: list[BaseException] = []

    def use(name: str) -> None:
        try:
            while name not in {info.session_id for info in engine.list_sessions()}:
                with contextlib.suppress(MemoryBudgetError):
                    engine.open_session(name)
            for number in range(8):
                with contextlib.suppress(MemoryBudgetError):
                    feed(engine, name, tokens(7, number))
                    engine.rewind(name, drop=2)
                    engine.list_snapshots(name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    check(engine)
    for name in "abcdef":
        expected = fresh_tokens(engine_history(engine, name))
        assert next_tokens(engine, name) == expected


@pytest.mark.parametrize("wrong", [0, 9, -1])
def test_slots_out_of_range(wrong: int) -> None:
    with pytest.raises(InvalidRequestError, match="1 to 8 sessions in memory"):
        fake_engine(max_sessions=8, max_resident=wrong)


@pytest.mark.parametrize("budget", [None, 400_000])
def test_counted_bytes_are_allocated_bytes(budget: int | None) -> None:
    """What the plan says, what the device was asked for, and what is reported."""
    with fake_engine(max_sessions=4, max_resident=3, memory_budget=budget) as engine:
        device: FakeDevice = device_of(engine)
        memory = engine.limits.memory
        assert memory.total == device.allocated + engine.manifest.arenas.weights
        assert budget is None or memory.total <= budget
        load, has = engine.load_info(), memory_of(engine)
        assert load.state_bytes_budget == has.state_bytes_total
        assert load.snapshot_bytes_budget == has.snapshot_arena_bytes == memory.snapshots
        for name in "abcd":
            engine.open_session(name)
            feed(engine, name, tokens(100))
        load = engine.load_info()
        arenas = engine.manifest.arenas
        slots, pages = len(resident_sessions(engine)), pages_in_use(engine)
        assert load.resident_sessions == slots == 3
        assert load.state_bytes_used >= slots * arenas.state_slot + len(pages) * arenas.page
        assert load.state_bytes_used <= load.state_bytes_budget
        assert load.snapshot_bytes_used <= load.snapshot_bytes_budget
        assert device.allocated + arenas.weights == memory.total, "use allocates nothing more"


def test_a_parked_session_takes_no_state(kept: Kept) -> None:
    engine = kept.engine(max_sessions=2, max_resident=1)
    empty = engine.load_info()
    engine.open_session("a")
    feed(engine, "a", tokens(100))
    engine.open_session("b")
    load = engine.load_info()
    assert load.state_bytes_used == empty.state_bytes_used + engine.manifest.arenas.state_slot
    assert load.snapshot_bytes_used == 0
    assert parked_sessions(engine) == {"a"}
