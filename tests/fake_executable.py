"""A device that runs nothing compiled: `step`, `fork`, `snapshot` and `restore` in NumPy on the real arenas.

The arithmetic is trivial but sensitive to history. A ring row is a hash of its token and position, an
append row is a hash of the ring rows of its window, and logits are a hash of exactly the rows that
the manifest says may be read. A row that is wrong, stale or of another session changes the logits; a
row that is NaN (poisoned) stops the test at once. Session, engine and server are tested on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from port import CopyMode, Machine, machine_of

from ds4c_runtime.counters import Now
from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.device.copy_thread import CopyThread
from ds4c_runtime.device.host_memory import HostMemory
from ds4c_runtime.device.memory import aligned_zeros
from ds4c_runtime.engine import Engine
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import (
    VERSION,
    AppendState,
    Arenas,
    Capabilities,
    EntryPointInfo,
    HostState,
    Io,
    IoField,
    Limits,
    Live,
    Manifest,
    ModelInfo,
    RingState,
    TargetInfo,
    Versions,
)
from ds4c_runtime.manifest_checks import ROWS_OFFSET, block_layout, marks_layout
from ds4c_runtime.store.session_store import Storage
from ds4c_runtime.tokenizer import Tokenizer

WIDTH = 4
U64 = NDArray[np.uint64]
_PRIMES = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64
)


def small_manifest(
    *,
    vocab_size: int = 1024,
    context: int = 256,
    horizon: int = 6,
    max_rows: int = 24,
    max_segments: int = 4,
    max_logit_rows: int = 16,
    page_tokens: int = 32,
    window: int = 8,
    capacity_change: int = 0,
    eos_token_ids: tuple[int, ...] = (1,),
) -> Manifest:
    """A manifest with a raw window, an overlapping window of 4 and a plain window of 16.

    `capacity_change` is added to every ring's capacity; -1 makes rings that are one row too small.
    """
    pages = -(-context // page_tokens)
    marks = max_segments + -(-max_rows // page_tokens)
    limits = Limits(max_rows, max_segments, max_logit_rows, horizon, page_tokens, pages, marks)
    rings, slot = _rings(horizon + 1 + capacity_change, window)
    appends, page = _appends(page_tokens)
    io, io_bytes = _io(limits, vocab_size, len(rings))
    return Manifest(
        format="ds4c-artifact",
        version=VERSION,
        artifact_id="",
        target=TargetInfo("cpu", "fake", ()),
        versions=Versions("0", "0", "0", "0"),
        model=ModelInfo("fake", "fake", vocab_size, context, 1, 0, eos_token_ids, 0, "0" * 64),
        files=(),
        limits=limits,
        arenas=Arenas(io_bytes, 64, slot, page, 0),
        io=io,
        entry_points=(
            EntryPointInfo("step", ("io", "weights", "workspace", "states", "pages", "snapshots")),
            EntryPointInfo("snapshot", ("io", "states", "snapshots")),
            EntryPointInfo("restore", ("io", "states", "snapshots")),
            EntryPointInfo("fork", ("io", "states")),
        ),
        states=(*rings, *appends, HostState("history", "host", "int32")),
        weights=(),
        capabilities=Capabilities(
            ("in_place", "snapshot", "snapshot_replay", "rebuild"), True, True, 0, True, True, ()
        ),
    ).with_id()


def _rings(room: int, window: int) -> tuple[tuple[RingState, ...], int]:
    states: list[RingState] = []
    offset = 0
    for name, live in (("raw", Live(1, window - 1)), ("of4", Live(4, 4)), ("of16", Live(16, 0))):
        state = RingState(name, "ring", "float32", live.span + room, WIDTH, 1, offset, live)
        states.append(state)
        offset += -(-state.capacity * state.row_bytes // 64) * 64
    return tuple(states), offset


def _appends(page_tokens: int) -> tuple[tuple[AppendState, ...], int]:
    states: list[AppendState] = []
    offset = 0
    for every in (4, 16):
        state = AppendState(f"rows{every}", "append", "float32", page_tokens // every, WIDTH, every, offset)
        states.append(state)
        offset += -(-state.rows_per_page * state.row_bytes // 64) * 64
    return tuple(states), offset


def _io(limits: Limits, vocab_size: int, rings: int) -> tuple[Io, int]:
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (limits.max_rows,),
        "block": (block_layout(limits.max_rows, limits.max_segments).size,),
        "page_tables": (limits.max_segments, limits.pages_per_session),
        "logit_rows": (ROWS_OFFSET + limits.max_logit_rows,),
        "fork_args": (16,),
        "marks": (marks_layout(limits.max_marks, rings).size,),
        "logits": (limits.max_logit_rows, vocab_size),
    }
    fields: dict[str, IoField] = {}
    offset = 0
    for name, shape in shapes.items():
        fields[name] = IoField(offset, "float32" if name == "logits" else "int32", shape)
        offset += -(-fields[name].bytes // 64) * 64
    return Io(**fields), offset


class DeadRowReadError(AssertionError):
    """A step read a row that was poisoned."""


class InjectedError(RuntimeError):
    """The failure a test asked for."""


@dataclass
class FakeDevice(HostMemory):
    """Implements the `Device` protocol.

    Attributes:
        manifest: what the arenas look like.
        step_delay_seconds: time a step takes (the GIL is free meanwhile).
        favour: called with (position, token) of a row; the token it returns gets the largest logit.
        fail_at: numbers of calls (from 0) that write garbage into what they may write and then fail.
        fails_copies: whether copies inside an arena fail.
        calls: number of calls so far.
        rows: rows of every step so far.
    """

    manifest: Manifest
    step_delay_seconds: float = 0.0
    favour: Callable[[int, int], int | None] | None = None
    fail_at: set[int] = field(default_factory=set)
    calls: int = 0
    rows: list[int] = field(default_factory=list)
    name: str = "cpu"
    weights: HostBytes = field(default_factory=lambda: aligned_zeros(0))
    fails_copies: bool = False
    copies: CopyThread = field(default_factory=CopyThread)
    allocated: int = 0

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Nothing to load."""

    def allocate(self, size: int) -> HostBytes:
        self.allocated += size
        return aligned_zeros(size)

    def copy(self, arena: HostBytes, source: int, target: int, size: int) -> None:
        if self.fails_copies:
            raise InjectedError("copy of a page failed on request")
        super().copy(arena, source, target, size)

    def call(self, entry: str, arenas: Sequence[HostBytes], extent: Extent) -> None:
        for arena in arenas:
            assert (arena.dtype, arena.ndim) == (np.uint8, 1)
            assert not len(arena) or arena.ctypes.data % 64 == 0
        number, self.calls = self.calls, self.calls + 1
        if self.step_delay_seconds:
            time.sleep(self.step_delay_seconds)
        if entry == "fork":
            _fork(self.manifest, *arenas, fails=number in self.fail_at)
        elif entry in ("snapshot", "restore"):
            _copy_live(self.manifest, entry, *arenas, fails=number in self.fail_at)
        else:
            io, _, _, states, pages, snapshots = arenas
            step = _Step(self, io, states, pages, snapshots, fails=number in self.fail_at)
            assert extent == step.extent
            self.rows.append(step.run())
        if number in self.fail_at:
            raise InjectedError(f"call {number} failed on request")


class _Step:
    def __init__(
        self,
        device: FakeDevice,
        io: HostBytes,
        states: HostBytes,
        pages: HostBytes,
        snapshots: HostBytes,
        fails: bool,
    ) -> None:
        self.manifest = device.manifest
        self.favour = device.favour
        self.fails = fails
        self.states, self.pages, self.snapshots = states, pages, snapshots
        self.marks = _marks(self.manifest, io)
        limits = self.manifest.limits
        at = block_layout(limits.max_rows, limits.max_segments)
        block = _field(io, self.manifest.io.block)
        self.num_rows, segments = int(block[0]), int(block[1])
        self.positions = block[at.positions : at.positions + self.num_rows]
        self.starts = block[at.segment_starts : at.segment_starts + segments + 1]
        self.slots = block[at.slots : at.slots + segments]
        row_segment = block[at.row_segment : at.row_segment + self.num_rows]
        assert row_segment.tolist() == np.repeat(np.arange(segments), np.diff(self.starts)).tolist()
        assert self.starts[-1] == self.num_rows
        assert len(set(self.slots.tolist())) == segments
        self.tokens = _field(io, self.manifest.io.tokens)[: self.num_rows]
        self.tables = _field(io, self.manifest.io.page_tables)
        self.logit_rows = _field(io, self.manifest.io.logit_rows)
        self.logits = _field(io, self.manifest.io.logits)
        self.extent = Extent(self.num_rows, int(self.positions.max()) + 1)

    def run(self) -> int:
        hashes = np.zeros(self.num_rows, np.uint64)
        for b, slot in enumerate(self.slots.tolist()):
            rows = slice(int(self.starts[b]), int(self.starts[b + 1]))
            marks = [(at, places) for owner, at, places in self.marks if owner == b]
            hashes[rows] = self._segment(slot, self.positions[rows], self.tokens[rows], self.tables[b], marks)
        for index in range(int(self.logit_rows[0])):
            row = int(self.logit_rows[ROWS_OFFSET + index])
            self.logits[index] = self._logits(hashes[row], int(self.positions[row]), int(self.tokens[row]))
        return self.num_rows

    def _segment(
        self,
        slot: int,
        positions: NDArray[np.int32],
        tokens: NDArray[np.int32],
        table: NDArray[np.int32],
        marks: Sequence[tuple[int, list[int]]],
    ) -> U64:
        p, q = int(positions[0]), len(positions)
        assert all(p < at <= p + q for at, _ in marks)
        assert positions.tolist() == list(range(p, p + q))
        total = tokens.astype(np.uint64) * _PRIMES[0] + positions.astype(np.uint64)
        sources = tokens.astype(np.uint64) * _PRIMES[1] + positions.astype(np.uint64) * _PRIMES[2]
        windows: dict[int, U64] = {}
        writes: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]] = []
        for salt, ring in enumerate(self.manifest.rings):
            rows = _ring(self.manifest, self.states, slot, ring)
            own = _rows_of(_mix(sources, salt))
            first = max(0, ring.live.first(p))
            old_at = np.arange(first, p)
            old = rows[old_at % ring.capacity]
            _refuse_nan(old, f"ring {ring.name}", old_at)
            sums = _running_sums(np.concatenate([old, own]), first)
            begin = np.maximum(0, np.array([ring.live.first(t) for t in range(p, p + q)])) - first
            seen = sums[np.arange(p + 1, p + q + 1) - first] - sums[begin]
            total += _mix(seen, salt)
            windows[ring.live.align] = seen
            for at, places in marks:
                live = np.arange(max(0, ring.live.first(at)), at)
                copy = np.concatenate([old, own])[live - first]
                _saved(self.snapshots, places[salt], len(live))[:] = -1 if self.fails else copy
            kept = np.arange(max(p, p + q - ring.capacity), p + q)
            writes.append((rows, kept % ring.capacity, own[kept - p]))
        for salt, state in enumerate(self.manifest.appends):
            total += _mix(self._append(state, p, q, windows[state.every], table), 16 + salt)
        for rows, at, own in writes:
            rows[at] = np.float32(-1) if self.fails else own
        return total

    def _append(self, state: AppendState, p: int, q: int, windows: U64, table: NDArray[np.int32]) -> U64:
        every = state.every
        for j in range(p // every, (p + q) // every):
            row = self._row(state, j, table)
            closing = (j + 1) * every - 1 - p
            row[:] = -1 if self.fails else _rows_of(_mix(windows[closing : closing + 1], 7))[0]
        count = (p + q) // every
        rows = np.array([self._row(state, j, table) for j in range(count)], np.float32).reshape(count, WIDTH)
        _refuse_nan(rows, f"append {state.name}", np.arange(count))
        return _running_sums(rows, 0)[np.arange(p + 1, p + q + 1) // every]

    def _row(self, state: AppendState, j: int, table: NDArray[np.int32]) -> NDArray[np.float32]:
        page = int(table[j * state.every // self.manifest.limits.page_tokens])
        start = page * self.manifest.arenas.page + state.offset + j % state.rows_per_page * state.row_bytes
        return self.pages[start : start + state.row_bytes].view(np.float32)

    def _logits(self, value: np.uint64, position: int, token: int) -> NDArray[np.float32]:
        ids = np.arange(self.manifest.model.vocab_size, dtype=np.uint64)
        logits = (
            (_mix(ids * _PRIMES[3] + value, 3) >> np.uint64(44)).astype(np.float32) / np.float32(1 << 17)
        ) - 4
        wanted = None if self.favour is None else self.favour(position, token)
        if wanted is not None:
            logits[wanted] = 100
        return logits


def _fork(manifest: Manifest, io: HostBytes, states: HostBytes, *, fails: bool) -> None:
    source, target, first, at = (int(v) for v in _field(io, manifest.io.fork_args)[:4])
    for ring in manifest.rings:
        positions = np.arange(max(0, ring.live.first(first), at - ring.capacity), at) % ring.capacity
        rows = _ring(manifest, states, source, ring)[positions]
        _ring(manifest, states, target, ring)[positions] = -1 if fails else rows


def _marks(manifest: Manifest, io: HostBytes) -> list[tuple[int, int, list[int]]]:
    """Owner, position and byte offset of each ring's rows of every mark."""
    numbers, rings = _field(io, manifest.io.marks), len(manifest.rings)
    layout = marks_layout(manifest.limits.max_marks, rings)
    return [
        (
            int(numbers[layout.owners + m]),
            int(numbers[layout.positions + m]),
            [int(numbers[layout.offsets(ring) + m]) * 64 for ring in range(rings)],
        )
        for m in range(int(numbers[0]))
    ]


def _saved(snapshots: HostBytes, place: int, rows: int) -> NDArray[np.float32]:
    return snapshots[place : place + rows * WIDTH * 4].view(np.float32).reshape(rows, WIDTH)


def _copy_live(
    manifest: Manifest, entry: str, io: HostBytes, states: HostBytes, snapshots: HostBytes, *, fails: bool
) -> None:
    for slot, at, places in _marks(manifest, io):
        for ring, place in zip(manifest.rings, places, strict=True):
            live = np.arange(max(0, ring.live.first(at)), at)
            rows, saved = _ring(manifest, states, slot, ring), _saved(snapshots, place, len(live))
            if entry == "snapshot":
                _refuse_nan(rows[live % ring.capacity], f"ring {ring.name}", live)
                saved[:] = -1 if fails else rows[live % ring.capacity]
            else:
                rows[live % ring.capacity] = -1 if fails else saved


def _ring(manifest: Manifest, states: HostBytes, slot: int, ring: RingState) -> NDArray[np.float32]:
    start = slot * manifest.arenas.state_slot + ring.offset
    return (
        states[start : start + ring.capacity * ring.row_bytes].view(np.float32).reshape(ring.capacity, WIDTH)
    )


def _field(io: HostBytes, at: IoField) -> NDArray[np.int32]:
    return io[at.offset : at.offset + at.bytes].view(at.dtype).reshape(at.shape)


def _mix(values: U64, salt: int) -> U64:
    mixed = (values ^ (values >> np.uint64(31))) * _PRIMES[salt % 4] + np.uint64(salt * 977 + 1)
    return (mixed ^ (mixed >> np.uint64(29))) * _PRIMES[(salt + 1) % 4]


def _rows_of(hashes: U64) -> NDArray[np.float32]:
    """Rows `[n, WIDTH]` of integers below 2^22, which float32 holds exactly."""
    shifts = np.arange(WIDTH, dtype=np.uint64) * np.uint64(10)
    return ((hashes[:, None] >> shifts) & np.uint64((1 << 22) - 1)).astype(np.float32)


def _running_sums(rows: NDArray[np.float32], first: int) -> U64:
    """`[n + 1]` sums of row hashes that depend on the row's index, so that order matters."""
    values = (rows.astype(np.int64).astype(np.uint64) * _PRIMES).sum(axis=1, dtype=np.uint64)
    index = np.arange(first, first + len(rows), dtype=np.uint64)
    weighted = _mix(values + index * _PRIMES[2], 5)
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])


def _refuse_nan(rows: NDArray[np.float32], what: str, at: NDArray[np.int64]) -> None:
    dead = np.isnan(rows).any(axis=1)
    if dead.any():
        raise DeadRowReadError(f"{what}: read of dead rows {at[dead].tolist()}")


FakeMachine = Machine[FakeDevice]


def fake_machine(
    manifest: Manifest | None = None,
    *,
    max_sessions: int = 4,
    page_count: int | None = None,
    snapshot_bytes: int | None = None,
    copy_mode: CopyMode = CopyMode.DEVICE,
    device_type: type[FakeDevice] = FakeDevice,
) -> FakeMachine:
    """A machine with `max_sessions` slots and, by default, pages for all of them."""
    manifest = manifest or small_manifest()
    device = device_type(manifest)
    return machine_of(
        manifest, device, max_sessions, page_count, snapshot_bytes=snapshot_bytes, copy_mode=copy_mode
    )


def fake_engine(
    *,
    manifest: Manifest | None = None,
    tokenizer_path: Path | str | None = None,
    step_delay_seconds: float = 0.0,
    favour: Callable[[int, int], int | None] | None = None,
    max_sessions: int = 8,
    max_queue: int = 64,
    max_running: int | None = None,
    memory_budget: int | None = None,
    snapshot_budget: int | None = None,
    max_resident: int | None = None,
    storage: Storage | None = None,
    copy_mode: CopyMode = CopyMode.DEVICE,
    device_type: type[FakeDevice] = FakeDevice,
    now: Now = time.perf_counter,
    **manifest_options: int,
) -> Engine:
    """An engine on the fake device, without any file.

    Args:
        manifest: instead of `small_manifest(**manifest_options)`.
        tokenizer_path: `tokenizer.json`; the demo model's has 1,024 tokens, as the default vocabulary.
        step_delay_seconds: time each step takes.
        favour: chooses the most likely next token by (position, token); `None` leaves it to the hash.
        max_sessions: sessions that may exist.
        max_queue: generations that may wait.
        max_running: generations served in turn.
        memory_budget: bytes; by default enough.
        snapshot_budget: bytes; by default what the rule of spacing keeps.
        max_resident: slots; by default `max_sessions`.
        storage: where sessions are kept.
        copy_mode: where snapshots are kept.
        device_type: class of the device.
        now: what times are taken by.
        **manifest_options: see `small_manifest`, such as `context`, `horizon` or `vocab_size`.
    """
    manifest = manifest or small_manifest(**manifest_options)
    device = device_type(manifest, step_delay_seconds=step_delay_seconds, favour=favour)
    tokenizer = None if tokenizer_path is None else Tokenizer.from_file(Path(tokenizer_path))
    return Engine(
        manifest,
        device,
        tokenizer,
        max_sessions=max_sessions,
        max_queue=max_queue,
        max_running=max_running,
        memory_budget=memory_budget,
        snapshot_budget=snapshot_budget,
        max_resident=max_resident,
        storage=storage,
        copy_mode=copy_mode,
        now=now,
    )
