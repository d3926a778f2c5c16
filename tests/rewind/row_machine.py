"""A device without a model for the tables of rewind: rings, compressed rows and raw window, all exact.

The rows of a state are bit patterns of token and position, rounded to what the state stores; a compressed row
is a hash of exactly the rows that the compressor of DeepSeek-V4 pools (ratio 4 of two windows: the first half
of the previous window's rows and the second half of the current one's; ratio 128 of one window), and logits
are a hash of the raw window and of the visible compressed rows. Any wrong bit shows.

What is real: manifest, `StateStore`, `Timeline`, `Session`, their addressing and their plans. What is not:
the kernels, which are NumPy here. Compiled states are float32 as of now; bfloat16 runs on this device only,
whose rows are then two bytes wide, rounded when they are made (so that the rows of the block itself and rows
that went through the ring are the same).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fake_executable import FakeDevice, small_manifest
from numpy.typing import NDArray

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.device.copy_thread import CopyThread, ThreadCopy
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import (
    ITEM_BYTES,
    AppendState,
    HostState,
    IoField,
    Live,
    Manifest,
    RingState,
    StateType,
)
from ds4c_runtime.manifest_checks import ROWS_OFFSET, block_layout, marks_layout

Bits = NDArray[Any]
U64 = NDArray[np.uint64]
WINDOW = 128
VOCABULARY = 16
CONTEXT = 704
ROWS = 272
"""Most rows of a step: more than two windows of 128."""


@dataclass(frozen=True)
class Compressor:
    """A pair of rings and the rows they make.

    Attributes:
        kv, score: names of the rings. rows: name of the append state. ratio: tokens a row.
        lanes: 2 if the row also sees the window before.
    """

    kv: str
    score: str
    rows: str
    ratio: int
    lanes: int

    @property
    def live(self) -> Live:
        return Live(self.ratio, self.ratio * (self.lanes - 1))


COMPRESSORS = (
    Compressor("kv4", "score4", "rows4", 4, 2),
    Compressor("index_kv4", "index_score4", "index_rows4", 4, 2),
    Compressor("kv128", "score128", "rows128", 128, 1),
)
LANE_WIDTH = 2
STORAGE: dict[str, tuple[StateType, StateType]] = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "bfloat16 rows, float32 scores": ("bfloat16", "float32"),
}
"""Types of raw, kv and compressed rows, and of scores."""


def row_manifest(
    storage: str, horizon: int, short: str = "", window: int = WINDOW, page_tokens: int = 128
) -> Manifest:
    """The plan of one layer of every kind; the ring named `short` is a row smaller than it must be."""
    rows_type, score_type = STORAGE[storage]
    rings: list[RingState] = []
    appends: list[AppendState] = []
    slot = page = 0

    def ring(name: str, dtype: StateType, width: int, every: int, live: Live) -> None:
        nonlocal slot
        capacity = live.span + horizon + 1 - (name == short)
        rings.append(RingState(name, "ring", dtype, capacity, width, every, slot, live))
        slot += -(-rings[-1].capacity * rings[-1].row_bytes // 64) * 64

    ring("raw", rows_type, LANE_WIDTH, 1, Live(1, window - 1))
    for c in COMPRESSORS:
        ring(c.kv, rows_type, LANE_WIDTH * c.lanes, c.ratio, c.live)
        ring(c.score, score_type, LANE_WIDTH * c.lanes, c.ratio, c.live)
        state = AppendState(c.rows, "append", rows_type, page_tokens // c.ratio, LANE_WIDTH, c.ratio, page)
        appends.append(state)
        page += -(-state.rows_per_page * state.row_bytes // 64) * 64
    base = small_manifest(
        vocab_size=VOCABULARY,
        context=CONTEXT,
        horizon=horizon,
        max_rows=ROWS,
        max_logit_rows=ROWS,
        page_tokens=page_tokens,
    )
    # More rings than `small_manifest` has: their places take more room in the list of marks.
    marks = IoField(base.arenas.io, "int32", (marks_layout(base.limits.max_marks, len(rings)).size,))
    sizes = replace(base.arenas, state_slot=slot, page=page, io=base.arenas.io + marks.bytes)
    states = (*rings, *appends, HostState("history", "host", "int32"))
    return replace(base, states=states, arenas=sizes, io=replace(base.io, marks=marks)).with_id()


# ------------------------------------------------------------------------------------- arithmetic

_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


def mixed(values: U64, salt: int) -> U64:
    """A hash of 64-bit numbers, element by element."""
    v = (values ^ (values >> np.uint64(31))) * _ODD[salt % 4] + np.uint64(salt * 977 + 1)
    return (v ^ (v >> np.uint64(29))) * _ODD[(salt + 1) % 4]


def bits_dtype(dtype: StateType) -> np.dtype[np.generic]:
    """Unsigned type as wide as the elements of a state."""
    return np.dtype(f"u{ITEM_BYTES[dtype]}")


def float_bits(values: U64) -> Bits:
    """Float32 numbers of [1, 2) with 23 random bits, as uint32."""
    return (values >> np.uint64(41)).astype(np.uint32) | np.uint32(0x3F800000)


def stored(values: U64, dtype: StateType) -> Bits:
    """`float_bits`, as a state of that type stores them (to nearest, ties to even)."""
    bits = float_bits(values)
    if dtype == "float32":
        return bits
    assert dtype == "bfloat16"
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )


def as_float_bits(rows: Bits) -> Bits:
    """Stored rows as float32 numbers, which is what arithmetic sees."""
    return rows if rows.dtype == np.uint32 else rows.astype(np.uint32) << np.uint32(16)


def row_hashes(salt: int, width: int, tokens: Bits, positions: Bits) -> U64:
    """What the ring rows of tokens are made from, `[n, width]`."""
    key = tokens.astype(np.uint64) * _ODD[1] + positions.astype(np.uint64) * _ODD[2]
    columns = np.arange(width, dtype=np.uint64) * _ODD[3]
    return mixed(key[:, None] + columns, salt)


def pooled_row(kv: Bits, score: Bits, seen: NDArray[np.bool_], salt: int) -> U64:
    """Hash of the rows a window sees, `[..., n, LANE_WIDTH]` -> `[..., LANE_WIDTH]`; their order matters."""
    order = np.arange(kv.shape[-2], dtype=np.uint64)[:, None] * _ODD[0]
    terms = mixed((kv.astype(np.uint64) << np.uint64(32)) + score.astype(np.uint64) + order, salt)
    return np.where(seen[..., None], terms, np.uint64(0)).sum(axis=-2, dtype=np.uint64)


def row_terms(rows: Bits, index: Bits, salt: int) -> U64:
    """What each row adds to the hash that logits are made of, `[n]`."""
    key = (rows.astype(np.uint64) * _ODD[: rows.shape[1]]).sum(axis=1, dtype=np.uint64)
    return mixed(key + index.astype(np.uint64) * _ODD[2], salt)


def running_sums(terms: U64) -> U64:
    """`[n + 1]` sums of the first 0, 1, ... n terms, modulo 2^64."""
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])


def logits_of(sums: U64) -> NDArray[np.float32]:
    """`[n]` hashes -> `[n, V]`."""
    ids = np.arange(VOCABULARY, dtype=np.uint64) * _ODD[3]
    return (mixed(sums[:, None] + ids, 3) >> np.uint64(40)).astype(np.float32)


# ------------------------------------------------------------------------------------- the device


class DeadRowError(AssertionError):
    """A step read a row that was poisoned."""


Restored = Callable[[RingState, int], range]
"""(ring, position) -> positions of the rows that a snapshot holds."""


def all_live(ring: RingState, position: int) -> range:
    """What a snapshot has to hold."""
    return range(max(0, ring.live.first(position)), position)


class LateCopies(CopyThread):
    """No copy is done before somebody waits for it or for a later one: the slowest that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[LateCopy] = []

    def submit(self, source: HostBytes, target: HostBytes) -> ThreadCopy:
        self._waiting.append(LateCopy(source, target, self))
        return self._waiting[-1]

    def run_until(self, copy: ThreadCopy) -> None:
        """Do all copies up to one, in order."""
        while copy in self._waiting:
            self._waiting.pop(0).run()


class LateCopy(ThreadCopy):
    """A copy that runs when it is waited for."""

    def __init__(self, source: HostBytes, target: HostBytes, copies: LateCopies) -> None:
        super().__init__(source, target)
        self._copies = copies

    def wait(self) -> None:
        self._copies.run_until(self)
        super().wait()


@dataclass
class RowDevice(FakeDevice):
    """Runs manifests of `row_manifest`; memory and copies are those of `FakeDevice`.

    Attributes:
        round_own_rows: False is the mistake to use the rows of the block before they are rounded.
        restored: other than `all_live` is the mistake to put back fewer rows.
    """

    round_own_rows: bool = True
    restored: Restored = all_live

    def __post_init__(self) -> None:
        self._rings = {ring.name: ring for ring in self.manifest.rings}
        self._appends = {state.name: state for state in self.manifest.appends}
        limits = self.manifest.limits
        self._at = block_layout(limits.max_rows, limits.max_segments)
        self._marks_at = marks_layout(limits.max_marks, len(self.manifest.rings))
        self._made: dict[tuple[str, int, bytes], tuple[Bits, Bits]] = {}

    def call(self, entry: str, arenas: Sequence[HostBytes], extent: Extent) -> None:
        """Run an entry point."""
        getattr(self, f"_{entry}")(*arenas)

    def _step(
        self,
        io: HostBytes,
        weights: HostBytes,
        workspace: HostBytes,
        states: HostBytes,
        pages: HostBytes,
        snapshots: HostBytes,
    ) -> None:
        block, at = _field(io, self.manifest.io.block), self._at
        rows, segments = int(block[0]), int(block[1])
        starts = block[at.segment_starts : at.segment_starts + segments + 1].tolist()
        tokens = _field(io, self.manifest.io.tokens)
        sums = np.zeros(rows, np.uint64)
        for b in range(segments):
            part = slice(starts[b], starts[b + 1])
            table = _field(io, self.manifest.io.page_tables)[b]
            slot, first = int(block[at.slots + b]), int(block[at.positions + starts[b]])
            marks = [(at, places) for owner, at, places in self._marks(io) if owner == b]
            old = self._old_rows(states, slot, first)
            self._save_inside(snapshots, marks, old, first, tokens[part])
            sums[part] = self._segment(states, pages, slot, first, tokens[part], table, old)
        wanted = _field(io, self.manifest.io.logit_rows)
        count = int(wanted[0])
        picked = wanted[ROWS_OFFSET : ROWS_OFFSET + count]
        _field(io, self.manifest.io.logits)[:count] = logits_of(sums[picked])

    def _old_rows(self, states: HostBytes, slot: int, p: int) -> list[Bits]:
        """Live rows of each ring before a block at `p`."""
        out: list[Bits] = []
        for ring in self.manifest.rings:
            live = all_live(ring, p)
            old = self.ring(states, slot, ring)[np.array(live, int) % ring.capacity]
            _refuse_dead(old, f"{ring.name} from position {live.start}")
            out.append(old)
        return out

    def _save_inside(
        self,
        snapshots: HostBytes,
        marks: Sequence[tuple[int, list[int]]],
        old: Sequence[Bits],
        p: int,
        tokens: Bits,
    ) -> None:
        """Snapshots at positions inside a block: rows before it from the ring, then the block's own."""
        for at, places in marks:
            for salt, (ring, rows) in enumerate(zip(self.manifest.rings, old, strict=True)):
                own, _ = self._own_rows(salt, ring, p, tokens.tobytes())
                first = max(0, ring.live.first(p))
                live = all_live(ring, at)
                picked = np.concatenate([rows, own])[np.array(live, int) - first]
                self._saved(snapshots, places[salt], ring, len(live))[:] = picked

    def _segment(
        self,
        states: HostBytes,
        pages: HostBytes,
        slot: int,
        p: int,
        tokens: Bits,
        table: Bits,
        old_rows: Sequence[Bits],
    ) -> U64:
        q = len(tokens)
        positions = np.arange(p, p + q)
        seen: dict[str, tuple[int, Bits]] = {}
        writes: list[tuple[Bits, Bits, Bits]] = []
        for salt, ring in enumerate(self.manifest.rings):
            rows = self.ring(states, slot, ring)
            first, old = max(0, ring.live.first(p)), old_rows[salt]
            own, used = self._own_rows(salt, ring, p, tokens.tobytes())
            seen[ring.name] = (first, np.concatenate([as_float_bits(old), used]))
            kept = np.arange(max(p, p + q - ring.capacity), p + q)
            writes.append((rows, kept % ring.capacity, own[kept - p]))
        total = self._raw_sums(*seen["raw"], positions)
        for salt, c in enumerate(COMPRESSORS):
            total = total + self._compress(c, salt, seen, p, q, pages, table)
        for rows, at, own in writes:
            rows[at] = own
        return total

    def _own_rows(self, salt: int, ring: RingState, p: int, tokens: bytes) -> tuple[Bits, Bits]:
        """Rows of tokens as a ring stores them, and as the step itself uses them."""
        key = (ring.name, p, tokens)
        if key not in self._made:
            ids = np.frombuffer(tokens, np.int32)
            hashes = row_hashes(salt, ring.width, ids, np.arange(p, p + len(ids)))
            own = stored(hashes, ring.dtype)
            self._made[key] = own, as_float_bits(own) if self.round_own_rows else float_bits(hashes)
        return self._made[key]

    def _raw_sums(self, first: int, rows: Bits, positions: Bits) -> U64:
        sums = running_sums(row_terms(rows, np.arange(first, first + len(rows)), 11))
        live = self._rings["raw"].live
        begin = np.maximum(0, positions - live.back) - first
        return sums[positions + 1 - first] - sums[begin]

    def _compress(
        self,
        c: Compressor,
        salt: int,
        seen: dict[str, tuple[int, Bits]],
        p: int,
        q: int,
        pages: HostBytes,
        table: Bits,
    ) -> U64:
        state = self._appends[c.rows]
        closing = np.arange(p // c.ratio, (p + q) // c.ratio)
        if len(closing):
            span = np.arange(-c.ratio * (c.lanes - 1), c.ratio)
            at = closing[:, None] * c.ratio + span  # positions, `[closed windows, rows they see]`
            lanes = (span >= 0).astype(int) if c.lanes == 2 else np.zeros(len(span), int)
            columns = lanes[:, None] * LANE_WIDTH + np.arange(LANE_WIDTH)
            picked = [
                rows[np.maximum(at - first, 0)[..., None], columns]
                for first, rows in (seen[c.kv], seen[c.score])
            ]
            values = stored(pooled_row(picked[0], picked[1], at >= 0, salt), state.dtype)
            self._page_rows(state, pages, table, closing, values)
        count = (p + q) // c.ratio
        rows = self._page_rows(state, pages, table, np.arange(count))
        _refuse_dead(rows, state.name)
        sums = running_sums(row_terms(rows, np.arange(count), 20 + salt))
        return sums[np.arange(p + 1, p + q + 1) // c.ratio]

    def _page_rows(
        self, state: AppendState, pages: HostBytes, table: Bits, index: Bits, values: Bits | None = None
    ) -> Bits:
        """Rows of an append state by index; with `values` they are written."""
        size = self.manifest.arenas.page
        dtype = bits_dtype(state.dtype)
        page, row = table[index // state.rows_per_page], index % state.rows_per_page
        view = np.ndarray(
            (len(pages) // size, state.rows_per_page, state.width),
            dtype,
            pages,
            state.offset,
            (size, state.row_bytes, dtype.itemsize),
        )
        if values is not None:
            view[page, row] = values
        return view[page, row]

    def ring(self, states: HostBytes, slot: int, ring: RingState) -> Bits:
        """The rows of a ring, `[capacity, width]`, in place."""
        start = slot * self.manifest.arenas.state_slot + ring.offset
        raw = states[start : start + ring.capacity * ring.row_bytes]
        return raw.view(bits_dtype(ring.dtype)).reshape(ring.capacity, ring.width)

    def _marks(self, io: HostBytes) -> list[tuple[int, int, list[int]]]:
        """Owner, position and places of the rings' rows, in bytes, of each mark."""
        numbers, at = _field(io, self.manifest.io.marks), self._marks_at
        rings = range(len(self.manifest.rings))
        return [
            (
                int(numbers[at.owners + m]),
                int(numbers[at.positions + m]),
                [64 * int(numbers[at.offsets(ring) + m]) for ring in rings],
            )
            for m in range(int(numbers[0]))
        ]

    def _saved(self, snapshots: HostBytes, place: int, ring: RingState, rows: int) -> Bits:
        raw = snapshots[place : place + rows * ring.row_bytes]
        return raw.view(bits_dtype(ring.dtype)).reshape(rows, ring.width)

    def _snapshot(self, io: HostBytes, states: HostBytes, snapshots: HostBytes) -> None:
        for slot, at, places in self._marks(io):
            for place, ring, rows in zip(
                places, self.manifest.rings, self._old_rows(states, slot, at), strict=True
            ):
                self._saved(snapshots, place, ring, len(rows))[:] = rows

    def _restore(self, io: HostBytes, states: HostBytes, snapshots: HostBytes) -> None:
        for slot, at, places in self._marks(io):
            for place, ring in zip(places, self.manifest.rings, strict=True):
                live = all_live(ring, at)
                saved = self._saved(snapshots, place, ring, len(live))
                for position in self.restored(ring, at):
                    self.ring(states, slot, ring)[position % ring.capacity] = saved[position - live.start]

    def _fork(self, io: HostBytes, states: HostBytes) -> None:
        source, target, first, at = _field(io, self.manifest.io.fork_args)[:4].tolist()
        for ring in self.manifest.rings:
            rows = np.arange(max(0, ring.live.first(first), at - ring.capacity), at) % ring.capacity
            self.ring(states, target, ring)[rows] = self.ring(states, source, ring)[rows]


def _field(io: HostBytes, at: IoField) -> NDArray[np.int32]:
    return io[at.offset : at.offset + at.bytes].view(at.dtype).reshape(at.shape)


def _refuse_dead(rows: Bits, what: str) -> None:
    if len(rows) and (rows == np.iinfo(rows.dtype).max).any():
        raise DeadRowError(f"dead row read: {what}")
