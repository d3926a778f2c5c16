"""One session of the model: what its rings serve, which logits, pages and snapshots it holds.

What a machine does with it is `state_model.py`, where the rules are.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Kind = Literal["none", "in_place", "snapshot", "snapshot_replay", "rebuild", "deferred"]


@dataclass
class Reach:
    """What the rings of a session serve."""

    horizon: int
    floor: int = 0
    high_water: int = 0

    @property
    def oldest(self) -> int:
        """Lowest position that a rewind reaches in place; 0 is always reached."""
        return max(self.floor, self.high_water - self.horizon)

    def wrote(self, end: int) -> None:
        """Rows up to `end` were written."""
        self.high_water = max(self.high_water, end)

    def filled(self, floor: int, position: int) -> None:
        """Rows from `floor` on were put there by a snapshot or a fork at a position."""
        self.floor, self.high_water = floor, position


@dataclass(eq=False)
class Shot:
    """A snapshot, which several sessions may hold. `number` is its rank in time; ids are told."""

    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    origin: str
    number: int
    snapshot_id: str = ""

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of the tokens as little-endian u32."""
        numbers = array("I", self.tokens)
        assert numbers.itemsize == 4
        return hashlib.sha256(numbers.tobytes()).hexdigest()


@dataclass(eq=False)
class Held:
    """A snapshot as one session holds it."""

    shot: Shot
    pinned: bool = False

    @property
    def position(self) -> int:
        return len(self.shot.tokens)

    @property
    def order(self) -> tuple[int, int]:
        return self.position, self.shot.number


@dataclass(frozen=True)
class Listed:
    """A snapshot in the list of a session, as anybody may see it."""

    snapshot_id: str
    position: int
    digest: str
    pinned: bool
    origin: str


@dataclass(frozen=True)
class Plan:
    """What a rewind or fork must report."""

    kind: Kind
    base: int
    replay: int
    to: int
    shot: Shot | None = None

    @property
    def snapshot_id(self) -> str:
        return "" if self.shot is None else self.shot.snapshot_id

    @property
    def is_near(self) -> bool:
        return self.kind in ("none", "in_place")


@dataclass(eq=False)
class SessionModel:
    """One session.

    `block` are the positions whose logits the last step left, `edges` others whose logits are held: of the
    floor, and of the start of the last block. `begun` says that a rebuild is under way.
    """

    reach: Reach
    tokens: tuple[int, ...] = ()
    evaluated: int = 0
    epoch: int = 0
    replays: int = 0
    begun: bool = False
    takes_marks: bool = True
    block: range = range(0)
    edges: set[int] = field(default_factory=set[int])
    pages: list[int] = field(default_factory=list[int])
    branch: list[Held] = field(default_factory=list[Held])
    left: list[Held] = field(default_factory=list[Held])
    thinned: tuple[list[Held], list[Held]] = field(default_factory=lambda: ([], []))

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def is_valid(self) -> bool:
        return self.evaluated == self.position

    @property
    def oldest_step(self) -> int:
        """Lowest position from which a step may run: one lower where logits would have to be made again."""
        oldest = self.reach.oldest
        return oldest if oldest == self.reach.floor and oldest in self.edges else max(0, oldest - 1)

    @property
    def held(self) -> list[Held]:
        return [*self.branch, *self.left]

    def has_logits(self, position: int) -> bool:
        return position in self.block or position in self.edges

    def base(self, to: int) -> Held | None:
        """Highest snapshot of the branch at or below a position, of several there the last one."""
        return max((h for h in self.branch if h.position <= to), key=lambda h: h.order, default=None)

    def at(self, position: int) -> Held | None:
        found = self.base(position)
        return found if found is not None and found.position == position else None

    def add(self, held: Held) -> None:
        self.branch = sorted([*self.branch, held], key=lambda h: h.order)

    def drop(self, shot: Shot) -> None:
        self.branch = [h for h in self.branch if h.shot is not shot]
        self.left = [h for h in self.left if h.shot is not shot]

    def cut(self, to: int) -> None:
        """The history ends at `to`; snapshots above it are of a branch that was left."""
        self.tokens = self.tokens[:to]
        self.left += [h for h in self.branch if h.position > to]
        self.branch = [h for h in self.branch if h.position <= to]

    def follow(self, tokens: tuple[int, ...]) -> None:
        """The history is another one."""
        self.tokens = tokens
        every = sorted(self.held, key=lambda h: h.order)
        self.branch = [h for h in every if h.shot.tokens == tokens[: h.position]]
        self.left = [h for h in every if h not in self.branch]

    def detach(self) -> None:
        """Hold snapshots as a file does, in which they no longer change."""
        self.branch, self.left = (
            [Held(replace(h.shot), h.pinned) for h in each] for each in (self.branch, self.left)
        )

    def forget(self) -> None:
        """The state is given up."""
        self.evaluated, self.begun, self.block = 0, False, range(0)
        self.reach.filled(0, 0)
        self.edges, self.pages = set(), []

    def restore(self, shot: Shot) -> None:
        """The state is that of a snapshot."""
        self.forget()
        self.evaluated = len(shot.tokens)
        self.reach.filled(self.evaluated, self.evaluated)
        self.edges, self.pages, self.begun = {self.evaluated}, list(shot.pages), True
