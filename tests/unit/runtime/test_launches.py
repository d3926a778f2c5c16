"""Blocks of a grid: rounded up, never less than one, never more than the largest step needs."""

import pytest

from ds4c_runtime.launches import ONE, Dim, Extent


def by_rows(**fields: int) -> Dim:
    return Dim(fields.pop("most", 1000), "rows", **fields)


@pytest.mark.parametrize(
    ("dim", "rows", "blocks"),
    [
        # One block for each full or begun group of rows.
        *((by_rows(per=16), rows, blocks) for rows, blocks in ((1, 1), (15, 1), (16, 1), (17, 2), (32, 2))),
        *((by_rows(per=16), rows, blocks) for rows, blocks in ((33, 3), (160, 10), (161, 11))),
        (by_rows(), 7, 7),
        # Several for each row, or a fraction of one.
        *((by_rows(times=3), rows, 3 * rows) for rows in (1, 2, 5)),
        *(
            (by_rows(times=3, per=4), rows, blocks)
            for rows, blocks in ((1, 1), (2, 2), (3, 3), (4, 3), (5, 4))
        ),
        # Some that are always there.
        *((by_rows(base=5, per=8), rows, blocks) for rows, blocks in ((1, 6), (8, 6), (9, 7))),
        # None is one; a negative base takes away.
        (by_rows(times=0), 9, 1),
        *((by_rows(base=-2, per=4), rows, blocks) for rows, blocks in ((1, 1), (8, 1), (12, 1), (13, 2))),
        # The largest step is the most.
        *((by_rows(most=4, per=16), rows, blocks) for rows, blocks in ((63, 4), (64, 4), (65, 4), (999, 4))),
        *((by_rows(most=4, per=16), rows, blocks) for rows, blocks in ((48, 3), (49, 4))),
    ],
)
def test_blocks_of_rows(dim: Dim, rows: int, blocks: int) -> None:
    assert dim.blocks(Extent(rows, 100_000)) == blocks


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(1, 1), (128, 1), (129, 2), (4096, 32), (4097, 33), (9999, 64)]
)
def test_blocks_of_tokens(tokens: int, blocks: int) -> None:
    assert Dim(64, "tokens", per=128).blocks(Extent(500, tokens)) == blocks


def test_a_fixed_number_is_taken_as_it_is() -> None:
    for extent in (Extent(1, 1), Extent(64, 4096)):
        assert (ONE.blocks(extent), Dim(6).blocks(extent)) == (1, 6)
