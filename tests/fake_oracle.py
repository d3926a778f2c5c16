"""Fresh sessions on the fake device as the oracle of sessions there."""

from __future__ import annotations

import random

import numpy as np
from fake_executable import FakeMachine, fake_machine
from numpy.typing import NDArray
from port import Session, check, poison

from ds4c_runtime.manifest import Manifest


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1024), k=count)


class FakeOracle:
    """Logits by token prefix, of sessions that only went forward and took no snapshot."""

    def __init__(self, manifest: Manifest | None = None) -> None:
        self.machine = fake_machine(manifest, max_sessions=1, snapshot_bytes=0)
        self.memo: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        if tokens not in self.memo:
            session = self.machine.open()
            session.prefill(tokens)
            row = session.logits()
            assert row is not None
            self.memo[tokens] = row.copy()
            session.close()
        return self.memo[tokens]

    def check(self, machine: FakeMachine, *sessions: Session) -> None:
        """Poison what may not be read; then every valid session equals a fresh one."""
        check(machine)
        poison(machine, *sessions)
        for session in sessions:
            assert session.state_valid
            row = session.logits()
            if session.position == 0:
                assert row is None
            else:
                assert row is not None
                assert np.array_equal(row, self.logits(session.history)), f"at {session.position}"
        check(machine, *sessions)
