"""The allocator of the arena of snapshots against a map of its units."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4c_runtime.extents import ALIGNMENT, Extents

UNITS = 24
ACTIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=60)


def first_fit(taken: list[bool], units: int) -> int | None:
    return next((i for i in range(UNITS - units + 1) if not any(taken[i : i + units])), None)


@settings(max_examples=300)
@given(ACTIONS)
def test_first_fit_like_a_map_of_units(actions: list[tuple[bool, int]]) -> None:
    extents, taken = Extents(UNITS * ALIGNMENT), [False] * UNITS
    held: list[tuple[int, int]] = []
    for is_take, number in actions:
        if is_take or not held:
            size = number % (9 * ALIGNMENT) + 1
            units = -(-size // ALIGNMENT)
            start = extents.take(size)
            want = first_fit(taken, units)
            assert start == (None if want is None else want * ALIGNMENT)
            if want is not None:
                taken[want : want + units] = [True] * units
                held.append((want * ALIGNMENT, size))
        else:
            start, size = held.pop(number % len(held))
            extents.give_back(start, size)
            for unit in range(start // ALIGNMENT, -(-(start + size) // ALIGNMENT)):
                taken[unit] = False
        extents.check_integrity()
        assert extents.free_bytes == taken.count(False) * ALIGNMENT
    for start, size in held:
        extents.give_back(start, size)
    assert extents.take(UNITS * ALIGNMENT) == 0, "what was given back joins to one range"


def test_ranges_begin_at_multiples_of_64_bytes() -> None:
    """Kernels are told places in units of 64 bytes."""
    extents = Extents(1024)
    assert [extents.take(size) for size in (1, 64, 65, 64)] == [0, 64, 128, 256]


def test_an_empty_arena_gives_nothing() -> None:
    extents = Extents(0)
    assert extents.take(1) is None
    assert extents.free_bytes == 0
    extents.check_integrity()


def test_damage_is_found() -> None:
    extents = Extents(1024)
    extents.take(64)
    extents.give_back(64, 64)  # was free already
    with pytest.raises(AssertionError, match="touch or overlap"):
        extents.check_integrity()
