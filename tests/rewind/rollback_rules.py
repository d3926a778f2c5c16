"""Ways to undo a rejected draft on the layout of other engines, all cases at once; rows name their writers.

A row is `2 * position`, plus 1 if a rejected token wrote it. The rules: `old` saves rows 0-3 of ratio 4 and
nothing of ratio 128; `direct` puts back every row that a rejected token wrote, and the previous half if it
moved up wrongly; `replay` restores the start and evaluates the accepted tokens again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rewind.table import Case, transactions

Rows = NDArray[np.int64]
BASE = 256
FOLLOW = 300


@dataclass
class Machine:
    """Rows of one compressor for `n` cases: `[n, 8]` for ratio 4, `[n, 128]` for ratio 128."""

    ratio: int
    rows: Rows

    @staticmethod
    def after(ratio: int, length: Rows) -> Machine:
        """Machines that evaluated `length` right tokens each."""
        slots = np.arange(ratio)
        last = length[:, None] - 1
        current = last - (last - slots) % ratio
        if ratio == 128:
            return Machine(ratio, 2 * current)
        previous = length[:, None] // ratio * ratio - ratio + slots
        return Machine(ratio, 2 * np.concatenate([previous, current], axis=1))

    def copy(self) -> Machine:
        return Machine(self.ratio, self.rows.copy())

    def step(
        self, position: Rows, rejected: NDArray[np.bool_], active: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Evaluate one token in the active cases; true where it closes a window (before rows move up)."""
        base = self.rows.shape[1] - self.ratio
        at = np.flatnonzero(active)
        self.rows[at, base + position[at] % self.ratio] = 2 * position[at] + rejected[at]
        return active & ((position + 1) % self.ratio == 0)

    def move_up(self, closed: NDArray[np.bool_]) -> None:
        if self.ratio == 4:
            self.rows[closed, :4] = self.rows[closed, 4:]


@dataclass(frozen=True)
class Block:
    """The transactions as arrays `[n]`: start, width, accepted."""

    start: Rows
    q: Rows
    accepted: Rows

    @staticmethod
    def of(cases: list[Case]) -> Block:
        columns = np.array([(BASE + c.phase, c.q, c.accepted) for c in cases], np.int64).T
        return Block(*columns)

    @property
    def commit(self) -> Rows:
        return self.start + self.accepted


Rule = Callable[[Machine, Machine, Block], None]
"""(machine after the block, machine before it, the block): undoes the rejected tokens in the first."""


def run(machine: Machine, block: Block, *, only_accepted: bool = False) -> None:
    """Evaluate the tokens of the blocks, or their accepted ones."""
    length = block.accepted if only_accepted else block.q
    for i in range(int(block.q.max())):
        closed = machine.step(block.start + i, i >= block.accepted, i < length)
        machine.move_up(closed)


def put_back_previous(machine: Machine, saved: Machine, block: Block) -> None:
    """The previous half, where rejected tokens were in the window that moved up."""
    border = block.start + 3 - block.start % 4
    moved = (border <= block.start + block.q - 1) & (border >= block.commit) & (block.accepted < block.q)
    machine.rows[moved, :4] = saved.rows[moved, :4]


def old(machine: Machine, saved: Machine, block: Block) -> None:
    if machine.ratio == 4:
        put_back_previous(machine, saved, block)


def direct(machine: Machine, saved: Machine, block: Block) -> None:
    old(machine, saved, block)
    base = machine.rows.shape[1] - machine.ratio
    for i in range(int(block.q.max())):
        at = np.flatnonzero((i >= block.accepted) & (i < block.q))
        slots = base + (block.start[at] + i) % machine.ratio
        machine.rows[at, slots] = saved.rows[at, slots]


def replay(machine: Machine, saved: Machine, block: Block) -> None:
    machine.rows[:] = saved.rows
    run(machine, block, only_accepted=True)


RULES: dict[str, Rule] = {"old": old, "direct": direct, "replay": replay}


@dataclass(frozen=True)
class Found:
    """Cases whose buffers differ from the machine that never saw a rejected token, and whose future does."""

    wrong_bytes: list[Case]
    wrong_meaning: list[Case]


def judge(rule: str, ratio: int) -> Found:
    """Run the table on a rule, with both oracles."""
    cases = transactions()
    block = Block.of(cases)
    before = Machine.after(ratio, block.start)
    undone, truth = before.copy(), before.copy()
    run(undone, block)
    RULES[rule](undone, before.copy(), block)
    run(truth, block, only_accepted=True)
    wrong_bytes = (undone.rows != truth.rows).any(axis=1)
    wrong_meaning = np.zeros(len(cases), bool)
    everywhere = np.ones(len(cases), bool)
    for k in range(FOLLOW):
        closed = everywhere
        for machine in (undone, truth):
            closed = machine.step(block.commit + k, ~everywhere, everywhere)
        wrong_meaning |= closed & (undone.rows != truth.rows).any(axis=1)
        for machine in (undone, truth):
            machine.move_up(closed)
    pick = [
        [case for case, bad in zip(cases, found, strict=True) if bad]
        for found in (wrong_bytes, wrong_meaning)
    ]
    return Found(*pick)
