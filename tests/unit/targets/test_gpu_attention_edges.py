"""Attention over several chunks, at the borders of ratios and windows, and selection over several levels."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest
from unit.targets.gpu_lab import TARGET, VARIANTS, Lab, spec, weight
from unit.targets.kernel_lab import act, block_buffer, block_operand, close, nans, with_dead_rows

from ds4c.errors import TargetError
from ds4c.ir import numpy_ops as ref
from ds4c.ir.block import Block
from ds4c.ir.kernel import KernelSpec, Operand
from ds4c.ir.numpy_ops import visible_rows

pytestmark = pytest.mark.slow

T, B, SLOTS, PAGE, CONTEXT, LENGTH, WINDOW, CAPACITY = 64, 2, 2, 4, 640, 600, 128, 193


@contextmanager
def tuned(**changes: int) -> Generator[None]:
    """The description of the target with other sizes of tiles."""
    found = TARGET.description
    changed = replace(found, tuning=replace(found.tuning, **changes))
    with mock.patch.dict(vars(TARGET), {"description": changed}):
        yield


def _rows(width: int, every: int) -> Operand:
    return Operand("rows", "append", "float32", (PAGE, width), "", PAGE * width * 4 + 64, every)


def _pages(every: int) -> Operand:
    return Operand("pages", "pages", "int32", (B, -(-CONTEXT // every // PAGE)))


@dataclass(frozen=True)
class Form:
    """Sizes of one attention: heads, channels, tokens of a compressed row, selected rows; 0 is none."""

    heads: int
    width: int
    every: int
    top_k: int = 0

    def spec(self) -> KernelSpec:
        ring = Operand("old", "ring", "float32", (CAPACITY, self.width), "", (CAPACITY + 1) * self.width * 4)
        operands = [act("q", "in", T, self.heads * self.width), weight("attention", "sink", self.heads), ring]
        operands.append(act("own", "in", T, self.width))
        if self.every:
            operands.append(_rows(self.width, self.every))
        if self.top_k:
            operands.append(act("selection", "in", T, self.top_k, dtype="int32"))
        operands.append(block_operand("at", T, B))
        if self.every:
            operands.append(_pages(self.every))
        operands.append(act("o", "out", T, self.heads * self.width))
        return spec("attention", operands, scale=0.1, window=WINDOW, every=self.every, context=CONTEXT)


FORMS = {
    "raw": Form(3, 512, 0),
    "ratio 4": Form(5, 128, 4),
    "ratio 4, selected": Form(4, 64, 4, 70),
    "ratio 128": Form(2, 256, 128),
    "narrow": Form(1, 24, 4, 9),
    "many heads": Form(33, 16, 128),
}
BORDERS = {"first": 0, "row": 3, "next row": 4, "window": 126, "ring": 190, "late": 508}


class Line:
    """Rows of one session by position."""

    def __init__(self, form: Form, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.form = form
        self.keys = rng.standard_normal((LENGTH, form.width), dtype=np.float32)
        self.q = rng.standard_normal((LENGTH, form.heads * form.width), dtype=np.float32)
        every = form.every or CONTEXT
        self.rows = rng.standard_normal((CONTEXT // every, form.width), dtype=np.float32)
        self.selection = np.full((LENGTH, max(1, form.top_k)), -1, np.int32)
        for p in range(LENGTH if form.top_k else 0):
            n = visible_rows(p, every)
            chosen = np.sort(rng.permutation(n)[: form.top_k])
            self.selection[p, : len(chosen)] = chosen


def run(lab: Lab, name: str, variant: str, lines: list[Line], *segments: tuple[int, int, int]) -> np.ndarray:
    """Attention of a block; rows that no query of it may see hold NaN."""
    form, block = FORMS[name], Block.of(*segments)
    given: dict[str, np.ndarray] = {"sink": np.linspace(-1, 1, form.heads, dtype=np.float32)}
    ring = nans(SLOTS, CAPACITY + 1, form.width)
    for slot, first, _ in segments:
        for p in range(max(0, first - CAPACITY), first):
            ring[slot, p % CAPACITY] = lines[slot].keys[p]
    if form.every:
        given["pages"], given["rows"] = paged(
            form.width,
            form.every,
            [(lines[s].rows, visible_rows(p + n - 1, form.every)) for s, p, n in segments],
        )
    gathered = {
        k: np.concatenate([getattr(lines[s], v)[p : p + n] for s, p, n in segments])
        for k, v in {"q": "q", "own": "keys", "selection": "selection"}.items()
        if k != "selection" or form.top_k
    }
    given |= {k: with_dead_rows(v, T) for k, v in gathered.items()}
    out = nans(T, form.heads * form.width)
    lab.call(name, variant, old=ring, at=block_buffer(block, T, B), o=out, **given)
    assert np.isnan(out[block.num_rows :]).all()
    return out[: block.num_rows]


def paged(width: int, every: int, rows: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Page tables, and pages with the first rows of each segment; all else is NaN."""
    each = _pages(every).shape[1]
    tables = np.random.default_rng(1).permutation(B * each).astype(np.int32).reshape(B, each)
    memory = nans(B * each + 1, PAGE * width + 16)
    for table, (source, count) in zip(tables, rows, strict=False):
        for j in range(count):
            page, row = table[j // PAGE], j % PAGE
            memory[page, row * width : (row + 1) * width] = source[j]
    return tables, memory


def expected(name: str, line: Line, first: int, count: int) -> np.ndarray:
    form, block = FORMS[name], Block.of((0, first, count))
    old = np.zeros((1, WINDOW - 1, form.width))
    for i, p in enumerate(range(first - WINDOW + 1, first)):
        old[0, i] = line.keys[p] if p >= 0 else 0
    at = slice(first, first + count)
    selection = line.selection[at] if form.top_k else None
    rows = line.rows[None].astype(np.float64) if form.every else None
    sink = np.linspace(-1, 1, form.heads, dtype=np.float32).astype(np.float64)
    q, own = line.q[at].astype(np.float64), line.keys[at].astype(np.float64)
    return ref.attention(q, sink, old, own, block, 0.1, WINDOW, rows, selection, form.every)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("edges"))
    for name, form in FORMS.items():
        made.add(name, form.spec())
    return made


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_a_step_at_borders(lab: Lab, name: str) -> None:
    """Steps of 1, 2, 6 and 64 rows from each border: float64, and the same bits however a step is cut."""
    line = Line(FORMS[name], 1)
    for first in BORDERS.values():
        whole = run(lab, name, "cuda", [line], (0, first, 64))
        close(whole, expected(name, line, first, 64))
        assert np.array_equal(run(lab, name, "metal", [line], (0, first, 64)), whole)
        for at, count in ((0, 1), (1, 1), (1, 2), (2, 6), (8, 1), (13, 9), (63, 1)):
            part = run(lab, name, "cuda" if at else "metal", [line], (0, first + at, count))
            assert np.array_equal(part, whole[at : at + count]), (first, at, count)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FORMS)
def test_ragged_segments(lab: Lab, name: str, variant: str) -> None:
    """Two sessions far apart in one step, short and long: the bits of each alone."""
    lines = [Line(FORMS[name], 1), Line(FORMS[name], 2)]
    for one, two in (((0, 255, 2), (1, 0, 3)), ((1, 511, 9), (0, 127, 4))):
        both = run(lab, name, variant, lines, one, two)
        for (slot, first, count), part in zip((one, two), (both[: one[2]], both[one[2] :]), strict=True):
            assert np.array_equal(part, run(lab, name, "cuda", lines, (slot, first, count)))


HEADS, WIDTH, EVERY, TOP_K = 6, 40, 1, 20


def _index(top_k: int = TOP_K) -> KernelSpec:
    operands = [act("q", "in", T, HEADS * WIDTH), act("weights", "in", T, HEADS), _rows(WIDTH, EVERY)]
    operands += [block_operand("at", T, B), _pages(EVERY), act("selection", "out", T, top_k, dtype="int32")]
    return spec("index_select", operands, every=EVERY, scale=0.5, top_k=top_k, context=CONTEXT)


@pytest.fixture(scope="module")
def select_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Selection of 20 of 640 rows by blocks of 64: four levels; and of more rows than there are."""
    with tuned(select_rows=64, threads=64, index_rows=32):
        made = Lab(tmp_path_factory.mktemp("select"))
        made.add("levels", _index())
        made.add("all", _index(CONTEXT + 5))
        assert len(made.emitted()["levels"]) == 5
        assert len(made.emitted()["all"]) == 1
    return made


def ties(seed: int) -> dict[str, np.ndarray]:
    """Small whole numbers, exact in any order: few different scores, many of them 0 or -0."""
    rng = np.random.default_rng(seed)
    return {
        "q": rng.integers(-1, 2, (LENGTH, HEADS * WIDTH)).astype(np.float32),
        "weights": np.float32(rng.random((LENGTH, 1)) < 0.8)
        * rng.integers(-1, 2, (LENGTH, HEADS)).astype(np.float32),
        "rows": np.repeat(rng.integers(-1, 2, (CONTEXT // 5, WIDTH)), 5, axis=0).astype(np.float32),
    }


def select(
    lab: Lab, name: str, variant: str, line: dict[str, np.ndarray], first: int, count: int
) -> np.ndarray:
    top_k = int(lab.specs[name].attr("top_k"))
    tables, memory = paged(WIDTH, EVERY, [(line["rows"], visible_rows(first + count - 1, EVERY))])
    out = nans(T, top_k, dtype=np.int32)
    at = block_buffer(Block.of((0, first, count)), T, B)
    given = {k: with_dead_rows(line[k][first : first + count], T) for k in ("q", "weights")}
    lab.call(name, variant, rows=memory, pages=tables, at=at, selection=out, **given)
    assert (out[count:] == -99).all()
    return out[:count]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("first", [0, 18, 19, 20, 62, 63, 64, 127, 128, 300, 535])
def test_selection_with_ties_over_levels(select_lab: Lab, variant: str, first: int) -> None:
    line = ties(first)
    count = 6 if variant.startswith("checked") else 64
    block = Block.of((0, first, count))
    at = slice(first, first + count)
    q, weights, rows = (line[k].astype(np.float64) for k in ("q", "weights", "rows"))
    scores = ref.index_scores(q[at], weights[at], rows[None], block, EVERY, 0.5)
    want = ref.select_rows(scores, block, EVERY, TOP_K)
    assert np.array_equal(select(select_lab, "levels", variant, line, first, count), want)
    for i in (0, 1, count - 1):
        assert np.array_equal(select(select_lab, "levels", variant, line, first + i, 1), want[i : i + 1])
    everything = select(select_lab, "all", variant, line, first, count)
    for i, got in enumerate(everything):
        visible = visible_rows(first + i, EVERY)
        assert np.array_equal(got[:visible], np.arange(visible))
        assert (got[visible:] == -1).all()


def test_sizes_that_no_kernel_does() -> None:
    with (
        tuned(select_rows=64),
        pytest.raises(TargetError, match=r"^gpu index_select: expected top_k at most 32, got 40"),
    ):
        _index(40)
    with pytest.raises(TargetError, match=r"^gpu attention: expected at most 768 channels a head, got 1024"):
        Form(1, 1024, 0).spec()


def test_code_is_exact_and_needs_no_library(lab: Lab, select_lab: Lab) -> None:
    lab.check_code()
    select_lab.check_code()
