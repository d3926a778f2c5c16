"""Recurrent layers: convolution, gates, delta rule and gated norm, against the NumPy meaning in float64."""

from __future__ import annotations

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    COUNT,
    VARIANTS,
    Lab,
    act,
    block_buffer,
    block_operand,
    close,
    count_buffer,
    nans,
    placed,
    set_threads,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.ir import numpy_recurrent_ops as ref
from ds4c.ir.block import Block

T, B, TAPS, EPS = 64, 3, 4, 1e-6
SIZES = {"plain": (2, 4, 16, 16), "odd": (1, 3, 5, 21), "wide": (2, 8, 64, 64)}
"""Key heads, value heads, key channels, value channels."""
BLOCKS = [
    Block.of((2, 0, 1)),
    Block.of((1, 0, 9), (3, 7, 0), (0, 5, 13)),
    Block.of((0, 30, 2), (1, 15, 17)),
    Block.of((1, 3, T)),
    Block.of((3, 3, 0), (2, 3, 1), (1, 2, 3)),
    Block.of(),
]


def width_of(name: str) -> int:
    key_heads, heads, keys, values = SIZES[name]
    return 2 * key_heads * keys + heads * values


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("recurrent"))
    at = block_operand("at", T, B)
    for name, (key_heads, heads, keys, values) in SIZES.items():
        width, plane = width_of(name), heads * keys * values
        operands = [act("old", "in", B, TAPS - 1, width), act("own", "in", T, width)]
        operands += [weight("causal_conv", "taps", TAPS, width), at, act("y", "out", T, width)]
        made.add(f"conv {name}", spec("causal_conv", operands))
        operands = [act("qkv", "in", T, width), act("decay", "in", T, heads), act("beta", "in", T, heads)]
        operands += [act("old", "in", B, 1, plane), at]
        operands += [act("o", "out", T, heads * values), act("planes", "out", T, plane)]
        sizes = {"key_heads": key_heads, "key_width": keys}
        made.add(f"delta {name}", spec("gated_delta", operands, eps=EPS, **sizes))
        operands = [act("x", "in", T, heads * values), act("gate", "in", T, heads * values)]
        operands += [weight("gated_norm", "gain", values), act("y", "out", T, heads * values), COUNT]
        made.add(f"norm {name}", spec("gated_norm", operands, eps=EPS))
    for heads in (4, 37):
        operands = [act("a", "in", T, heads), act("b", "in", T, heads)]
        operands += [weight("delta_gates", "rate", heads), weight("delta_gates", "bias", heads)]
        operands += [act("decay", "out", T, heads), act("beta", "out", T, heads), COUNT]
        made.add(f"gates {heads}", spec("delta_gates", operands))
    return made


def f64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def old_rows(rng: np.random.Generator, block: Block, rows: int, width: int) -> np.ndarray:
    """What `read_rows` leaves: zero before position 0; segments that are not there hold NaN."""
    out = nans(B, rows, width)
    for b in range(len(block.slots)):
        out[b] = normal(rng, rows, width)
        if block.length(b):
            out[b, : max(0, rows - block.first(b))] = 0
    return out


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("block", BLOCKS)
def test_convolution(lab: Lab, name: str, block: Block) -> None:
    rng, width, rows = np.random.default_rng(1), width_of(name), block.num_rows
    own, taps, old = normal(rng, rows, width), normal(rng, TAPS, width), old_rows(rng, block, 3, width)
    want = ref.causal_conv(*f64(old, own, taps), block)
    outs = []
    for variant in VARIANTS:
        y = nans(T, width)
        at = block_buffer(block, T, B)
        lab.call(f"conv {name}", variant, old=old, own=with_dead_rows(own, T), taps=taps, at=at, y=y)
        close(y[:rows], want)
        assert np.isnan(y[rows:]).all()
        outs.append(y[:rows])
    assert all(np.array_equal(outs[0], y) for y in outs)


class Delta:
    """Inputs of the delta rule for a block."""

    def __init__(self, name: str, block: Block, seed: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.name, self.block, rows = name, block, block.num_rows
        key_heads, heads, keys, values = SIZES[name]
        self.attrs = (key_heads, keys, EPS)
        self.qkv = normal(rng, rows, width_of(name))
        self.decay = rng.uniform(0.3, 1, (rows, heads)).astype(np.float32)
        self.beta = rng.uniform(0, 1, (rows, heads)).astype(np.float32)
        self.old = old_rows(rng, block, 1, heads * keys * values)

    def run(self, lab: Lab, variant: str = "generic") -> tuple[np.ndarray, np.ndarray]:
        operands = lab.specs[f"delta {self.name}"]
        out = {n: nans(*operands.operand(n).shape) for n in ("o", "planes")}
        given = {n: with_dead_rows(getattr(self, n), T) for n in ("qkv", "decay", "beta")}
        at = block_buffer(self.block, T, B)
        lab.call(f"delta {self.name}", variant, **given, old=placed(self.old), at=at, **out)
        rows = self.block.num_rows
        assert all(np.isnan(v[rows:]).all() for v in out.values()), "rows past the count were written"
        return out["o"][:rows], out["planes"][:rows]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("block", BLOCKS)
def test_delta_rule(lab: Lab, name: str, block: Block) -> None:
    given = Delta(name, block)
    inputs = f64(given.qkv, given.decay, given.beta, given.old)
    wants = ref.gated_delta(*inputs, block, *given.attrs)
    first = given.run(lab)
    for got, want in zip(first, wants, strict=True):
        close(got, want)
    for variant in VARIANTS:
        assert all(np.array_equal(a, b) for a, b in zip(given.run(lab, variant), first, strict=True))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("sizes", [[1] * T, [2, 6, 56], [63, 1]], ids=str)
def test_steps_do_not_change_a_bit(lab: Lab, name: str, sizes: list[int]) -> None:
    """The plane that one step hands to the next is all there is."""
    whole = Delta(name, Block.of((0, 0, T)))
    o, planes = whole.run(lab)
    part, at = Delta(name, Block.of((0, 0, T))), 0
    for size in sizes:
        rows = slice(at, at + size)
        part.block = Block.of((0, at, size))
        part.qkv, part.decay, part.beta = whole.qkv[rows], whole.decay[rows], whole.beta[rows]
        got = part.run(lab)
        assert np.array_equal(got[0], o[rows])
        assert np.array_equal(got[1], planes[rows])
        part.old[0, 0] = got[1][-1]
        at += size


def test_threads_do_not_change_a_bit(lab: Lab) -> None:
    given = Delta("wide", Block.of((1, 0, 9), (3, 7, 2), (0, 5, 13)))
    assert T * 8 * 64 * 64 // 4 >= 1 << 16  # large enough to be shared out
    set_threads(1)
    alone = given.run(lab)
    set_threads(2)
    assert all(np.array_equal(a, b) for a, b in zip(given.run(lab), alone, strict=True))


@pytest.mark.parametrize("heads", [4, 37])
def test_gates(lab: Lab, heads: int) -> None:
    rng = np.random.default_rng(3)
    a, b, bias = normal(rng, T, heads) * 6, normal(rng, T, heads) * 6, normal(rng, heads)
    rate = np.exp(normal(rng, heads))
    a[0, :2] = (-200.0, 200.0)
    want = ref.delta_gates(*f64(a, b, rate, bias))
    for variant in VARIANTS:
        for count in (0, 1, 2, 6, T):
            outs = [nans(T, heads), nans(T, heads)]
            lab.call(
                f"gates {heads}",
                variant,
                a=with_dead_rows(a[:count], T),
                b=with_dead_rows(b[:count], T),
                rate=rate,
                bias=bias,
                decay=outs[0],
                beta=outs[1],
                count=count_buffer(count),
            )
            for got, exact in zip(outs, want, strict=True):
                close(got[:count], exact[:count])
                assert np.isnan(got[count:]).all()


@pytest.mark.parametrize("name", SIZES)
def test_gated_norm(lab: Lab, name: str) -> None:
    rng = np.random.default_rng(4)
    _, heads, _, values = SIZES[name]
    x, gate, gain = normal(rng, T, heads * values), normal(rng, T, heads * values) * 5, normal(rng, values)
    want = ref.gated_norm(*f64(x, gate, gain), EPS)
    for variant in VARIANTS:
        for count in (0, 1, 2, 6, T):
            y = nans(T, heads * values)
            given = {"x": with_dead_rows(x[:count], T), "gate": with_dead_rows(gate[:count], T)}
            lab.call(f"norm {name}", variant, **given, gain=gain, y=y, count=count_buffer(count))
            close(y[:count], want[:count])
            assert np.isnan(y[count:]).all()


def test_code_has_no_contraction_and_no_libm(lab: Lab) -> None:
    lab.check_code()
