"""Times of generations, rewinds and forks, to the bit: the clock is a number that only the device moves.

A step takes `STEP`, a restore of a snapshot `RESTORE`, a copy to a fork `FORK`; nothing else takes time.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_executable import fake_engine
from manual_clock import FORK, RESTORE, STEP, ManualClock, timed

from ds4c_runtime.counters import SECONDS, Counters, Distribution
from ds4c_runtime.engine import Engine
from ds4c_runtime.requests import GenerationRequest, StopParams, Timing

ROWS = 24
"""Most tokens of one step of the fake device: a prompt of 40 tokens takes two."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    """One session "s" of 40 tokens, snapshots at 32 and 40; a rewind to 34 or above is in place."""
    clock = ManualClock()
    with fake_engine(horizon=6, now=clock, device_type=timed(clock)) as made:
        made.open_session("s")
        made.run(request(40, 0))
        yield made


def request(prompt: int, count: int, *, to: int | None = None) -> GenerationRequest:
    """A prompt of some tokens behind "s", and `count` tokens more."""
    return GenerationRequest(
        tokens=tuple(range(100, 100 + prompt)),
        session_id="s",
        return_text=False,
        rewind_to=to,
        stop=StopParams(max_output_tokens=count, ignore_eos=True),
    )


def seconds(counters: Counters) -> dict[str, Distribution]:
    """Every histogram of seconds, by name and label values."""
    return {
        " ".join((h.name, *labels)): held
        for h in counters.histograms()
        if h.bounds == SECONDS
        for labels, held in h.values().items()
    }


def taken(engine: Engine, operation: Callable[[Engine], object]) -> dict[str, float]:
    """Seconds that one operation adds to each histogram that it adds an observation to."""
    before = seconds(engine.counters)
    operation(engine)
    after = seconds(engine.counters)
    found: dict[str, float] = {}
    for name, held in after.items():
        count = held.counts[-1] - before[name].counts[-1]
        assert count in (0, 1)
        if count:
            found[name] = held.sum - before[name].sum
    return found


GENERATIONS: dict[str, tuple[GenerationRequest, Timing]] = {
    # 50 tokens: 24, 24, 2. The first token is chosen at 3, the fifth at 7, and run until 8.
    "three steps of prompt": (request(50, 5), Timing(0, 3 * STEP, 3 * STEP, 4 * STEP, 0, STEP)),
    "one token": (request(ROWS, 1), Timing(0, STEP, STEP, 0, 0, STEP)),
    "one row more than a step": (request(ROWS + 1, 1), Timing(0, 2 * STEP, 2 * STEP, 0, 0, STEP)),
    "no token": (request(50, 0), Timing(0, 3 * STEP)),
    "rewound in place": (request(2, 2, to=36), Timing(0, STEP, STEP, STEP, 0, STEP)),
    "rewound to a snapshot": (
        request(2, 3, to=32),
        Timing(0, STEP, RESTORE + STEP, 2 * STEP, RESTORE, STEP),
    ),
    "rewound by a replay of one step": (
        request(2, 3, to=33),
        Timing(0, STEP, RESTORE + 2 * STEP, 2 * STEP, RESTORE + STEP, STEP),
    ),
    "rebuilt in two steps": (
        request(30, 4, to=31),
        Timing(0, 2 * STEP, 4 * STEP, 3 * STEP, 2 * STEP, STEP),
    ),
}


@pytest.mark.parametrize(("asked", "expected"), GENERATIONS.values(), ids=GENERATIONS)
def test_times_of_a_generation(engine: Engine, asked: GenerationRequest, expected: Timing) -> None:
    found: list[Timing] = []
    counted = taken(engine, lambda e: found.append(e.run(asked).finished.timing))
    assert found == [expected]
    measured = {name: time for name, time in counted.items() if not name.startswith("rewind")}
    if asked.stop.max_output_tokens:
        assert measured == {"ttft_seconds": expected.first_token, "tail_seconds": expected.tail}
    else:
        assert measured == {}


REWINDS: dict[str, tuple[Callable[[Engine], object], dict[str, float]]] = {
    "in place": (lambda e: e.rewind("s", to=36), {"rewind_seconds in_place": 0}),
    "to a snapshot": (lambda e: e.rewind("s", to=32), {"rewind_seconds snapshot": RESTORE}),
    "a snapshot and a replay": (
        lambda e: e.rewind("s", to=33),
        {"rewind_seconds snapshot_replay": RESTORE + STEP},
    ),
    "rebuilt in two steps": (lambda e: e.rewind("s", to=31), {"rewind_seconds rebuild": 2 * STEP}),
    "a copy": (lambda e: e.fork("s", at=38), {"rewind_seconds in_place": FORK}),
    "a fork that is rebuilt": (lambda e: e.fork("s", at=20), {"rewind_seconds rebuild": STEP}),
    "by id": (
        lambda e: e.rewind("s", to_snapshot=e.list_snapshots("s")[0].snapshot_id),
        {"rewind_seconds snapshot": RESTORE},
    ),
}


@pytest.mark.parametrize(("operation", "expected"), REWINDS.values(), ids=REWINDS)
def test_times_of_a_rewind(
    engine: Engine, operation: Callable[[Engine], object], expected: dict[str, float]
) -> None:
    assert taken(engine, operation) == expected


def test_a_snapshot_of_another_branch_takes_its_restore(engine: Engine) -> None:
    end = engine.list_snapshots("s")[-1]
    engine.rewind("s", to=32)
    assert taken(engine, lambda e: e.rewind("s", to_snapshot=end.snapshot_id)) == {
        "rewind_seconds snapshot": RESTORE
    }


def test_a_deferred_rewind_takes_what_its_rebuild_takes(engine: Engine) -> None:
    assert taken(engine, lambda e: e.rewind("s", to=31, defer=True)) == {}
    assert taken(engine, lambda e: e.run(request(1, 1))) == {
        "rewind_seconds rebuild": 2 * STEP,
        "ttft_seconds": 3 * STEP,
        "tail_seconds": STEP,
    }


def test_a_generation_that_waits_counts_its_wait() -> None:
    """Handed in before the first step of the one before it, which takes four."""
    clock, is_second_in = ManualClock(), threading.Event()
    with fake_engine(max_running=1, now=clock, device_type=timed(clock)) as engine:
        asked = dataclasses.replace(request(2, 3), session_id="")
        first = engine.generate(asked, on_event=lambda _: is_second_in.wait(20) and None)
        second = engine.generate(asked)
        is_second_in.set()
        assert first.done.result(20).timing == Timing(0, STEP, STEP, 2 * STEP, 0, STEP)
        assert second.done.result(20).timing == Timing(4 * STEP, STEP, 5 * STEP, 2 * STEP, 0, STEP)
        held = seconds(engine.counters)
        assert (held["ttft_seconds"].sum, held["tail_seconds"].sum) == (6 * STEP, 2 * STEP)


@pytest.mark.parametrize(
    ("to", "restore", "replay"),
    [(36, 0, 0), (32, RESTORE, 0), (33, RESTORE, STEP), (31, 0, 2 * STEP), (20, 0, STEP)],
)
def test_a_report_tells_restore_from_replay(engine: Engine, to: int, restore: float, replay: float) -> None:
    _, report = engine.rewind("s", to=to)
    assert (report.restore_seconds, report.replay_seconds) == (restore, replay)
