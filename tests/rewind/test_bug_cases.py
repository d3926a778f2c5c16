"""Rewind, truncation and stop-boundary bugs that others reported, as scenarios with the right value.

One case: the number under which we list it, one line on what went wrong elsewhere, a scenario on our API
that would show it, and the value that is right. The device is `fake_executable`'s: logits are a hash of
exactly the rows that may be read, so `exact` says that no row differs from a session that never rewound.

Left out are those of images, drafters, tensor parallelism, statistics of acceptance and prompts matched by
text, which we do not have, and those of stop strings within a token, which are tests of the text.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fake_executable import fake_engine, fake_machine, small_manifest
from port import (
    CopyMode,
    check,
    device_calls,
    device_rows,
    machine_behind,
    memory_of,
    pages_of,
    ring_rows,
    snapshots_of,
    step_together,
)
from rewind.bug_scenarios import (
    BUGS,
    PROMPT,
    Bug,
    H,
    bug,
    cancel_after,
    exact,
    favoured,
    history,
    ids,
    logits_of,
    rejected,
    request,
    right_tokens,
    rows_of,
    rows_run,
    session_of,
    stored,
)
from rewind.row_machine import LateCopies, RowDevice, row_manifest
from rewind.table import BY_SNAPSHOT, IN_PLACE, Table, Way
from rewind.table import Case as Transaction
from rewind.test_replay_loop import TOKENS, loop

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.errors import NoProgressError, RewindTooDearError
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.requests import FinishReason, StopParams
from ds4c_runtime.session import Session

CLOSE, EXTRA, EOS, TOOL = 90, 91, 1, 70
TOKENIZER = Path(__file__).parents[2] / "demo" / "model" / "tokenizer.json"


@pytest.mark.parametrize("case", BUGS, ids=lambda case: f"{case.number} {case.line}")
def test_reported_bug(case: Bug) -> None:
    assert case.scenario() == case.right


def test_no_number_twice() -> None:
    numbers = [case.number for case in BUGS]
    assert len(set(numbers)) == len(numbers)


# ------------------------------------------------------------- A: the ds4 family


@bug("A1", "work after the last token delayed the end of the stream", ((*H, 20), [3, 1]))
def _() -> object:
    with fake_engine(favour=favoured(20, EOS)) as engine:
        engine.open_session("s")
        engine.run(request(tokens=H, stop=StopParams(max_output_tokens=10)))
        return history(engine), device_rows(engine)


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


@bug("A11", "the same file that does not fit was restored every turn", (False, ["integrity"], True))
def _() -> object:
    with stored() as folder:
        session = session_of(right_tokens(70))
        machine = fake_machine()
        folder.save(machine, session)
        [state] = folder.folder.glob("*.state")
        content = bytearray(state.read_bytes())
        content[-1] ^= 1
        state.write_bytes(content)
        loaded = [folder.load(fake_machine()) for _ in range(3)]  # the file is tried by the first only
        for each in loaded:
            each.rebuild()
        return state.exists(), folder.said, all(exact(each) for each in loaded)


@bug("A17", "the start of a block with its seed could not be reached", (RewindKind.IN_PLACE, 0, True))
def _() -> object:
    session = session_of(right_tokens(60))
    session.step([300, 301, 302])  # the seed and two drafts
    report = session.rewind(60)
    return report.kind, rows_run(session, session.logits), exact(session)


@bug("H1", "a snapshot of another branch was taken for this one's, by its length", (96, True, True))
def _() -> object:
    session = session_of(right_tokens(100))
    taken = session.pin(position=100)
    session.rewind(70)
    session.prefill(range(800, 850))  # past 100 on another branch
    base = session.plan_rewind(100).base_position
    session.rewind(100)
    on_branch = exact(session)
    session.rewind_to_snapshot(taken.snapshot_id)
    return base, on_branch, exact(session)


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


class NothingPinned(RowDevice):
    """The system refuses to lock memory."""

    def host_buffer(self, size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
        return super().host_buffer(size, pinned=False)


@bug("B2", "save and restore chose their transport apart from each other", ({CopyMode.HOST_ASYNC}, 2, True))
def _() -> object:
    device = NothingPinned(row_manifest("float32", 0), copies=LateCopies())
    table = Table(device, CopyMode.HOST_PINNED)
    used: set[CopyMode] = set()

    def save_and_see(session: Session) -> None:
        BY_SNAPSHOT.before(session)
        used.update(s.copy_mode for s in snapshots_of(session))

    way = Way(save_and_see, BY_SNAPSHOT.after)
    outcome = table.run([Transaction(2, 3, 1), Transaction(126, 3, 1)], 256, way)
    return used, outcome.total, outcome.is_clean


@bug("B4", "the logits of a snapshot were those of the prompt", (RewindKind.SNAPSHOT, True, True))
def _() -> object:
    session = session_of(right_tokens(40))
    for token in right_tokens(43)[40:]:
        session.step([token])
    taken = session.pin(position=43)
    session.prefill(range(900, 920))
    kind = session.rewind_to_snapshot(taken.snapshot_id).kind
    row = session.logits()
    return kind, row is not None and row.tobytes() == logits_of(right_tokens(43)), exact(session)


@bug("B5", "a snapshot had the position, but not the rows of every shard", (RewindKind.SNAPSHOT, True, True))
def _() -> object:
    machine = fake_machine()
    session = session_of(right_tokens(70), machine)
    before = rows_of(machine, session)
    taken = session.pin(position=70)
    session.rewind(0)
    session.prefill(range(800, 890))
    kind = session.rewind_to_snapshot(taken.snapshot_id).kind
    return kind, rows_of(machine, session) == before, exact(session)


@bug("B7", "a block after a disconnect and a restore walked through stale pointers", True)
def _() -> object:
    with fake_engine() as engine:
        engine.open_session("s")
        cancel_after(engine, 3, tokens=PROMPT)
        got = ids(engine, rewind_to=len(PROMPT) - 2, tokens=PROMPT[-2:])
        engine.close_session("s")
        engine.open_session("s")
        return got == ids(engine, tokens=PROMPT)


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


@bug("C1", "a replay was verified as if it were a draft, for ever", (True, True))
def _() -> object:
    done = loop("layout", verifies_replay=False)
    return len(done.emitted) >= TOKENS, done.rounds <= 2 * TOKENS


@bug("C3", "the same checkpoint was restored again and again for new proposals", 1)
def _() -> object:
    done = loop("width", verifies_replay=False)
    return max(Counter(position for position, _ in done.restores).values())


@bug("C5", "a snapshot of another layout ended the process", (False, 70, RewindKind.REBUILD, True))
def _() -> object:
    with stored() as folder:
        other = fake_machine(small_manifest(window=7))
        folder.save(other, session_of(right_tokens(70), other))
        loaded = folder.load(fake_machine())
        valid, position = loaded.state_valid, loaded.position
        return valid, position, loaded.rewind(60).kind, exact(loaded)


@bug("C6", "a snapshot of one position was made and thrown away without end", (1, 1, [32, 60]))
def _() -> object:
    session = session_of(right_tokens(60))
    taken = [session.take_snapshot() for _ in range(3)]
    ids = {info.snapshot_id for info in taken if info is not None}
    calls = device_calls(machine_behind(session))
    session.take_snapshot()
    unchanged = int(device_calls(machine_behind(session)) == calls)
    return len(ids), unchanged, [info.position for info in session.snapshots()]


@bug("C9", "a rollback in one sequence of a batch hit the rows of another", (True, True))
def _() -> object:
    machine = fake_machine()
    one, other = (session_of(right_tokens(n), machine) for n in (62, 41))
    step_together(machine, [(one, [300, 301, 302], 3), (other, [400, 401], 2)])
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


@bug("C12", "a stored session was read again from its start", (True, 10, (64, 6), True))
def _() -> object:
    with stored() as folder:
        folder.save(fake_machine(), session_of(right_tokens(100)))
        loaded = folder.load(fake_machine())
        valid = loaded.state_valid
        rows = rows_run(loaded, lambda: loaded.prefill(right_tokens(110)[100:]))
        report = loaded.rewind(70)
        return valid, rows, (report.base_position, report.replayed_tokens), exact(loaded)


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


@bug("C17", "a snapshot was many times what a rollback needs", True)
def _() -> object:
    session = session_of(right_tokens(61))
    info = session.take_snapshot()
    assert info is not None
    manifest = machine_behind(session).manifest
    live = [(61 - max(0, ring.live.first(61))) * ring.row_bytes for ring in manifest.rings]
    logits = 4 * manifest.model.vocab_size
    return info.bytes == sum(-(-size // 64) * 64 for size in (*live, logits))


@bug("C18", "the recurrent state kept what was removed", True)
def _() -> object:
    session = rejected(77, 5, 2)
    return exact(session, *right_tokens(82)[79:])


@bug("C20", "a request hung with nothing but restores in its log", ("INTERNAL", "NO_PROGRESS"))
def _() -> object:
    try:
        loop("layout", verifies_replay=True, watched=True)
    except NoProgressError as error:
        return error.code, error.reason
    return None


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
    window = [ring_rows(machine, s, "raw", [19, 20]) for s in (session, serial)]
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
    before = len(pages_of(session))
    session.rewind(15)
    return before, len(pages_of(session))


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
    before = len(pages_of(session))
    session.rewind(14)
    check(machine)
    return before, len(pages_of(session)), memory_of(machine).free_pages == memory_of(machine).pages - 1


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


@bug("E6", "an edit of the prompt was a prefill from the start", (128, 22, 22, True))
def _() -> object:
    machine = fake_machine(small_manifest(page_tokens=64))
    session = session_of(right_tokens(220), machine)
    report = None

    def back() -> None:
        nonlocal report
        report = session.rewind(150)

    rows = rows_run(session, back)
    assert report is not None
    return report.base_position, report.replayed_tokens, rows, exact(session)


@bug("E7", "a rollback left counts of bytes and rows that were not true", (True, 0))
def _() -> object:
    machine = fake_machine()
    for start in range(28, 36):
        session = session_of(right_tokens(start), machine)
        session.step([900, 901, 902])
        session.rewind(start)
        check(machine, session)
        arenas, pages = machine.manifest.arenas, -(-start // machine.manifest.limits.page_tokens)
        kept = sum(info.bytes for info in session.snapshots())
        true = (
            memory_of(machine).state_bytes
            == arenas.state_slot + pages * arenas.page
            == session.state_bytes - kept
            and memory_of(machine).snapshot_bytes == kept
        )
        session.close()
        if not true:
            return False, start
    return True, memory_of(machine).state_bytes


@bug("E9", "accepted counts of a batch were mixed up", (True, True))
def _() -> object:
    machine = fake_machine()
    tokens = right_tokens(62)
    sessions = [session_of(tokens[:60], machine) for _ in range(2)]
    step_together(machine, [(s, [*tokens[60:62], 900], 3) for s in sessions])
    for session, accepted in zip(sessions, (0, 2), strict=True):
        session.rewind(60 + accepted)
    return tuple(exact(s) for s in sessions)
