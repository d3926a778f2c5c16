"""What the scenarios of `test_bug_cases` are made of: their list, sessions, generations, comparisons."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fake_executable import FakeMachine, fake_machine
from port import (
    cancel_all,
    device_rows,
    engine_history,
    flood,
    live_bytes,
    load_session,
    machine_behind,
    poison_dead,
)

from ds4c_runtime.engine import Engine
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.requests import Event, FinishReason, GenerationRequest, StopParams, TokenDelta
from ds4c_runtime.session import Session
from ds4c_runtime.store.session_store import SessionStore, Storage

H = (10, 11, 12)
PROMPT = tuple(range(100, 140))


@dataclass(frozen=True)
class Bug:
    """`scenario()` must give `right`."""

    number: str
    line: str
    scenario: Callable[[], object]
    right: object


BUGS: list[Bug] = []


def bug(number: str, line: str, right: object) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Add a scenario to the list."""

    def add(scenario: Callable[[], object]) -> Callable[[], object]:
        BUGS.append(Bug(number, line, scenario, right))
        return scenario

    return add


# ------------------------------------------------------------------------------------ helpers


def right_tokens(count: int) -> list[int]:
    return [(17 * i * i + 5 * i) % 997 + 20 for i in range(count)]


def session_of(tokens: Sequence[int], machine: FakeMachine | None = None) -> Session:
    session = (machine or fake_machine()).open()
    session.prefill(tokens)
    return session


MEMO: dict[tuple[int, ...], bytes] = {(): b""}


def logits_of(tokens: Sequence[int]) -> bytes:
    """Of a session that never rewound; all prefixes are remembered."""
    key = tuple(tokens)
    if key not in MEMO:
        rows = fake_machine(max_sessions=1).open().step(key, all_logits=True)
        MEMO.update((key[: i + 1], row.tobytes()) for i, row in enumerate(rows))
    return MEMO[key]


def exact(session: Session, *more: int) -> bool:
    """Now, and after each of some tokens, with NaN in every row that going on from here does not read.

    The session goes nowhere back after this, so those are known without asking it.
    """
    for token in (None, *more, 33, 34, 35, 36, 37):
        if token is not None:
            session.step([token])
        row, at = session.logits(), session.position
        if (b"" if row is None else row.tobytes()) != logits_of(session.history):
            return False
        poison_dead(machine_behind(session), session, position=at, oldest=at)
    return True


def rejected(start: int, q: int, accepted: int) -> Session:
    """A session that verified a block of `q` tokens of which `accepted` were right, and went back."""
    tokens = right_tokens(start + accepted)
    session = session_of(tokens[:start])
    session.step([*tokens[start:], *range(900, 900 + q - accepted)], all_logits=True)
    kind = RewindKind.IN_PLACE if accepted < q else RewindKind.NONE
    assert session.rewind(start + accepted).kind is kind
    return session


def rows_run(session: Session, action: Callable[[], object]) -> int:
    """How many rows the device evaluates during an action."""
    machine = machine_behind(session)
    before = sum(device_rows(machine))
    action()
    return sum(device_rows(machine)) - before


def favoured(*tokens: int) -> Callable[[int, int], int | None]:
    """A model that says these tokens after the history `H`."""
    return lambda position, _: tokens[position - 2] if 0 <= position - 2 < len(tokens) else None


def ids(engine: Engine, **fields: object) -> list[int]:
    """Token ids of a generation in session `s`."""
    return list(engine.run(request(**fields)).tokens)


def request(**fields: object) -> GenerationRequest:
    defaults = {
        "session_id": "s",
        "return_text": False,
        "stop": StopParams(max_output_tokens=10, ignore_eos=True),
    }
    return GenerationRequest(**{**defaults, **fields})  # type: ignore[arg-type]


def history(engine: Engine) -> tuple[int, ...]:
    return engine_history(engine, "s")


def cancel_after(engine: Engine, count: int, **fields: object) -> list[int]:
    """Tokens of a generation whose client leaves after so many."""
    seen: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TokenDelta):
            seen.extend(event.token_ids)
            if len(seen) == count:
                cancel_all(engine)

    finished = engine.run(request(**fields), on_event=on_event).finished
    assert finished.reason is FinishReason.CANCELLED
    return seen


def rows_of(machine: FakeMachine, session: Session) -> list[bytes]:
    """Live rows of every state."""
    return list(live_bytes(machine, session).values())


@dataclass
class Stored:
    """A folder of stored sessions that machines use one after the other."""

    folder: Path
    said: list[str] = field(default_factory=list[str])

    def save(self, machine: FakeMachine, session: Session) -> None:
        store = self._store(machine)
        assert store.save(store.create(store.header(session), session), session)
        store.close()

    def load(self, machine: FakeMachine) -> Session:
        """The only session of the folder, on a machine whose memory has other content."""
        flood(machine)
        store = self._store(machine)
        session = load_session(machine, store, store.scan()[0])
        store.close()
        return session

    def _store(self, machine: FakeMachine) -> SessionStore:
        return SessionStore(
            machine.manifest, Storage(self.folder, None, lambda kind, _: self.said.append(kind))
        )


@contextmanager
def stored() -> Iterator[Stored]:
    with tempfile.TemporaryDirectory() as folder:
        yield Stored(Path(folder) / "sessions")
