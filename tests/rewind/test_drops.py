"""Snapshots lost at any moment change no token; a device call or copy that fails leaves VALID or STALE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_executable import FakeDevice, FakeMachine, fake_engine, fake_machine, small_manifest
from fake_oracle import FakeOracle, random_tokens
from port import (
    CopyMode,
    Session,
    check,
    device_calls,
    evict,
    evictable,
    fail_next_call,
    largest_snapshot,
    load_session,
    memory_of,
)

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.device.copy_thread import CopyThread, ThreadCopy
from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import BackendFailedError, StateInvalidError
from ds4c_runtime.launches import Extent
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.requests import GenerationRequest, StopParams
from ds4c_runtime.sampler import SamplingParams
from ds4c_runtime.store.session_store import SessionStore, Storage

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------- snapshots dropped at every possible moment

PROMPT = tuple(random_tokens(70, seed=1))
SAMPLING = SamplingParams(temperature=0.9, seed=5, frequency_penalty=0.4)


def say(
    engine: Engine, session_id: str, tokens: Sequence[int], count: int, back_to: int | None = None
) -> tuple[int, ...]:
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    request = GenerationRequest(
        tuple(tokens), session_id, rewind_to=back_to, sampling=SAMPLING, stop=stop, return_text=False
    )
    return engine.run(request).tokens


def conversation(engine: Engine) -> list[tuple[int, ...]]:
    """Turns, rewinds near and far, forks, a pin and a restore forwards; what was generated."""
    out = []
    engine.open_session("a")
    out.append(say(engine, "a", PROMPT, 5))
    out.append(say(engine, "a", PROMPT[:9], 3, back_to=40))
    pin = engine.pin_snapshot("a", position=50)
    engine.fork("a", at=35, new_id="b")
    out.append(say(engine, "b", PROMPT[3:6], 4))
    engine.rewind("a", to=20)
    out.append(say(engine, "a", PROMPT[20:60], 3))
    engine.rewind("a", to_snapshot=pin.snapshot_id)
    out.append(say(engine, "a", (), 3))
    engine.rewind("b", drop=3, defer=True)
    out.append(say(engine, "b", PROMPT[:2], 3))
    for session_id in ("a", "b"):
        engine.close_session(session_id)
    return out


@dataclass(eq=False)
class Dropping(FakeDevice):
    """Before call `at` of a kernel (every one if `None`) the snapshot `number` (every one if `None`) is lost.

    A restore is no such moment: between its parts nobody else decides anything.
    """

    at: int | None = -1
    number: int | None = None
    engine: Engine | None = None
    seen: int = 0
    counts: list[int] = field(default_factory=list)

    def call(self, entry: str, arenas: Sequence[HostBytes], extent: Extent) -> None:
        if entry != "restore":
            assert self.engine is not None
            found = evictable(self.engine)
            self.counts.append(len(found))
            if self.at is None or self.seen == self.at:
                for snapshot_id in found if self.number is None else found[self.number : self.number + 1]:
                    evict(self.engine, snapshot_id)
            self.seen += 1
        super().call(entry, arenas, extent)


def converse(at: int | None, number: int | None) -> tuple[list[tuple[int, ...]], list[int]]:
    manifest = small_manifest()
    device = Dropping(manifest, at=at, number=number)
    engine = Engine(manifest, device, None, max_sessions=4)
    try:
        device.engine = engine
        out = conversation(engine)
        check(engine)
        assert memory_of(engine).free_pages == memory_of(engine).pages
        assert memory_of(engine).snapshot_bytes == 0
        return out, device.counts
    finally:
        engine.shutdown(5)


def test_a_snapshot_dropped_at_any_moment_changes_no_token() -> None:
    want, counts = converse(at=-1, number=None)
    assert (len(counts) > 30, sum(counts) > 100) == (True, True)
    without = fake_engine(snapshot_budget=64, max_sessions=3)
    with pytest.raises(Exception, match="snapshot not pinned"):
        conversation(without)
    without.shutdown(5)
    for at, count in enumerate(counts):
        for number in range(count):
            assert converse(at, number)[0] == want, f"snapshot {number} dropped before call {at}"
        assert converse(at, None)[0] == want, f"all dropped before call {at}"
    assert converse(None, None)[0] == want
    for number in range(max(counts)):
        assert converse(None, number)[0] == want


@pytest.mark.parametrize("mode", CopyMode)
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9])
def test_a_small_budget_changes_no_token(mode: CopyMode, budget: int) -> None:
    want = converse(at=-1, number=None)[0]
    manifest = small_manifest()
    size = budget * largest_snapshot(manifest) * (1 if mode is CopyMode.DEVICE else 2)
    engine = Engine(
        manifest, FakeDevice(manifest), None, max_sessions=4, snapshot_budget=size, copy_mode=mode
    )
    assert conversation(engine) == want
    engine.shutdown(5)


# ------------------------------------------------------------------- every device call fails once, and copies

GIVEN = random_tokens(150, seed=2)
OTHER = random_tokens(100, seed=3)
ORACLE = FakeOracle()


class FlakyCopies(CopyThread):
    """Copy number `fails` (from 0) brings half of its bytes, wrong ones, and fails."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self.fails, self.count = fails, 0

    def submit(self, source: HostBytes, target: HostBytes) -> ThreadCopy:
        number, self.count = self.count, self.count + 1
        if number != self.fails:
            return super().submit(source, target)
        target[: len(target) // 2] = 0x55
        copy = ThreadCopy(source[:-1], target)  # of another length, so that it raises
        copy.run()
        return copy


@dataclass(frozen=True)
class Scene:
    """A session at 150 tokens, with snapshots, and something that is about to happen to it.

    `target` is the history the session must have afterwards, whether or not it went well.
    """

    name: str
    act: Callable[[Session], object]
    target: Sequence[int]
    makes_session: bool = False


def rewind_and_read(to: int) -> Callable[[Session], object]:
    def act(session: Session) -> object:
        session.rewind(to)
        return session.logits()

    return act


def later(session: Session) -> object:
    session.rewind(75, defer=True)
    session.rebuild()
    return session.logits()


def to_left_branch(session: Session) -> object:
    """Restore by id the snapshot at 70 of the branch that `scene` has left."""
    return session.rewind_to_snapshot(next(s.snapshot_id for s in session.snapshots() if s.label == "left"))


LEFT = [*GIVEN[:60], *OTHER[:10]]
SCENES = [
    Scene("in place", rewind_and_read(146), GIVEN[:146]),
    Scene("to a snapshot", rewind_and_read(128), GIVEN[:128]),
    Scene("snapshot and replay", rewind_and_read(120), GIVEN[:120]),
    Scene("rebuild", rewind_and_read(20), GIVEN[:20]),
    Scene("to nothing", rewind_and_read(0), ()),
    Scene("later", later, GIVEN[:75]),
    Scene("restore forwards by id", to_left_branch, LEFT),
    Scene("snapshot here", lambda s: s.take_snapshot(), GIVEN),
    Scene("pin here", lambda s: s.pin(position=150), GIVEN),
    Scene("pin in place", lambda s: s.pin(position=147), GIVEN),
    Scene("pin below", lambda s: s.pin(position=110), GIVEN),
    Scene("fork here", lambda s: s.fork()[0], GIVEN, makes_session=True),
    Scene("fork in place", lambda s: s.fork(145)[0], GIVEN, makes_session=True),
    Scene("fork below", lambda s: s.fork(100)[0], GIVEN, makes_session=True),
    Scene("fork near zero", lambda s: s.fork(10)[0], GIVEN, makes_session=True),
]


def scene_at(mode: CopyMode) -> tuple[FakeMachine, Session]:
    machine = fake_machine(max_sessions=3, copy_mode=mode)
    session = machine.open()
    session.prefill(LEFT)
    assert session.take_snapshot(label="left") is not None
    session.rewind(60)
    session.prefill(GIVEN[60:])
    return machine, session


def act_with_failure(scene: Scene, machine: FakeMachine, session: Session) -> bool:
    """Whether it failed; then checks what must hold, and that the next use is right."""
    before = memory_of(machine).sessions
    try:
        made = scene.act(session)
    except BackendFailedError:
        has_failed, made = True, None
    else:
        has_failed = False
    assert session.history == tuple(scene.target), f"{scene.name}: history"
    assert memory_of(machine).sessions == before + (made is not None and scene.makes_session)
    if not session.state_valid:
        assert has_failed
        for read in (session.logits, lambda: session.step([1]), lambda: session.take_snapshot()):
            if session.position:
                with pytest.raises(StateInvalidError):
                    read()
    check(machine)
    session.prefill(OTHER[:3])
    ORACLE.check(machine, session, *([made] if isinstance(made, Session) else []))
    session.rewind(max(0, session.position - 50))
    ORACLE.check(machine, session)
    return has_failed


@pytest.mark.parametrize("mode", CopyMode)
@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.name.replace(" ", "_"))
def test_every_device_call_fails_once(scene: Scene, mode: CopyMode) -> None:
    machine, session = scene_at(mode)
    before = device_calls(machine)
    assert not act_with_failure(scene, machine, session)
    # Calls after the act belong to its check; a failure there is one of a prefill or a rewind all the same.
    machine, session = scene_at(mode)
    before = device_calls(machine)
    scene.act(session)
    calls = device_calls(machine) - before
    assert calls or scene.name in ("to nothing", "pin here", "snapshot here")
    for number in range(calls):
        machine, session = scene_at(mode)
        fail_next_call(machine, number)
        act_with_failure(scene, machine, session)
        assert device_calls(machine) > before + number


@pytest.mark.parametrize("mode", [CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED])
@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.name.replace(" ", "_"))
def test_every_copy_fails_once(scene: Scene, mode: CopyMode) -> None:
    machine, session = scene_at(mode)
    machine.device.copies = flaky = FlakyCopies(-1)
    scene.act(session)
    for number in range(flaky.count):
        machine, session = scene_at(mode)
        machine.device.copies = FlakyCopies(number)
        act_with_failure(scene, machine, session)


@pytest.mark.parametrize("mode", [CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED])
def test_a_failed_save_is_a_lost_snapshot(mode: CopyMode) -> None:
    """The rewind starts from the next snapshot below, says so, and the lost one is given up."""
    machine = fake_machine(copy_mode=mode)
    session = machine.open()
    machine.device.copies = FlakyCopies(1)  # that of position 64
    session.prefill(GIVEN[:90])
    assert [s.position for s in session.snapshots()] == [32, 64]
    report = session.rewind(70)
    assert (report.kind, report.base_position, report.replayed_tokens) == (
        RewindKind.SNAPSHOT_REPLAY, 32, 38,
    )  # fmt: skip
    ORACLE.check(machine, session)
    assert [s.position for s in session.snapshots()] == [32, 64]  # taken again on the way
    session.rewind(64)
    ORACLE.check(machine, session)


def test_without_any_snapshot_left_a_failed_save_is_a_rebuild() -> None:
    machine = fake_machine(copy_mode=CopyMode.HOST_ASYNC)
    session = machine.open()
    machine.device.copies = FlakyCopies(0)
    session.prefill(GIVEN[:50])
    report = session.rewind(40)
    assert (report.kind, report.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.INTEGRITY_FAILED)
    ORACLE.check(machine, session)


@pytest.mark.parametrize("mode", [CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED])
def test_a_failed_save_is_not_written_to_a_file(mode: CopyMode, tmp_path: Path) -> None:
    machine = fake_machine(copy_mode=mode)
    session = machine.open()
    machine.device.copies = FlakyCopies(1)  # that of position 64
    session.prefill(GIVEN[:90])
    files = SessionStore(machine.manifest, Storage(tmp_path))
    log = files.create(files.header(session), session)
    assert files.save(log, session)
    session.close()
    session = load_session(machine, files, log)
    files.close()
    assert [s.position for s in session.snapshots()] == [32, 90]
    ORACLE.check(machine, session)


def test_no_host_memory_means_no_snapshots_of_a_file(tmp_path: Path) -> None:
    machine = fake_machine(copy_mode=CopyMode.HOST_ASYNC)
    session = machine.open()
    session.prefill(GIVEN[:90])
    files = SessionStore(machine.manifest, Storage(tmp_path))
    log = files.create(files.header(session), session)
    assert files.save(log, session)
    session.close()
    machine.device.host_buffer = no_host_buffer  # type: ignore[method-assign]
    session = load_session(machine, files, log)
    files.close()
    assert (session.snapshots(), session.history) == ([], tuple(GIVEN[:90]))
    session.rebuild()
    ORACLE.check(machine, session)


def no_host_buffer(size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
    raise MemoryError(f"no {size} bytes")


@pytest.mark.parametrize("mode", CopyMode)
def test_no_host_memory_means_no_snapshot(mode: CopyMode) -> None:
    machine = fake_machine(copy_mode=mode)
    machine.device.host_buffer = no_host_buffer  # type: ignore[method-assign]
    session = machine.open()
    session.prefill(GIVEN[:100])
    assert bool(session.snapshots()) == (mode is CopyMode.DEVICE)
    assert (session.take_snapshot() is None) == (mode is not CopyMode.DEVICE)
    ORACLE.check(machine, session)


def move(engine: Engine) -> None:
    engine.rewind("a", to=40)
    engine.fork("a", at=38, new_id="b")


def test_failures_in_an_engine_leave_sessions_that_go_on() -> None:
    """Each kernel call of the conversation fails once; the next generation is right and the ids are free."""
    manifest = small_manifest()
    clean = FakeDevice(manifest)
    engine = Engine(manifest, clean, None, max_sessions=4)
    engine.open_session("a")
    say(engine, "a", PROMPT, 5)
    start = clean.calls
    move(engine)
    end = clean.calls
    want = say(engine, "a", PROMPT[:3], 4)
    engine.shutdown(5)
    for failing in range(start, end):
        device = FakeDevice(manifest, fail_at={failing})
        engine = Engine(manifest, device, None, max_sessions=4)
        engine.open_session("a")
        say(engine, "a", PROMPT, 5)
        with pytest.raises(BackendFailedError):
            move(engine)
        info = engine.get_session("a")
        assert (info.position, info.is_busy) == (40, False)
        assert [s.session_id for s in engine.list_sessions()] == ["a"]
        assert say(engine, "a", PROMPT[:3], 4) == want
        engine.shutdown(5)
