"""Norms, rope, hyper-connections and other work on single rows, against float64 and over row counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    COUNT,
    VARIANTS,
    Lab,
    act,
    bf16,
    block_buffer,
    block_operand,
    close,
    count_buffer,
    nans,
    placed,
    rows_buffer,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.ir import numpy_ops as ref
from ds4c.ir.block import Block
from ds4c.ir.kernel import ROWS_OFFSET, Operand

T, EPS = 64, 1e-6
COUNTS = [0, 1, 2, 5, 6, 17, 64]
BLOCK = Block.of((0, 3, 2), (1, 126, 0), (2, 120, 15))
FAR = Block.of((0, 0, 2), (1, 65_534, 3), (2, 2**20 - 3, 3))
HYPER = [(1, 40), (2, 40), (4, 40), (4, 300)]
"""Streams and their channels; the last are more than a block of threads, and more than one slice."""


def _f64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("rows"))
    gain = weight("rms_norm", "gain", 72, dtype="bfloat16")
    made.add(
        "rms_norm", spec("rms_norm", [act("x", "in", T, 72), gain, act("y", "out", T, 72), COUNT], eps=EPS)
    )
    wide = [act("x", "in", T, 700), weight("rms_norm", "gain", 700), act("y", "out", T, 700), COUNT]
    made.add("rms_norm700", spec("rms_norm", wide, eps=EPS))
    made.add(
        "head_norm",
        spec("head_norm", [act("x", "in", T, 120), act("y", "out", T, 120), COUNT], heads=3, eps=EPS),
    )
    for half in (5, 40):
        table = act("table", "in", T, 2, half)
        operands = [act("x", "in", T, 3 * 96), table, act("y", "out", T, 3 * 96), COUNT]
        made.add(f"rope{half}", spec("rope", operands, heads=3, inverse=False))
        made.add(f"unrope{half}", spec("rope", operands, heads=3, inverse=True))
        made.add(f"norm_rope{half}", spec("norm_rope", operands, heads=3, eps=EPS))
    made.add(
        "head_norm96",
        spec("head_norm", [act("x", "in", T, 288), act("y", "out", T, 288), COUNT], heads=3, eps=EPS),
    )
    gain = weight("norm_rope", "gain", 96)
    operands = [act("x", "in", T, 96), gain, act("table", "in", T, 2, 40), act("y", "out", T, 96), COUNT]
    made.add("gain_rope", spec("norm_rope", operands, heads=1, eps=EPS))
    operands = [
        block_operand("at", T, 3),
        weight("rope_table", "coarse", 9, 2, 5, dtype="float64"),
        weight("rope_table", "fine", 16, 2, 5, dtype="float64"),
        act("table", "out", T, 2, 5),
    ]
    made.add("rope_table", spec("rope_table", operands))
    tables = [weight("rope_table", name, 1024, 2, 37, dtype="float64") for name in ("coarse", "fine")]
    operands = [block_operand("at", T, 3), *tables, act("table", "out", T, 2, 37)]
    made.add("rope_table_far", spec("rope_table", operands))
    made.add(
        "add",
        spec("add", [act("x", "in", T, 3, 7), act("y", "in", T, 3, 7), act("z", "out", T, 3, 7), COUNT]),
    )
    operands = [act("x", "in", T, 40), weight("add_position_bias", "bias", 4, 40), block_operand("at", T, 3)]
    made.add("bias", spec("add_position_bias", [*operands, act("y", "out", T, 40)]))
    for width in (40, 300):
        operands = [act(name, "in", T, width) for name in ("gate", "up")]
        operands += [act("y", "out", T, width), COUNT]
        made.add(f"swiglu{width}", spec("swiglu", operands, clamp=3.0))
    operands = [act("tokens", "in", T, dtype="int32"), weight("embed", "table", 30, 24, dtype="bfloat16")]
    made.add("embed", spec("embed", [*operands, act("x", "out", T, 4, 24), COUNT], copies=4))
    rows = Operand("rows", "rows", "int32", (ROWS_OFFSET + 6,))
    made.add("take_rows", spec("take_rows", [act("x", "in", T, 2, 12), rows, act("y", "out", 6, 2, 12)]))
    for n, d in HYPER:
        _add_hyper(made, n, d)
    return made


def _add_hyper(made: Lab, n: int, d: int) -> None:
    x, m, size = act("x", "in", T, n, d), (2 + n) * n, f"{n}x{d}"
    fn, base, scale = (
        weight("hc_mix", "fn", m, n * d),
        weight("hc_mix", "base", m),
        weight("hc_mix", "scale", 3),
    )
    post, mix = act("post", "out", T, n), act("mix", "out", T, n, n)
    attrs: dict[str, Any] = {"iters": 20, "eps": EPS, "norm_eps": EPS}
    made.add(
        f"hc_mix{size}",
        spec("hc_mix", [x, fn, base, scale, act("pre", "out", T, n), post, mix, COUNT], **attrs),
    )
    gain = weight("hc_enter", "gain", d)
    made.add(
        f"hc_enter{size}",
        spec("hc_enter", [x, fn, base, scale, gain, act("h", "out", T, d), post, mix, COUNT], **attrs),
    )
    made.add(f"hc_pre{size}", spec("hc_pre", [x, act("pre", "in", T, n), act("u", "out", T, d), COUNT]))
    made.add(
        f"norm{size}", spec("rms_norm", [act("x", "in", T, d), gain, act("y", "out", T, d), COUNT], eps=EPS)
    )
    operands = [
        x,
        act("y", "in", T, d),
        act("post", "in", T, n),
        act("mix", "in", T, n, n),
        act("out", "out", T, n, d),
    ]
    made.add(f"hc_post{size}", spec("hc_post", [*operands, COUNT]))
    operands = [
        x,
        weight("hc_collapse", "fn", n, n * d),
        weight("hc_collapse", "base", n),
        weight("hc_collapse", "scale", 1),
    ]
    made.add(
        f"hc_collapse{size}",
        spec("hc_collapse", [*operands, act("h", "out", T, d), COUNT], eps=EPS, norm_eps=EPS),
    )


def run(lab: Lab, name: str, count: int, variant: str = "generic", **given: np.ndarray) -> list[np.ndarray]:
    """Outputs of a kernel for the first `count` rows; inputs past them hold NaN."""
    arrays: dict[str, np.ndarray] = {}
    outputs = []
    for operand in lab.specs[name].operands:
        if operand.role == "out":
            arrays[operand.name] = nans(*operand.shape)
            outputs.append(arrays[operand.name])
        elif operand.role == "count":
            arrays["count"] = count_buffer(count)
        elif operand.role == "in":
            arrays[operand.name] = with_dead_rows(given[operand.name][:count], operand.shape[0])
        elif operand.role != "scratch":
            arrays[operand.name] = given[operand.name]
    lab.call(name, variant, **arrays)
    assert all(np.isnan(out[count:]).all() for out in outputs), "rows past the count were written"
    return [out[:count] for out in outputs]


def check(lab: Lab, name: str, wants: list[np.ndarray], tolerance: float = 2e-6, **given: np.ndarray) -> None:
    """Against float64 at full count; bit-equal at every count and variant."""
    whole = run(lab, name, T, **given)
    for got, want in zip(whole, wants, strict=True):
        close(got, want, tolerance)
    for variant in VARIANTS:
        for count in COUNTS:
            for got, full in zip(run(lab, name, count, variant, **given), whole, strict=True):
                assert np.array_equal(got, full[:count])


def _normal(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def test_rms_norm(lab: Lab) -> None:
    x, gain = _normal(1, (T, 72), (72,))
    gain = bf16(gain)
    check(lab, "rms_norm", [ref.rms_norm(*_f64(x, gain), EPS)], x=x, gain=gain)
    x, gain = _normal(13, (T, 700), (700,))
    check(lab, "rms_norm700", [ref.rms_norm(*_f64(x, gain), EPS)], x=x, gain=gain)


def test_head_norm(lab: Lab) -> None:
    (x,) = _normal(2, (T, 120))
    check(lab, "head_norm", [ref.head_norm(*_f64(x), 3, EPS)], x=x)


@pytest.mark.parametrize("half", [5, 40])
def test_rope_and_inverse(lab: Lab, half: int) -> None:
    x, angle = _normal(3, (T, 288), (T, half))
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for name, inverse in (("rope", False), ("unrope", True)):
        want = ref.rope(*_f64(x, table), 3, inverse)
        check(lab, f"{name}{half}", [want], x=x, table=table)
    there = run(lab, f"rope{half}", T, x=x, table=table)[0]
    close(run(lab, f"unrope{half}", T, x=there, table=table)[0], x.astype(np.float64))


@pytest.mark.parametrize("half", [5, 40])
def test_norm_rope_has_the_bits_of_its_parts(lab: Lab, half: int) -> None:
    x, angle = _normal(4, (T, 288), (T, half))
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    check(
        lab,
        f"norm_rope{half}",
        [ref.rope(ref.head_norm(*_f64(x), 3, EPS), *_f64(table), 3, False)],
        x=x,
        table=table,
    )
    (normed,) = run(lab, "head_norm96", T, x=x)
    (parts,) = run(lab, f"rope{half}", T, x=normed, table=table)
    assert np.array_equal(run(lab, f"norm_rope{half}", T, x=x, table=table)[0], parts)


def test_norm_rope_with_gain(lab: Lab) -> None:
    x, gain, angle = _normal(5, (T, 96), (96,), (T, 40))
    table = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    want = ref.rope(ref.rms_norm(*_f64(x, gain), EPS), *_f64(table), 1, False)
    check(lab, "gain_rope", [want], x=x, gain=gain, table=table)


def test_rope_table_is_rounded_once(lab: Lab) -> None:
    frequency = 1.0 / 10000 ** (np.arange(5) / 5)
    coarse, fine = (np.arange(n)[:, None] * step * frequency for n, step in ((9, 16), (16, 1)))
    coarse, fine = (np.stack([np.cos(a), np.sin(a)], axis=1) for a in (coarse, fine))
    want = ref.rope_table(BLOCK.positions, coarse, fine, np.float64)
    for variant in VARIANTS:
        table = nans(T, 2, 5)
        lab.call("rope_table", variant, at=block_buffer(BLOCK, T, 3), coarse=coarse, fine=fine, table=table)
        assert np.isnan(table[17:]).all()
        exact = np.stack(
            [np.cos(BLOCK.positions[:, None] * frequency), np.sin(BLOCK.positions[:, None] * frequency)], 1
        )
        assert np.abs(table[:17] - want).max() <= 2.0**-25 + 1e-15
        assert np.abs(table[:17] - exact).max() <= 2.0**-25 + 1e-12


def test_rope_table_of_far_positions(lab: Lab) -> None:
    """The float32 nearest to the float64 formula, whatever the position; only ties may go the other way."""
    frequency = 1.0 / 10000 ** (np.arange(37) / 37)
    coarse, fine = (np.arange(1024)[:, None] * step * frequency for step in (1024, 1))
    coarse, fine = (np.stack([np.cos(a), np.sin(a)], axis=1) for a in (coarse, fine))
    want = ref.rope_table(FAR.positions, coarse, fine, np.float64)
    for variant in VARIANTS:
        table, at = nans(T, 2, 37), block_buffer(FAR, T, 3)
        lab.call("rope_table_far", variant, at=at, coarse=coarse, fine=fine, table=table)
        got = table[: FAR.num_rows]
        half_ulp = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64) / 2
        assert (np.abs(got - want) <= half_ulp + 2.0**-45).all()
        assert np.isnan(table[FAR.num_rows :]).all()


def test_add_and_swiglu(lab: Lab) -> None:
    x, y = _normal(6, (T, 3, 7), (T, 3, 7))
    check(lab, "add", [x.astype(np.float64) + y], x=x, y=y)
    for width in (40, 300):
        gate, up = _normal(7, (T, width), (T, width))
        gate, up = gate * 8, up * 4
        gate[0, :3] = (-200.0, 200.0, 0.0)
        check(lab, f"swiglu{width}", [ref.swiglu(*_f64(gate, up), 3.0)], gate=gate, up=up)


def test_add_position_bias(lab: Lab) -> None:
    x, bias = _normal(8, (17, 40), (4, 40))
    want = ref.add_position_bias(x, bias, BLOCK)
    for variant in VARIANTS:
        y = nans(T, 40)
        lab.call("bias", variant, x=with_dead_rows(x, T), bias=bias, at=block_buffer(BLOCK, T, 3), y=y)
        assert np.array_equal(y[:17], want)
        assert np.isnan(y[17:]).all()


def test_embed_and_take_rows_are_exact(lab: Lab) -> None:
    (table,) = _normal(9, (30, 24))
    table = bf16(table)
    tokens = np.random.default_rng(9).integers(0, 30, T).astype(np.int32)
    check(lab, "embed", [ref.embed(tokens, table.astype(np.float32), 4)], 0.0, tokens=tokens, table=table)
    (x,) = _normal(10, (T, 2, 12))
    for rows in ([], [3], [19, 0, 4, 4]):
        y = nans(6, 2, 12)
        lab.call("take_rows", x=placed(x), rows=rows_buffer(rows, 6), y=y)
        assert np.array_equal(y[: len(rows)], x[rows])
        assert np.isnan(y[len(rows) :]).all()


@pytest.mark.parametrize(("n", "d"), HYPER)
def test_hyper_connections(lab: Lab, n: int, d: int) -> None:
    m, size = (2 + n) * n, f"{n}x{d}"
    x, fn, base, scale, gain = _normal(11, (T, n, d), (m, n * d), (m,), (3,), (d,))
    fn = fn / np.float32(np.sqrt(n * d))
    pre, post, mix = ref.hc_mix(*_f64(x, fn, base, scale), 20, EPS, EPS)
    given = {"fn": fn, "base": base, "scale": scale}
    check(lab, f"hc_mix{size}", [pre, post, mix], 4e-6, x=x, **given)
    h = ref.rms_norm(ref.hc_pre(x.astype(np.float64), pre), gain.astype(np.float64), EPS)
    check(lab, f"hc_enter{size}", [h, post, mix], 4e-6, x=x, gain=gain, **given)
    got_pre, got_post, got_mix = run(lab, f"hc_mix{size}", T, x=x, **given)
    (u,) = run(lab, f"hc_pre{size}", T, x=x, pre=got_pre)
    (normed,) = run(lab, f"norm{size}", T, x=u, gain=gain)
    entered = run(lab, f"hc_enter{size}", T, x=x, gain=gain, **given)
    for fused, part in zip(entered, (normed, got_post, got_mix), strict=True):
        assert np.array_equal(fused, part)
    (y,) = _normal(12, (T, d))
    post32, mix32 = post.astype(np.float32), mix.astype(np.float32)
    check(lab, f"hc_post{size}", [ref.hc_post(*_f64(x, y, post32, mix32))], x=x, y=y, post=post32, mix=mix32)
    given = {"fn": fn[:n], "base": base[:n], "scale": scale[:1]}
    check(
        lab, f"hc_collapse{size}", [ref.hc_collapse(*_f64(x, *given.values()), EPS, EPS)], 4e-6, x=x, **given
    )


def test_code_is_exact_and_needs_no_library(lab: Lab) -> None:
    lab.check_code()
