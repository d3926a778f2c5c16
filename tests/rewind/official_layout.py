"""The compressors of DeepSeek-V4 as its engines lay them out: an independent machine, one token at a time.

Ratio 4 has eight rows, four of the previous window and four of the current one, which move up when a window
closes; ratio 128 has its 128 rows; the raw window has a ring of exactly its length. Nothing here knows
capacities, horizons or live maps. Only the arithmetic of a row (`row_machine.pooled_row` and its like) is
shared with the device under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from rewind.row_machine import (
    COMPRESSORS,
    LANE_WIDTH,
    WINDOW,
    Bits,
    Compressor,
    as_float_bits,
    logits_of,
    pooled_row,
    row_hashes,
    row_terms,
    stored,
)

from ds4c_runtime.manifest import Manifest


@dataclass
class Position:
    """What a session of so many tokens holds: live rows by ring, rows by append state, logits; as bytes."""

    rings: dict[str, bytes]
    rows: dict[str, bytes]
    logits: bytes


@dataclass
class OfficialCompressor:
    """Rolling state of one compressor: rows in use, and the pooled rows so far."""

    part: Compressor
    salt: int
    kv: list[Bits | None] = field(default_factory=list[Bits | None])
    score: list[Bits | None] = field(default_factory=list[Bits | None])

    def __post_init__(self) -> None:
        self.kv += [None] * self.part.ratio * self.part.lanes
        self.score += self.kv

    def take(self, position: int, kv: Bits, score: Bits) -> NDArray[np.uint64] | None:
        """Put in the rows of a token; the hash of the pooled row if it closes a window."""
        ratio, base = self.part.ratio, self.part.ratio * (self.part.lanes - 1)
        self.kv[base + position % ratio], self.score[base + position % ratio] = kv, score
        if (position + 1) % ratio:
            return None
        halves = [self._half(rows) for rows in (self.kv, self.score)]
        seen = np.array([row is not None for row in self.kv])
        out = pooled_row(halves[0], halves[1], seen, self.salt)
        if self.part.lanes == 2:
            self.kv[:ratio], self.score[:ratio] = self.kv[ratio:], self.score[ratio:]
        return out

    def _half(self, rows: Sequence[Bits | None]) -> Bits:
        """The half of each row that its window contributes."""
        out = np.zeros((len(rows), LANE_WIDTH), np.uint32)
        for i, row in enumerate(rows):
            if row is not None:
                lane = i // self.part.ratio
                out[i] = as_float_bits(row)[lane * LANE_WIDTH : (lane + 1) * LANE_WIDTH]
        return out

    def live(self, rows: Sequence[Bits | None], length: int) -> bytes:
        """Rows of the previous window, then those of the current one that are there after `length` tokens."""
        base = self.part.ratio * (self.part.lanes - 1)
        used = [*rows[:base], *rows[base : base + length % self.part.ratio]]
        return b"".join(row.tobytes() for row in used if row is not None)


def straight(manifest: Manifest, tokens: Sequence[int]) -> list[Position]:
    """Every position of a session that never saw anything else, `[len(tokens) + 1]`."""
    raw: list[Bits] = [np.zeros(0)] * WINDOW
    parts = [OfficialCompressor(c, salt) for salt, c in enumerate(COMPRESSORS)]
    rows: dict[str, list[Bits]] = {c.rows: [] for c in COMPRESSORS}
    dtypes = {s.name: s.dtype for s in (*manifest.rings, *manifest.appends)}
    salts = {ring.name: salt for salt, ring in enumerate(manifest.rings)}
    widths = {ring.name: ring.width for ring in manifest.rings}
    out = [Position({r.name: b"" for r in manifest.rings}, {c.rows: b"" for c in COMPRESSORS}, b"")]
    for at, token in enumerate(tokens):

        def row_of(name: str) -> Bits:
            hashes = row_hashes(salts[name], widths[name], np.array([token]), np.array([at]))  # noqa: B023
            return stored(hashes, dtypes[name])[0]

        raw[at % WINDOW] = row_of("raw")
        for part in parts:
            made = part.take(at, row_of(part.part.kv), row_of(part.part.score))
            if made is not None:
                rows[part.part.rows].append(stored(made, dtypes[part.part.rows]))
        out.append(_position(raw, parts, rows, at + 1))
    return out


def _position(
    raw: Sequence[Bits], parts: Sequence[OfficialCompressor], rows: dict[str, list[Bits]], length: int
) -> Position:
    window = range(max(0, length - WINDOW), length)
    kept = window[1:] if len(window) == WINDOW else window  # the next query writes the row of its own token
    rings = {"raw": b"".join(raw[t % WINDOW].tobytes() for t in kept)}
    seen = np.array([as_float_bits(raw[t % WINDOW]) for t in window])
    terms = [row_terms(seen, np.array(window), 11)]
    for part in parts:
        rings[part.part.kv] = part.live(part.kv, length)
        rings[part.part.score] = part.live(part.score, length)
        made = rows[part.part.rows]
        if made:
            terms.append(row_terms(np.array(made), np.arange(len(made)), 20 + part.salt))
    compressed = {name: b"".join(row.tobytes() for row in made) for name, made in rows.items()}
    return Position(
        rings, compressed, logits_of(np.concatenate(terms).sum(dtype=np.uint64, keepdims=True))[0].tobytes()
    )
