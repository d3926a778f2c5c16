"""Some sixty operations that go to every border of rewind once; for machines that are too slow for walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from port import SnapshotOrigin
from rewind.twin import Pair, Twin
from state_model import LEFT_BEHIND, TURN_ENDS

from ds4c_runtime.store.session_store import SessionStore


@dataclass
class Script:
    """Operations on a machine with three slots or more and pages enough, and positions relative to a page."""

    twin: Twin
    files: SessionStore
    fails: bool = False
    """The device can be made to fail."""
    turns: int = 3
    """Ends of turns in a row; ten and what is around them do not fit into the room of a small context."""
    done: int = 0
    pairs: list[Pair] = field(init=False)

    def __post_init__(self) -> None:
        model = self.twin.model
        self.pairs = self.twin.pairs
        self.page, self.horizon, self.chunk = model.page_tokens, model.horizon, model.max_rows

    def run(self) -> None:
        self.in_place()
        self.by_snapshot()
        self.spacing()
        self.to_other_branches()
        self.pins()
        self.forks()
        self.two_in_a_step()
        self.states_that_are_lost()
        self.files_between()
        while self.pairs:
            self.did(self.twin.close(self.pairs[0]))

    def did(self, was_done: bool, *kinds: str) -> None:
        """Count an operation that must be done, the last rewind or fork of which was of a kind."""
        self.done += 1
        assert was_done, "refused"
        self.seen(*kinds)

    def refused(self, was_done: bool) -> None:
        self.done += 1
        assert not was_done, "not refused"
        self.seen()

    def seen(self, *kinds: str) -> None:
        got = [+self.twin.kinds] if kinds else []
        assert [set(k) for k in got] in ([], [set(kinds)]), f"{got}, expected {kinds}"
        self.twin.kinds.clear()
        self.twin.check(more=True)

    def more(self, pair: Pair, end: int, way: int = 0) -> Sequence[int]:
        return self.twin.truth.more(pair.tokens, end - pair.position, way)

    def prefill(self, pair: Pair, end: int, way: int = 0) -> None:
        self.did(self.twin.prefill(pair, self.more(pair, end, way), self.chunk))

    def step(self, pair: Pair, end: int, way: int = 0) -> None:
        self.did(self.twin.step(pair, self.more(pair, end, way)))

    def rewind(self, pair: Pair, to: int, kind: str) -> None:
        self.did(self.twin.rewind(pair, to), kind)

    # ---------------------------------------------------------------------------------------- scenes

    def in_place(self) -> None:
        """To the edge of the horizon, a token beyond it, and over a rejected draft."""
        page, horizon = self.page, self.horizon
        self.did(self.twin.open())
        pair = self.pairs[0]
        self.prefill(pair, page + 1)
        self.did(self.twin.fork(pair, page + 1), "in_place")
        self.did(self.twin.close(self.pairs[1]))
        self.step(pair, page + 2)
        self.did(self.twin.step(pair, self.twin.truth.garbage(2, 1)))
        self.rewind(pair, page + 2, "in_place")
        self.rewind(pair, page + 2, "none")
        self.step(pair, page + 3, 1)
        oldest = page + 4 - horizon
        self.rewind(pair, oldest, "in_place")
        self.refused(self.twin.rewind(pair, oldest - 1, most=oldest - 2))
        self.did(self.twin.rewind(pair, oldest - 1, most=oldest - 1), "rebuild")
        self.refused(self.twin.rewind(pair, -1))
        self.refused(self.twin.rewind(pair, page))

    def by_snapshot(self) -> None:
        """Back to marks of a step; what a snapshot has not brought is not reached in place."""
        page, pair = self.page, self.pairs[0]
        self.prefill(pair, 2 * page + 1)
        self.did(self.twin.snapshot(pair, SnapshotOrigin.TURN_END))
        self.step(pair, 2 * page + 4)
        self.rewind(pair, 2 * page + 3 - self.horizon, "snapshot_replay")
        self.rewind(pair, page, "snapshot")
        self.step(pair, page + 1, 1)
        self.step(pair, page + 3, 1)
        self.rewind(pair, page, "in_place")  # whose logits came with the rows: those before are not there
        self.did(self.twin.rewind(pair, page - 1, defer=True), "deferred")
        self.refused(self.twin.step(pair, self.more(pair, page)))
        self.did(self.twin.rebuild_chunk(pair))
        self.did(self.twin.close(pair))

    def spacing(self) -> None:
        """What goes and what stays when the next snapshot is taken, to the token."""
        self.did(self.twin.open())
        page, pair = self.page, self.pairs[0]
        self.prefill(pair, page + 1)
        self.did(self.twin.snapshot(pair))
        self.prefill(pair, 2 * page)
        assert self.positions(pair) == [page, 2 * page]
        self.rewind(pair, page + 2, "snapshot_replay")
        self.did(self.twin.snapshot(pair, SnapshotOrigin.BEFORE_DRAFT))
        self.prefill(pair, 2 * page + 1)
        assert self.positions(pair) == [page, page + 2, 2 * page]
        self.did(self.twin.snapshot(pair, SnapshotOrigin.BEFORE_DRAFT))
        assert self.positions(pair) == [page, page + 2, 2 * page + 1]
        for _ in range(self.turns):
            self.step(pair, pair.position + 2)
            self.did(self.twin.snapshot(pair, SnapshotOrigin.TURN_END))
        assert len(self.positions(pair)) == 3 + min(self.turns, TURN_ENDS)
        self.rewind(pair, 0, "in_place")
        self.prefill(pair, 5, 1)
        self.did(self.twin.snapshot(pair))
        assert len(pair.model.left) == min(self.turns + 4, LEFT_BEHIND)

    def positions(self, pair: Pair) -> list[int]:
        return [h.position for h in pair.model.branch]

    def to_other_branches(self) -> None:
        """Forwards to the end of a turn, and from there to just below its snapshot."""
        pair = self.pairs[0]
        turn = pair.model.left[-1]
        self.did(self.twin.restore(pair, turn), "snapshot")
        self.rewind(pair, turn.position - 1, "snapshot_replay")
        self.did(self.twin.restore(pair, next(h for h in pair.model.left if h.position == 5)), "snapshot")
        self.did(self.twin.restore(pair, turn), "snapshot")

    def pins(self) -> None:
        """A fork goes to where none is; the rule of spacing leaves it alone as long as it is pinned."""
        pair, at = self.pairs[0], self.pairs[0].position - 1
        self.did(self.twin.pin(pair, self.page))
        self.did(self.twin.pin(pair, at))
        self.refused(self.twin.pin(pair, 0))
        self.step(pair, at + 2)
        self.did(self.twin.snapshot(pair, SnapshotOrigin.TURN_END))
        held = pair.model.at(at)
        assert held is not None
        self.did(self.twin.pin_one(pair, held, pinned=False))
        self.did(self.twin.evict(held))
        self.rewind(pair, at, "snapshot_replay")

    def forks(self) -> None:
        """In place at the edge; by a snapshot beyond it; the child goes no further back than its parent."""
        self.did(self.twin.close(self.pairs[0]))
        self.did(self.twin.open())
        pair, horizon, floor = self.pairs[0], self.horizon, 6
        self.prefill(pair, floor)
        self.did(self.twin.snapshot(pair))
        self.rewind(pair, floor - 2, "in_place")
        self.did(self.twin.restore(pair, pair.model.left[0]), "snapshot")
        self.step(pair, floor + 2)
        self.did(self.twin.fork(pair, floor), "in_place")
        assert self.positions(self.pairs[1]) == [floor]
        self.did(self.twin.close(self.pairs[1]))
        self.did(self.twin.fork(pair, floor + 1), "in_place")
        child = self.pairs[1]
        self.did(self.twin.step(child, self.twin.truth.garbage(2, 2)))
        self.rewind(child, floor, "in_place")
        self.did(self.twin.close(child))
        self.prefill(pair, floor + horizon + 3)
        self.did(
            self.twin.fork(pair, floor + 3), "in_place"
        )  # where logits have to be made from the row before
        self.rewind(self.pairs[1], floor + 2, "snapshot_replay")
        self.did(self.twin.fork(pair, floor + 2), "snapshot_replay")

    def two_in_a_step(self) -> None:
        """The second writes to a page that it has from the first."""
        work = [(p, self.more(p, p.position + 3, way)) for way, p in enumerate(self.pairs[1:])]
        self.did(self.twin.step_together(work))
        self.did(self.twin.close(self.pairs[2]))

    def states_that_are_lost(self) -> None:
        pair, child = self.pairs
        if self.fails:
            self.did(self.twin.fail(pair, self.more(pair, pair.position + 3)))
            self.did(self.twin.fail_to_rewind(pair, pair.position - 2))
        else:
            self.did(self.twin.lose(pair))
        self.refused(self.twin.snapshot(pair))
        self.prefill(pair, pair.position + 2)
        self.did(self.twin.lose(child))
        self.rewind(child, child.position - 1, "snapshot_replay")

    def files_between(self) -> None:
        """A session from its file has the state if it was saved to the token, else its history."""
        self.did(self.twin.close(self.pairs[1]))
        for exact in (True, False):
            pair = self.pairs[0]
            self.prefill(pair, pair.position + 3)
            assert self.twin.rewind(pair, pair.position - 1), "refused"  # whose logits nobody has asked for
            log = self.twin.save(self.files, pair, exact=exact)
            loaded = self.twin.load(self.files, log, pair)
            assert loaded.model.is_valid == exact
            self.twin.kinds.clear()
            self.did(True)
            self.prefill(loaded, loaded.position + 2)
