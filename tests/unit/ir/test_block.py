"""Rows of a step: ragged segments, and the windows that close in them."""

import numpy as np
import pytest

from ds4c.ir.block import Block


def closed(first: int, rows: int, every: int) -> list[int]:
    """First tokens of the windows whose last token is in the block, by looking at every token."""
    return [p - every + 1 for p in range(first, first + rows) if (p + 1) % every == 0]


@pytest.mark.parametrize("every", [1, 4, 8, 128])
def test_windows_are_those_whose_last_token_is_in_the_block(every: int) -> None:
    for first in (0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 129):
        for rows in (0, 1, 2, 3, 4, 5, 7, 8, 9, 127, 128, 129, 300):
            windows, case = Block.of((3, first, rows)).windows(every), f"{rows} rows from {first}"
            assert windows.positions.tolist() == closed(first, rows, every), case
            assert windows.slots.tolist() == [3]
            assert windows.segment_starts.tolist() == [0, len(closed(first, rows, every))], case


def test_windows_of_several_segments_keep_their_segments() -> None:
    windows = Block.of((5, 3, 1), (2, 0, 3), (7, 0, 0), (0, 6, 7)).windows(4)
    assert windows.positions.tolist() == [0, 4, 8]
    assert windows.segment_starts.tolist() == [0, 1, 1, 1, 3]
    assert windows.slots.tolist() == [5, 2, 7, 0]
    assert windows.row_segment.tolist() == [0, 3, 3]


def test_rows_of_ragged_segments() -> None:
    block = Block.of((1, 10, 2), (0, 0, 0), (4, 7, 3))
    assert block.num_rows == 5
    assert block.positions.tolist() == [10, 11, 7, 8, 9]
    assert block.row_segment.tolist() == [0, 0, 2, 2, 2]
    assert [block.length(b) for b in range(3)] == [2, 0, 3]
    assert (block.first(0), block.first(2)) == (10, 7)
    assert {a.dtype for a in (block.positions, block.segment_starts, block.slots, block.row_segment)} == {
        np.dtype(np.int32)
    }


def test_an_empty_block() -> None:
    block = Block.of()
    assert block.num_rows == 0
    assert block.windows(4).num_rows == 0


def test_chunks_close_the_same_windows_as_the_whole() -> None:
    whole = Block.of((0, 0, 300)).windows(8).positions.tolist()
    parts, at = [], 0
    for rows in (1, 6, 64, 2, 100, 127):
        parts += Block.of((0, at, rows)).windows(8).positions.tolist()
        at += rows
    assert parts == whole
