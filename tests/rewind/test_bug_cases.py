"""Rewind, truncation and stop-boundary bugs that others reported, as scenarios with the right value.

One case: the number under which we list it, one line on what went wrong elsewhere, a scenario on our API
that would show it, and the value that is right. The device is `fake_executable`'s: logits are a hash of
exactly the rows that may be read, so `exact` says that no row differs from a session that never rewound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fake_executable import FakeDevice, FakeMachine, fake_engine, fake_machine, small_manifest
from rewind.row_machine import RowDevice, row_manifest
from rewind.table import IN_PLACE, Table
from rewind.table import Case as Transaction

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import RewindTooDearError
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.requests import Event, FinishReason, GenerationRequest, StopParams, TokenDelta
from ds4c_runtime.session import Session, step_sessions

H = (10, 11, 12)
CLOSE, EXTRA, EOS, TOOL = 90, 91, 1, 70
PROMPT = tuple(range(100, 140))
TOKENIZER = Path(__file__).parents[2] / "demo" / "model" / "tokenizer.json"


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


@pytest.mark.parametrize("case", BUGS, ids=lambda case: f"{case.number} {case.line}")
def test_reported_bug(case: Bug) -> None:
    assert case.scenario() == case.right


def test_no_number_twice() -> None:
    numbers = [case.number for case in BUGS]
    assert len(set(numbers)) == len(numbers)


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
    """Now, and after each of some tokens, with every dead row NaN."""
    for token in (None, *more, 33, 34, 35, 36, 37):
        if token is not None:
            session.step([token])
        session.timeline.poison_dead_rows()
        row = session.logits()
        if (b"" if row is None else row.tobytes()) != logits_of(session.history):
            return False
    return True


def rejected(start: int, q: int, accepted: int) -> Session:
    """A session that verified a block of `q` tokens of which `accepted` were right, and went back."""
    tokens = right_tokens(start + accepted)
    session = session_of(tokens[:start])
    session.step([*tokens[start:], *range(900, 900 + q - accepted)], all_logits=True)
    assert session.rewind(start + accepted).kind in (RewindKind.IN_PLACE, RewindKind.NONE)
    return session


def device_of(session: Session) -> FakeDevice:
    return session._executor._device  # type: ignore[return-value]


def rows_run(session: Session, action: Callable[[], object]) -> int:
    """How many rows the device evaluates during an action."""
    before = sum(device_of(session).rows)
    action()
    return sum(device_of(session).rows) - before


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


# ------------------------------------------------------------- A: the ds4 family


@bug("A1", "work after the last token delayed the end of the stream", ((*H, 20), [3, 1]))
def _() -> object:
    with fake_engine(favour=favoured(20, EOS)) as engine:
        engine.open_session("s")
        engine.run(request(tokens=H, stop=StopParams(max_output_tokens=10)))
        return history(engine), engine._stepper._device.rows  # type: ignore[attr-defined]


def history(engine: Engine) -> tuple[int, ...]:
    entry = engine._registry.acquire("s", "")
    try:
        return entry.opened.history
    finally:
        engine._registry.release(entry)


@bug("A2", "a token that the client never saw conditioned the next tool turn", ((*H, CLOSE, TOOL), True))
def _() -> object:
    session = session_of(H)
    session.step([CLOSE, EXTRA])
    session.rewind(len(H) + 1)
    session.prefill([TOOL])
    return session.history, exact(session)


@bug("A3", "a continuation of a session without valid state was refused", (False, 12, True))
def _() -> object:
    session = session_of(right_tokens(60))
    session.rewind(10, defer=True)
    valid = session.state_valid
    evaluated = rows_run(session, lambda: session.prefill([TOOL, TOOL + 1]))
    return valid, evaluated, exact(session)


@bug("A4", "every tool boundary cost a rebuild", (RewindKind.IN_PLACE, 0, True))
def _() -> object:
    session = session_of(right_tokens(127))
    session.step([201, 202, 203, 204, 205])
    report = session.rewind(129)
    return report.kind, report.replayed_tokens, exact(session)


@bug("A5", "the unused end of a block stayed in the history", (201, True))
def _() -> object:
    session = rejected(200, 2, 1)
    return session.position, exact(session)


@bug("A7", "only forward motion was right, and only for one parity", [True] * 8)
def _() -> object:
    return [exact(rejected(start, 3, 1)) for start in range(120, 128)]


@bug("A8", "a block accepted in part gave the logits of a corrupt row", True)
def _() -> object:
    session = rejected(40, 2, 1)
    row = session.logits()
    return row is not None and row.tobytes() == logits_of(right_tokens(41))


@bug("A10", "accepted tokens were evaluated again", 0)
def _() -> object:
    session = session_of(right_tokens(50))
    session.step(right_tokens(55)[50:], all_logits=True)

    def back_and_on() -> None:
        session.rewind(53)
        session.logits()

    return rows_run(session, back_and_on)


@bug("A17", "the start of a block with its seed could not be reached", (RewindKind.IN_PLACE, 0, True))
def _() -> object:
    session = session_of(right_tokens(60))
    session.step([300, 301, 302])  # the seed and two drafts
    report = session.rewind(60)
    return report.kind, rows_run(session, session.logits), exact(session)


@bug("A20", "after a rewind to the start of a block the logits were those of its end", (True, False))
def _() -> object:
    session = session_of(right_tokens(60))
    end = session.step([300, 301, 302])[0].tobytes()
    session.rewind(60)
    row = session.logits()
    assert row is not None
    return row.tobytes() == logits_of(right_tokens(60)), row.tobytes() == end


# ------------------------------------------------------------- B: lucebox


@bug("B1", "rejected tokens survived in the compressors of ratio 4 and ratio 128", (2, True))
def _() -> object:
    outcome = Table(RowDevice(row_manifest("float32", 6))).run(
        [Transaction(2, 3, 1), Transaction(126, 3, 1)], 256, IN_PLACE
    )
    return outcome.total, outcome.is_clean


@bug("B7", "a block after a disconnect and a restore walked through stale pointers", True)
def _() -> object:
    with fake_engine() as engine:
        engine.open_session("s")
        cancel_after(engine, 3, tokens=PROMPT)
        got = ids(engine, rewind_to=len(PROMPT) - 2, tokens=PROMPT[-2:])
        engine.close_session("s")
        engine.open_session("s")
        return got == ids(engine, tokens=PROMPT)


def cancel_after(engine: Engine, count: int, **fields: object) -> list[int]:
    """Tokens of a generation whose client leaves after so many."""
    seen: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TokenDelta):
            seen.extend(event.token_ids)
            if len(seen) == count:
                handle.append(next(iter(engine._generations.values())))
                handle[0].cancel()

    handle: list[object] = []  # type: ignore[assignment]
    finished = engine.run(request(**fields), on_event=on_event).finished
    assert finished.reason is FinishReason.CANCELLED
    return seen


@bug("B8", "nothing was kept at the end of a generation, so the next turn began a turn earlier", 50)
def _() -> object:
    with fake_engine() as engine:
        engine.open_session("s")
        engine.run(request(tokens=PROMPT))
        started = engine.run(request(tokens=(TOOL,))).started
        assert started is not None
        return started.cached_input_tokens


@bug("B10", "a generation from the cache could not be cancelled", 2)
def _() -> object:
    with fake_engine() as engine:
        engine.open_session("s")
        engine.run(request(tokens=PROMPT))
        return len(cancel_after(engine, 2, rewind_to=len(PROMPT) + 5))


# ------------------------------------------------------------- C: llama.cpp and forks


@bug("C9", "a rollback in one sequence of a batch hit the rows of another", (True, True))
def _() -> object:
    machine = fake_machine()
    one, other = (session_of(right_tokens(n), machine) for n in (62, 41))
    step_sessions(machine.stepper, [(one, [300, 301, 302], 3), (other, [400, 401], 2)])
    one.rewind(62)
    return exact(one), exact(other)


@bug("C10", "a ring without slack refused to drop a tail", [(RewindKind.IN_PLACE, True)] * 6)
def _() -> object:
    out: list[object] = []
    for n in range(1, 7):
        session = session_of(right_tokens(100))
        session.step(list(range(900, 900 + n)))
        kind = session.rewind(100).kind
        out.append((kind, exact(session, *right_tokens(100 + n)[100:])))
    return out


@bug("C13", "a short prompt was evaluated again in the second turn", 40)
def _() -> object:
    with fake_engine() as engine:
        engine.open_session("s")
        engine.run(request(tokens=PROMPT, stop=StopParams(max_output_tokens=0)))
        started = engine.run(request(tokens=tuple(range(200, 210)))).started
        assert started is not None
        return started.cached_input_tokens


@bug(
    "C15",
    "the least position of the window was taken for that of the recurrent state",
    [(RewindKind.NONE, 98), (RewindKind.IN_PLACE, 94), (RewindKind.SNAPSHOT_REPLAY, 64)],
)
def _() -> object:
    child, _ = session_of(right_tokens(100)).fork(98)
    plans = [child.plan_rewind(to) for to in (98, 94, 93)]
    return [(plan.kind, plan.base_position) for plan in plans]


@bug("C18", "the recurrent state kept what was removed", True)
def _() -> object:
    session = rejected(77, 5, 2)
    return exact(session, *right_tokens(82)[79:])


# ------------------------------------------------------------- D: vLLM, SGLang, TensorRT-LLM and others


@bug("D1", "rejected tokens stayed in recurrent state while acceptance looked healthy", [])
def _() -> object:
    cases = [(q, a) for q in range(1, 7) for a in range(q)]
    return [case for case in cases if not exact(rejected(30 + case[1], *case))]


@bug("D4", "a short window had no room for drafts", True)
def _() -> object:
    machine = fake_machine(small_manifest(window=3))
    session = session_of(right_tokens(20), machine)
    session.step([right_tokens(21)[20], 900])
    session.rewind(21)
    serial = session_of(right_tokens(21), machine)
    raw = machine.manifest.rings[0]
    window = [machine.store.ring_rows(s.timeline.lease.slot, raw, [19, 20]) for s in (session, serial)]
    return np.array_equal(*window)


@bug("D5", "the second and third equal prompt found nothing to reuse", [39, 39])
def _() -> object:
    with fake_engine(horizon=12) as engine:
        engine.open_session("s")
        engine.run(request(tokens=PROMPT))
        again = [engine.run(request(rewind_to=len(PROMPT))).finished.usage for _ in range(2)]
        return [usage.cached_input_tokens for usage in again]


@bug("D6", "tokens behind a stop string were kept", ("Re", FinishReason.STOP_STRING, True))
def _() -> object:
    with fake_engine(tokenizer_path=TOKENIZER) as engine:
        assert engine.tokenizer is not None
        spelled = engine.tokenizer.encode("Rewind it", parse_special=False)
    with fake_engine(tokenizer_path=TOKENIZER, favour=favoured(*spelled)) as engine:
        engine.open_session("s")
        stop = StopParams(max_output_tokens=8, strings=("wind",))
        result = engine.run(request(tokens=H, return_text=True, stop=stop))
        kept = len(history(engine)) == len(H) + len(result.tokens)
        return result.text, result.finished.reason, kept


@bug("D11", "drafts counted as cacheable", (2, 1))
def _() -> object:
    machine = fake_machine(small_manifest(page_tokens=16))
    session = session_of(right_tokens(14), machine)
    session.step(right_tokens(18)[14:])
    before = len(session.timeline.lease.pages)
    session.rewind(15)
    return before, len(session.timeline.lease.pages)


@bug("D13", "one draft depth was wrong", [])
def _() -> object:
    out: list[int] = []
    for depth in range(1, 9):
        machine = fake_machine(small_manifest(horizon=8))
        for start in range(60, 76):
            session = session_of(right_tokens(start), machine)
            session.step(list(range(900, 900 + depth)), all_logits=True)
            session.rewind(start)
            if not exact(session, *right_tokens(start + 3)[start:]):
                out.append(depth)
            session.close()
    return out


@bug("D15", "a wide block from inside a window was wrong for short prefixes", (2, True))
def _() -> object:
    table = Table(RowDevice(row_manifest("float32", 6)))
    outcomes = [table.run([Transaction(2, 6, 1)], lap, IN_PLACE) for lap in (0, 4)]
    return sum(o.total for o in outcomes), all(o.is_clean for o in outcomes)


@bug("D18", "rejected pages were published", (True, 41))
def _() -> object:
    session = rejected(40, 4, 1)
    child, _ = session.fork()
    return exact(child), child.position - 5


@bug("D19", "the page list was never trimmed", (2, 1, True))
def _() -> object:
    machine = fake_machine(small_manifest(page_tokens=16))
    session = session_of(right_tokens(20), machine)
    before = len(session.timeline.lease.pages)
    session.rewind(14)
    machine.store.check_integrity()
    return before, len(session.timeline.lease.pages), machine.store.free_pages == machine.store.page_count - 1


@bug("D21", "a hit changed what the sessions share", (True, True))
def _() -> object:
    parent = session_of(right_tokens(64))
    child, _ = parent.fork(60)
    child.prefill(range(900, 940))
    return exact(parent), exact(child)


@bug("D22", "only the state after the last token of a block was there", [True] * 7)
def _() -> object:
    return [exact(rejected(45, 6, accepted)) for accepted in range(7)]


@bug("D24", "what was drafted behind the end of sequence was shown", ([20], (*H, 20)))
def _() -> object:
    with fake_engine(favour=favoured(20, EOS, 21, 22)) as engine:
        engine.open_session("s")
        shown = ids(engine, tokens=H, stop=StopParams(max_output_tokens=10))
        return shown, history(engine)


@bug("D25", "an end of sequence that was drafted and rejected ended the sequence", (True, 43))
def _() -> object:
    session = session_of(right_tokens(40))
    session.step([right_tokens(41)[40], EOS])
    session.rewind(41)
    session.step(right_tokens(43)[41:])
    return exact(session), session.position - 5


# ------------------------------------------------------------- E: the MLX family and small engines


@bug("E1", "a trim that did nothing was taken for one that did", ("refused", 100, RewindKind.REBUILD, True))
def _() -> object:
    session = session_of(right_tokens(100))
    try:
        session.rewind(20, max_replay_tokens=0)
        answer = "done"
    except RewindTooDearError:
        answer = "refused"
    position = session.position
    kind = session.rewind(20).kind
    return answer, position, kind, exact(session)


@bug("E2", "a trim by one reset the state", (4, True))
def _() -> object:
    session = session_of(right_tokens(5))
    session.rewind(4)
    return session.position, exact(session)


@bug("E5", "the next draft attended to rejected rows", True)
def _() -> object:
    session = rejected(50, 4, 1)
    draft = session.step([600, 601], all_logits=True)
    return draft[0].tobytes() == logits_of([*right_tokens(51), 600])


@bug("E7", "a rollback left counts of bytes and rows that were not true", (True, 0))
def _() -> object:
    machine = fake_machine()
    for start in range(28, 36):
        session = session_of(right_tokens(start), machine)
        session.step([900, 901, 902])
        session.rewind(start)
        session.timeline.check_integrity()
        machine.store.check_integrity()
        arenas, pages = machine.manifest.arenas, -(-start // machine.manifest.limits.page_tokens)
        kept = sum(info.bytes for info in session.snapshots())
        true = (
            machine.store.bytes_used == arenas.state_slot + pages * arenas.page == session.state_bytes - kept
            and machine.store.snapshots.bytes_used == kept
        )
        session.close()
        if not true:
            return False, start
    return True, machine.store.bytes_used


@bug("E9", "accepted counts of a batch were mixed up", (True, True))
def _() -> object:
    machine = fake_machine()
    tokens = right_tokens(62)
    sessions = [session_of(tokens[:60], machine) for _ in range(2)]
    step_sessions(machine.stepper, [(s, [*tokens[60:62], 900], 3) for s in sessions])
    for session, accepted in zip(sessions, (0, 2), strict=True):
        session.rewind(60 + accepted)
    return tuple(exact(s) for s in sessions)
