"""Attention and row selection against float64; bits over chunks, segments, sources, threads, variants."""

from __future__ import annotations

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    VARIANTS,
    Lab,
    act,
    block_buffer,
    block_operand,
    close,
    nans,
    placed,
    set_threads,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.ir import numpy_ops as ref
from ds4c.ir.block import Block
from ds4c.ir.kernel import KernelSpec, Operand
from ds4c.ir.numpy_ops import visible_rows

T, B, SLOTS = 40, 3, 3
WINDOW, CAPACITY, EVERY, CONTEXT = 9, 13, 4, 160
ROWS_PER_PAGE, SESSION_PAGES, TOP_K = 3, 14, 6
SHAPES = {"few": (3, 32), "many": (20, 48)}
INDEX = {"few": (5, 16), "many": (40, 24)}
LENGTH = 150


def _attention(name: str, form: str, compressed: str) -> KernelSpec:
    heads, width = SHAPES[name]
    if form == "ring":
        old = Operand("old", "ring", "float32", (CAPACITY, width), "", (CAPACITY + 3) * width * 4)
    else:
        old = act("old", "in", B, WINDOW - 1, width)
    operands = [
        act("q", "in", T, heads * width),
        weight("attention", "sink", heads),
        old,
        act("own", "in", T, width),
    ]
    if compressed != "none":
        operands.append(_rows(width))
    if compressed == "selected":
        operands.append(act("selection", "in", T, TOP_K, dtype="int32"))
    operands.append(block_operand("at", T, B))
    if compressed != "none":
        operands.append(_pages())
    operands.append(act("o", "out", T, heads * width))
    every = 0 if compressed == "none" else EVERY
    return spec("attention", operands, scale=0.2, window=WINDOW, every=every, context=CONTEXT)


def _rows(width: int) -> Operand:
    return Operand(
        "rows", "append", "float32", (ROWS_PER_PAGE, width), "", ROWS_PER_PAGE * width * 4 + 64, EVERY
    )


def _pages() -> Operand:
    return Operand("pages", "pages", "int32", (B, SESSION_PAGES))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("attention"))
    for name in SHAPES:
        for form in ("ring", "rows"):
            for compressed in ("none", "all", "selected"):
                if (name, form) != ("many", "rows"):
                    made.add(f"{name}-{form}-{compressed}", _attention(name, form, compressed))
    for name, (heads, width) in INDEX.items():
        operands = [act("q", "in", T, heads * width), act("weights", "in", T, heads), _rows(width)]
        operands += [block_operand("at", T, B), _pages(), act("selection", "out", T, TOP_K, dtype="int32")]
        made.add(
            f"index-{name}",
            spec("index_select", operands, every=EVERY, scale=0.3, top_k=TOP_K, context=CONTEXT),
        )
    return made


class Timeline:
    """One session's rows by position: keys, queries, compressed rows, selections."""

    def __init__(self, seed: int, heads: int, width: int) -> None:
        rng = np.random.default_rng(seed)
        self.keys = rng.standard_normal((LENGTH, width), dtype=np.float32)
        self.q = rng.standard_normal((LENGTH, heads * width), dtype=np.float32)
        self.rows = rng.standard_normal((CONTEXT // EVERY, width), dtype=np.float32)
        self.weights = rng.standard_normal((LENGTH, heads), dtype=np.float32)
        self.selection = np.full((LENGTH, TOP_K), -1, np.int32)
        for p in range(LENGTH):
            n = visible_rows(p, EVERY)
            k = min(n, TOP_K)
            self.selection[p, :k] = np.sort(rng.permutation(n)[:k])


class Step:
    """A block over some timelines, with states whose dead rows hold NaN."""

    def __init__(self, timelines: list[Timeline], *segments: tuple[int, int, int]) -> None:
        self.block = Block.of(*segments)
        self.lines = [timelines[slot] for slot, _, _ in segments]
        width = timelines[0].keys.shape[1]
        self.width = width
        self.ring = nans(SLOTS, CAPACITY + 3, width)
        self.slots = nans(SLOTS, CONTEXT // EVERY, width)
        page_floats = ROWS_PER_PAGE * width + 16
        self.memory = nans(B * SESSION_PAGES + 1, page_floats)
        self.pages = placed(
            np.random.default_rng(0).permutation(B * SESSION_PAGES).astype(np.int32).reshape(B, -1)
        )
        for b, (slot, first, count) in enumerate(segments):
            line = timelines[slot]
            for p in range(max(0, first - CAPACITY), first):
                self.ring[slot, p % CAPACITY] = line.keys[p]
            for j in range(visible_rows(first + count - 1, EVERY)):
                self.slots[slot, j] = line.rows[j]
                page, row = self.pages[b, j // ROWS_PER_PAGE], j % ROWS_PER_PAGE
                self.memory[page, row * width : (row + 1) * width] = line.rows[j]

    def gather(self, name: str) -> np.ndarray:
        parts = [
            getattr(line, name)[self.block.first(b) :][: self.block.length(b)]
            for b, line in enumerate(self.lines)
            if self.block.length(b)
        ]
        return np.concatenate(parts)

    def given(self) -> dict[str, np.ndarray]:
        return {"at": block_buffer(self.block, T, B), "pages": self.pages, "rows": self.memory}

    def attention(self, lab: Lab, name: str, sink: np.ndarray, variant: str) -> np.ndarray:
        operands = {o.name for o in lab.specs[name].operands}
        given = {k: v for k, v in self.given().items() if k in operands}
        if "selection" in operands:
            given["selection"] = with_dead_rows(self.gather("selection"), T)
        old = self.ring
        if "-rows-" in name:
            old = with_dead_rows(ref.read_rows(self.ring[:, :CAPACITY], self.block, WINDOW - 1), B)
        q, own = self.gather("q"), self.gather("keys")
        out = nans(T, q.shape[1])
        lab.call(
            name,
            variant,
            q=with_dead_rows(q, T),
            sink=sink,
            old=old,
            own=with_dead_rows(own, T),
            o=out,
            **given,
        )
        assert np.isnan(out[len(q) :]).all()
        return out[: len(q)]

    def expected(self, name: str, sink: np.ndarray) -> np.ndarray:
        old = ref.read_rows(self.ring[:, :CAPACITY].astype(np.float64), self.block, WINDOW - 1)
        rows = None if name.endswith("none") else self.slots.astype(np.float64)
        selection = self.gather("selection") if name.endswith("selected") else None
        q, own = self.gather("q").astype(np.float64), self.gather("keys").astype(np.float64)
        return ref.attention(
            q, sink.astype(np.float64), old, own, self.block, 0.2, WINDOW, rows, selection, EVERY
        )

    def select(self, lab: Lab, name: str, variant: str) -> np.ndarray:
        q, weights = self.gather("q"), self.gather("weights")
        out = nans(T, TOP_K, dtype=np.int32)
        lab.call(
            name,
            variant,
            q=with_dead_rows(q, T),
            weights=with_dead_rows(weights, T),
            selection=out,
            **self.given(),
        )
        assert (out[len(q) :] == -99).all()
        return out[: len(q)]


SEGMENTS = [
    [(0, 0, 1)],
    [(1, 0, 17)],
    [(2, 7, 2), (0, 60, 5)],
    [(0, 100, 1), (2, 3, 0), (1, 20, 30)],
    [(1, 149, 1), (0, 8, 1)],
]
NAMES = [f"{n}-{f}-{c}" for n in SHAPES for f in ("ring", "rows") for c in ("none", "all", "selected")]
NAMES = [n for n in NAMES if not n.startswith("many-rows")]


def _timelines(heads: int, width: int) -> list[Timeline]:
    return [Timeline(seed, heads, width) for seed in range(SLOTS)]


@pytest.mark.parametrize("name", NAMES)
def test_attention_equals_float64(lab: Lab, name: str) -> None:
    heads, width = SHAPES[name.split("-")[0]]
    lines = _timelines(heads, width)
    sink = np.random.default_rng(9).standard_normal(heads, dtype=np.float32)
    for segments in SEGMENTS:
        step = Step(lines, *segments)
        got = [step.attention(lab, name, sink, variant) for variant in VARIANTS]
        close(got[0], step.expected(name, sink))
        assert all(np.array_equal(g, got[0]) for g in got)


@pytest.mark.parametrize("name", NAMES)
def test_attention_bits_do_not_depend_on_the_chunk(lab: Lab, name: str) -> None:
    heads, width = SHAPES[name.split("-")[0]]
    lines = _timelines(heads, width)
    sink = np.zeros(heads, np.float32)
    whole = Step(lines, (0, 0, 38)).attention(lab, name, sink, "generic")
    single = [Step(lines, (0, p, 1)).attention(lab, name, sink, VARIANTS[-1]) for p in range(38)]
    assert np.array_equal(np.concatenate(single), whole)
    beside = Step(lines, (1, 50, 3), (0, 20, 13)).attention(lab, name, sink, "generic")
    assert np.array_equal(beside[3:], whole[20:33])
    set_threads(1)
    assert np.array_equal(Step(lines, (0, 0, 38)).attention(lab, name, sink, "generic"), whole)
    set_threads(2)


def test_ring_and_read_rows_give_the_same_bits(lab: Lab) -> None:
    lines = _timelines(*SHAPES["few"])
    step, sink = Step(lines, (0, 33, 5), (2, 4, 9)), np.ones(3, np.float32)
    for compressed in ("none", "all", "selected"):
        results = [
            step.attention(lab, f"few-{form}-{compressed}", sink, "generic") for form in ("ring", "rows")
        ]
        assert np.array_equal(*results)


def test_a_far_sink_and_far_scores_give_exact_zero_weights(lab: Lab) -> None:
    lines = _timelines(*SHAPES["few"])
    step = Step(lines, (0, 30, 2))
    sink = np.array([400.0, -400.0, 0.0], np.float32)
    got = step.attention(lab, "few-ring-all", sink, "generic")
    close(got, step.expected("few-ring-all", sink))
    assert (got[:, :32] == 0).all()


@pytest.mark.parametrize("name", INDEX)
def test_index_select_equals_float64(lab: Lab, name: str) -> None:
    lines = _timelines(*INDEX[name])
    for segments in SEGMENTS:
        step = Step(lines, *segments)
        q, weights = step.gather("q").astype(np.float64), step.gather("weights").astype(np.float64)
        scores = ref.index_scores(q, weights, step.slots.astype(np.float64), step.block, EVERY, 0.3)
        want = ref.select_rows(scores, step.block, EVERY, TOP_K)
        for variant in VARIANTS:
            assert np.array_equal(step.select(lab, f"index-{name}", variant), want)


@pytest.mark.parametrize("name", INDEX)
def test_index_select_does_not_depend_on_the_chunk(lab: Lab, name: str) -> None:
    lines = _timelines(*INDEX[name])
    whole = Step(lines, (0, 100, 40)).select(lab, f"index-{name}", "generic")
    single = [
        Step(lines, (1, 3, 2), (0, 100 + i, 1)).select(lab, f"index-{name}", VARIANTS[-1])[2:]
        for i in range(40)
    ]
    assert np.array_equal(np.concatenate(single), whole)


def test_index_ties_go_to_the_lower_row(lab: Lab) -> None:
    lines = _timelines(*INDEX["few"])
    lines[0].rows[:] = lines[0].rows[0]
    lines[0].rows[20] *= np.where(lines[0].q[140, :16] > 0, 2, 1)
    lines[0].weights[140] = 0
    assert Step(lines, (0, 140, 1)).select(lab, "index-few", "generic").tolist() == [[0, 1, 2, 3, 4, 5]]
    lines[0].weights[141] = 1
    lines[0].q[141] = 1
    lines[0].rows[:] = 0.5
    lines[0].rows[20] = 1.0
    assert Step(lines, (0, 141, 1)).select(lab, "index-few", "generic").tolist() == [[0, 1, 2, 3, 4, 20]]
    lines[0].weights[142] = -1
    lines[0].q[142] = 1
    assert Step(lines, (0, 142, 1)).select(lab, "index-few", "generic").tolist() == [[0, 1, 2, 3, 4, 5]]


def test_code_is_exact_and_needs_no_library(lab: Lab) -> None:
    lab.check_code()
