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

from ds4c_runtime.device.base import Arena, Device
from ds4c_runtime.errors import BackendFailedError, InvalidRequestError
from ds4c_runtime.manifest import IoField, Limits, Manifest
from ds4c_runtime.manifest_checks import ROWS_OFFSET, block_layout
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
    """

    slot: int
    position: int
    tokens: Sequence[int]
    pages: Sequence[int]
    wanted: int


class Rates:
    """Running means of measured speed: seconds per token of a chunk and per one-row step."""

    def __init__(self) -> None:
        self._chunk: float | None = None
        self._step: float | None = None

    def record(self, rows: int, seconds: float) -> None:
        """Take in a step of `rows` rows."""
        if rows == 1:
            self._step = _mixed(self._step, seconds)
        else:
            self._chunk = _mixed(self._chunk, seconds / rows)

    def estimate(self, tokens: int) -> float:
        """Seconds to evaluate known tokens; 0.0 for none or as long as nothing was measured."""
        by_kind = (self._step, self._chunk) if tokens == 1 else (self._chunk, self._step)
        return tokens * next((rate for rate in by_kind if rate is not None), 0.0)


class StepIo:
    """Typed views of the io arena."""

    def __init__(self, manifest: Manifest, arena: Arena) -> None:
        io, limits = manifest.io, manifest.limits
        self.arena = arena
        self.tokens = _ints(arena, io.tokens)
        self.page_tables = _ints(arena, io.page_tables)
        self.logit_rows = _ints(arena, io.logit_rows)
        self.fork_args = _ints(arena, io.fork_args)
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
            self.logit_rows[start : start + segment.wanted] = np.arange(row - segment.wanted, row)
            wanted += segment.wanted
        block[0], block[1] = row, len(segments)
        self.logit_rows[0] = wanted


class Stepper:
    """Runs steps and forks of one artifact on one device."""

    def __init__(self, manifest: Manifest, device: Device, store: StateStore) -> None:
        self.manifest = manifest
        self.rates = Rates()
        self._device = device
        self._store = store
        self._io = StepIo(manifest, device.allocate(manifest.arenas.io))
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
        """Evaluate rows and return logits, one array `[wanted, V]` per segment.

        Pages of the written range are the caller's own (`StateStore.make_writable`).

        Raises:
            BackendFailedError: the device failed; the states of all segments are unknown.
        """
        rows = sum(len(s.tokens) for s in segments)
        counts = [s.wanted for s in segments]
        self.check(rows, len(segments), sum(counts))
        self._io.fill(segments)
        started = time.perf_counter()
        self._call(
            "step",
            [self._io.arena, self._device.weights, self._workspace, self._store.states, self._store.pages],
        )
        self.rates.record(rows, time.perf_counter() - started)
        logits = self._io.logits[: sum(counts)].copy()
        ends = np.cumsum(counts).tolist()
        return [logits[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def fork(self, source_slot: int, target_slot: int, first: int, at: int) -> None:
        """Copy the ring rows that are live at positions `[first, at]` to another slot.

        Raises:
            BackendFailedError: the device failed; the target slot is unknown, the source is as before.
        """
        self._io.fork_args[:4] = (source_slot, target_slot, first, at)
        self._call("fork", [self._io.arena, self._store.states])

    def _call(self, entry: str, arenas: Sequence[Arena]) -> None:
        try:
            self._device.call(entry, arenas)
        except Exception as error:
            raise BackendFailedError(
                f"{entry} failed: expected the device to finish, got {type(error).__name__}: {error}; "
                "the session is rebuilt from its history on next use"
            ) from error


def _ints(arena: Arena, field: IoField) -> NDArray[np.int32]:
    return cast(NDArray[np.int32], _field(arena, field, np.dtype(np.int32)))


def _field(arena: Arena, field: IoField, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    return arena[field.offset : field.offset + field.bytes].view(dtype).reshape(field.shape)


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT_OF_NEW * (new - old)
