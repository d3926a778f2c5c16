"""Ops on rows of states: addressing, visibility, pooling, selection, attention, and NaN in dead rows."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ds4c.ir import numpy_ops as ops
from ds4c.ir.block import Block

F64 = NDArray[np.float64]
NAN = np.nan


def close(got: Any, want: Any) -> bool:
    """Equal to float64 rounding of a few operations."""
    return bool(np.allclose(got, want, rtol=1e-12, atol=1e-13))


def ring_at(rows: F64, position: int, capacity: int, span: int, slots: int = 2, slot: int = 1) -> F64:
    """Pool whose `slot` holds the last `span` rows before `position`; everything else is NaN."""
    pool = np.full((slots, capacity, rows.shape[1]), NAN)
    for p in range(max(0, position - span), position):
        pool[slot, p % capacity] = rows[p]
    return pool


# ------------------------------------------------------------------------------------------ addressing


@pytest.mark.parametrize(("first", "rows", "capacity"), [(0, 3, 5), (4, 3, 5), (13, 5, 5), (2, 12, 5)])
def test_write_keeps_the_last_rows_at_position_mod_capacity(first: int, rows: int, capacity: int) -> None:
    pool = np.full((2, capacity, 1), -1.0)
    block = Block.of((1, first, rows))
    ops.write(pool, block.positions[:, None].astype(float), block)
    assert (pool[0] == -1).all()
    for p in range(max(first, first + rows - capacity), first + rows):
        assert pool[1, p % capacity, 0] == p
    untouched = capacity - min(rows, capacity)
    assert (pool[1] == -1).sum() == untouched


def test_read_rows_gives_the_rows_before_each_segment() -> None:
    pool = np.arange(3 * 6, dtype=float).reshape(3, 6, 1)
    old = ops.read_rows(pool, Block.of((2, 7, 2), (0, 1, 1), (1, 0, 0)), 3)
    assert old[0, :, 0].tolist() == [pool[2, 4, 0], pool[2, 5, 0], pool[2, 0, 0]]
    assert old[1, :, 0].tolist() == [0.0, 0.0, pool[0, 0, 0]]
    assert old[2, :, 0].tolist() == [0.0, 0.0, 0.0]


def test_append_puts_the_row_of_a_window_at_its_number() -> None:
    pool = np.zeros((2, 5, 1))
    windows = Block.of((1, 3, 6), (0, 0, 3)).windows(4)
    ops.append(pool, np.array([[10.0], [20.0]]), windows, 4)
    assert pool[1, :, 0].tolist() == [10.0, 20.0, 0.0, 0.0, 0.0]
    assert (pool[0] == 0).all()


# --------------------------------------------------------------------------------------------- pooling


def pooled_by_hand(kv: F64, score: F64, j: int, every: int, lanes: int) -> F64:
    """Row of window `j` of a whole sequence, channel by channel."""
    width = kv.shape[1] // lanes
    entries: list[tuple[int, int]] = []  # (position, first channel)
    if lanes == 2 and j > 0:
        entries += [(p, 0) for p in range(every * (j - 1), every * j)]
    entries += [(p, (lanes - 1) * width) for p in range(every * j, every * (j + 1))]
    out = np.zeros(width)
    for c in range(width):
        weights = [math.exp(score[p, o + c]) for p, o in entries]
        out[c] = sum(w * kv[p, o + c] for w, (p, o) in zip(weights, entries, strict=True)) / sum(weights)
    return out


@pytest.mark.parametrize(("every", "lanes"), [(4, 2), (8, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("first", [0, 1, 3, 4, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("rows", [1, 3, 4, 9, 17])
def test_pool(every: int, lanes: int, first: int, rows: int, rng: np.random.Generator) -> None:
    total, width, span = first + rows, 3 * lanes, every * lanes - 1
    kv, score = rng.normal(size=(total, width)), rng.normal(size=(total, width))
    block = Block.of((1, first, rows))
    old = [ops.read_rows(ring_at(v, first, span + 2, span), block, span) for v in (kv, score)]
    got = ops.pool(old[0], kv[first:], old[1], score[first:], block, every, lanes)
    numbers = [p // every for p in range(first, total) if (p + 1) % every == 0]
    assert got.shape == (len(numbers), 3)
    for row, j in zip(got, numbers, strict=True):
        assert close(row, pooled_by_hand(kv, score, j, every, lanes))


def test_the_first_overlapping_window_has_the_entries_of_its_own_rows_only() -> None:
    """Ratio 4: four entries, not eight; with equal scores the row is the mean of four rows."""
    kv = np.array([[9.0, 1.0], [9.0, 2.0], [9.0, 3.0], [9.0, 6.0]])
    old = np.full((1, 7, 2), NAN)
    got = ops.pool(old, kv, old, np.zeros((4, 2)), Block.of((0, 0, 4)), 4, 2)
    assert got.tolist() == [[3.0]]


def test_pool_of_two_segments_keeps_them_apart(rng: np.random.Generator) -> None:
    kv, score = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    block = Block.of((0, 0, 5), (1, 0, 4))
    old = np.zeros((2, 7, 2))
    got = ops.pool(old, kv, old, score, block, 4, 2)
    assert close(got[0], pooled_by_hand(kv[:5], score[:5], 0, 4, 2))
    assert close(got[1], pooled_by_hand(kv[5:], score[5:], 0, 4, 2))


# ---------------------------------------------------------------------------------- scores and selection


@pytest.mark.parametrize(
    ("position", "want"), [(0, 0), (2, 0), (3, 1), (6, 1), (7, 2), (4 * 9 + 2, 9), (4 * 9 + 3, 10)]
)
def test_a_row_is_visible_from_the_last_token_of_its_window_on(position: int, want: int) -> None:
    assert ops.visible_rows(position, 4) == want


def test_index_scores_and_what_is_not_visible(rng: np.random.Generator) -> None:
    heads, width, every = 3, 2, 4
    rows = rng.normal(size=(2, 6, width))
    rows[1, 2:] = NAN  # not visible to any query here
    block = Block.of((1, 6, 3))  # sees 1, 2, 2 rows
    q, weights = rng.normal(size=(3, heads * width)), rng.normal(size=(3, heads))
    got = ops.index_scores(q, weights, rows, block, every, 0.5)
    assert got.shape == (3, 2)
    for t, seen in enumerate((1, 2, 2)):
        for j in range(2):
            if j >= seen:
                assert got[t, j] == -np.inf
                continue
            dots = [q[t, h * width : (h + 1) * width] @ rows[1, j] for h in range(heads)]
            want = sum(weights[t, h] * 0.5 * max(0.0, dots[h]) for h in range(heads))
            assert close(got[t, j], want)


def test_select_rows_prefers_the_lower_row_and_sorts() -> None:
    scores = np.array(
        [[1.0, 5.0, 5.0, 2.0, 5.0], [1.0, 5.0, 5.0, 2.0, 9.0], [3.0, 1.0, -np.inf, -np.inf, -np.inf]]
    )
    block = Block.of((0, 19, 1), (1, 18, 1), (2, 7, 1))  # sees 5, 4 and 2 rows
    assert ops.select_rows(scores, block, 4, 3).tolist() == [[1, 2, 4], [1, 2, 3], [0, 1, -1]]
    assert ops.select_rows(scores, block, 4, 2).tolist() == [[1, 2], [1, 2], [0, 1]]


def test_select_rows_of_equal_scores_takes_the_first_rows() -> None:
    got = ops.select_rows(np.zeros((1, 8)), Block.of((0, 31, 1)), 4, 3)
    assert got.tolist() == [[0, 1, 2]]
    assert got.dtype == np.int32


def test_select_rows_with_negative_scores_still_fills_the_selection() -> None:
    assert ops.select_rows(np.array([[-5.0, -1.0, -3.0]]), Block.of((0, 11, 1)), 4, 2).tolist() == [[1, 2]]


# ------------------------------------------------------------------------------------------- attention


def attention_by_hand(q: F64, sink: F64, keys: F64, scale: float) -> F64:
    out = np.zeros_like(q)
    for h in range(len(sink)):
        weights = [math.exp(scale * float(q[h] @ k)) for k in keys]
        total = sum(weights) + math.exp(sink[h])  # the sink is not scaled and has no value
        out[h] = sum(w * k for w, k in zip(weights, keys, strict=True)) / total
    return out


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("first", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("selected", [None, 2])
def test_attention(window: int, first: int, selected: int | None, rng: np.random.Generator) -> None:
    heads, width, rows, every, scale = 2, 3, 5, 4, 0.3
    total = first + rows
    keys = rng.normal(size=(total, width))
    q, sink = rng.normal(size=(rows, heads * width)), rng.normal(size=heads) * 2
    compressed = np.full((2, 10, width), NAN)
    compressed[1, : total // every] = rng.normal(size=(total // every, width))
    block = Block.of((1, first, rows))
    old = ops.read_rows(ring_at(keys, first, window + 3, window - 1), block, window - 1)
    selection = None
    if selected is not None:
        scores = rng.normal(size=(rows, total // every))
        selection = ops.select_rows(scores, block, every, selected)
    got = ops.attention(q, sink, old, keys[first:], block, scale, window, compressed, selection, every)
    for t, p in enumerate(range(first, total)):
        seen = list(keys[max(0, p - window + 1) : p + 1])
        chosen = range((p + 1) // every) if selection is None else [j for j in selection[t] if j >= 0]
        seen += [compressed[1, j] for j in chosen]
        want = attention_by_hand(q[t].reshape(heads, width), sink, np.array(seen), scale)
        assert close(got[t], want.reshape(-1))


def test_the_sink_is_not_scaled() -> None:
    """One key with logit 0: its weight is `1 / (1 + exp(sink))` whatever the scale is."""
    for scale in (0.1, 10.0):
        got = ops.attention(
            np.zeros((1, 2)),
            np.array([1.5]),
            np.zeros((1, 0, 2)),
            np.ones((1, 2)),
            Block.of((0, 0, 1)),
            scale,
            1,
        )
        assert close(got, 1 / (1 + math.exp(1.5)))


def test_a_huge_sink_leaves_nothing_and_no_nan() -> None:
    got = ops.attention(
        np.ones((1, 2)), np.array([1e4]), np.zeros((1, 0, 2)), np.ones((1, 2)), Block.of((0, 0, 1)), 1.0, 1
    )
    assert np.array_equal(got, np.zeros((1, 2)))


def test_a_row_is_seen_at_4j_plus_3_and_not_at_4j_plus_2(rng: np.random.Generator) -> None:
    """A compressed row of NaN shows in the output from the moment it is visible."""
    rows = np.full((1, 3, 2), NAN)
    block = Block.of((0, 0, 4))
    keys = rng.normal(size=(4, 2))
    got = ops.attention(keys, np.zeros(1), np.zeros((1, 7, 2)), keys, block, 1.0, 8, rows, None, 4)
    assert np.isfinite(got[:3]).all()
    assert np.isnan(got[3]).all()
