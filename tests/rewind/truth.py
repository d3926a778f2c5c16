"""Logits and live rows that histories must give, from sessions that only go forwards."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
from fake_executable import fake_machine, small_manifest
from numpy.typing import NDArray
from port import Holder, Machine, Session, machine_like, open_session
from rewind_reference import Config, state_bytes

from ds4c_runtime.manifest import Manifest

MOST = 440
"""Longest session of a walk on compiled kernels: three pages, windows of 128 and the index selection."""
SPLITS = (0, 1, 4, 21, 100, 126, 127, 128, 129, 131, 140, 255, 256, 257, 300, 384)

Logits = NDArray[np.float32]
Seen = tuple[bytes, bytes]
"""Digests of the logits and of all live rows."""


class Truth(Protocol):
    """What a session must be equal to."""

    most: int
    """Tokens of the longest session."""

    def more(self, tokens: tuple[int, ...], count: int, choice: int) -> list[int]:
        """Next tokens of a history: one of a few ways on, so that walks meet again."""
        ...

    def garbage(self, count: int, choice: int) -> list[int]:
        """Tokens of no way."""
        ...

    def rows(self, tokens: tuple[int, ...], count: int) -> list[bytes] | None:
        """Digests of the logits after each of the last `count` tokens; `None` off the known ways."""
        ...

    def check(self, machine: Machine[Any], session: Session, row: Logits | None) -> None:
        """The logits of a valid session, which are `row`, and all live rows are right."""
        ...


class FakeTruth:
    """Of the fake device, whose logits are a hash of exactly the live rows."""

    def __init__(self, manifest: Manifest | None = None, most: int = 200) -> None:
        self.most = most
        self._machine = fake_machine(manifest or small_manifest(), max_sessions=1)
        self._known: dict[tuple[int, ...], bytes] = {(): b""}

    def more(self, tokens: tuple[int, ...], count: int, choice: int) -> list[int]:
        start, branch = len(tokens), choice % 3
        return [20 + (7 * (start + i) + 31 * branch) % 300 for i in range(min(count, self.most - start))]

    def garbage(self, count: int, choice: int) -> list[int]:
        return [400 + (choice + 13 * i * i) % 500 for i in range(count)]

    def rows(self, tokens: tuple[int, ...], count: int) -> list[bytes]:
        if tokens not in self._known:
            session = self._machine.open()
            rows = session.step(tokens, all_logits=True)
            session.close()
            self._known.update((tokens[: i + 1], digest_of(row)) for i, row in enumerate(rows))
        end = len(tokens)
        return [self._known[tokens[:i]] for i in range(end - count + 1, end + 1)]

    def check(self, machine: Machine[Any], session: Session, row: Logits | None) -> None:
        tokens = session.history
        got = b"" if row is None else digest_of(row)
        assert [got] == self.rows(tokens, 1), f"logits of {session.session_id} at {len(tokens)} differ"


class TreeTruth:
    """Of compiled kernels: a trunk and branches that leave it, each run one token at a time, once.

    A history that leaves the tree is compared with a fresh session, and each now and then.
    """

    def __init__(self, model: Holder, config: Config, *, most: int = MOST, fresh_every: int = 50) -> None:
        self.most = most
        self._config, self._fresh_every, self._checks = config, fresh_every, 0
        rng = np.random.default_rng(11)
        trunk = rng.integers(0, config.vocab_size, MOST)
        self._paths = [tuple(trunk.tolist())]
        for split in (s for s in SPLITS if s < most):
            own = rng.integers(0, config.vocab_size, MOST - split)
            own[0] = (trunk[split] + 1) % config.vocab_size
            self._paths.append((*trunk[:split].tolist(), *own.tolist()))
        self._machine = machine_like(model, len(self._paths), snapshot_bytes=0)
        self._fresh = machine_like(model, 1, snapshot_bytes=0)
        self._sessions = [open_session(self._machine, f"path{k}") for k in range(len(self._paths))]
        self._known: list[list[Seen]] = [[(b"", b"")] for _ in self._paths]
        self._of_fresh_ones: dict[tuple[int, ...], Seen] = {}
        self.fresh_ones = 0
        """Comparisons with a fresh session."""

    def _all_of(self, tokens: tuple[int, ...]) -> list[int]:
        return [k for k, path in enumerate(self._paths) if path[: len(tokens)] == tokens]

    def more(self, tokens: tuple[int, ...], count: int, choice: int) -> list[int]:
        paths, at = self._all_of(tokens), len(tokens)
        path = self._paths[paths[choice % len(paths)] if paths else 0]
        return list(path[at : min(at + count, self.most)])

    def garbage(self, count: int, choice: int) -> list[int]:
        return np.random.default_rng(choice).integers(0, self._config.vocab_size, count).tolist()

    def _at(self, path: int, length: int) -> Seen:
        known, session = self._known[path], self._sessions[path]
        while len(known) <= length:
            row = session.step([self._paths[path][session.position]])[0]
            known.append((digest_of(row), self._live(self._machine, session)))
        return known[length]

    def _live(self, machine: Machine[Any], session: Session) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        for name, rows in state_bytes(machine, self._config, session).items():
            found.update(name.encode() + rows)
        return found.digest()

    def rows(self, tokens: tuple[int, ...], count: int) -> list[bytes] | None:
        paths, end = self._all_of(tokens), len(tokens)
        if not paths:
            return None
        return [self._at(paths[0], i)[0] for i in range(end - count + 1, end + 1)]

    def check(self, machine: Machine[Any], session: Session, row: Logits | None) -> None:
        tokens = session.history
        if row is None:
            assert not tokens, "no logits"
            return
        self._checks += 1
        got, paths = (digest_of(row), self._live(machine, session)), self._all_of(tokens)
        if paths:
            _compare(got, self._at(paths[0], len(tokens)), session)
        if not paths or self._checks % self._fresh_every == 0:
            self.fresh_ones += 1
            _compare(got, self._of_fresh(tokens), session)

    def _of_fresh(self, tokens: tuple[int, ...]) -> Seen:
        if tokens not in self._of_fresh_ones:
            fresh = open_session(self._fresh)
            fresh.prefill(tokens)
            row = fresh.logits()
            assert row is not None
            self._of_fresh_ones[tokens] = digest_of(row), self._live(self._fresh, fresh)
            fresh.close()
        return self._of_fresh_ones[tokens]


def _compare(got: Seen, want: Seen, session: Session) -> None:
    what = f"of {session.session_id} at position {session.position}"
    assert got[0] == want[0], f"logits {what} differ"
    assert got[1] == want[1], f"live rows {what} differ"


def digest_of(row: Logits) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
