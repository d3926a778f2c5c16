"""Pooling by GPU kernels at the borders of windows of 4 and 128 tokens, in steps of 1 to 64 rows."""

from __future__ import annotations

import numpy as np
import pytest
from unit.targets.gpu_lab import VARIANTS, Lab, spec
from unit.targets.kernel_lab import act, block_buffer, block_operand, close, nans, with_dead_rows

from ds4c.ir import numpy_ops as ref
from ds4c.ir.block import Block
from ds4c.ir.kernel import Operand

pytestmark = pytest.mark.slow

T, B, WIDTH, LENGTH, SLOTS = 64, 2, 40, 330, 2
FORMS = {"ratio 4": (4, 2, 12), "ratio 128": (128, 1, 192)}
"""Tokens of a window, lanes, rows of the ring."""


def _windows(every: int) -> int:
    return T // every + B


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("pool"))
    for name, (every, lanes, capacity) in FORMS.items():
        wide = lanes * WIDTH
        stride = (capacity + 1) * wide * 4
        old = [
            Operand(n, "ring", "float32", (capacity, wide), "", stride, every)
            for n in ("kv_old", "score_old")
        ]
        operands = [old[0], act("kv", "in", T, wide), old[1], act("score", "in", T, wide)]
        windows = block_operand("windows", _windows(every), B)
        operands += [block_operand("at", T, B), windows, act("rows", "out", _windows(every), WIDTH)]
        made.add(name, spec("pool", operands, every=every, lanes=lanes))
    return made


def run(lab: Lab, name: str, variant: str, lines: np.ndarray, *segments: tuple[int, int, int]) -> np.ndarray:
    """Rows of the windows that close in a block; the ring holds NaN where nothing is live."""
    every, lanes, capacity = FORMS[name]
    block = Block.of(*segments)
    rings = [nans(SLOTS, capacity + 1, lanes * WIDTH) for _ in range(2)]
    for ring, line in zip(rings, lines, strict=True):
        for slot, first, _ in segments:
            for p in range(max(0, first // every * every - (lanes - 1) * every), first):
                ring[slot, p % capacity] = line[slot, p]
    own = [np.concatenate([line[s, p : p + n] for s, p, n in segments]) for line in lines]
    closed = block.windows(every)
    out = nans(_windows(every), WIDTH)
    lab.call(
        name,
        variant,
        kv_old=rings[0],
        score_old=rings[1],
        kv=with_dead_rows(own[0], T),
        score=with_dead_rows(own[1], T),
        at=block_buffer(block, T, B),
        windows=block_buffer(closed, _windows(every), B),
        rows=out,
    )
    assert np.isnan(out[closed.num_rows :]).all()
    return out[: closed.num_rows]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FORMS)
def test_windows_at_borders(lab: Lab, name: str, variant: str) -> None:
    """Float64 for one step over each border; the same bits from single rows, and beside another session."""
    every, lanes, _ = FORMS[name]
    lines = np.random.default_rng(3).standard_normal((2, SLOTS, LENGTH, lanes * WIDTH), dtype=np.float32)
    lines[1] *= 4
    for first, count in ((0, 64), (0, 3), (3, 1), (3, 2), (64, 64), (126, 6), (127, 1), (128, 1), (249, 60)):
        got = run(lab, name, variant, lines, (0, first, count))
        reach = every * lanes
        padded = np.pad(lines[:, :1], ((0, 0), (0, 0), (reach, 0), (0, 0))).astype(np.float64)
        old = padded[:, :, first : first + reach]  # zeros before position 0
        own = [line[0, first : first + count].astype(np.float64) for line in lines]
        want = ref.pool(old[0], own[0], old[1], own[1], Block.of((0, first, count)), every, lanes)
        close(got, want)
        ends = [p for p in range(first, first + count) if (p + 1) % every == 0]
        assert len(ends) == len(got)
        for p, row in zip(ends, got, strict=True):
            assert np.array_equal(run(lab, name, "cuda", lines, (0, p, 1)), row[None])
        beside = run(lab, name, "cuda", lines, (0, first, min(count, 40)), (1, 250, 6))
        mine = len([p for p in ends if p < first + 40])
        assert np.array_equal(beside[:mine], got[:mine])
