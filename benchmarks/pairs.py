"""Alternating measurements: two programs take turns, so both see the same machine.

Ratios are taken pair by pair and their median is reported: a disturbance that lasts longer than a pair
slows both sides of it. Beside wall time stands processor time, of all threads of the process: on a quiet
machine they are equal, beside other programs the second is what the first would be without them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Timed:
    """Seconds of one measurement by the wall clock and of the processor."""

    wall: float
    cpu: float


Measure = Callable[[], Timed]
"""Does the work once."""


def timed(work: Callable[[], object]) -> Timed:
    """Both times of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Timed(time.perf_counter() - wall, time.process_time() - cpu)


@dataclass(frozen=True)
class Pairs:
    """Times of two sides, pair by pair."""

    ours: tuple[Timed, ...]
    theirs: tuple[Timed, ...]

    def ratios(self, ours_over_theirs: bool, clock: Literal["wall", "cpu"] = "wall") -> tuple[float, ...]:
        """Ratio of each pair."""
        pairs = [(getattr(a, clock), getattr(b, clock)) for a, b in zip(self.ours, self.theirs, strict=True)]
        return tuple(a / b if ours_over_theirs else b / a for a, b in pairs)


def alternate(ours: Measure, theirs: Measure, pairs: int, warmup: int = 1) -> Pairs:
    """Measure in turns; who begins changes from pair to pair.

    Args:
        ours: our side.
        theirs: the other side.
        pairs: number of pairs.
        warmup: rounds whose times are thrown away.
    """
    for _ in range(warmup):
        ours()
        theirs()
    left: list[Timed] = []
    right: list[Timed] = []
    for turn in range(pairs):
        if turn % 2 == 0:
            left.append(ours())
            right.append(theirs())
        else:
            right.append(theirs())
            left.append(ours())
    return Pairs(tuple(left), tuple(right))


@dataclass(frozen=True)
class Goal:
    """What a ratio should be: at least (`>=`) or at most (`<=`) `limit`.

    `by_wall` goes by the wall clock alone: for what a client sees, and for times so short that reading the
    processor's clock takes as long.
    """

    sign: str
    limit: float
    by_wall: bool = False

    def met(self, ratio: float) -> bool:
        """Whether a ratio reaches the goal."""
        return ratio >= self.limit if self.sign == ">=" else ratio <= self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        figure: `decode`, `prefill`, `rows6`, ...
        peer: what it is compared with: an engine, `read stream`, `decode step`, ... or `clock` for a
            figure in seconds, whose ratio is that number.
        weights: `f32` or `bf16`.
        ratio: median of the ratios of the pairs. Speed of ours over the peer's where the goal is `>=`,
            time or cost of ours over the peer's where it is `<=`.
        pairs: number of pairs.
        ours, theirs: medians in `unit`.
        low, high: quartiles of the ratios.
        cpu_ratio: as `ratio`, by processor time; None where it was not measured.
        note: what else has to be known, for people. facts: the same as numbers.
        ratios: of the pairs, in order.
    """

    figure: str
    peer: str
    weights: str
    ratio: float
    pairs: int
    ours: float
    theirs: float
    unit: str
    low: float
    high: float
    cpu_ratio: float | None
    goal: Goal | None = None
    note: str = ""
    ratios: tuple[float, ...] = field(default=(), repr=False)
    facts: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached by both clocks; None without a goal.

        By one alone it may be luck: beside other programs the wall time of a long step grows by more
        than that of a short one. Figures in seconds are of several processes and go by the wall.
        """
        if self.goal is None:
            return None
        if self.goal.by_wall or self.peer == "clock" or self.cpu_ratio is None:
            return self.goal.met(self.ratio)
        return self.goal.met(self.ratio) and self.goal.met(self.cpu_ratio)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; of a single value, that value."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def row_of(
    figure: str,
    peer: str,
    weights: str,
    pairs: Pairs,
    goal: Goal | None = None,
    *,
    unit: str = "ms",
    amount: float = 1.0,
    note: str = "",
) -> Row:
    """Summarise pairs.

    Args:
        figure: name of the figure.
        peer: the other side.
        weights: type of the weights.
        pairs: times of a measurement.
        goal: its sign says which way the ratio is taken; without a goal it is speed.
        unit: `ms` or `s` per unit of work, or `tok/s`.
        amount: units of work (steps, tokens) in one measurement.
        note: see `Row`.
    """
    costs = goal is not None and goal.sign == "<="
    ratios = pairs.ratios(costs)
    low, high = quartiles(ratios)
    return Row(
        figure=figure,
        peer=peer,
        weights=weights,
        ratio=statistics.median(ratios),
        pairs=len(ratios),
        ours=in_unit(statistics.median(t.wall for t in pairs.ours), amount, unit),
        theirs=in_unit(statistics.median(t.wall for t in pairs.theirs), amount, unit),
        unit=unit,
        low=low,
        high=high,
        cpu_ratio=statistics.median(pairs.ratios(costs, "cpu")),
        goal=goal,
        note=note,
        ratios=ratios,
    )


def clock_row(
    figure: str, weights: str, times: Sequence[Timed], goal: Goal | None = None, note: str = ""
) -> Row:
    """A figure in seconds that is compared with nothing but its goal; `cpu_ratio` in processor seconds."""
    seconds = [t.wall for t in times]
    middle, cpu = statistics.median(seconds), statistics.median(t.cpu for t in times)
    low, high = quartiles(seconds)
    return Row(
        figure, "clock", weights, middle, len(seconds), middle, 1.0, "s", low, high, cpu, goal, note,
        tuple(seconds),
    )  # fmt: skip


def in_unit(seconds: float, amount: float, unit: str) -> float:
    """Seconds for `amount` units of work, in a unit.

    Raises:
        ValueError: the unit is unknown.
    """
    if unit == "ms":
        return seconds / amount * 1e3
    if unit == "s":
        return seconds / amount
    if unit == "tok/s":
        return amount / seconds
    raise ValueError(f"unit: expected ms, s or tok/s, got {unit}")
