"""Kernels at sizes where the work is shared out to threads: the bits of one row at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    COUNT,
    VARIANTS,
    Lab,
    act,
    block_buffer,
    block_operand,
    count_buffer,
    nans,
    placed,
    set_threads,
    spec,
    weight,
)

from ds4c.ir.block import Block
from ds4c.ir.kernel import Operand

T, WIDTH, HEADS, EVERY = 256, 1024, 20, 4
PAGE = 32


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("parallel"))
    x, y = act("x", "in", T, WIDTH), act("y", "out", T, WIDTH)
    made.add("norm", spec("rms_norm", [x, weight("rms_norm", "gain", WIDTH), y, COUNT], eps=1e-6))
    fn, base = weight("hc_mix", "fn", 24, WIDTH), weight("hc_mix", "base", 24)
    out = [act("pre", "out", T, 4), act("post", "out", T, 4), act("mix", "out", T, 4, 4)]
    streams = act("x", "in", T, 4, WIDTH // 4)
    operands = [streams, fn, base, weight("hc_mix", "scale", 3), *out, COUNT]
    made.add("mix", spec("hc_mix", operands, iters=3, eps=1e-6, norm_eps=1e-6))
    at, pages = block_operand("at", T, 1), Operand("pages", "pages", "int32", (1, 8))
    rows = Operand("rows", "append", "float32", (PAGE, 64), "", PAGE * 64 * 4, EVERY)
    operands = [
        act("q", "in", T, HEADS * 64),
        weight("attention", "sink", HEADS),
        act("old", "in", 1, 63, 64),
    ]
    operands += [act("own", "in", T, 64), rows, at, pages, act("o", "out", T, HEADS * 64)]
    made.add("attention", spec("attention", operands, scale=0.1, window=64, every=EVERY, context=1024))
    operands = [act("q", "in", T, HEADS * 64), act("weights", "in", T, HEADS), rows, at, pages]
    operands.append(act("selection", "out", T, 16, dtype="int32"))
    made.add("select", spec("index_select", operands, every=EVERY, scale=0.1, top_k=16, context=1024))
    route = [act("logits", "in", T, 256), weight("route_top", "bias", 256)]
    route += [act("experts", "out", T, 4, dtype="int32"), act("weights", "out", T, 4), COUNT]
    made.add("route", spec("route_top", route, top_k=4, scale=1.0))
    return made


def _random(*shape: int) -> np.ndarray:
    return placed(np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32))


def _rows(lab: Lab, name: str, variant: str, start: int, end: int) -> list[np.ndarray]:
    """Outputs of rows `[start, end)` of one session, all at once."""
    arrays: dict[str, np.ndarray] = {}
    keys = _random(T, 64)
    for operand in lab.specs[name].operands:
        if operand.role == "out":
            dtype = np.int32 if operand.dtype == "int32" else np.float32
            arrays[operand.name] = nans(*operand.shape, dtype=dtype)
        elif operand.name == "old":
            old = nans(1, 63, 64)
            held = np.arange(max(0, start - 63), start)
            old[0, 63 - start + held] = keys[held]
            arrays["old"] = old
        elif operand.role == "in":
            whole = keys if operand.name == "own" else _random(*operand.shape)
            part = nans(*operand.shape)
            part[: end - start] = whole[start:end]
            arrays[operand.name] = part
        elif operand.role in ("weight", "append"):
            shape = operand.shape if operand.role == "weight" else (8, PAGE, 64)
            arrays[operand.name] = _random(*shape)
    arrays["count"] = count_buffer(end - start)
    arrays["at"] = block_buffer(Block.of((0, start, end - start)), T, 1)
    arrays["pages"] = placed(np.array([[5, 2, 7, 0, 1, 3, 4, 6]], np.int32))
    outputs = [o.name for o in lab.specs[name].operands if o.role == "out"]
    lab.call(name, variant, **{o.name: arrays[o.name] for o in lab.specs[name].operands if o.name in arrays})
    return [arrays[o][: end - start] for o in outputs]


@pytest.mark.parametrize("name", ["norm", "mix", "attention", "select", "route"])
def test_many_rows_have_the_bits_of_single_rows(lab: Lab, name: str) -> None:
    call: Callable[..., list[np.ndarray]] = _rows
    whole = call(lab, name, "generic", 0, T)
    for variant in VARIANTS:
        for threads in (1, 2):
            set_threads(threads)
            again = call(lab, name, variant, 0, T)
            assert all(np.array_equal(a, b) for a, b in zip(again, whole, strict=True))
    for t in (0, 1, 63, 64, 100, 255):
        single = call(lab, name, VARIANTS[-1], t, t + 1)
        assert all(np.array_equal(a[0], b[t]) for a, b in zip(single, whole, strict=True))
