"""Sizes of the kernels that select rows; no tvm here.

A launch scores all visible rows. Then each block of `segment` scores gives its own best `top_k` in order of
rows, and so on over what they gave, until one block is left: a row of the best `top_k` of all is among the
best of its block, and the order of rows is kept, so that ties still go to the lower row.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.gpu.tuning import WARP, Tuning

_MOST_HEADS = 128  # registers of a thread, shared memory of a block
_MOST_SEGMENT = 1 << 14  # counts of a block are packed in pairs


@dataclass(frozen=True)
class IndexPlan:
    """Sizes for one spec.

    Attributes:
        rows: most rows of a step.
        heads: indexer heads.
        width: channels of a head.
        count: compressed rows a query may see.
        top_k: rows to select.
        tile: rows of a block of scores.
        warps: warps of a block of scores.
        threads: threads of a block that selects.
        segment: candidates of a block that selects.
    """

    rows: int
    heads: int
    width: int
    count: int
    top_k: int
    tile: int
    warps: int
    threads: int
    segment: int

    @staticmethod
    def of(spec: KernelSpec, tuning: Tuning) -> IndexPlan:
        """Sizes for a spec.

        Raises:
            TargetError: more heads or a larger selection than the kernels can do.
        """
        rows, heads = spec.operand("weights").shape
        width, top_k = spec.operand("rows").shape[1], int(spec.attr("top_k"))
        count = int(spec.attr("context")) // int(spec.attr("every"))
        threads = min(tuning.threads, -(-count // WARP) * WARP)
        segment = min(tuning.select_rows, _MOST_SEGMENT, -(-count // threads) * threads)
        _expect(heads <= _MOST_HEADS, "heads", f"at most {_MOST_HEADS}", heads)
        _expect(
            count <= max(top_k, segment) or 2 * top_k <= segment, "top_k", f"at most {segment // 2}", top_k
        )
        groups = tuning.index_rows // WARP
        warps = groups * min(max(1, tuning.warps // groups), heads)
        return IndexPlan(rows, heads, width, count, top_k, tuning.index_rows, warps, threads, segment)

    @property
    def row_groups(self) -> int:
        """Warps that share the rows of a tile; the others do other heads of the same rows."""
        return self.tile // WARP

    @property
    def warp_heads(self) -> int:
        """Heads of a warp; those past the last one weigh nothing."""
        return -(-self.heads // (self.warps // self.row_groups))

    @property
    def stage(self) -> int:
        """Channels that are in shared memory at a time, a multiple of 4."""
        return min(32, -(-self.width // 4) * 4)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Most candidates of each level of the selection; none where every row is taken anyway."""
        if self.count <= self.top_k:
            return ()
        found = [self.count]
        while found[-1] > self.segment:
            found.append(-(-found[-1] // self.segment) * self.top_k)
        return tuple(found)

    @property
    def keys_at(self) -> tuple[int, ...]:
        """Element of the keys of each level, uint32 `[rows, size]`; after the first, row numbers follow."""
        starts, at = [], 0
        for level, size in enumerate(self.sizes):
            starts.append(at)
            at += self.rows * size * (1 if level == 0 else 2)
        return (*starts, at)

    @property
    def scratch_bytes(self) -> int:
        """All of it."""
        return 4 * self.keys_at[-1]


def _expect(fits: bool, dimension: str, expected: str, got: object) -> None:
    if not fits:
        raise TargetError(f"gpu index_select: expected {dimension} {expected}, got {got}")
