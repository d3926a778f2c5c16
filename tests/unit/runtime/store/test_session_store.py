"""Sessions that are saved and loaded by another machine equal those that were not, whatever is done next."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_executable import FakeDevice, fake_machine, small_manifest
from port import CopyMode, flood, load_session, memory_of
from unit.runtime.store.kept import (
    KIND,
    Kept,
    check,
    equal,
    moved,
    retained,
    tokens,
)

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.reports import RebuildReason
from ds4c_runtime.session import Session
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_image import make_image
from ds4c_runtime.store.state_file import StoredSnapshot


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
    flood(machine, 0xAB)
    session = machine.open()
    session.prefill(tokens(101))
    session.take_snapshot()
    image = make_image(session, "a", "b")
    assert [s.position for s in image.header.snapshots] == [32, 64, 96, 101]
    assert [s.pages for s in image.header.snapshots] == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert len(image.sections["pages"]) == 4
    written = {name: [part.tobytes() for part in parts] for name, parts in image.sections.items()}
    flood(machine, 0xCD)
    again = machine.open()
    again.prefill(tokens(101))
    again.take_snapshot()
    other = make_image(again, "a", "b")
    for name, parts in other.sections.items():
        assert [part.tobytes() for part in parts] == written[name], "bytes of others are in the file"


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


def test_loading_takes_what_there_is_room_for(tmp_path: Path) -> None:
    """Pages for the current state only, then bytes for one snapshot only."""
    session = fake_machine().open()
    session.prefill(tokens(150))
    session.take_snapshot()
    for number, options in enumerate(({"page_count": 5}, {"snapshot_bytes": 5000})):
        loaded, machine, kept = moved(tmp_path / str(number), session, **options)
        assert loaded.state_valid
        assert loaded.snapshots()[-1].position == 150
        check(machine)
        equal(loaded, session)
        kept.store.close()
    loaded, machine, _ = moved(tmp_path / "none", session, page_count=4)
    assert not loaded.state_valid
    assert [s.position for s in loaded.snapshots()] == [128, 96, 64, 32][::-1]
    check(machine)


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


def parked(kept: Kept, count: int, name: str, pin: bool = False) -> tuple[bool, HistoryLog]:
    session = kept.machine.open(name)
    session.prefill(tokens(count))
    if pin:
        session.pin(position=count)
    log = kept.store.create(kept.store.header(session), session)
    done = kept.store.save(log, session)
    session.close()
    return done, log


def test_a_session_that_fills_its_context_comes_back(tmp_path: Path) -> None:
    session = fake_machine().open()
    session.prefill(tokens(256))
    loaded, machine, kept = moved(tmp_path, session)
    assert kept.said == []
    assert (loaded.position, loaded.state_valid) == (256, True)
    check(machine, loaded)
    equal(loaded, session)


def test_without_memory_of_the_host_a_session_comes_without_its_snapshots(tmp_path: Path) -> None:
    class NoHostMemory(FakeDevice):
        def host_buffer(self, size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
            raise MemoryError(f"no {size} bytes")

    session = fake_machine().open()
    session.prefill(tokens(100))
    loaded, machine, kept = moved(tmp_path, session, copy_mode=CopyMode.HOST, device_type=NoHostMemory)
    assert (loaded.history, loaded.snapshots(), loaded.state_valid) == (session.history, [], False)
    assert memory_of(machine).free_pages == memory_of(machine).pages, "pages were lost"
    assert kept.said == []
    loaded.rebuild()
    check(machine, loaded)
    assert np.array_equal(loaded.logits(), session.logits())


def test_a_state_that_takes_the_place_of_its_own_needs_no_more_room(tmp_path: Path) -> None:
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(100))
    log = kept.save(session)
    kept.store.disk_budget = kept.store.bytes_used
    assert kept.store.save(log, session)


def test_what_was_set_aside_goes_at_the_start_if_it_is_too_much(tmp_path: Path) -> None:
    first = Kept(tmp_path, fake_machine())
    session = first.machine.open()
    session.prefill(tokens(50))
    log = first.save(session)
    first.store.close()
    bad = log.path.with_suffix(".state.bad")
    bad.write_bytes(b"x" * 5000)
    size = log.path.with_suffix(".state").stat().st_size
    for budget, is_there in ((size + 5000, True), (size + 4999, False)):
        kept = Kept(tmp_path, fake_machine(), budget=budget)
        kept.store.scan()
        assert bad.exists() == is_there
        kept.store.close()
    assert log.path.with_suffix(".state").exists()


def test_a_session_that_is_removed_leaves_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path, fake_machine())
    session = kept.machine.open()
    session.prefill(tokens(50))
    kept.store.remove(kept.save(session))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert kept.store.scan() == []


def test_what_was_set_aside_makes_room_before_any_state(tmp_path: Path) -> None:
    kept = Kept(tmp_path, fake_machine())
    sessions = [kept.machine.open(name) for name in ("a", "b")]
    for session in sessions:
        session.prefill(tokens(50))
    log = kept.save(sessions[0])
    bad = log.path.with_suffix(".state.bad")
    bad.write_bytes(b"x" * kept.store.bytes_used)
    (log,) = kept.store.scan()
    kept.store.disk_budget = kept.store.bytes_used + 100
    kept.save(sessions[1])
    assert not bad.exists()
    assert log.path.with_suffix(".state").exists()


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
            loaded = load_session(kept.machine, kept.store, log)
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
