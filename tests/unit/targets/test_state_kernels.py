"""States: windows, ring reads and writes, append pages, pooling and fork, against the NumPy meaning."""

from __future__ import annotations

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    VARIANTS,
    Lab,
    act,
    aligned,
    block_buffer,
    block_operand,
    close,
    nans,
    placed,
    spec,
    with_dead_rows,
)

from ds4c.ir import numpy_ops as ref
from ds4c.ir.block import Block
from ds4c.ir.kernel import BlockLayout, Operand

T, B, J, SLOTS, CAPACITY, WIDTH = 24, 3, 12, 4, 11, 20
EVERY, ROWS_PER_PAGE, PAGES = 4, 3, 20
BLOCKS = [
    Block.of((2, 0, 1)),
    Block.of((1, 0, 9), (3, 7, 0), (0, 5, 13)),
    Block.of((0, 30, 1), (1, 15, 17)),
    Block.of((3, 3, 0), (2, 3, 1), (1, 2, 3)),
    Block.of(),
]
WINDOWS = block_operand("windows", J, B)


def ring(name: str, width: int, stride: int) -> Operand:
    return Operand(name, "ring", "float32", (CAPACITY, width), "", stride)


def pool_with_garbage(rng: np.random.Generator, block: Block, width: int, stride_rows: int) -> np.ndarray:
    """Slots `[SLOTS, stride_rows, width]`: the live positions before the block are set, the others NaN."""
    found = nans(SLOTS, stride_rows, width)
    for b, slot in enumerate(block.slots):
        if block.length(b):
            first = block.first(b)
            live = np.arange(max(0, first - CAPACITY), first)
            found[slot, live % CAPACITY] = rng.standard_normal((len(live), width))
    return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("state"))
    at = block_operand("at", T, B)
    made.add("windows", spec("windows", [at, WINDOWS], every=EVERY))
    stride = (CAPACITY + 5) * WIDTH * 4
    made.add(
        "read", spec("read_rows", [ring("state", WIDTH, stride), at, act("rows", "out", B, 7, WIDTH)], span=7)
    )
    made.add("write", spec("write", [ring("state", WIDTH, stride), act("rows", "in", T, WIDTH), at]))
    state = Operand("state", "append", "float32", (ROWS_PER_PAGE, WIDTH), "", 4 * 100, EVERY)
    pages = Operand("pages", "pages", "int32", (B, 5))
    windows = block_operand("at", J, B)
    made.add("append", spec("append", [state, act("rows", "in", J, WIDTH), windows, pages]))
    fork = act("args", "in", 4, dtype="int32")
    made.add("fork", spec("fork", [ring("state", WIDTH, stride), fork], align=4, back=4))
    for lanes in (1, 2):
        wide = lanes * WIDTH
        own = [act("kv", "in", T, wide), act("score", "in", T, wide)]
        for form in ("ring", "rows"):
            old = [
                ring(n, wide, CAPACITY * wide * 4) if form == "ring" else act(n, "in", B, 7, wide)
                for n in ("kv_old", "score_old")
            ]
            operands = [old[0], own[0], old[1], own[1], at, WINDOWS, act("rows", "out", J, WIDTH)]
            made.add(f"pool{lanes}{form}", spec("pool", operands, every=EVERY, lanes=lanes))
    return made


@pytest.mark.parametrize("block", BLOCKS)
def test_windows(lab: Lab, block: Block) -> None:
    want = block.windows(EVERY)
    layout = BlockLayout(J, B)
    for variant in VARIANTS:
        out = aligned((layout.size,), np.int32)
        lab.call("windows", variant, at=block_buffer(block, T, B), windows=out)
        assert np.array_equal(
            np.where(block_buffer(want, J, B) == -7, 0, out),
            np.where(block_buffer(want, J, B) == -7, 0, block_buffer(want, J, B)),
        )
        assert out[0] == want.num_rows


@pytest.mark.parametrize("block", BLOCKS)
def test_ring_reads_and_writes(lab: Lab, block: Block) -> None:
    rng = np.random.default_rng(1)
    slots = pool_with_garbage(rng, block, WIDTH, CAPACITY + 5)
    want = ref.read_rows(slots[:, :CAPACITY], block, 7)
    rows = rng.standard_normal((block.num_rows, WIDTH), dtype=np.float32)
    for variant in VARIANTS:
        out = nans(B, 7, WIDTH)
        lab.call("read", variant, state=slots, at=block_buffer(block, T, B), rows=out)
        assert np.array_equal(out[: len(block.slots)], want)
        got = placed(slots)
        lab.call("write", variant, state=got, rows=with_dead_rows(rows, T), at=block_buffer(block, T, B))
        expected = slots.copy()
        ref.write(expected[:, :CAPACITY], rows, block)
        assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("block", BLOCKS)
def test_append_goes_through_the_page_table(lab: Lab, block: Block) -> None:
    rng = np.random.default_rng(2)
    closed = block.windows(EVERY)
    rows = rng.standard_normal((closed.num_rows, WIDTH), dtype=np.float32)
    pages = placed(rng.permutation(PAGES)[: B * 5].astype(np.int32).reshape(B, 5))
    for variant in VARIANTS:
        memory = nans(PAGES, 100)
        at = block_buffer(closed, J, B)
        lab.call("append", variant, state=memory, rows=with_dead_rows(rows, J), at=at, pages=pages)
        expected = nans(PAGES, 100)
        for r, (p, b) in enumerate(zip(closed.positions, closed.row_segment, strict=True)):
            page, row = divmod(int(p) // EVERY, ROWS_PER_PAGE)
            expected[pages[b, page], row * WIDTH : (row + 1) * WIDTH] = rows[r]
        assert np.array_equal(memory, expected, equal_nan=True)


@pytest.mark.parametrize(("first", "at"), [(0, 3), (9, 9), (9, 13), (22, 30), (30, 30), (5, 25), (3, 3)])
def test_fork_copies_the_live_rows(lab: Lab, first: int, at: int) -> None:
    rng = np.random.default_rng(3)
    slots = rng.standard_normal((SLOTS, CAPACITY + 5, WIDTH), dtype=np.float32)
    got, expected = placed(slots), slots.copy()
    lab.call("fork", state=got, args=placed(np.array([3, 1, first, at], np.int32)))
    for position in range(max(0, first // 4 * 4 - 4, at - CAPACITY), at):
        expected[1, position % CAPACITY] = slots[3, position % CAPACITY]
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("block", BLOCKS)
def test_pool(lab: Lab, lanes: int, block: Block) -> None:
    rng = np.random.default_rng(4)
    wide = lanes * WIDTH
    own = [rng.standard_normal((block.num_rows, wide), dtype=np.float32) * 3 for _ in range(2)]
    slots = [pool_with_garbage(rng, block, wide, CAPACITY) for _ in range(2)]
    old = [ref.read_rows(s, block, 7) for s in slots]
    args = [a.astype(np.float64) for a in (old[0], own[0], old[1], own[1])]
    want = ref.pool(*args, block, EVERY, lanes)
    closed = block.windows(EVERY)
    given = {
        "kv": with_dead_rows(own[0], T),
        "score": with_dead_rows(own[1], T),
        "at": block_buffer(block, T, B),
        "windows": block_buffer(closed, J, B),
    }
    results = []
    for variant in VARIANTS:
        for form in ("ring", "rows"):
            source = slots if form == "ring" else [with_dead_rows(o, B) for o in old]
            out = nans(J, WIDTH)
            lab.call(
                f"pool{lanes}{form}",
                variant,
                kv_old=placed(source[0]),
                score_old=placed(source[1]),
                rows=out,
                **given,
            )
            close(out[: closed.num_rows], want)
            assert np.isnan(out[closed.num_rows :]).all()
            results.append(out)
    assert all(np.array_equal(r, results[0], equal_nan=True) for r in results)


def test_pool_does_not_depend_on_the_chunk(lab: Lab) -> None:
    rng = np.random.default_rng(5)
    kv, score = (rng.standard_normal((20, 2 * WIDTH), dtype=np.float32) for _ in range(2))
    whole = _pool_chunks(lab, kv, score, [20])
    for chunks in ([1] * 20, [3, 5, 12], [7, 1, 1, 11]):
        assert np.array_equal(_pool_chunks(lab, kv, score, chunks), whole)


def _pool_chunks(lab: Lab, kv: np.ndarray, score: np.ndarray, chunks: list[int]) -> np.ndarray:
    slots = [nans(SLOTS, CAPACITY, 2 * WIDTH) for _ in range(2)]
    found, start = [], 0
    for size in chunks:
        block = Block.of((2, start, size))
        rows = [a[start : start + size] for a in (kv, score)]
        closed, out = block.windows(EVERY), nans(J, WIDTH)
        lab.call(
            "pool2ring",
            kv_old=slots[0],
            score_old=slots[1],
            kv=with_dead_rows(rows[0], T),
            score=with_dead_rows(rows[1], T),
            at=block_buffer(block, T, B),
            windows=block_buffer(closed, J, B),
            rows=out,
        )
        found.append(out[: closed.num_rows])
        for slot, own in zip(slots, rows, strict=True):
            ref.write(slot, own, block)
        start += size
    return np.concatenate(found)


def test_code_is_exact_and_needs_no_library(lab: Lab) -> None:
    lab.check_code()
