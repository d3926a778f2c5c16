"""Replay is not verification: a speculative loop on a target whose logits change with every restore.

The target of the test is a fake that answers a near tie one way or the other: by nothing but the tokens, by
the width of the block, or by a layout that each restore toggles. It cannot drop a tail (horizon 0), so that
every rejected draft takes a restore. The loop that decides a token once and replays it as known gets on
everywhere; the loop that verifies its own replay again does not, and only the layout shows it: with logits
that depend on the width alone it ends too, so such a test would find nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from fake_executable import FakeDevice, small_manifest
from port import Session, SnapshotOrigin, machine_of, token_decided, watch

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.errors import NoProgressError
from ds4c_runtime.launches import Extent
from ds4c_runtime.reports import RewindKind

TOKENS, ROUNDS, DRAFTS, WRONG_DRAFT = 64, 2000, 3, 2
WORDS = 50
TIE_EVERY = 5


def truth(position: int, token: int) -> int:
    """What follows a token at a position, as far as it is no near tie."""
    return (position * 7919 + token * 104729 + 31) % 997 % WORDS


@dataclass
class TieDevice(FakeDevice):
    """Every fifth position is a near tie, which falls the other way with an odd layout or width."""

    depends_on: str = "nothing"
    layout: int = 0
    width: int = 0

    def __post_init__(self) -> None:
        self.favour = self.answer

    def answer(self, position: int, token: int) -> int:
        odd = {"nothing": 0, "width": self.width, "layout": self.layout}[self.depends_on] % 2
        is_tie = (position + 1) % TIE_EVERY == 0
        return (truth(position, token) + (1 if is_tie and odd else 0)) % WORDS

    def call(self, entry: str, arenas: Sequence[HostBytes], extent: Extent) -> None:
        if entry == "step":
            at = self.manifest.io.block.offset
            self.width = int(arenas[0][at : at + 4].view(np.int32)[0])
        if entry == "restore":
            self.layout += 1
        super().call(entry, arenas, extent)


@dataclass
class Loop:
    """Speculative decoding of one session, three drafts a round of which the third is wrong.

    With `verifies_replay`, a rejected draft goes back to the start of the block and what was accepted is the
    next draft, to be judged again; without, it is decided, and replayed by the rewind itself.
    """

    session: Session
    device: TieDevice
    verifies_replay: bool = False
    emitted: list[int] = field(default_factory=list[int])
    decided: dict[int, int] = field(default_factory=dict[int, int])
    restores: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Position of each rewind and the snapshot that it put back."""
    rounds: int = 0

    def run(self) -> None:
        self.session.prefill([7])
        seed, pending = truth(0, 7), list[int]()
        while len(self.emitted) < TOKENS and self.rounds < ROUNDS:
            self.rounds += 1
            start = self.session.position
            drafts = pending or self.propose(start, seed)
            self.session.take_snapshot(SnapshotOrigin.BEFORE_DRAFT)
            tops = self.session.step([seed, *drafts], all_logits=True).argmax(axis=1).tolist()
            agreed = next((i for i, d in enumerate(drafts) if d != tops[i]), len(drafts))
            accepted = [*drafts[:agreed], tops[agreed]]
            for i, token in enumerate(accepted):
                self.decided.setdefault(start + 1 + i, token)
            if agreed < len(drafts):
                self.restore(start if self.verifies_replay else start + 1 + agreed)
            if agreed < len(drafts) and self.verifies_replay:
                pending = accepted
                continue
            self.emitted += accepted
            self.on_token()
            seed, pending = accepted[-1], []

    def propose(self, start: int, seed: int) -> list[int]:
        """Three drafts, the model's own but for the last."""
        drafts = [truth(start, seed)]
        while len(drafts) < DRAFTS:
            drafts.append(truth(start + len(drafts), drafts[-1]))
        drafts[WRONG_DRAFT] = (drafts[WRONG_DRAFT] + 7) % WORDS
        return drafts

    def restore(self, to: int) -> None:
        report = self.session.rewind(to)
        assert report.kind in (RewindKind.SNAPSHOT, RewindKind.SNAPSHOT_REPLAY)
        self.restores.append((to, report.snapshot_id))

    def on_token(self) -> None:
        """Tell the watchdog, where there is one, that tokens were decided."""
        token_decided(self.session)


def loop(depends_on: str, *, verifies_replay: bool, watched: bool = False) -> Loop:
    """Run a loop until it has its tokens or its rounds are over; the watchdog of generations may watch it."""
    manifest = small_manifest(horizon=0)
    device = TieDevice(manifest, depends_on=depends_on)
    session = machine_of(manifest, device, 1).open()
    if watched:
        watch(session)
    made = Loop(session, device, verifies_replay)
    made.run()
    return made


@pytest.mark.parametrize("depends_on", ["nothing", "width", "layout"])
def test_a_replay_of_known_tokens_gets_on_whatever_the_logits_depend_on(depends_on: str) -> None:
    done = loop(depends_on, verifies_replay=False, watched=True)
    assert len(done.emitted) >= TOKENS
    assert done.rounds <= 2 * TOKENS
    assert done.device.layout == len(done.restores) > 0
    assert all(a != b for a, b in pairwise(done.restores))
    assert max(Counter(done.restores).values()) == 1
    assert done.emitted == [done.decided[at] for at in sorted(done.decided)][: len(done.emitted)]
    assert list(done.session.history)[1:] == [truth(0, 7), *done.emitted[:-1]]


def test_a_loop_that_verifies_its_replay_does_not_end() -> None:
    stuck = loop("layout", verifies_replay=True)
    assert (stuck.rounds, len(stuck.emitted)) == (ROUNDS, 8)
    assert len(stuck.restores) >= ROUNDS - 10
    position, times = Counter(at for at, _ in stuck.restores).most_common(1)[0]
    assert times > ROUNDS / 2
    assert position == stuck.session.position


def test_logits_that_depend_on_the_width_alone_do_not_show_it() -> None:
    """Such a loop only wastes rounds; this is why the layout is what the test above varies."""
    wasteful, right = (loop("width", verifies_replay=again) for again in (True, False))
    assert len(wasteful.emitted) >= TOKENS
    assert wasteful.rounds > right.rounds


@pytest.mark.parametrize("verifies_replay", [True, False])
def test_without_ties_both_loops_say_the_same(verifies_replay: bool) -> None:
    done = loop("nothing", verifies_replay=verifies_replay)
    token, said = truth(0, 7), list[int]()
    for at in range(1, TOKENS + 1):
        token = truth(at, token)
        said.append(token)
    assert done.emitted[:TOKENS] == said


def test_the_watchdog_ends_the_loop_that_does_not_get_on() -> None:
    with pytest.raises(NoProgressError) as caught:
        loop("layout", verifies_replay=True, watched=True)
    assert (caught.value.code, caught.value.reason) == ("INTERNAL", "NO_PROGRESS")
