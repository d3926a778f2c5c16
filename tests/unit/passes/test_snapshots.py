"""What `insert-snapshots` made, run on the interpreter: snapshot, restore, fork and rewind."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from example_modules import CONTEXT, live_rows, machine_of, stage, step
from numpy.typing import NDArray
from sizes import slow

from ds4c.ir.block import Block
from ds4c.ir.interp import Machine
from ds4c.models.presets import preset

HORIZON = 6
AT = [
    *(("tiny-8", at) for at in (3, 4, 8, 17)),
    *(slow("tiny-128", at) for at in (127, 128)),
    *(("tiny-delta", at) for at in (1, 3, 17)),
]
MORE = 12


def machine(name: str, after: str = "dce") -> Machine:
    return machine_of(name, stage(name, after, HORIZON), np.float64)


def draw(name: str, count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, preset(name).vocab_size, count).tolist()


def feed(m: Machine, slot: int, first: int, tokens: list[int]) -> NDArray[Any]:
    return step(m, tokens, Block.of((slot, first, len(tokens))))


@lru_cache
def rows_at(name: str, at: int) -> dict[str, NDArray[Any]]:
    """Rows of slot 0 after the first `at` tokens."""
    m = machine(name)
    feed(m, 0, 0, draw(name, at + MORE, at)[:at])
    return {state: rows[0].copy() for state, rows in m.store.items()}


def machine_at(name: str, at: int, after: str = "dce") -> Machine:
    """A machine whose slot 0 stands at `at`."""
    m = machine(name, after)
    for state, rows in rows_at(name, at).items():
        m.store[state][0] = rows
    return m


@lru_cache
def straight(name: str, at: int) -> tuple[list[int], NDArray[Any], dict[str, NDArray[Any]]]:
    """`MORE` tokens after `at`, their logits, and the live rows after them, without any rewind."""
    m = machine_at(name, at)
    tokens = draw(name, at + MORE, at)
    return tokens, feed(m, 0, at, tokens[at:]), live_rows(m, 0, at + MORE)


def check(m: Machine, slot: int, name: str, at: int, tokens: list[int], want: Any) -> None:
    """Going on in `slot` from `at` gives the logits and live rows of the straight run, bit for bit."""
    assert np.array_equal(feed(m, slot, at, tokens[at:]), want[1])
    for state, rows in live_rows(m, slot, at + MORE).items():
        assert np.array_equal(rows, want[2][state]), state


@pytest.mark.parametrize(("name", "at"), AT)
def test_restore_continues_as_if_nothing_had_happened(name: str, at: int) -> None:
    want = straight(name, at)
    m = machine_at(name, at)
    saved = m.call("snapshot", 0, at)
    feed(m, 0, at, draw(name, 20, 99))
    m.call("restore", 0, at, *saved)
    dead = [np.isnan(rows[0]).any() for rows in m.store.values()]
    assert all(dead), "every state has dead rows, and a restore leaves them undefined"
    check(m, 0, name, at, want[0], want)


@pytest.mark.parametrize(("name", "at"), AT)
def test_restore_into_another_slot(name: str, at: int) -> None:
    want = straight(name, at)
    m = machine_at(name, at)
    feed(m, 1, 0, draw(name, 12, 98))
    m.call("restore", 1, at, *m.call("snapshot", 0, at))
    check(m, 1, name, at, want[0], want)


@pytest.mark.parametrize("after", ["dce", "lower-to-kernels"])
@pytest.mark.parametrize(("name", "at"), AT)
def test_fork_goes_on_and_leaves_the_source_alone(name: str, at: int, after: str) -> None:
    want = straight(name, at)
    m = machine_at(name, at, after)
    feed(m, 1, 0, draw(name, 12, 97))
    before = {state: rows[0].copy() for state, rows in m.store.items()}
    if after == "dce":
        m.call("fork", 0, 1, at, at)
    else:  # the kernel copies rings only; the runtime shares the pages of append rows
        m.call("fork", np.array([0, 1, at, at], np.int32))
        for state, rows in m.store.items():
            if m.decls[state].state_kind == "append":
                rows[1] = rows[0]
    assert all(np.array_equal(rows, m.store[state][0]) for state, rows in before.items())
    check(m, 1, name, at, want[0], want)
    check(m, 0, name, at, want[0], want)


def test_fork_keeps_rows_for_a_rewind_below_its_position() -> None:
    """Rows from `live(first)` are copied, so that the copy may move back to `first`."""
    want = straight("tiny-8", 17)
    m = machine("tiny-8")
    feed(m, 0, 0, want[0][:17])
    feed(m, 0, 17, draw("tiny-8", 4, 5))
    m.call("fork", 0, 1, 17, 21)
    check(m, 1, "tiny-8", 17, want[0], want)


def test_a_snapshot_holds_live_rows_only() -> None:
    m = machine("tiny-128")
    feed(m, 0, 0, draw("tiny-128", 40, 3))
    saved = dict(zip(m.store, m.call("snapshot", 0, 30), strict=True))
    assert len(saved["l0.raw"]) == 15
    assert len(saved["l2.kv"]) == 30 - 24
    assert len(saved["l2.rows"]) == 30 // 4
    assert len(saved["l3.kv"]) == 30
    assert len(saved["l3.rows"]) == 0
    m = machine("tiny-8")
    assert [len(rows) for rows in m.call("snapshot", 0, 0)] == [0] * len(m.store)
    m = machine("tiny-delta")
    assert [len(rows) for rows in m.call("snapshot", 0, 9)] == [3, 1] * 3


@pytest.mark.parametrize(
    ("to", "position", "high_water", "floor", "low"),
    [(9, 20, 16, 0, 10), (21, 20, 20, 0, 14), (4, 20, 6, 5, 5), (-1, 3, 3, 0, 0), (13, 20, 20, 0, 14)],
)
def test_rewind_refuses_what_the_rings_do_not_hold(
    to: int, position: int, high_water: int, floor: int, low: int
) -> None:
    with pytest.raises(ValueError, match=rf"rewind: to: expected \[{low}, {position}\], got {to}"):
        machine("tiny-8").call("rewind", to, position, high_water, floor)


@pytest.mark.parametrize("to", [14, 15, 20])
def test_rewind_yields_the_position(to: int) -> None:
    assert machine("tiny-8").call("rewind", to, 20, 20, 0) == (to,)


def test_context_of_the_examples_is_larger_than_any_ring() -> None:
    m = machine("tiny-128")
    assert max(rows.shape[1] for s, rows in m.store.items() if m.decls[s].state_kind == "ring") < CONTEXT
