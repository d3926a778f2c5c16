"""Sizes of the attention kernels; no tvm here.

The rows that a query sees stand in chunks of `chunk` rows: first raw rows, by `position // chunk`, then
compressed rows, by number (or place in the selection) `// chunk`. A step of at most `split` rows does the
chunks in parallel and merges their results; a longer one does them one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec
from ds4c_targets.gpu.tuning import WARP, Tuning

TILE = 8
"""Rows that are in shared memory at a time."""
_MOST_WIDTH = 768  # a tile and its marks are below the 32 KiB of Metal


@dataclass(frozen=True)
class AttentionPlan:
    """Sizes for one spec.

    Attributes:
        rows: most rows of a step.
        heads: number of heads.
        width: channels of a head.
        window: raw rows a query sees.
        compressed: compressed rows a query may see.
        every: tokens of a compressed row; 0 without them.
        chunk: rows of a chunk.
        split: most rows of a step whose chunks are done in parallel.
        warp_heads: heads of a warp.
        warps: warps of a block.
        vector: channels that a thread loads at once.
    """

    rows: int
    heads: int
    width: int
    window: int
    compressed: int
    every: int
    chunk: int
    split: int
    warp_heads: int
    warps: int
    vector: int

    @staticmethod
    def of(spec: KernelSpec, tuning: Tuning) -> AttentionPlan:
        """Sizes for a spec.

        Raises:
            TargetError: heads that are too wide for shared memory.
        """
        heads, (rows, width) = spec.operand("sink").shape[0], spec.operand("own").shape
        if width > _MOST_WIDTH:
            raise TargetError(f"gpu attention: expected at most {_MOST_WIDTH} channels a head, got {width}")
        every = int(spec.attr("every")) if spec.has("rows") else 0
        compressed = int(spec.attr("context")) // every if every else 0
        if spec.has("selection"):
            compressed = min(compressed, spec.operand("selection").shape[1])
        warp_heads = min(heads, tuning.attention_warp_heads)
        return AttentionPlan(
            rows,
            heads,
            width,
            int(spec.attr("window")),
            compressed,
            every,
            tuning.attention_rows,
            min(rows, tuning.attention_split),
            warp_heads,
            min(tuning.warps, -(-heads // warp_heads), max(1, tuning.attention_heads // warp_heads)),
            _vector(spec, width),
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def groups(self) -> int:
        """Blocks for the heads of a row."""
        return -(-self.heads // (self.warps * self.warp_heads))

    @property
    def padded(self) -> int:
        """Channels of a row in shared memory; those past the width are zero."""
        return -(-self.width // (WARP * self.vector)) * WARP * self.vector

    @property
    def raw_chunks(self) -> int:
        """Most chunks of raw rows."""
        return (self.window + self.chunk - 2) // self.chunk + 1

    @property
    def chunks(self) -> int:
        """Most chunks of a query."""
        return self.raw_chunks - (-self.compressed // self.chunk)

    @property
    def states_at(self) -> int:
        """Element of the states of the chunks, float32 `[split, heads, chunks, (top, total)]`.

        Before them are their weighted rows `[split, heads, chunks, width]`.
        """
        return self.split * self.heads * self.chunks * self.width

    @property
    def scratch_bytes(self) -> int:
        """All of it."""
        return 4 * (self.states_at + self.split * self.heads * self.chunks * 2)


def _vector(spec: KernelSpec, width: int) -> int:
    """Channels of one load: as many as fill whole warps and keep every row of every operand aligned."""
    strides = [o.stride_bytes for o in spec.operands if o.role in ("ring", "append")]
    for channels in (4, 2):
        if width % (WARP * channels) == 0 and all(s % (4 * channels) == 0 for s in strides):
            return channels
    return 1
