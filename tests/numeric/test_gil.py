"""A step is one FFI call that releases the GIL once: a busy Python thread hardly slows it."""

from __future__ import annotations

import statistics
import threading
import time

import pytest
from artifacts import Build

from ds4c_runtime.local import open_local
from ds4c_runtime.session import Session

STEPS = 20
ROWS = list(range(64))
"""Enough rows that the busy thread has the GIL when the step ends; after a very short one it has not yet."""


def _median_step(session: Session) -> float:
    times: list[float] = []
    for _ in range(STEPS):
        start = time.perf_counter()
        session.step(ROWS)
        times.append(time.perf_counter() - start)
        session.rewind(session.position - len(ROWS))
    return statistics.median(times)


@pytest.mark.slow
@pytest.mark.serial
def test_a_step_beside_a_spinning_thread(built: Build) -> None:
    """At most 1.5 times as long as alone, in two of seven pairs, as the machine is shared."""
    model = open_local(built("demo").artifact)
    ratios: list[float] = []
    for _ in range(7):
        session = model.session()
        session.prefill(list(range(100)))
        alone = _median_step(session)
        stop = threading.Event()

        def spin(stop: threading.Event = stop) -> None:
            while not stop.is_set():
                pass

        thread = threading.Thread(target=spin)
        thread.start()
        try:
            beside = _median_step(session)
        finally:
            stop.set()
            thread.join()
        ratios.append(beside / alone)
        session.close()
    assert sorted(ratios)[1] <= 1.5, f"ratios {sorted(ratios)}"
