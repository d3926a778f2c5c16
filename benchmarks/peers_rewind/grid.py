"""One cell of the grid: the wrong tokens, the way back, and the right tokens against a fresh run.

A cell is a position P and a count n. A line of tokens is prefilled up to P, n wrong tokens follow, then the
engine is asked to be at P again and the right tokens are evaluated one by one. Their logits are compared with
those of a line of the same engine that was prefilled up to P and went straight on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers_rewind.ways import Variant, Way

Logits = NDArray[np.float32]

FOLLOW = 8
"""Right tokens after a rewind: enough to close a group of 4 that the wrong tokens may have spoiled."""

MOST_DRAFTED = 8
"""Largest n."""

DETAIL = 110
"""Most characters that are kept of what an engine said."""


class AnsweredNoError(Exception):
    """An engine that does not raise said no; the message is what it said to what."""


class Line(Protocol):
    """A sequence of tokens in an engine."""

    def before_draft(self, count: int) -> None:
        """What the way wants done at P, before `count` wrong tokens."""
        ...

    def decode(self, tokens: Sequence[int], *, one_batch: bool) -> Logits:
        """Append tokens; logits `[len(tokens), V]`."""
        ...

    def rewind(self, to: int) -> None:
        """Be at a position again; any exception is a refusal."""
        ...

    def reloaded(self, folder: Path) -> Line:
        """The line as it comes back from a file in an empty folder."""
        ...


class Side(Protocol):
    """A loaded engine."""

    @property
    def version(self) -> str:
        """Version of the engine."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    def line(self, prompt: Sequence[int]) -> Line:
        """A new line, prefilled; the engine may end an older one for it."""
        ...

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits `[len(tokens), V]` of a prompt, in as few calls as the engine allows."""
        ...


class Outcome(StrEnum):
    """What came of a cell.

    EXACT: the same bits. CLOSE: within what the engine itself differs by between tokens one by one and in one
    batch, without any rewind, at the same P. DIFFERS: more than that. REFUSED: the rewind (or the save or the
    load) raised or answered no. FAILED: the next evaluation raised. ABORTED: the process ended or hung.
    """

    EXACT = "exact"
    CLOSE = "close"
    DIFFERS = "differs"
    REFUSED = "refused"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Cell:
    """Position P and the number n of wrong tokens.

    n = 0 is the control: two lines that both go straight on; in the variant SAVED one was saved and loaded.
    """

    variant: Variant
    position: int
    drafted: int


@dataclass(frozen=True)
class Result:
    """A measured cell.

    Attributes:
        largest: largest difference of logits. argmax: share of the right tokens' rows with the same argmax.
        noise: the engine's own difference, see `Outcome.CLOSE`.
        detail: what the engine said where it refused, failed or ended.
    """

    cell: Cell
    outcome: Outcome
    largest: float = 0.0
    argmax: float = 1.0
    noise: float = 0.0
    detail: str = ""


def cells(way: Way, positions: Sequence[int]) -> list[Cell]:
    """The grid of a way, with controls at each position; a stacked rewind needs two tokens."""
    out: list[Cell] = []
    for variant in way.variants:
        least = 2 if variant is Variant.STACKED else 0
        out += [Cell(variant, p, n) for p in positions for n in range(least, MOST_DRAFTED + 1)]
    return out


@dataclass(frozen=True)
class Tokens:
    """The line that is right and tokens that are wrong at every position."""

    right: list[int]
    wrong: list[int]

    @staticmethod
    def of(vocab_size: int, count: int) -> Tokens:
        """Random tokens, the same in every process."""
        right = np.random.default_rng(1).integers(0, vocab_size, count)
        off = np.random.default_rng(2).integers(1, vocab_size, count)
        return Tokens(right.tolist(), ((right + off) % vocab_size).tolist())


def said(error: BaseException) -> str:
    """Class and text of an exception on one line, cut."""
    name = "" if isinstance(error, AnsweredNoError) else f"{type(error).__name__}: "
    text = " ".join(f"{name}{error}".split())
    return text if len(text) <= DETAIL else text[:DETAIL] + "..."


@dataclass
class Measurement:
    """Measures the cells of one way."""

    side: Side
    way: Way
    tokens: Tokens
    folder: Path
    fresh: dict[int, tuple[Logits, float]] = field(default_factory=dict[int, "tuple[Logits, float]"])

    def run(self, wanted: Sequence[Cell]) -> Iterator[Result]:
        """Each cell in turn."""
        for cell in wanted:
            yield self.measure(cell)

    def measure(self, cell: Cell) -> Result:
        """One cell; engines may raise anything, which is then the result."""
        straight, noise = self.straight(cell.position)
        line = self.side.line(self.tokens.right[: cell.position])
        outcome, part = Outcome.FAILED, "wrong tokens"
        try:
            self._go_wrong(line, cell)
            if cell.variant is Variant.SAVED:
                outcome, part = Outcome.REFUSED, "save and load"
                line = line.reloaded(self._empty())
            for name, position in self._way_back(cell):
                outcome, part = Outcome.REFUSED, name
                line.rewind(position)
            outcome, part = Outcome.FAILED, "right tokens"
            got = line.decode(self._follow(cell.position), one_batch=False)
        except Exception as error:  # whatever it is, it is the engine's answer
            return Result(cell, outcome, noise=noise, detail=f"{part}: {said(error)}")
        return judged(cell, got, straight, noise)

    @staticmethod
    def _way_back(cell: Cell) -> list[tuple[str, int]]:
        """The rewinds of a cell: a name and a position each."""
        at, count = cell.position, cell.drafted
        if cell.variant is Variant.STACKED:
            return [("first rewind", at + count // 2), ("second rewind", at)]
        return [("rewind", at)] if count else []

    def straight(self, position: int) -> tuple[Logits, float]:
        """Logits of the right tokens on a line that went straight on, and the engine's own difference."""
        if position not in self.fresh:
            prompt, follow = self.tokens.right[:position], self._follow(position)
            batch = self.side.line(prompt).decode(follow, one_batch=True)
            single = self.side.line(prompt).decode(follow, one_batch=False)
            self.fresh[position] = (single, float(np.abs(single - batch).max()))
        return self.fresh[position]

    def _go_wrong(self, line: Line, cell: Cell) -> None:
        at, count = cell.position, cell.drafted
        if count:
            line.before_draft(count)
            line.decode(self.tokens.wrong[at : at + count], one_batch=self.way.one_batch)

    def _follow(self, position: int) -> list[int]:
        return self.tokens.right[position : position + FOLLOW]

    def _empty(self) -> Path:
        """A folder for one save."""
        number = sum(1 for _ in self.folder.iterdir())
        made = self.folder / f"save-{number}"
        made.mkdir()
        return made


def judged(cell: Cell, got: Logits, straight: Logits, noise: float) -> Result:
    """Compare logits `[FOLLOW, V]`."""
    argmax = float((got.argmax(1) == straight.argmax(1)).mean())
    if got.tobytes() == straight.tobytes():
        return Result(cell, Outcome.EXACT, 0.0, argmax, noise)
    largest = float(np.abs(got - straight).max())
    if not np.isfinite(largest):
        return Result(cell, Outcome.DIFFERS, float("inf"), argmax, noise)
    outcome = Outcome.CLOSE if largest <= noise else Outcome.DIFFERS
    return Result(cell, outcome, largest, argmax, noise)


def to_json(result: Result) -> dict[str, Any]:
    """A result as the worker prints it."""
    cell = result.cell
    return {
        "variant": str(cell.variant),
        "position": cell.position,
        "drafted": cell.drafted,
        "outcome": str(result.outcome),
        "largest": result.largest,
        "argmax": result.argmax,
        "noise": result.noise,
        "detail": result.detail,
    }


def from_json(data: dict[str, Any]) -> Result:
    """The inverse of `to_json`."""
    cell = Cell(Variant(data["variant"]), int(data["position"]), int(data["drafted"]))
    return Result(
        cell,
        Outcome(data["outcome"]),
        float(data["largest"]),
        float(data["argmax"]),
        float(data["noise"]),
        str(data["detail"]),
    )
