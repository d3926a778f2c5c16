"""One step of the device: fills the io arena, makes the one FFI call, reads the logits.

Knows rows, slots and pages; which tokens a session is at is decided in `session.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.counters import Now
from ds4c_runtime.device.base import SINGLE, Arena, Device, HostBytes
from ds4c_runtime.errors import BackendFailedError, InvalidRequestError
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import IoField, Limits, Manifest
from ds4c_runtime.manifest_checks import ROWS_OFFSET, block_layout, marks_layout
from ds4c_runtime.snapshot import UNIT_BYTES
from ds4c_runtime.snapshot_pool import Reserved
from ds4c_runtime.state import StateStore

Logits = NDArray[np.float32]
_WEIGHT_OF_NEW = 0.2
"""Share of a new measurement in a running mean of speed."""


@dataclass(frozen=True)
class Segment:
    """The rows of one session in a step.

    Attributes:
        slot: state slot.
        position: position of the first token.
        tokens: tokens to evaluate, at least one.
        pages: page table.
        wanted: number of last rows whose logits are returned.
        marks: room for snapshots at positions in `(position, position + len(tokens)]`, ascending; the row
            before each gives logits too.
    """

    slot: int
    position: int
    tokens: Sequence[int]
    pages: Sequence[int]
    wanted: int
    marks: Sequence[Reserved] = ()

    def logit_rows(self) -> list[int]:
        """Rows of the segment that give logits, ascending: those before marks, then the last `wanted`."""
        last = len(self.tokens) - self.wanted
        early = [m.position - 1 - self.position for m in self.marks]
        return [row for row in early if row < last] + list(range(last, len(self.tokens)))


class Rates:
    """Running means of measured speed: seconds per token of a chunk, per one-row step, per restored byte."""

    def __init__(self) -> None:
        self._chunk: float | None = None
        self._step: float | None = None
        self._restore: float | None = None

    def record(self, rows: int, seconds: float) -> None:
        """Take in a step of `rows` rows."""
        if rows == 1:
            self._step = _mixed(self._step, seconds)
        else:
            self._chunk = _mixed(self._chunk, seconds / rows)

    def record_restore(self, size: int, seconds: float) -> None:
        """Take in a snapshot of `size` bytes that was put back."""
        self._restore = _mixed(self._restore, seconds / size)

    def estimate_restore(self, size: int) -> float:
        """Seconds to put a snapshot of `size` bytes back; 0.0 as long as nothing was measured."""
        return size * (self._restore or 0.0)

    def estimate(self, tokens: int) -> float:
        """Seconds to evaluate known tokens; 0.0 for none or as long as nothing was measured."""
        by_kind = (self._step, self._chunk) if tokens == 1 else (self._chunk, self._step)
        return tokens * next((rate for rate in by_kind if rate is not None), 0.0)


class StepIo:
    """Typed views of the io arena."""

    def __init__(self, manifest: Manifest, arena: HostBytes) -> None:
        io, limits = manifest.io, manifest.limits
        self.arena = arena
        self.tokens = _ints(arena, io.tokens)
        self.page_tables = _ints(arena, io.page_tables)
        self.logit_rows = _ints(arena, io.logit_rows)
        self.fork_args = _ints(arena, io.fork_args)
        self._marks = _ints(arena, io.marks)
        self._rings = len(manifest.rings)
        self._marks_at = marks_layout(limits.max_marks, self._rings)
        self.logits = cast(Logits, _field(arena, io.logits, np.dtype(np.float32)))
        self._block = _ints(arena, io.block)
        self._at = block_layout(limits.max_rows, limits.max_segments)

    def fill(self, segments: Sequence[Segment]) -> None:
        """Write tokens, block, page tables and logit rows of a step."""
        at, block = self._at, self._block
        row, wanted = 0, 0
        block[at.segment_starts] = 0
        for index, segment in enumerate(segments):
            count = len(segment.tokens)
            self.tokens[row : row + count] = segment.tokens
            block[at.positions + row : at.positions + row + count] = np.arange(
                segment.position, segment.position + count
            )
            block[at.row_segment + row : at.row_segment + row + count] = index
            block[at.slots + index] = segment.slot
            self.page_tables[index, : len(segment.pages)] = segment.pages
            row += count
            block[at.segment_starts + index + 1] = row
            start = ROWS_OFFSET + wanted
            if not segment.marks:
                self.logit_rows[start : start + segment.wanted] = np.arange(row - segment.wanted, row)
                wanted += segment.wanted
                continue
            rows = segment.logit_rows()
            self.logit_rows[start : start + len(rows)] = np.array(rows) + (row - count)
            wanted += len(rows)
        block[0], block[1] = row, len(segments)
        self.logit_rows[0] = wanted
        self.fill_marks([(index, mark) for index, s in enumerate(segments) for mark in s.marks])

    def fill_marks(self, marks: Sequence[tuple[int, Reserved]]) -> None:
        """Write the owners (segments or slots), positions and places of snapshots."""
        at, numbers = self._marks_at, self._marks
        numbers[0] = len(marks)
        for index, (owner, mark) in enumerate(marks):
            numbers[at.owners + index] = owner
            numbers[at.positions + index] = mark.position
            first = at.offsets(0) + index
            numbers[first : first + self._rings * at.stride : at.stride] = mark.places // UNIT_BYTES


class Stepper:
    """Runs steps and forks of one artifact on one device."""

    def __init__(
        self, manifest: Manifest, device: Device, store: StateStore, now: Now = time.perf_counter
    ) -> None:
        """`now` is what the times of steps, rewinds and forks are taken by."""
        self.manifest = manifest
        self.now = now
        self.rates = Rates()
        self._device = device
        self._store = store
        self._io = StepIo(manifest, device.allocate_io(manifest))
        self._workspace = device.allocate(manifest.arenas.workspace)

    @property
    def limits(self) -> Limits:
        """Largest step and session."""
        return self.manifest.limits

    def check(self, rows: int, segments: int, logit_rows: int) -> None:
        """Refuse a step that is larger than the artifact allows.

        Raises:
            InvalidRequestError: naming the limit.
        """
        limits = self.limits
        for what, got, most in (
            ("rows", rows, limits.max_rows),
            ("segments", segments, limits.max_segments),
            ("logit rows", logit_rows, limits.max_logit_rows),
        ):
            if got > most:
                raise InvalidRequestError(
                    f"step refused: expected at most {most} {what}, got {got}; use more steps", field="tokens"
                )

    def run(self, segments: Sequence[Segment]) -> list[Logits]:
        """Evaluate rows and return logits, one array `[n, V]` per segment: of its `logit_rows`.

        Pages of the written range are the caller's own (`StateStore.make_writable`).

        Raises:
            BackendFailedError: the device failed; the states of all segments are unknown.
        """
        rows = sum(len(s.tokens) for s in segments)
        counts = [len(s.logit_rows()) if s.marks else s.wanted for s in segments]
        self.check(rows, len(segments), sum(counts))
        self._io.fill(segments)
        started = self.now()
        self._call(
            "step",
            [
                self._io.arena,
                self._device.weights,
                self._workspace,
                self._store.states,
                self._store.pages,
                self._store.snapshots.arena,
            ],
            Extent(rows, max(s.position + len(s.tokens) for s in segments)),
        )
        self.rates.record(rows, self.now() - started)
        logits = self._io.logits[: sum(counts)].copy()
        ends = np.cumsum(counts).tolist()
        return [logits[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def fork(self, source_slot: int, target_slot: int, first: int, at: int) -> None:
        """Copy the ring rows that are live at positions `[first, at]` to another slot.

        Raises:
            BackendFailedError: the device failed; the target slot is unknown, the source is as before.
        """
        self._io.fork_args[:4] = (source_slot, target_slot, first, at)
        self._call("fork", [self._io.arena, self._store.states], SINGLE)

    def snapshot(self, slot: int, mark: Reserved) -> None:
        """Copy the live rows of a slot at a position to the arena of snapshots.

        Raises:
            BackendFailedError: the device failed; the slot is as before.
        """
        self._io.fill_marks([(slot, mark)])
        self._call("snapshot", [self._io.arena, self._store.states, self._store.snapshots.arena], SINGLE)

    def restore(self, slot: int, mark: Reserved) -> None:
        """Put rows from the arena of snapshots back to a slot; its other rows are undefined from then on.

        Raises:
            BackendFailedError: the device failed; the slot is unknown.
        """
        self._io.fill_marks([(slot, mark)])
        self._call("restore", [self._io.arena, self._store.states, self._store.snapshots.arena], SINGLE)

    def _call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        try:
            self._device.call(entry, arenas, extent)
        except Exception as error:
            raise BackendFailedError(
                f"{entry} failed: expected the device to finish, got {type(error).__name__}: {error}; "
                "the session is rebuilt from its history on next use"
            ) from error


def _ints(arena: HostBytes, field: IoField) -> NDArray[np.int32]:
    return cast(NDArray[np.int32], _field(arena, field, np.dtype(np.int32)))


def _field(arena: HostBytes, field: IoField, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    return arena[field.offset : field.offset + field.bytes].view(dtype).reshape(field.shape)


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT_OF_NEW * (new - old)
