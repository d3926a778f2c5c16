"""Sizes that grids are made for: few ones, each at least the step's and at most the artifact's."""

from __future__ import annotations

import pytest

from ds4c_runtime.launches import Extent, bucket


@pytest.mark.parametrize(
    ("rows", "bucket_rows"), [(1, 1), (2, 2), (3, 4), (5, 6), (7, 8), (8, 8), (9, 16), (256, 256), (257, 500)]
)
def test_rows_go_to_the_next_of_the_list(rows: int, bucket_rows: int) -> None:
    assert bucket(Extent(rows, 1), 500, 4096) == Extent(bucket_rows, 4096)


@pytest.mark.parametrize(
    ("tokens", "bucket_tokens"), [(1, 4096), (4096, 4096), (4097, 32768), (32768, 32768), (32769, 100_000)]
)
def test_tokens_go_by_factors_of_eight(tokens: int, bucket_tokens: int) -> None:
    assert bucket(Extent(1, tokens), 64, 100_000) == Extent(1, bucket_tokens)


def test_no_more_than_the_artifact_has() -> None:
    assert bucket(Extent(9, 50), 12, 256) == Extent(12, 256)
