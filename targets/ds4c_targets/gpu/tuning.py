"""What the shape of a GPU kernel may depend on; results do not, but for `matrix`. Read from `target.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
"""Lanes that exchange values. A wave of 64 works as two independent halves."""


@dataclass(frozen=True)
class Tuning:
    """Sizes of blocks and tiles.

    Attributes:
        threads: threads of a block.
        gemv_rows: output rows of a warp of a matrix product.
        gemv_tokens: token rows of a warp of a matrix product; `gemv_rows * gemv_tokens` is at most 32.
        gemv_ahead: vectors of each row that a lane of a matrix product loads at once for one token row.
        gemv_blocks: blocks of a matrix product; products of few output rows have smaller blocks to get there.
        matrix: form of `gpu/matrix.py` that does a linear of float16 weights, empty for none. It rounds the
            activations to float16: the one entry that changes results.
        matrix_tokens: token rows of a warp of such a product.
        attention_rows: rows of one chunk of attention; chunks are parallel and merged in order.
        attention_heads: heads of one block of attention.
        attention_warp_heads: heads of one warp of attention.
        attention_split: most rows of a step whose chunks are done in parallel.
        index_rows: rows of one block of the scores of the indexer, a multiple of 32.
        select_rows: rows of one block of the selection.
        hyper_channels: channels of one slice of the products of a control vector.
        copy_blocks: blocks that share the rows of one ring in a fork, a snapshot or a restore.
        step_copy_blocks: the same where most steps have nothing to copy.
    """

    threads: int = 256
    gemv_rows: int = 4
    gemv_tokens: int = 8
    gemv_ahead: int = 2
    gemv_blocks: int = 256
    matrix: str = ""
    matrix_tokens: int = 32
    attention_rows: int = 64
    attention_heads: int = 16
    attention_warp_heads: int = 2
    attention_split: int = 8
    index_rows: int = 64
    select_rows: int = 4096
    hyper_channels: int = 1024
    copy_blocks: int = 32
    step_copy_blocks: int = 8

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // WARP
