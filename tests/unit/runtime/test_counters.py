"""Counts of an engine: each operation changes exactly what it should, by how much, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_executable import fake_engine
from port import fail_next_call, refuse_restores

from ds4c_runtime.counters import SECONDS, Counter, Counters, Histogram
from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import BackendFailedError, NoProgressError, RewindTooDearError
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind, RewindReport
from ds4c_runtime.requests import GenerationRequest, StopParams

PROMPT = tuple(range(100, 140))
Numbers = dict[str, float]


def numbers(counters: Counters) -> Numbers:
    """Every counter, and the number of observations of every histogram, by name and label values."""
    found: Numbers = {}
    for counter in counters.counters():
        for labels, number in counter.values().items():
            found[" ".join((counter.name, *labels))] = number
    for histogram in counters.histograms():
        for labels, held in histogram.values().items():
            found[" ".join((histogram.name, *labels))] = held.counts[-1]
            if histogram.name == "rewind_distance_tokens":
                found["distance"] = held.sum
    return found


def change(engine: Engine, operation: Callable[[], object]) -> Numbers:
    """What an operation adds to the numbers; those it leaves alone are left out."""
    before = numbers(engine.counters)
    operation()
    after = numbers(engine.counters)
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


def moved(kind: str, cause: str = "client", *, distance: int, replayed: int = 0, reason: str = "") -> Numbers:
    """What one rewind or fork of a kind adds."""
    found: Numbers = {f"rewinds {kind} {cause}": 1, f"rewind_seconds {kind}": 1, "rewind_distance_tokens": 1}
    if distance:
        found["distance"] = distance
        if cause != "branch":
            found[f"discarded_tokens {cause}"] = distance
    if replayed:
        found[f"rewind_replayed_tokens {kind} {cause}"] = replayed
    if reason:
        found[f"rebuilds {reason}"] = 1
        if replayed:
            found["rebuild_tokens"] = replayed
    return found


def generated(*, compute: int, session: int, tokens: int) -> Numbers:
    """What a generation of at least one token adds."""
    found: Numbers = {"ttft_seconds": 1, "tail_seconds": 1, "generated_tokens": tokens}
    sources = {"prefill_tokens compute": compute, "prefill_tokens session": session}
    return found | {name: number for name, number in sources.items() if number}


def request(tokens: tuple[int, ...] = (), count: int = 5, **fields: Any) -> GenerationRequest:
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    return GenerationRequest(tokens=tokens, session_id="s", return_text=False, stop=stop, **fields)


def test_the_time_of_a_rewind_is_that_of_restore_and_replay() -> None:
    counters = Counters()
    kind, reason = RewindKind.SNAPSHOT_REPLAY, RebuildReason.NOT_REBUILT
    report = RewindReport(kind, RewindCause.CLIENT, reason, 90, 70, 64, 6, 0.5, 0.25, "s1")
    counters.rewinds.record(report)
    assert counters.rewinds.seconds.values()[("snapshot_replay",)].sum == 0.75


def test_bounds_go_from_a_rewind_in_place_to_a_full_context() -> None:
    rewinds = Counters().rewinds
    assert rewinds.distance_tokens.bounds == tuple(4.0**power for power in range(11))
    assert (rewinds.seconds.bounds[0], rewinds.seconds.bounds[-1]) == (1e-5, 1000.0)
    assert list(rewinds.seconds.bounds) == sorted(set(rewinds.seconds.bounds))


@pytest.mark.parametrize(("to", "discarded"), [(89, 1), (90, 0), (95, 0), (0, 90)])
def test_what_a_rewind_discards(to: int, discarded: int) -> None:
    """From 90; to a snapshot of another branch it may also go forwards."""
    for cause, expected in ((RewindCause.CLIENT, discarded), (RewindCause.BRANCH, 0)):
        counters = Counters()
        report = RewindReport(RewindKind.IN_PLACE, cause, RebuildReason.NOT_REBUILT, 90, to, to, 0, 0.0, 0.0)
        counters.rewinds.record(report)
        assert counters.rewinds.discarded_tokens.values()[(cause.value,)] == expected
        assert counters.rewinds.distance_tokens.values()[()].sum == abs(90 - to)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """One session "s" of 40 tokens, snapshots at 32 and 40; a rewind to 34 or above is in place."""
    with fake_engine(horizon=6) as made:
        made.open_session("s")
        made.run(request(PROMPT, 0))
        yield made


OPERATIONS: dict[str, tuple[Callable[[Engine], object], Numbers]] = {
    "nowhere": (lambda e: e.rewind("s", drop=0), moved("none", distance=0)),
    "in place": (lambda e: e.rewind("s", drop=5), moved("in_place", distance=5)),
    "rebuilt": (
        lambda e: e.rewind("s", to=10),
        moved("rebuild", distance=30, replayed=10, reason="no_snapshot"),
    ),
    "to a snapshot": (lambda e: e.rewind("s", to=32), moved("snapshot", distance=8)),
    "from a snapshot": (
        lambda e: e.rewind("s", to=33),
        moved("snapshot_replay", distance=7, replayed=1),
    ),
    "to a snapshot by id": (
        lambda e: e.rewind("s", to_snapshot=e.list_snapshots("s")[0].snapshot_id),
        moved("snapshot", distance=8),
    ),
    "pinned": (lambda e: e.pin_snapshot("s", position=20), {}),
    "emptied": (lambda e: e.rewind("s", to=0), moved("in_place", distance=40)),
    "forked empty": (lambda e: e.fork("s", at=0), moved("in_place", "branch", distance=40)),
    "deferred": (lambda e: e.rewind("s", to=10, defer=True), {}),
    "planned": (lambda e: e.plan_rewind("s", to=10), {}),
    "read": (lambda e: (e.get_session("s"), e.list_sessions(), e.load_info(), e.session_states()), {}),
    "opened": (lambda e: e.open_session("t"), {}),
    "fork": (lambda e: e.fork("s", at=38), moved("in_place", "branch", distance=2)),
    "fork that is rebuilt": (
        lambda e: e.fork("s", at=20),
        moved("rebuild", "branch", distance=20, replayed=20, reason="no_snapshot"),
    ),
    "generation": (
        lambda e: e.run(request((7, 8), 5)),
        generated(compute=2, session=40, tokens=5),
    ),
    "prefill only": (
        lambda e: e.run(request((7, 8), 0)),
        {"prefill_tokens compute": 2, "prefill_tokens session": 40},
    ),
    "generation after a rewind in place": (
        lambda e: e.run(request((7, 8), 5, rewind_to=36)),
        generated(compute=2, session=36, tokens=5) | moved("in_place", distance=4),
    ),
    "generation from the place of a rewind": (
        lambda e: e.run(request((), 5, rewind_to=36)),
        generated(compute=0, session=35, tokens=5) | moved("in_place", distance=4, replayed=1),
    ),
    "generation after a rebuild": (
        lambda e: e.run(request((7,), 5, rewind_to=10)),
        generated(compute=1, session=0, tokens=5)
        | moved("rebuild", distance=30, replayed=10, reason="no_snapshot"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_each_operation_counts_what_it_did(
    engine: Engine, operation: Callable[[Engine], object], expected: Numbers
) -> None:
    assert change(engine, lambda: operation(engine)) == expected


LATER: dict[str, tuple[Callable[[Engine], object], Numbers]] = {
    "the next generation": (
        lambda e: e.run(request((7,), 5)),
        generated(compute=1, session=0, tokens=5)
        | moved("rebuild", distance=30, replayed=10, reason="no_snapshot"),
    ),
    "a rewind to the same place": (
        lambda e: e.rewind("s", to=10),
        moved("rebuild", distance=30, replayed=10, reason="no_snapshot"),
    ),
    "the same again": (lambda e: e.rewind("s", to=10, defer=True), {}),
    "its session being closed": (lambda e: e.close_session("s"), moved("deferred", distance=30)),
    "a rewind further back": (
        lambda e: e.rewind("s", to=4, defer=True),
        moved("deferred", distance=30),
    ),
    "a rewind to nothing": (
        lambda e: e.rewind("s", to=0),
        {
            **moved("deferred", distance=30),
            **moved("in_place", distance=10),
            "distance": 40,
            "rewind_distance_tokens": 2,
            "discarded_tokens client": 40,
        },
    ),
    "a fork, which leaves it waiting": (
        lambda e: e.fork("s"),
        moved("rebuild", "branch", distance=0, replayed=10, reason="snapshot_invalidated"),
    ),
}


@pytest.mark.parametrize(("operation", "expected"), LATER.values(), ids=LATER)
def test_a_deferred_rewind_counts_once_as_what_it_became(
    engine: Engine, operation: Callable[[Engine], object], expected: Numbers
) -> None:
    engine.rewind("s", to=10, defer=True)
    assert change(engine, lambda: operation(engine)) == expected


def test_a_replaced_deferred_rewind_and_the_one_that_replaces_it_count_one_each(engine: Engine) -> None:
    def both() -> None:
        engine.rewind("s", to=10, defer=True)
        engine.rewind("s", to=4)

    counted = change(engine, both)
    assert (counted["rewinds deferred client"], counted["rewinds rebuild client"]) == (1, 1)
    assert counted["discarded_tokens client"] == 36
    assert counted["rebuild_tokens"] == 4


def test_a_deferred_replay_counts_as_a_replay(engine: Engine) -> None:
    engine.rewind("s", to=33, defer=True)
    counted = change(engine, lambda: engine.run(request((7,), 5)))
    replay = moved("snapshot_replay", distance=7, replayed=1)
    assert counted == generated(compute=1, session=32, tokens=5) | replay


def test_going_forward_to_another_branch_discards_nothing(engine: Engine) -> None:
    end = engine.list_snapshots("s")[-1]
    engine.rewind("s", to=32)
    counted = change(engine, lambda: engine.rewind("s", to_snapshot=end.snapshot_id))
    assert counted == {**moved("snapshot", distance=0), "distance": 8}


def test_a_refused_rewind_counts_nothing(engine: Engine) -> None:
    def refused() -> None:
        with pytest.raises(RewindTooDearError):
            engine.rewind("s", to=10, max_replay_tokens=9)

    assert change(engine, refused) == {}


def test_a_failed_rebuild_counts_when_it_is_made_good(engine: Engine) -> None:
    fail_next_call(engine)

    def failing() -> None:
        with pytest.raises(BackendFailedError):
            engine.rewind("s", to=10)

    assert change(engine, failing) == {}
    counted = change(engine, lambda: engine.run(request((7,), 1)))
    assert counted["rewinds rebuild client"] == 1
    assert counted["discarded_tokens client"] == 30


def test_tokens_withdrawn_by_a_stop_string_are_counted_by_their_cause() -> None:
    from unit.serve.grpc_harness import TOKENIZER

    with fake_engine(horizon=6, tokenizer_path=TOKENIZER) as engine:
        text = engine.run(GenerationRequest(tokens=PROMPT, stop=StopParams(max_output_tokens=12))).text
        stop = StopParams(max_output_tokens=12, strings=(text[4:7],))
        engine.open_session("s")
        asked = GenerationRequest(tokens=PROMPT, session_id="s", stop=stop)
        counted = change(engine, lambda: engine.run(asked))
        dropped = counted["discarded_tokens stop"]
        assert 0 < dropped <= 6
        assert counted["rewinds in_place stop"] == 1
        assert counted["generated_tokens"] == engine.get_session("s").position - len(PROMPT)


def test_a_generation_without_progress_is_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_restores(monkeypatch)

    def failing() -> None:
        with pytest.raises(NoProgressError):
            engine.run(request((7,), 5, rewind_to=10))

    assert change(engine, failing) == {"no_progress": 1}
    monkeypatch.undo()
    counted = change(engine, lambda: engine.run(request((7,), 5)))
    assert counted["discarded_tokens client"] == 30
    assert counted["rewinds rebuild client"] == 1


def test_states_of_sessions(engine: Engine) -> None:
    assert engine.session_states() == (1, 0)
    engine.rewind("s", to=10, defer=True)
    engine.open_session("t")
    assert engine.session_states() == (1, 1)
    engine.run(request((7,), 1))
    assert engine.session_states() == (2, 0)


# ------------------------------------------------------------------------------------- the numbers


def test_a_counter_starts_at_what_is_known_and_takes_what_is_not() -> None:
    plain, labelled = Counter("a", ""), Counter("b", "", ["x", "y"], [("0", "1")])
    assert (plain.values(), labelled.values()) == ({(): 0}, {("0", "1"): 0})
    plain.add(by=3)
    labelled.add("0", "1")
    labelled.add("2", "3", by=0.5)
    assert plain.values() == {(): 3}
    assert labelled.values() == {("0", "1"): 1, ("2", "3"): 0.5}


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0, (1, 1, 1)), (1, (1, 1, 1)), (1.5, (0, 1, 1)), (2, (0, 1, 1)), (9, (0, 0, 1))],
)
def test_a_bucket_holds_what_is_at_most_its_bound(value: float, counts: tuple[int, ...]) -> None:
    histogram = Histogram("a", "", (1, 2), ["x"])
    assert histogram.values() == {}
    histogram.observe(value, "k")
    assert histogram.values() == {("k",): (counts, value)}


def test_no_count_is_lost_between_threads() -> None:
    counters = Counters()
    report = RewindReport(
        RewindKind.REBUILD, RewindCause.CLIENT, RebuildReason.EVICTED, 9, 4, 0, 4, SECONDS[2], 0.0
    )

    def work() -> None:
        for _ in range(2000):
            counters.rewinds.record(report)
            counters.generated_tokens.add(by=2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = numbers(counters)
    assert found["rewinds rebuild client"] == found["rewind_seconds rebuild"] == 8000
    assert (found["discarded_tokens client"], found["rebuild_tokens"]) == (40_000, 32_000)
    assert (found["rebuilds evicted"], found["generated_tokens"]) == (8000, 16_000)


@pytest.mark.serial
def test_recording_a_rewind_in_place_is_a_fraction_of_it() -> None:
    counters, rounds = Counters(), 20_000
    report = RewindReport(
        RewindKind.IN_PLACE, RewindCause.CLIENT, RebuildReason.NOT_REBUILT, 40, 38, 38, 0, 2e-6, 0.0
    )
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(rounds):
            counters.rewinds.record(report)
        best = min(best, (time.perf_counter() - started) / rounds)
    slack = 3  # test machines are small and shared
    assert best < 2e-6 * slack, f"expected < 2 us, got {best * 1e6:.1f} us"
