"""Files, disks, devices and processes that fail around a saved session: no wrong token, none half loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_input.helpers import entries, flip
from fake_executable import FakeDevice, fake_machine, small_manifest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from port import CopyMode, fail_next_call, give_history, largest_snapshot, load_session, memory_of, slot_bytes
from unit.runtime.store.crashes import Crash, failing, number_of_calls
from unit.runtime.store.kept import (
    KIND,
    Kept,
    check,
    equal,
    in_memory,
    tokens,
)

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.errors import StoredFileError, StoreFailedError
from ds4c_runtime.reports import RebuildReason
from ds4c_runtime.session import Session
from ds4c_runtime.store.header import PREFIX_BYTES
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_image import load_image, make_image
from ds4c_runtime.store.state_file import InFile, StateHeader, StoredSnapshot, read_header


def damage(path: Path) -> None:
    flip(path, -1)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [damage, cut, lambda p: flip(p, 0), lambda p: flip(p, 2000)])
def test_a_bad_state_is_set_aside_and_the_session_rebuilt(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(70))
    log = kept.save(session)
    harm(log.path.with_suffix(".state"))
    wanted = RebuildReason.EVICTED  # found at the start: as if there had been none
    with contextlib.suppress(StoredFileError):
        read_header(log.path.with_suffix(".state"))
        wanted = RebuildReason.INTEGRITY_FAILED
    loaded = kept.load()
    assert kept.kinds == ["integrity"]
    assert not loaded.state_valid
    plan = loaded.plan_rewind(70)
    assert log.path.with_suffix(".state.bad").exists()
    assert (plan.kind, plan.rebuild_reason) == (KIND.REBUILD, wanted)
    assert not log.path.with_suffix(".state").exists()
    loaded.rebuild()
    check(kept.machine, loaded)
    equal(loaded, session)


def with_snapshot(**values: object) -> Callable[[StateHeader], StateHeader]:
    def change(header: StateHeader) -> StateHeader:
        first = dataclasses.replace(header.snapshots[0], **values)  # pyright: ignore
        return dataclasses.replace(header, snapshots=(first, *header.snapshots[1:]))

    return change


WRONG: dict[str, Callable[[StateHeader], StateHeader]] = {
    "a position of other rows": with_snapshot(position=33),
    "a position beyond the context": with_snapshot(position=1 << 40),
    "rows of another snapshot": with_snapshot(rows="rows 3"),
    "rows that are tokens": with_snapshot(rows="tokens 4"),
    "too few pages": with_snapshot(pages=()),
    "too many pages": with_snapshot(pages=(0, 1)),
    "a page that is not there": with_snapshot(pages=(9,)),
    "a negative page": with_snapshot(pages=(-1,)),
    "an unknown origin": with_snapshot(origin="nobody"),
    "tokens of another snapshot": with_snapshot(tokens="tokens 4"),
    "tokens that are pages": with_snapshot(tokens="pages"),
    "tokens of another digest": lambda header: dataclasses.replace(
        header, snapshots=(*header.snapshots[:-1], dataclasses.replace(header.snapshots[-1], digest="0" * 64))
    ),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_nothing_of_a_file_that_contradicts_itself_is_loaded(
    tmp_path: Path, change: Callable[[StateHeader], StateHeader]
) -> None:
    """All hashes are right: whoever wrote it was wrong."""
    session = fake_machine().open()
    session.prefill(tokens(150))
    session.rewind(100)
    session.prefill(tokens(3))
    session.take_snapshot()
    image = make_image(session, "a", "b")
    assert [s.position for s in image.header.snapshots] == [32, 64, 96, 103, 128]
    machine = fake_machine()
    loaded = machine.open()
    give_history(loaded, session.history, session.epoch)
    content = in_memory(image)
    before = memory_of(machine), slot_bytes(machine)
    with pytest.raises(StoredFileError, match=r"^x rejected: expected [^\n]+, got [^\n]+$"):
        load_image(loaded, Path("x"), change(image.header), content)
    after = memory_of(machine), slot_bytes(machine)
    assert before == after
    check(machine)
    load_image(loaded, Path("x"), image.header, content)
    equal(loaded, session)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=80),
    st.lists(st.integers(-2, 6), max_size=5), st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.sampled_from([1, 32, 64, 96, 100, "rows 0", "tokens 3", "pages", "turn_end", "0" * 64]),
)  # fmt: skip
HEADER_KEYS = [field.name for field in dataclasses.fields(StateHeader)]
SNAPSHOT_KEYS = [f.name for f in dataclasses.fields(StoredSnapshot) if f.name not in ("rows", "pages")]


@given(key=st.sampled_from(HEADER_KEYS + SNAPSHOT_KEYS), index=st.integers(0, 3), value=ANYTHING)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_a_header_gives_the_right_tokens(key: str, index: int, value: object) -> None:
    """The hash of the header is right. Which rows and pages are a snapshot's nobody else can know."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(Path(folder), fake_machine())
        session = kept.machine.open()
        session.prefill(tokens(110))
        session.rewind(100)
        log = kept.save(session)
        path = log.path.with_suffix(".state")
        content = path.read_bytes()
        end = PREFIX_BYTES + int(np.frombuffer(content, "<u4", 1, 12)[0])
        fields = json.loads(content[PREFIX_BYTES:end])
        (fields["snapshots"][index] if key in SNAPSHOT_KEYS else fields)[key] = value
        text = json.dumps(fields, separators=(",", ":")).encode().ljust(end - PREFIX_BYTES)
        start = content[:12] + np.array([len(text)], "<u4").tobytes()
        path.write_bytes(start + hashlib.sha256(start + text).digest() + text + content[end:])
        loaded = kept.load()
        check(kept.machine)
        loaded.rebuild()
        check(kept.machine, loaded)
        logits, expected = loaded.logits(), session.logits()
        assert loaded.history == session.history
        assert logits is not None
        assert np.array_equal(logits, expected)
        kept.store.close()


def test_a_digest_of_another_history_is_left_out(tmp_path: Path) -> None:
    session = fake_machine().open()
    session.prefill(tokens(100))
    image = make_image(session, "a", "b")
    content = in_memory(image)
    loaded = fake_machine().open()
    give_history(loaded, session.history, session.epoch)
    stored = [dataclasses.replace(s, digest="0" * 64) for s in image.header.snapshots]
    result = load_image(
        loaded, Path("x"), dataclasses.replace(image.header, snapshots=tuple(stored)), content
    )
    assert (result.snapshots, result.left_out, loaded.snapshots()) == (0, 3, [])


def test_snapshots_without_pages_or_room_are_left_out() -> None:
    """Four snapshots, at 32, 64, 96 and 100, of 1, 2, 3 and 4 pages of their session."""
    session = fake_machine().open()
    session.prefill(tokens(100))
    session.take_snapshot()
    image = make_image(session, "a", "b")
    room = largest_snapshot(small_manifest())
    cases: list[tuple[dict[str, int], int]] = [
        ({}, 4), ({"page_count": 4}, 4), ({"page_count": 3}, 3), ({"page_count": 1}, 1),
        ({"page_count": 0}, 0), ({"snapshot_bytes": room}, 1), ({"snapshot_bytes": 0}, 0),
    ]  # fmt: skip
    for options, taken in cases:
        machine = fake_machine(**options)  # type: ignore[arg-type]
        loaded = machine.open()
        give_history(loaded, session.history, session.epoch)
        result = load_image(loaded, Path("x"), image.header, in_memory(image))
        assert (result.snapshots, result.left_out, len(loaded.snapshots())) == (taken, 4 - taken, taken)
        check(machine, loaded)


def test_snapshots_without_memory_of_the_host_are_left_out() -> None:
    class NoHostMemory(FakeDevice):
        def host_buffer(self, size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
            raise MemoryError(f"no {size} bytes")

    session = fake_machine().open()
    session.prefill(tokens(100))
    image = make_image(session, "a", "b")
    machine = fake_machine(copy_mode=CopyMode.HOST, device_type=NoHostMemory)
    loaded = machine.open()
    give_history(loaded, session.history, session.epoch)
    result = load_image(loaded, Path("x"), image.header, in_memory(image))
    assert (result.snapshots, result.left_out) == (0, len(session.snapshots()))
    check(machine, loaded)


@pytest.mark.parametrize("reads", range(8))
def test_a_disk_that_fails_while_the_state_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """All of the file was right a moment ago. Nothing stays half loaded, and the file is no worse for it."""
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(100))
    kept.save(session)
    session.close()
    left, read = [reads], InFile.read

    def refuse(self: InFile, start: int = 0, count: int | None = None) -> np.ndarray:
        if not left[0]:
            raise StoreFailedError("read failed: expected a readable file, got Input/output error")
        left[0] -= 1
        return read(self, start, count)

    with monkeypatch.context() as patch:
        patch.setattr(InFile, "read", refuse)
        loaded = kept.load()
        assert (kept.kinds, loaded.snapshots()) == (["read"], [])
    check(kept.machine)
    loaded.rebuild()
    check(kept.machine, loaded)
    loaded.close()
    assert kept.load().state_valid


def test_a_failing_device_while_the_state_is_put_back(tmp_path: Path) -> None:
    session = fake_machine().open()
    session.prefill(tokens(100))
    kept = Kept(tmp_path, fake_machine())
    log = kept.save(session)
    fail_next_call(kept.machine)
    loaded = kept.load()
    assert not loaded.state_valid
    assert log.path.with_suffix(".state.bad").exists()
    loaded.rebuild()
    check(kept.machine, loaded)
    equal(loaded, session)


def test_a_failed_save_keeps_the_file_before(tmp_path: Path) -> None:
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(50))
    log = kept.save(session)
    good = log.path.with_suffix(".state").read_bytes()
    session.prefill(tokens(50))
    log.sync(session.history, session.epoch)
    failures = 0
    for at in range(number_of_calls(lambda: kept.store.save(log, session))):
        log.path.with_suffix(".state").write_bytes(good)
        try:
            with failing(at):
                kept.store.save(log, session)
        except StoreFailedError:
            failures += 1
            header, _ = read_header(log.path.with_suffix(".state"))
            assert header.position in (50, 100)
    assert failures > 5
    assert kept.store.save(log, session)
    assert {name.split(".")[-1] for name in entries(tmp_path)} == {"lock", "log", "state"}
    loaded = kept.load()
    equal(loaded, session)


class Life:
    """Two turns, a save, a restart that uses it, another turn and save: what was acknowledged when."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[list[int]] = []
        self.opened: list[Kept] = []

    def open(self) -> Kept:
        self.opened.append(Kept(self.folder, fake_machine()))
        return self.opened[-1]

    def run(self) -> None:
        kept = self.open()
        session = kept.machine.open()
        session.prefill(tokens(40))
        log = kept.store.create(kept.store.header(session), session)
        self.done.append(tokens(40))
        kept.store.save(log, session)
        self.turn(log, session, 30)
        kept.store.close()
        kept = self.open()
        (log,) = kept.store.scan()
        session = load_session(kept.machine, kept.store, log)
        session.rebuild()
        self.turn(log, session, 50)
        kept.store.settle(session)
        kept.store.save(log, session)
        session.rewind(35)
        log.sync(session.history, session.epoch)
        self.done.append(list(session.history))
        kept.store.close()

    def turn(self, log: HistoryLog, session: Session, count: int) -> None:
        session.prefill(tokens(count, seed=count))
        log.sync(session.history, session.epoch)
        self.done.append(list(session.history))


def test_death_at_every_call_of_a_session_s_life(tmp_path: Path) -> None:
    """The history is what was acknowledged last or one turn on, and what comes next is right."""
    whole = Life(tmp_path / "whole")
    calls = number_of_calls(whole.run)
    assert calls > 40
    rebuilt = 0
    for at in range(calls):
        life = Life(tmp_path / str(at))
        with failing(at, crash=True), pytest.raises(Crash):
            life.run()
        for each in life.opened:
            each.store.close()  # as the end of a process does
        kept = Kept(life.folder, fake_machine())
        logs = kept.store.scan()
        if not logs:
            assert life.done == []
            continue
        assert logs[0].tokens.tolist() in whole.done[max(0, len(life.done) - 1) : len(life.done) + 1]
        loaded = load_session(kept.machine, kept.store, logs[0])
        rebuilt += not loaded.snapshots()
        loaded.rebuild()
        check(kept.machine, loaded)
        fresh = fake_machine().open()
        fresh.prefill(loaded.history)
        assert np.array_equal(loaded.logits(), fresh.logits())
        assert all("on trial" in line for _, line in kept.said)
        kept.store.close()
    assert rebuilt < calls // 2
