"""Layouts of snapshots and digests of histories, made once or from parts: against the plain rule."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ds4c_runtime.history import BLOCK_TOKENS, History
from ds4c_runtime.manifest import Live
from ds4c_runtime.snapshot import DEAD_BYTE, SnapshotLayout

RINGS = {
    "window": [(1, 127, 512)],
    "all kinds": [(1, 127, 512), (4, 4, 1024), (128, 0, 512)],
    "odd": [(6, 5, 36), (4, 13, 20), (1, 1, 4)],
    "none": [],
}


def manifest_of(rings: list[tuple[int, int, int]]) -> Any:
    states = [SimpleNamespace(live=Live(align, back), row_bytes=size) for align, back, size in rings]
    limits = SimpleNamespace(page_tokens=128)
    return SimpleNamespace(rings=states, model=SimpleNamespace(vocab_size=10), limits=limits)


def test_dead_bytes_are_no_number_of_any_float_type() -> None:
    dead = np.full(4, DEAD_BYTE, np.uint8)
    assert np.isnan(dead.view(np.float32)).all()
    assert np.isnan(dead.view(np.float16)).all()


@pytest.mark.parametrize("rings", RINGS.values(), ids=RINGS)
def test_the_layout_of_every_position(rings: list[tuple[int, int, int]]) -> None:
    layout = SnapshotLayout(cast(Any, manifest_of(rings)))
    largest = 0
    for position in (*range(700), *range(10**6, 10**6 + 130)):
        starts: list[int] = []
        end = 0
        for align, back, size in rings:
            starts.append(end)
            live = position - max(0, position // align * align - back)
            end += -(-live * size // 64) * 64
        parts = layout.parts(position)
        assert (parts.rings.tolist(), parts.logits, parts.total) == (starts, end, end + 64)
        largest = max(largest, parts.total)
    assert layout.largest() == largest


def test_digests_at_every_length() -> None:
    tokens = np.random.default_rng(0).integers(0, 2**32, 2 * BLOCK_TOKENS + 40).tolist()
    history = History("ab" * 32, tokens)
    tokenizer = bytes.fromhex("ab" * 32)
    for length in range(len(tokens) + 1):
        plain = np.array(tokens[:length], "<u4").tobytes()
        assert history.digest_at(length) == hashlib.sha256(plain + tokenizer).hexdigest()
    assert history.digest() == history.digest_at(len(tokens))
