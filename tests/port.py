"""The one place where tests reach into engine, session, store and device.

Tests say in plain values what they want done or seen: positions, tokens, bytes, counts, ids. What is inside
(slots, leases, rings, pools) is named here only, so a runtime that is built otherwise inside needs another
`port.py` and no other test. `tests/unit/test_port_rule.py` holds that; a unit test of an inner module may
import that module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from ds4c_runtime.device.base import Device
from ds4c_runtime.device.stream_memory import address_of
from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import NoProgressError
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.progress import ProgressGuard
from ds4c_runtime.session import Session, step_sessions
from ds4c_runtime.snapshot import DEAD_BYTE, SnapshotInfo, SnapshotLayout, SnapshotOrigin
from ds4c_runtime.snapshot_pool import SnapshotPool
from ds4c_runtime.snapshot_ring import Entry
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_store import SessionStore
from ds4c_runtime.transport import CopyMode, OnDevice

__all__ = ["CopyMode", "Session", "SnapshotInfo", "SnapshotOrigin"]

D = TypeVar("D", bound=Device, covariant=True)
Logits = NDArray[np.float32]


# ------------------------------------------------------------------------------------------- machines


@dataclass(frozen=True, eq=False)
class Machine(Generic[D]):
    """Sessions without an engine: kernels of a device and the memory of their states."""

    manifest: Manifest
    device: D
    _local: LocalModel

    def open(self, session_id: str = "s", capacity: int | None = None, tokenizer_sha256: str = "") -> Session:
        """A new session; `SessionLimitError` if all slots are taken."""
        return Session(self._local.stepper, self._local.store, session_id, capacity, tokenizer_sha256)


Holder = Machine[Any] | LocalModel | Engine
"""Whatever has sessions and their memory."""


def machine_of(
    manifest: Manifest,
    device: D,
    slots: int,
    pages: int | None = None,
    *,
    snapshot_bytes: int | None = None,
    copy_mode: CopyMode = CopyMode.DEVICE,
) -> Machine[D]:
    """Memory for `slots` sessions on a device that has its kernels.

    `pages` is by default enough for all of them, `snapshot_bytes` what the rule of spacing keeps. A device
    may serve several machines.
    """
    count = slots * manifest.limits.pages_per_session if pages is None else pages
    store = StateStore(manifest, device, slots, count, snapshot_bytes=snapshot_bytes, copy_mode=copy_mode)
    return Machine(manifest, device, LocalModel(manifest, device, store, Stepper(manifest, device, store)))


def open_machine(folder: Path, **options: Any) -> Machine[Device]:
    """Load an artifact; options as of `open_local`, such as `sessions`, `pages`, `copy_mode` and `device`."""
    local = open_local(folder, **options)
    return Machine(local.manifest, local.device, local)


def open_session(machine: Holder, session_id: str = "s", capacity: int | None = None) -> Session:
    """As `Machine.open`, also where product code made the model."""
    return _local(machine).session(session_id, capacity)


def machine_like(machine: Holder, slots: int, pages: int | None = None, **options: Any) -> Machine[Any]:
    """The same kernels with memory of its own; options as of `machine_of`."""
    local = _local(machine)
    return machine_of(local.manifest, local.device, slots, pages, **options)


def _local(holder: Holder) -> LocalModel:
    if isinstance(holder, Machine):
        return holder._local
    if isinstance(holder, LocalModel):
        return holder
    return LocalModel(holder.manifest, holder._stepper._device, holder._store, holder._stepper)


def device_of(holder: Holder) -> Any:
    """The device, of the type that the test made it of."""
    return _local(holder).device


def machine_behind(session: Session) -> Machine[Any]:
    """The machine that a session is on."""
    line = session.timeline
    executor, store = line.executor, line.store
    return Machine(
        executor.manifest,
        executor._device,
        LocalModel(executor.manifest, executor._device, store, executor),
    )


def step_together(machine: Holder, work: Sequence[tuple[Session, Sequence[int], int]]) -> list[Logits]:
    """One step of several sessions: per session its tokens and of how many last ones logits are wanted."""
    return step_sessions(_local(machine).stepper, work)


def load_session(machine: Holder, files: SessionStore, log: HistoryLog) -> Session:
    """A session from its files."""
    local = _local(machine)
    return files.load(log, local.stepper, local.store)


def snapshot_size(manifest: Manifest, position: int) -> int:
    """Bytes of a snapshot at a position."""
    return SnapshotLayout(manifest).parts(position).total


def largest_snapshot(manifest: Manifest) -> int:
    """Most bytes that a snapshot takes."""
    return SnapshotLayout(manifest).largest()


# --------------------------------------------------------------------------- memory: counts and checks


@dataclass(frozen=True)
class Memory:
    """What a machine has and what of it is in use.

    Attributes:
        slots: sessions that fit.
        sessions: sessions that are open.
        pages: pages of append rows.
        free_pages: pages that nobody holds.
        state_bytes: bytes of slots and pages in use, a shared page once.
        state_bytes_total: bytes of all slots and pages.
        snapshot_bytes: bytes of all snapshots, each once.
        snapshot_device_bytes: bytes taken in the arena of snapshots, also by copies under way.
        snapshot_host_bytes: bytes of snapshots on the host.
        snapshot_arena_bytes: bytes of the arena of snapshots.
        snapshot_budget: most bytes of all snapshots.
        snapshot_session_bytes: most bytes of the snapshots of one session.
    """

    slots: int
    sessions: int
    pages: int
    free_pages: int
    state_bytes: int
    state_bytes_total: int
    snapshot_bytes: int
    snapshot_device_bytes: int
    snapshot_host_bytes: int
    snapshot_arena_bytes: int
    snapshot_budget: int
    snapshot_session_bytes: int


def memory_of(machine: Holder) -> Memory:
    """Counts of now."""
    store = _local(machine).store
    pool = store.snapshots
    return Memory(
        store.max_sessions,
        store.sessions,
        store.page_count,
        store.free_pages,
        store.bytes_used,
        len(store.states) + len(store.pages),
        pool.bytes_used,
        pool.device_bytes,
        pool.host_bytes,
        len(pool.arena),
        pool.budget,
        pool.session_bytes,
    )


def check(machine: Holder, *sessions: Session) -> None:
    """Assert that counts, tables and free lists agree, of the machine and of some of its sessions."""
    for session in sessions:
        session.timeline.check_integrity()
    _local(machine).store.check_integrity()


def check_session(session: Session) -> None:
    """Assert that what a session holds fits its history; waits for no copy."""
    session.timeline.check_integrity()


def pages_of(session: Session) -> tuple[int, ...]:
    """Numbers of the pages of a session, in order of the tokens."""
    return tuple(session.timeline.lease.pages)


def page_references(machine: Holder, pages: Sequence[int]) -> list[int]:
    """How many sessions and snapshots hold each page."""
    store = _local(machine).store
    return [store.page_references(page) for page in pages]


def evaluated_tokens(session: Session) -> int:
    """How many tokens of the history are in the state."""
    return session.timeline.evaluated


def is_on(machine: Holder, session: Session) -> bool:
    """Whether a session is one of this machine."""
    return session.timeline.store is _local(machine).store


def seconds_of_replay(machine: Holder, tokens: int) -> float:
    """Estimate of the machine, from what it has measured."""
    return _local(machine).stepper.rates.estimate(tokens)


def seconds_of_restore(machine: Holder, size: int) -> float:
    """Estimate of the machine for a snapshot of `size` bytes."""
    return _local(machine).stepper.rates.estimate_restore(size)


def shared_blocks(first: Session, second: Session, tokens: int) -> list[bool]:
    """For each block of the first `tokens` tokens of two histories, whether it is one object."""
    ours, theirs = (each.timeline.history.prefix(tokens).blocks for each in (first, second))
    return [a is b for a, b in zip(ours, theirs, strict=True)]


def give_history(session: Session, tokens: Sequence[int], epoch: int = 0) -> None:
    """Make an empty session one of these tokens without a state, as one that comes from a file begins."""
    session.timeline.history.extend(tokens)
    session.timeline.epoch = epoch


def is_on_trial(session: Session) -> bool:
    """Whether the state is from a file that no step has judged."""
    return session.timeline.first_use is not None


@contextmanager
def logits_cannot_be_copied(machine: Holder) -> Iterator[None]:
    """`MemoryError` in steps, after the device has written its rows."""
    io = _local(machine).stepper._io
    whole, io.logits = io.logits, io.logits.view(_NotCopied)
    try:
        yield
    finally:
        io.logits = whole


class _NotCopied(np.ndarray):  # type: ignore[type-arg]
    def __getitem__(self, key: object) -> object:
        raise MemoryError("no memory for the logits")


def lose_state(session: Session) -> None:
    """What a failed step does: the history stays, the state is given up."""
    session.timeline.forget_state()


def watch(session: Session) -> None:
    """Let the watchdog of generations watch a session: the same restore twice without a token ends it."""
    session.timeline.guard = ProgressGuard()


def refuse_restores(patch: pytest.MonkeyPatch) -> None:
    """Let the watchdogs of all generations bite at the first restore."""

    def refuse(_: ProgressGuard, position: int, snapshot_id: str) -> None:
        raise NoProgressError(position, snapshot_id)

    patch.setattr(ProgressGuard, "restored", refuse)


def token_decided(session: Session) -> None:
    """Tell the watchdog of a session, if it has one, that a token was decided."""
    if session.timeline.guard is not None:
        session.timeline.guard.token()


# -------------------------------------------------------------------------------------- rows and poison


def ring_rows(
    machine: Holder, session: Session, name: str, positions: Sequence[int] | range
) -> NDArray[np.generic]:
    """Rows `[n, width]` of a ring at positions, a copy."""
    local = _local(machine)
    ring = next(r for r in local.manifest.rings if r.name == name)
    return local.store.ring_rows(session.timeline.lease.slot, ring, positions)


def append_rows(machine: Holder, session: Session, name: str, count: int) -> NDArray[np.generic]:
    """The first `count` rows `[count, width]` of an append state, a copy."""
    local = _local(machine)
    state = next(a for a in local.manifest.appends if a.name == name)
    return local.store.append_rows(session.timeline.lease, state, count)


def live_bytes(machine: Holder, session: Session) -> dict[str, bytes]:
    """All rows of each state that the manifest calls live at the session's position."""
    at, manifest = session.position, _local(machine).manifest
    rings = {
        r.name: ring_rows(machine, session, r.name, range(max(0, r.live.first(at)), at))
        for r in manifest.rings
    }
    appends = {a.name: append_rows(machine, session, a.name, at // a.every) for a in manifest.appends}
    return {name: rows.tobytes() for name, rows in (rings | appends).items()}


def poison(machine: Holder, *sessions: Session) -> None:
    """NaN in free slots and pages, and in every row that no legal step, rewind or fork of the sessions reads.

    What is legal is taken from the sessions; a test with a model of its own calls `poison_dead`.
    """
    _local(machine).store.poison_free()
    poison_sessions(*sessions)


def poison_sessions(*sessions: Session) -> None:
    """As `poison`, of the sessions alone."""
    for session in sessions:
        session.timeline.poison_dead_rows()


def poison_dead(machine: Holder, session: Session, *, position: int, oldest: int) -> None:
    """NaN in every row that a session at `position` never reads, if it steps from `oldest` on at most.

    Pages that others hold too are left alone.
    """
    _local(machine).store.poison_dead_rows(session.timeline.lease, position, oldest)


def poison_free_snapshots(machine: Holder) -> None:
    """NaN in every byte of the arena of snapshots that nobody holds and no copy still reads."""
    _local(machine).store.snapshots.poison_free()


def flood(machine: Holder, byte: int = DEAD_BYTE) -> None:
    """Set every byte of the states, pages and snapshots of a machine."""
    local = _local(machine)
    store = local.store
    for arena in (store.states, store.pages, store.snapshots.arena):
        local.device.fill(arena, 0, len(arena), byte)


def slot_bytes(machine: Holder) -> bytes:
    """All bytes of the slots, on a device whose memory the host sees."""
    return cast(NDArray[np.uint8], _local(machine).store.states).tobytes()


# -------------------------------------------------------------------------------------------- snapshots


@dataclass(frozen=True)
class SnapshotView:
    """A snapshot as a session retains it.

    `on_branch` if it is of the current history; `copy_mode` is that in which it was really copied,
    `DEVICE` if it was not.
    """

    snapshot_id: str
    position: int
    tokens: tuple[int, ...]
    is_pinned: bool
    label: str
    origin: SnapshotOrigin
    bytes: int
    pages: tuple[int, ...]
    on_branch: bool
    copy_mode: CopyMode


def snapshots_of(session: Session) -> list[SnapshotView]:
    """All that a session retains: by position, at one position in the order in which they were taken."""
    ring = session.timeline.ring
    return [_view(entry, entry in ring.branch) for entry in ring.entries]


def _view(entry: Entry, on_branch: bool) -> SnapshotView:
    s = entry.snapshot
    tokens = tuple(s.history.tokens())
    return SnapshotView(
        s.snapshot_id,
        s.position,
        tokens,
        entry.is_pinned,
        entry.label,
        s.origin,
        s.bytes,
        s.pages,
        on_branch,
        CopyMode.DEVICE if isinstance(s.place, OnDevice) else s.place.mode,
    )


def evictable(machine: Holder) -> list[str]:
    """Ids of the snapshots that nobody has pinned, each once."""
    every = _local(machine).store.snapshots.evictable()
    return list(dict.fromkeys(entry.snapshot.snapshot_id for _, entry in every))


def poll_copies(machine: Holder, *, wait: bool = False) -> bool:
    """Take back room of copies that are done; whether there was any. `wait`: for one that goes on."""
    return _local(machine).store.snapshots.poll(wait=wait)


def evict(machine: Holder, snapshot_id: str) -> None:
    """Take a snapshot, pinned or not, from every session that has it, as if its bytes were needed."""
    pool = _local(machine).store.snapshots
    found = [entry for ring in pool._rings if (entry := ring.find(snapshot_id)) is not None]
    assert found, f"no session has snapshot {snapshot_id}"
    pool.evict(found[0].snapshot)


def spoil_snapshot(session: Session, snapshot_id: str) -> None:
    """Let a snapshot say that it is of another history."""
    entry = session.timeline.ring.find(snapshot_id)
    assert entry is not None
    entry.snapshot.digest = "0" * 64


def drop_snapshots(session: Session) -> None:
    """A session gives up all its snapshots, pinned ones too; others keep what they share."""
    session.timeline.store.snapshots.clear(session.timeline.ring)


def set_copy_mode(machine: Holder, mode: CopyMode) -> None:
    """Where snapshots are kept from now on; those that are there stay where they are."""
    _local(machine).store.snapshots.transport.mode = mode


def set_snapshot_limits(
    machine: Holder, *, session_bytes: int | None = None, host_bytes: int | None = None
) -> None:
    """Most bytes of the snapshots of one session, and of all of them on the host."""
    pool = _local(machine).store.snapshots
    if session_bytes is not None:
        pool.session_bytes = session_bytes
    if host_bytes is not None:
        pool._host_budget = host_bytes


def refuse_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Let there be room for no snapshot, on any machine."""
    patch.setattr(SnapshotPool, "reserve", lambda *_, **__: None)


# ------------------------------------------------------------------------------------ devices of tests


def device_calls(machine: Holder) -> int:
    """How many entry points were called on a device that counts."""
    return cast(int, device_of(machine).calls)


def device_rows(machine: Holder) -> list[int]:
    """Rows of every step so far on a device that counts, a copy."""
    return list(device_of(machine).rows)


def fail_next_call(machine: Holder, after: int = 0) -> None:
    """Let the next call of the device, or one `after` it, write garbage and fail."""
    device = device_of(machine)
    device.fail_at = {device.calls + after}


def fail_no_call(machine: Holder) -> None:
    """Take back `fail_next_call`."""
    device_of(machine).fail_at = set()


def graph_count(device: Any) -> int:
    """Graphs that a stream device has captured."""
    return len(device._graphs)


def twin_address(device: Any) -> int:
    """Address, on the device, of the io arena's twin."""
    return cast(int, next(iter(device._twins.values())).device.address)


def metal_buffers(device: Any) -> int:
    """Buffers that a Metal device holds."""
    return len(device._buffers)


def metal_buffer(device: Any, arena: NDArray[np.uint8]) -> Any:
    """The buffer, of the API that the test gave, behind an arena."""
    return device._buffers[address_of(arena)]


# ---------------------------------------------------------------------------------------------- engines


def engine_session(engine: Engine, session_id: str, owner: str = "") -> Session:
    """The session behind an id, which is in memory."""
    return engine._registry.find(session_id, owner).opened


def engine_history(engine: Engine, session_id: str, owner: str = "") -> tuple[int, ...]:
    """Tokens of a session, in memory or parked."""
    entry = engine._registry.find(session_id, owner)
    if entry.session is not None:
        return entry.session.history
    assert entry.parked is not None
    return tuple(entry.parked.tokens.tolist())


def resident_sessions(engine: Engine) -> set[str]:
    """Ids of the sessions that are in memory."""
    return {e.session_id for e in engine._registry.entries() if e.session is not None}


def parked_sessions(engine: Engine) -> set[str]:
    """Ids of the sessions of which only the history is in memory."""
    return {e.session_id for e in engine._registry.entries() if e.parked is not None}


def pages_in_use(engine: Engine) -> set[int]:
    """Pages that the sessions in memory hold, those of snapshots left out."""
    return {p for e in engine._registry.entries() if e.session is not None for p in pages_of(e.session)}


def check_room(engine: Engine, session_id: str, start: int, end: int) -> None:
    """`MemoryBudgetError` if tokens `[start, end)` of a session in memory cannot be written."""
    engine._store.check_room(engine_session(engine, session_id).timeline.lease, start, end)


def set_disk_budget(engine: Engine, size: int) -> None:
    """Most bytes of states in the session folder from now on."""
    assert engine._stored is not None
    engine._stored.disk_budget = size


def break_end_of_turns(engine: Engine, patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let what is done at the end of every turn fail, as a bug there would."""

    def broken(*_: object) -> None:
        raise error

    patch.setattr(engine._residency, "persist", broken)


def verify_weights(
    engine: Engine, folder: Path, names: tuple[str, ...], on_failure: Callable[[Exception], None]
) -> None:
    """What `Engine.load` does on another thread with weights too large to hash at once."""
    engine._verify(folder, names, on_failure)


async def close_idle(server: Any, now: float) -> int:
    """Let a server of `ds4c_serve` close what is idle at a time, in seconds since 1970; how many."""
    return cast(int, await server._sessions.sweep(now))


def cancel_all(engine: Engine) -> None:
    """Cancel every generation that runs or waits, as clients that leave do."""
    for handle in list(engine._generations.values()):
        handle.cancel()


def die(engine: Engine) -> None:
    """End an engine as a process that is killed does: nothing is written any more."""
    engine._worker.stop()
    engine._residency.close()
