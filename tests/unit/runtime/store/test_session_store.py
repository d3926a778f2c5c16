"""Sessions that are saved and loaded by another machine equal those that were not, whatever is done next."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from bad_input.helpers import entries, flip
from fake_executable import FakeMachine, fake_machine, small_manifest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.runtime.store.crashes import Crash, failing, number_of_calls

from ds4c_runtime.errors import StoredFileError, StoreFailedError
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.session import Session
from ds4c_runtime.store.header import PREFIX_BYTES
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_image import load_image, make_image
from ds4c_runtime.store.session_store import SessionStore, Storage
from ds4c_runtime.store.state_file import StateHeader, StoredSnapshot, read_header
from ds4c_runtime.transport import CopyMode

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
        return self.store.load(log, self.machine.stepper, self.machine.store)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


def moved(folder: Path, session: Session, **machine: object) -> tuple[Session, FakeMachine, Kept]:
    """Save a session, and load it on another machine, whose memory has other content."""
    before = Kept(folder, fake_machine())
    before.save(session)
    before.store.close()
    other = fake_machine(**machine)  # pyright: ignore
    for arena in (other.store.states, other.store.pages, other.store.snapshots.arena):
        arena[:] = 0xFF
    kept = Kept(folder, other)
    return kept.load(), other, kept


def equal(first: Session, second: Session) -> None:
    """Same tokens, bits of the logits, digest, epoch and snapshots."""
    assert (first.history, first.digest, first.epoch) == (second.history, second.digest, second.epoch)
    logits, others = first.logits(), second.logits()
    assert (logits is None) == (others is None)
    assert logits is None or np.array_equal(logits, others)


def check(machine: FakeMachine, session: Session) -> None:
    machine.store.poison_free()
    session.timeline.poison_dead_rows()
    session.timeline.check_integrity()
    machine.store.check_integrity()


def retained(session: Session) -> list[tuple[object, ...]]:
    return [
        (s.snapshot_id, s.position, s.digest, s.is_pinned, s.label, s.origin) for s in session.snapshots()
    ]


@pytest.mark.parametrize("position", [0, 1, 3, 7, 8, 31, 32, 33, 63, 64, 100, 200])
def test_a_loaded_session_goes_on_like_the_one_that_stayed(tmp_path: Path, position: int) -> None:
    session = fake_machine().open()
    session.prefill(tokens(position))
    if not position:
        kept = Kept(tmp_path, fake_machine())
        log = kept.store.create(kept.store.header(session), session)
        assert not kept.store.save(log, session), "there is no state to write"
        loaded, machine = kept.load(), kept.machine
    else:
        loaded, machine, kept = moved(tmp_path, session)
    assert kept.said == []
    assert loaded.state_valid
    check(machine, loaded)
    equal(loaded, session)
    assert retained(loaded) == retained(session)
    for session_of in (loaded, session):
        session_of.prefill(tokens(20, seed=1))
    check(machine, loaded)
    equal(loaded, session)


@pytest.mark.parametrize("mode", CopyMode)
def test_a_loaded_session_rewinds_anywhere(tmp_path: Path, mode: CopyMode) -> None:
    """To every position, by the same snapshots; in place only above where it was loaded."""
    original = fake_machine().open()
    original.prefill(tokens(150))
    for number, to in enumerate(range(149, -1, -7)):
        loaded, machine, kept = moved(tmp_path / str(number), original, copy_mode=mode)
        plan = loaded.plan_rewind(to)
        base = max((s.position for s in original.snapshots() if s.position <= to), default=0)
        assert plan.kind is not KIND.IN_PLACE
        assert (plan.base_position, plan.replay_tokens) == (base, to - base)
        report = loaded.rewind(to)
        assert (report.kind, report.replayed_tokens) == (plan.kind, plan.replay_tokens)
        check(machine, loaded)
        fresh = fake_machine().open()
        fresh.prefill(original.history[:to])
        logits, expected = loaded.logits(), fresh.logits()
        assert to == 0 or (logits is not None and np.array_equal(logits, expected))
        kept.store.close()


def test_branches_that_were_left_pins_and_labels_come_along(tmp_path: Path) -> None:
    session = fake_machine().open()
    session.prefill(tokens(150))
    left = session.take_snapshot(label="left behind")
    assert left is not None
    session.rewind(90)
    session.prefill(tokens(40, seed=2))
    session.pin(position=64, label="kept")
    loaded, machine, _ = moved(tmp_path, session)
    assert retained(loaded) == retained(session)
    assert loaded.epoch == session.epoch == 1
    here = [s.snapshot_id for s in session.snapshots()][-1]
    for there in (left.snapshot_id, here):
        for each in (session, loaded):
            each.rewind_to_snapshot(there)
        check(machine, loaded)
        equal(loaded, session)
    taken = loaded.take_snapshot()
    loaded.step([1])
    assert taken is None or taken.snapshot_id
    ids = [s.snapshot_id for s in loaded.snapshots()]
    assert len(set(ids)) == len(ids), "new snapshots have ids of their own"


def test_shared_pages_are_stored_once_and_dead_rows_not_at_all(tmp_path: Path) -> None:
    machine = fake_machine()
    for arena in (machine.store.states, machine.store.pages, machine.store.snapshots.arena):
        arena[:] = 0xAB
    session = machine.open()
    session.prefill(tokens(101))
    session.take_snapshot()
    image = make_image(session, "a", "b")
    assert [s.position for s in image.header.snapshots] == [32, 64, 96, 101]
    assert [s.pages for s in image.header.snapshots] == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert len(image.sections["pages"]) == 4
    for arena in (machine.store.states, machine.store.pages, machine.store.snapshots.arena):
        arena[:] = 0xCD
    again = machine.open()
    again.prefill(tokens(101))
    again.take_snapshot()
    other = make_image(again, "a", "b")
    for name, parts in image.sections.items():
        for part, same in zip(parts, other.sections[name], strict=True):
            assert part.tobytes() == same.tobytes(), "bytes of others are in the file"


def test_a_history_that_went_on_uses_what_still_fits(tmp_path: Path) -> None:
    """As after a crash: the state was saved some turns ago."""
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(100))
    log = kept.save(session)
    session.rewind(70)
    session.prefill(tokens(30, seed=3))
    log.sync(session.history, session.epoch)
    kept.store.close()
    again = Kept(tmp_path, fake_machine())
    loaded = again.load()
    assert not loaded.state_valid
    assert [s.position for s in loaded.snapshots()] == [32, 64]
    plan = loaded.plan_rewind(100)
    assert (plan.kind, plan.base_position, plan.replay_tokens) == (KIND.SNAPSHOT_REPLAY, 64, 36)
    loaded.rebuild()
    check(again.machine, loaded)
    equal(loaded, session)


def test_a_session_without_a_state_is_rebuilt_and_says_why(tmp_path: Path) -> None:
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(20))
    kept.store.create(kept.store.header(session), session)
    loaded = kept.load()
    plan = loaded.plan_rewind(20)
    assert (plan.kind, plan.rebuild_reason) == (KIND.REBUILD, RebuildReason.EVICTED)
    loaded.rebuild()
    equal(loaded, session)


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
    loaded = kept.load()
    assert kept.kinds == ["integrity"]
    assert not loaded.state_valid
    plan = loaded.plan_rewind(70)
    wanted = RebuildReason.INTEGRITY_FAILED if log.path.with_suffix(".trial.bad").exists() else None
    assert (plan.kind, plan.rebuild_reason) == (KIND.REBUILD, wanted or RebuildReason.EVICTED)
    assert not log.path.with_suffix(".state").exists()
    loaded.rebuild()
    check(kept.machine, loaded)
    equal(loaded, session)


Fields = StateHeader


def with_snapshot(**values: object) -> Callable[[Fields], Fields]:
    def change(header: Fields) -> Fields:
        first = dataclasses.replace(header.snapshots[0], **values)  # pyright: ignore
        return dataclasses.replace(header, snapshots=(first, *header.snapshots[1:]))

    return change


WRONG: dict[str, Callable[[Fields], Fields]] = {
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
    tmp_path: Path, change: Callable[[Fields], Fields]
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
    loaded.timeline.history.extend(session.history)
    content = {
        name: np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        for name, parts in image.sections.items()
    }
    before = machine.store.free_pages, machine.store.snapshots.bytes_used, machine.store.states.tobytes()
    with pytest.raises(StoredFileError, match=r"^x rejected: expected [^\n]+, got [^\n]+$"):
        load_image(loaded, Path("x"), change(image.header), content)
    after = machine.store.free_pages, machine.store.snapshots.bytes_used, machine.store.states.tobytes()
    assert before == after
    machine.store.check_integrity()
    load_image(loaded, Path("x"), image.header, content)
    loaded.timeline.epoch = session.epoch
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
        kept.machine.store.check_integrity()
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
    content = {name: np.concatenate(parts) for name, parts in image.sections.items() if parts}
    loaded = fake_machine().open()
    loaded.timeline.history.extend(session.history)
    stored = [dataclasses.replace(s, digest="0" * 64) for s in image.header.snapshots]
    result = load_image(
        loaded, Path("x"), dataclasses.replace(image.header, snapshots=tuple(stored)), content
    )
    assert (result.snapshots, result.left_out, loaded.snapshots()) == (0, 3, [])


def test_loading_takes_what_there_is_room_for(tmp_path: Path) -> None:
    """Pages for the current state only, then bytes for one snapshot only."""
    session = fake_machine().open()
    session.prefill(tokens(150))
    session.take_snapshot()
    for number, options in enumerate(({"page_count": 5}, {"snapshot_bytes": 5000})):
        loaded, machine, kept = moved(tmp_path / str(number), session, **options)
        assert loaded.state_valid
        assert loaded.snapshots()[-1].position == 150
        machine.store.check_integrity()
        equal(loaded, session)
        kept.store.close()
    loaded, machine, _ = moved(tmp_path / "none", session, page_count=4)
    assert not loaded.state_valid
    assert [s.position for s in loaded.snapshots()] == [128, 96, 64, 32][::-1]
    machine.store.check_integrity()


def test_a_failing_device_while_the_state_is_put_back(tmp_path: Path) -> None:
    session = fake_machine().open()
    session.prefill(tokens(100))
    kept = Kept(tmp_path, fake_machine())
    log = kept.save(session)
    kept.machine.device.fail_at = {0}
    loaded = kept.load()
    assert not loaded.state_valid
    assert log.path.with_suffix(".trial.bad").exists()
    loaded.rebuild()
    check(kept.machine, loaded)
    equal(loaded, session)


def test_saving_without_held_logits(tmp_path: Path) -> None:
    """After a rewind in place: one token is run again, or the snapshot before has to do."""
    for exact in (True, False):
        kept = Kept(tmp_path / str(exact), fake_machine())
        session = kept.machine.open()
        session.prefill(tokens(100))
        session.rewind(98)
        kept.save(session, exact=exact)
        loaded = kept.load()
        assert loaded.state_valid == exact
        loaded.rebuild()
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


def parked(kept: Kept, count: int, name: str, pin: bool = False) -> tuple[bool, HistoryLog]:
    session = kept.machine.open(name)
    session.prefill(tokens(count))
    if pin:
        session.pin(position=count)
    log = kept.store.create(kept.store.header(session), session)
    done = kept.store.save(log, session)
    session.close()
    return done, log


def test_the_budget_drops_the_cheapest_to_rebuild_and_never_a_pinned_one(tmp_path: Path) -> None:
    kept = Kept(tmp_path, fake_machine(), budget=0)
    done, log = parked(kept, 64, "a")
    assert not done
    size = 25_000
    kept.store.disk_budget = size
    sizes: dict[str, HistoryLog] = {"a": log}
    done, sizes["pinned"] = parked(kept, 10, "pinned", pin=True)
    assert done
    done, sizes["b"] = parked(kept, 40, "b")
    assert done
    held = {name: kept.store.folder.state_bytes(log) for name, log in sizes.items()}
    assert held["a"] == 0
    kept.store.disk_budget = kept.store.bytes_used
    done, sizes["short"] = parked(kept, 30, "short")
    assert not done, "cheaper to rebuild than what is there"
    kept.store.disk_budget = kept.store.bytes_used + 10_000
    done, sizes["long"] = parked(kept, 70, "long")
    assert done
    assert kept.store.folder.state_bytes(sizes["b"]) == 0 < kept.store.folder.state_bytes(sizes["pinned"])
    assert kept.store.bytes_used <= kept.store.disk_budget
    kept.store.disk_budget = held["pinned"]
    done, _ = parked(kept, 90, "longer")
    assert not done, "a pinned one never gives way"
    assert kept.store.folder.state_bytes(sizes["long"]) > 0, "nothing goes in vain"
    kept.store.close()
    again = Kept(tmp_path, fake_machine())
    again.store.scan()
    assert again.store.folder.is_pinned(sizes["pinned"])
    assert not again.store.folder.is_pinned(sizes["long"])


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
        session = kept.store.load(log, kept.machine.stepper, kept.machine.store)
        session.rebuild()
        self.turn(log, session, 50)
        kept.store.accept(log)
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
        loaded = kept.store.load(logs[0], kept.machine.stepper, kept.machine.store)
        rebuilt += not loaded.snapshots()
        loaded.rebuild()
        check(kept.machine, loaded)
        fresh = fake_machine().open()
        fresh.prefill(loaded.history)
        assert np.array_equal(loaded.logits(), fresh.logits())
        assert all("on trial" in line for _, line in kept.said)
        kept.store.close()
    assert rebuilt < calls // 2


def walk(seed: int, folder: Path, operations: int) -> None:
    """Random calls on two sessions; one is saved and loaded by a new machine from time to time."""
    rng = random.Random(seed)
    stayed, kept = fake_machine().open(), Kept(folder, fake_machine())
    loaded: Session = kept.machine.open()
    log = kept.store.create(kept.store.header(loaded), loaded)
    for number in range(operations):
        both: Sequence[Session] = (stayed, loaded)
        kind = rng.choice(["prefill", "step", "rewind", "rewind", "snapshot", "save", "save"])
        if kind == "prefill":
            added = tokens(min(rng.randrange(1, 50), 256 - stayed.position), seed=rng.randrange(5))
            for session in both:
                session.prefill(added)
        elif kind == "step" and stayed.position < 250:
            added = tokens(rng.randrange(1, 6), seed=number)
            for session in both:
                session.rebuild()
                session.step(added)
        elif kind == "rewind":
            to = rng.randrange(max(0, stayed.position - rng.choice([8, 300])), stayed.position + 1)
            for session in both:
                session.rewind(to)
        elif kind == "snapshot" and stayed.position and stayed.state_valid:
            for session in both:
                session.rebuild()
                session.take_snapshot()
        elif kind == "save":
            exact = rng.random() < 0.5
            if exact:
                loaded.rebuild()
            kept.store.save(log, loaded, exact=exact)
            kept.store.close()
            kept = Kept(folder, fake_machine())
            (log,) = kept.store.scan()
            loaded = kept.store.load(log, kept.machine.stepper, kept.machine.store)
            kept.store.accept(log)
            assert loaded.state_valid or not exact
        loaded.rebuild()
        check(kept.machine, loaded)
        equal(loaded, stayed)
    kept.store.close()


@pytest.mark.parametrize("number", range(4))
def test_random_walks_with_saves_and_loads(tmp_path: Path, seed: int, number: int) -> None:
    walk(seed + number, tmp_path, 60)


def test_a_model_without_append_states(tmp_path: Path) -> None:
    """Pages of no bytes."""
    manifest = small_manifest()
    arenas = dataclasses.replace(manifest.arenas, page=0)
    states = tuple(s for s in manifest.states if s.kind != "append")
    bare = dataclasses.replace(manifest, arenas=arenas, states=states).with_id()
    session = fake_machine(bare).open()
    session.prefill(tokens(100))
    kept = Kept(tmp_path, fake_machine(bare))
    kept.save(session)
    loaded = kept.load()
    assert loaded.state_valid
    equal(loaded, session)


def test_a_stored_snapshot_has_all_that_an_entry_has() -> None:
    """Whoever adds to one of them is reminded of the other."""
    assert {f.name for f in dataclasses.fields(StoredSnapshot)} == {
        "snapshot_id", "position", "epoch", "digest", "origin", "is_pinned", "label", "create_time_us",
        "rows", "tokens", "pages",
    }  # fmt: skip
