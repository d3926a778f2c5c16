"""Weight formats of the GPU targets: every code decodes exactly; products do not depend on the rows beside.

References: float16 and bfloat16 by NumPy and ml_dtypes; q8_0 by its definition in GGUF (`d * q`); e2m1 and
e8m0 by the tables of the OCP specification of microscaling formats.
"""

from __future__ import annotations

import numpy as np
import pytest
from unit.targets.gpu_lab import (
    COUNT,
    TARGET,
    VARIANTS,
    Lab,
    act,
    bf16,
    close,
    count_buffer,
    nans,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.errors import TargetError
from ds4c.ir import numpy_ops as ref
from ds4c_targets.gpu.formats import formats

pytestmark = pytest.mark.slow

T = 64
COUNTS = [1, 2, 6, 8, 9, 64]
SHAPES = {
    "float32": [(37, 33), (130, 512), (9, 68)],
    "float16": [(37, 33), (130, 512), (9, 68), (6, 62)],
    "bfloat16": [(37, 33), (130, 512), (9, 68), (6, 62)],
    "q8_0": [(37, 32), (130, 1024), (9, 96)],
    "mxfp4": [(37, 32), (130, 2048), (9, 96)],
}
NAMES = [(dtype, n, k) for dtype, several in SHAPES.items() for n, k in several]
EXPERTS, CHOICES, HIDDEN, WIDTH = 5, 3, 32, 64
_POSITIVE = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 = np.array(_POSITIVE + [-v for v in _POSITIVE], np.float32)


def blocks_q8(scales: np.ndarray, quants: np.ndarray) -> np.ndarray:
    """float16 `[N, B]`, int8 `[N, B, 32]` -> uint8 `[N, B, 34]`, as in a file."""
    raw = scales.astype("<f2")[..., None].view(np.uint8)
    return np.concatenate([raw, quants.view(np.uint8)], axis=-1)


def blocks_mxfp4(exponents: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """uint8 `[N, B]`, uint8 `[N, B, 32]` -> uint8 `[N, B, 17]`, as in a file."""
    pairs = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([exponents[..., None], pairs], axis=-1).astype(np.uint8)


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as it comes from a file, and its numbers as float64."""
    rng = np.random.default_rng(seed)
    if dtype == "q8_0":
        quants = rng.integers(-128, 128, (*shape[:-1], shape[-1] // 32, 32)).astype(np.int8)
        scales = (rng.random(quants.shape[:-1]) / 64).astype(np.float16)
        numbers = scales.astype(np.float64)[..., None] * quants
        return blocks_q8(scales, quants), numbers.reshape(shape)
    if dtype == "mxfp4":
        codes = rng.integers(0, 16, (*shape[:-1], shape[-1] // 32, 32)).astype(np.uint8)
        exponents = rng.integers(118, 128, codes.shape[:-1]).astype(np.uint8)
        numbers = E2M1.astype(np.float64)[codes] * 2.0 ** (exponents.astype(np.float64) - 127)[..., None]
        return blocks_mxfp4(exponents, codes), numbers.reshape(shape)
    array = rng.standard_normal(shape).astype(np.float32)
    array = bf16(array) if dtype == "bfloat16" else array.astype(dtype)
    return array, array.astype(np.float64)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("formats"))
    for dtype, n, k in NAMES:
        w = weight("linear", "w", n, k, dtype=dtype)
        made.add(f"{dtype}-{n}-{k}", spec("linear", [act("x", "in", T, k), w, act("y", "out", T, n), COUNT]))
    for dtype in ("q8_0", "mxfp4"):
        pair = [weight("gated_linear", name, HIDDEN, WIDTH, dtype=dtype) for name in ("w1", "w3")]
        outs = [act("y", "out", T, HIDDEN), COUNT]
        made.add(f"gated-{dtype}", spec("gated_linear", [act("x", "in", T, WIDTH), *pair, *outs], clamp=2.0))
        inputs = [act("x", "in", T, WIDTH), act("experts", "in", T, CHOICES, dtype="int32")]
        inputs.append(act("weights", "in", T, CHOICES))
        shapes = {"w1": (HIDDEN, WIDTH), "w3": (HIDDEN, WIDTH), "w2": (WIDTH, HIDDEN)}
        inputs += [weight("moe_experts", w, EXPERTS, *s, dtype=dtype) for w, s in shapes.items()]
        made.add(f"moe-{dtype}", spec("moe_experts", [*inputs, act("y", "out", T, WIDTH), COUNT], clamp=2.0))
    return made


@pytest.fixture(scope="module")
def codes_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Matrices with every code, times rows that are 1 in one channel and 0 in the others."""
    made = Lab(tmp_path_factory.mktemp("codes"))
    rows = {"float16": 2048, "bfloat16": 2048, "q8_0": 1 << 16, "mxfp4": 256}
    for dtype, n in rows.items():
        w = weight("linear", "w", n, 32, dtype=dtype)
        made.add(dtype, spec("linear", [act("x", "in", 32, 32), w, act("y", "out", 32, n), COUNT]))
    return made


def decoded(lab: Lab, dtype: str, variant: str, w: np.ndarray) -> np.ndarray:
    """Weights `[N, 32]` as a kernel sees them."""
    y = nans(32, lab.specs[dtype].operand("w").shape[0])
    lab.call(dtype, variant, x=np.eye(32, dtype=np.float32), w=w, y=y, count=count_buffer(32))
    return y.T


@pytest.mark.parametrize("variant", ["cuda", "metal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_code_decodes_exactly(codes_lab: Lab, dtype: str, variant: str) -> None:
    kind = bf16(np.zeros(1)).dtype if dtype == "bfloat16" else np.dtype(np.float16)
    codes = np.arange(1 << 16, dtype=np.uint16).view(kind)
    w = np.where(np.isfinite(codes.astype(np.float32)), codes, kind.type(0)).reshape(-1, 32)
    assert np.array_equal(decoded(codes_lab, dtype, variant, w), w.astype(np.float32))


@pytest.mark.parametrize("variant", ["cuda", "metal"])
def test_every_q8_code_and_scale_decodes_exactly(codes_lab: Lab, variant: str) -> None:
    scales = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 1)
    quants = np.resize(np.arange(-128, 128), (1 << 16, 1, 32)).astype(np.int8)
    got = decoded(codes_lab, "q8_0", variant, blocks_q8(scales, quants))
    finite = np.isfinite(scales[:, 0])
    want = scales[finite].astype(np.float32) * quants[finite, 0].astype(np.float32)
    assert np.array_equal(got[finite], want)
    assert not np.isfinite(got[~finite]).any()


@pytest.mark.parametrize("variant", ["cuda", "metal"])
def test_every_mxfp4_code_and_scale_decodes_exactly(codes_lab: Lab, variant: str) -> None:
    exponents = np.arange(256, dtype=np.uint8).reshape(-1, 1)
    codes = np.resize(np.arange(16), (256, 1, 32)).astype(np.uint8)
    codes[:, 0, 16:] = codes[:, 0, 16:][:, ::-1]
    got = decoded(codes_lab, "mxfp4", variant, blocks_mxfp4(exponents, codes))
    scales = np.float32(2.0) ** (exponents.astype(np.float32) - 127)
    scales[255] = np.inf
    with np.errstate(invalid="ignore"):
        want = scales * E2M1[codes[:, 0]]
    assert np.array_equal(got, want, equal_nan=True)


def run(lab: Lab, name: str, variant: str, rows: slice, given: dict[str, np.ndarray]) -> np.ndarray:
    """Result of a kernel for some rows of its inputs."""
    inputs = {n: given[n] for n in given if n in ("x", "experts", "weights")}
    count = len(inputs["x"][rows])
    y = nans(*lab.specs[name].operand("y").shape)
    placed = {n: with_dead_rows(a[rows], T) for n, a in inputs.items()}
    lab.call(name, variant, **{**given, **placed}, y=y, count=count_buffer(count))
    assert np.isnan(y[count:]).all()
    return y[:count]


def check_rows(lab: Lab, name: str, given: dict[str, np.ndarray], want: np.ndarray) -> None:
    """Right, and the same bits for every number of rows, on every variant."""
    whole = run(lab, name, VARIANTS[0], slice(0, T), given)
    close(whole, want)
    for variant in VARIANTS:
        for count in COUNTS:
            assert np.array_equal(run(lab, name, variant, slice(0, count), given), whole[:count])
    for t in (0, 7, 8, 63):  # alone, and as the last of a tile
        assert np.array_equal(run(lab, name, VARIANTS[0], slice(t, t + 1), given), whole[t : t + 1])


@pytest.mark.parametrize(("dtype", "n", "k"), NAMES)
def test_linear(lab: Lab, dtype: str, n: int, k: int) -> None:
    x = np.random.default_rng(1).standard_normal((T, k), dtype=np.float32)
    w, numbers = drawn(dtype, (n, k), 2)
    check_rows(lab, f"{dtype}-{n}-{k}", {"x": x, "w": w}, ref.linear(x.astype(np.float64), numbers))


@pytest.mark.parametrize("dtype", ["q8_0", "mxfp4"])
def test_gated_linear(lab: Lab, dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((T, WIDTH), dtype=np.float32)
    (w1, gate), (w3, up) = (drawn(dtype, (HIDDEN, WIDTH), seed) for seed in (4, 5))
    x64 = x.astype(np.float64)
    want = ref.swiglu(ref.linear(x64, gate), ref.linear(x64, up), 2.0)
    check_rows(lab, f"gated-{dtype}", {"x": x, "w1": w1, "w3": w3}, want)


@pytest.mark.parametrize("dtype", ["q8_0", "mxfp4"])
def test_moe_experts(lab: Lab, dtype: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((T, WIDTH), dtype=np.float32)
    chosen = rng.permuted(np.tile(np.arange(EXPERTS), (T, 1)), axis=1)[:, :CHOICES].astype(np.int32)
    weights = rng.random((T, CHOICES), dtype=np.float32)
    shapes = {"w1": (HIDDEN, WIDTH), "w3": (HIDDEN, WIDTH), "w2": (WIDTH, HIDDEN)}
    made = {w: drawn(dtype, (EXPERTS, *s), seed) for seed, (w, s) in enumerate(shapes.items(), 7)}
    w1, w3, w2 = (n for _, n in made.values())
    want = ref.moe_experts(x.astype(np.float64), chosen, weights.astype(np.float64), w1, w3, w2, 2.0)
    given = {"x": x, "experts": chosen, "weights": weights, **{w: a for w, (a, _) in made.items()}}
    check_rows(lab, f"moe-{dtype}", given, want)


def test_code_is_exact(lab: Lab) -> None:
    lab.check_code()


def test_formats_say_what_they_need() -> None:
    assert set(formats()) == {"float32", "float16", "bfloat16", "q8_0", "mxfp4"}
    for dtype, size in {"float32": 4 * 64, "bfloat16": 2 * 64, "q8_0": 68, "mxfp4": 34}.items():
        layout = TARGET.weight_layout("linear", "w", dtype, (64, 64))
        assert TARGET.packed_bytes(layout, dtype, (64, 64)) == 64 * size
    with pytest.raises(TargetError, match="blocks of 32, got 48 channels"):
        TARGET.packed_bytes("q8_0", "q8_0", (4, 48))
    with pytest.raises(TargetError, match="expected one of mxfp4, q8_0, row, split, got 'q9'"):
        TARGET.pack(np.zeros(4), "q9")
