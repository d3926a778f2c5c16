"""Ratios, medians and goals of `benchmarks.pairs`, on made-up times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.machine import machine
from benchmarks.pairs import Goal, Pairs, Timed, alternate, clock_row, in_unit, row_of


def times(*walls: float) -> tuple[Timed, ...]:
    return tuple(Timed(wall, wall / 2) for wall in walls)


def test_sides_take_turns_and_the_first_changes() -> None:
    order: list[str] = []

    def side(name: str) -> Timed:
        order.append(name)
        return Timed(1.0, 1.0)

    found = alternate(lambda: side("a"), lambda: side("b"), pairs=3, warmup=1)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert len(found.ours) == len(found.theirs) == 3


def test_speed_is_theirs_over_ours_and_cost_the_other_way() -> None:
    pairs = Pairs(times(1, 2, 4), times(2, 6, 4))
    speed = row_of("decode", "x", "f32", pairs, Goal(">=", 1.5))
    assert (speed.ratio, speed.ratios) == (2.0, (2.0, 3.0, 1.0))
    assert speed.is_met
    cost = row_of("stream", "x", "f32", pairs, Goal("<=", 0.4))
    assert cost.ratio == 0.5
    assert cost.is_met is False
    assert row_of("rows6", "x", "f32", pairs).is_met is None


def test_the_median_is_of_ratios_not_of_times() -> None:
    """A pair that was slowed as a whole must not count twice."""
    pairs = Pairs(times(1, 10, 1), times(2, 20, 2))
    assert row_of("decode", "x", "f32", pairs, Goal(">=", 1.9)).ratio == 2.0
    assert (row_of("decode", "x", "f32", pairs).low, row_of("decode", "x", "f32", pairs).high) == (2.0, 2.0)


def test_processor_time_has_its_own_ratio() -> None:
    pairs = Pairs((Timed(4, 1),), (Timed(4, 3),))
    row = row_of("decode", "x", "f32", pairs)
    assert (row.ratio, row.cpu_ratio) == (1.0, 3.0)


def test_a_goal_is_reached_by_both_clocks_or_not() -> None:
    """A rewind of 1 % beside a step that other programs had doubled is one of 2 %."""
    pairs = Pairs((Timed(0.01, 0.01),), (Timed(1.2, 0.6),))
    assert row_of("rewind", "decode step", "f32", pairs, Goal("<=", 0.01)).is_met is False
    assert row_of("rewind", "decode step", "f32", pairs, Goal("<=", 0.02)).is_met is True


def test_units() -> None:
    assert in_unit(0.5, 4, "ms") == 125
    assert in_unit(0.5, 4, "tok/s") == 8
    assert in_unit(0.5, 4, "s") == 0.125
    with pytest.raises(ValueError, match="expected ms"):
        in_unit(1, 1, "h")


def test_a_clock_row_has_seconds_as_ratio() -> None:
    row = clock_row("load_ready", "f32", times(1, 3, 2), Goal("<=", 2.5))
    assert (row.peer, row.ratio, row.ours, row.unit, row.is_met) == ("clock", 2.0, 2.0, "s", True)


def test_document_and_table(tmp_path: Path) -> None:
    rows = [
        row_of("decode", "llama.cpp", "f32", Pairs(times(1, 1), times(2, 2)), Goal(">=", 1.25)),
        clock_row("build", "f32", times(30), Goal("<=", 20)),
    ]
    here = machine()
    data = report.document(rows, [], ["transformers: absent"], (here, here), {"pairs": 2})
    path = tmp_path / "latest.json"
    report.write_json(path, data)
    found = json.loads(path.read_text())
    assert [(r["figure"], r["peer"], r["weights"], r["ratio"], r["pairs"]) for r in found["rows"]] == [
        ("decode", "llama.cpp", "f32", 2.0, 2),
        ("build", "clock", "f32", 30.0, 1),
    ]
    assert [r["met"] for r in found["rows"]] == [True, False]
    assert [p.name for p in tmp_path.iterdir()] == ["latest.json"]
    text = report.table(rows)
    assert "2x" in text
    assert text.count("\n") == 2
    assert "NO" in text.splitlines()[2]
