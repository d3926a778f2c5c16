"""Machines, sessions on them, and a folder between: what tests of saved sessions share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import port
from fake_executable import FakeMachine, fake_machine
from port import flood, load_session

from ds4c_runtime.reports import RewindKind
from ds4c_runtime.session import Session
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_image import Image
from ds4c_runtime.store.session_store import SessionStore, Storage

KIND = RewindKind
VOCABULARY = 1024


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


class Kept:
    """A store and what it said."""

    def __init__(self, folder: Path, machine: FakeMachine, budget: int | None = None) -> None:
        self.said: list[tuple[str, str]] = []
        storage = Storage(folder, budget, lambda *each: self.said.append(each))
        self.store = SessionStore(machine.manifest, storage)
        self.machine = machine

    def save(self, session: Session, log: HistoryLog | None = None, **options: bool) -> HistoryLog:
        log = log or self.store.create(self.store.header(session), session)
        assert self.store.save(log, session, **options)
        return log

    def load(self, session_id: str = "s") -> Session:
        log = next(log for log in self.store.scan() if log.header.session_id == session_id)
        return load_session(self.machine, self.store, log)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


def moved(folder: Path, session: Session, **machine: object) -> tuple[Session, FakeMachine, Kept]:
    """Save a session, and load it on another machine, whose memory has other content."""
    before = Kept(folder, fake_machine())
    before.save(session)
    before.store.close()
    other = fake_machine(**machine)  # pyright: ignore
    flood(other)
    kept = Kept(folder, other)
    return kept.load(), other, kept


def equal(first: Session, second: Session) -> None:
    """Same tokens, bits of the logits, digest, epoch and snapshots."""
    assert (first.history, first.digest, first.epoch) == (second.history, second.digest, second.epoch)
    logits, others = first.logits(), second.logits()
    assert (logits is None) == (others is None)
    assert logits is None or np.array_equal(logits, others)


def check(machine: FakeMachine, *sessions: Session) -> None:
    """Poison what may not be read, and check all counts."""
    port.poison(machine, *sessions)
    port.check(machine, *sessions)


def retained(session: Session) -> list[tuple[object, ...]]:
    return [
        (s.snapshot_id, s.position, s.digest, s.is_pinned, s.label, s.origin) for s in session.snapshots()
    ]


class InMemory:
    """A section that is in no file."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.content = np.concatenate([np.zeros(0, np.uint8), *parts])

    @property
    def size(self) -> int:
        return self.content.size

    def read(self, start: int = 0, count: int | None = None) -> np.ndarray:
        return self.content[start : None if count is None else start + count]


def in_memory(image: Image) -> dict[str, InMemory]:
    sections = {name: InMemory(parts) for name, parts in image.sections.items()}
    assert sum(section.size for section in sections.values()) == image.bytes
    return sections
