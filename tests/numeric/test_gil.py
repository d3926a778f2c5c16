"""A step is one FFI call that lets go of the GIL: other threads of Python run beside it and hardly slow it.

What that is worth is measured by `make bench`; here is what it rests on, which no busy machine can change.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from artifacts import Build

from ds4c_runtime.local import open_local

FOR_EVER = 60.0
"""An interval, in seconds, after which nobody here is still waiting for the GIL."""
ROUNDS = 200
"""Of a busy machine, which may take longer to wake a thread than a step takes."""


@pytest.fixture
def switch_interval() -> Iterator[None]:
    """The interval of this process as it was."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def runs_beside(action: Callable[[], object]) -> bool:
    """Whether a thread that waits for the GIL gets it before an action ends, from the action alone."""
    ran: list[bool] = []
    gate = threading.Lock()
    gate.acquire()

    def other() -> None:
        with gate:
            ran.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(FOR_EVER)
    try:
        gate.release()
        action()
        return bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_a_busy_action_of_python_keeps_the_gil() -> None:
    """The measure itself: without it the next test could not fail."""
    assert not any(runs_beside(lambda: sum(range(50_000))) for _ in range(20))


def test_other_threads_run_during_the_one_call_of_a_step(
    built: Build, monkeypatch: pytest.MonkeyPatch, switch_interval: None
) -> None:
    model = open_local(built("demo").artifact)
    session = model.session()
    call, beside = model.device.call, list[bool]()

    def watched(*arguments: Any) -> None:
        beside.append(runs_beside(lambda: call(*arguments)))

    monkeypatch.setattr(model.device, "call", watched)
    for number in range(1, ROUNDS + 1):
        session.step(range(64))
        session.rewind(0)
        assert len(beside) == number, "more calls than one for a step"
        if any(beside):
            return
    raise AssertionError(f"the GIL was kept in {ROUNDS} steps")


def test_a_step_gets_the_gil_back_soon(built: Build, switch_interval: None) -> None:
    """After 0.1 ms instead of Python's 5, which beside a busy thread made a step several times as long."""
    sys.setswitchinterval(0.005)
    open_local(built("demo").artifact)
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    sys.setswitchinterval(2e-5)
    open_local(built("demo").artifact)
    assert sys.getswitchinterval() == pytest.approx(2e-5), "a shorter one was made longer"
