"""What `ds4c verify --rewind` compares: a session against one that never rewound, at one position.

Before a comparison all rows that the plan calls dead are NaN, so that a kernel that reads more rows than the
plan says shows it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from ds4c.cli.common import CommandFailure, ExitCode
from ds4c_runtime.local import LocalModel
from ds4c_runtime.session import Session
from ds4c_runtime.state import Rows, StateStore
from ds4c_runtime.step import Logits, Stepper
from ds4c_runtime.transport import CopyMode


@dataclass
class Sweep:
    """Counts of what was compared; every comparison was equal, or there would be no report.

    Attributes:
        tokens: length of the reference session. compared: positions compared, logits and all live rows.
        in_place: rewinds without a copy. drafts: of these, after a block that was accepted in part.
        snapshots: rewinds that restored a snapshot. replays: that replayed tokens after one.
        forwards: restores of a later position, after the session had left it. forks: new sessions.
    """

    tokens: int
    compared: int = 0
    in_place: int = 0
    drafts: int = 0
    snapshots: int = 0
    replays: int = 0
    forwards: int = 0
    forks: int = 0


@dataclass(frozen=True)
class Expected:
    """A position of a session that never rewound: digests of its logits and of each state's live rows."""

    logits: str
    states: dict[str, str]


@dataclass
class Runner:
    """A loaded artifact, the tokens of the sweep and what a straight session gave for them."""

    model: LocalModel
    tokens: list[int]
    garbage: list[int]
    counts: Sweep
    expected: list[Expected] = field(default_factory=list[Expected])

    def check(self, session: Session, what: str) -> None:
        """The session equals the straight one at its position, bit for bit, with every dead row NaN.

        Raises:
            CommandFailure: it does not; `what` says what was done.
        """
        session.timeline.poison_dead_rows()
        self.model.store.poison_free()
        at = session.position
        self.counts.compared += 1
        if at == 0:
            return
        want = self.expected[at]
        row = session.logits()
        assert row is not None
        states = state_digests(self.model, session)
        wrong = [name for name, digest in states.items() if digest != want.states[name]]
        if wrong:
            fail(what, f"live rows of @{wrong[0]} at position {at} as in a session that never rewound")
        if digest_of(row) != want.logits:
            fail(what, f"logits at position {at} as in a session that never rewound")


def fail(what: str, expected: str, got: str = "others") -> NoReturn:
    """End the sweep with its first counter-example.

    Raises:
        CommandFailure: always (exit code 3).
    """
    raise CommandFailure(
        f"verify --rewind failed: {what}: expected {expected}, got {got}; build the artifact again",
        ExitCode.CHECK_FAILED,
    )


def with_copies(model: LocalModel, mode: CopyMode) -> LocalModel:
    """Another store on the same device, whose snapshots are kept elsewhere."""
    like = model.store
    store = StateStore(
        model.manifest,
        model.device,
        like.max_sessions,
        like.page_count,
        snapshot_bytes=like.snapshots.budget,
        copy_mode=mode,
    )
    return LocalModel(model.manifest, model.device, store, Stepper(model.manifest, model.device, store))


def state_digests(model: LocalModel, session: Session) -> dict[str, str]:
    """Digest of the live rows of every state of a session."""
    lease, at = session.timeline.lease, session.position
    out: dict[str, str] = {}
    for ring in model.manifest.rings:
        out[ring.name] = digest_of(
            model.store.ring_rows(lease.slot, ring, range(max(0, ring.live.first(at)), at))
        )
    for rows in model.manifest.appends:
        out[rows.name] = digest_of(model.store.append_rows(lease, rows, at // rows.every))
    return out


def digest_of(rows: Rows | Logits) -> str:
    """Digest of the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest()
