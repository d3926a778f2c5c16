"""Matrix products against float64, and their bits over row counts, threads and variants."""

from __future__ import annotations

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    COUNT,
    VARIANTS,
    Lab,
    act,
    bf16,
    close,
    count_buffer,
    nans,
    set_threads,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.ir import numpy_ops as ref

T = 64
SHAPES = {"small": (40, 33, "float32"), "bf16": (72, 31, "bfloat16"), "big": (272, 256, "float32")}
COUNTS = [0, 1, 2, 3, 5, 6, 7, 8, 17, 24, 64]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("linear"))
    for name, (n, k, dtype) in SHAPES.items():
        w = weight("linear", "w", n, k, dtype=dtype)
        made.add(name, spec("linear", [act("x", "in", T, k), w, act("y", "out", T, n), COUNT]))
    n, k, dtype = SHAPES["bf16"]
    weights = [weight("linear", f"w{i}", rows, k, dtype=dtype) for i, rows in enumerate((n, 20))]
    outs = [act(f"y{i}", "out", T, rows) for i, rows in enumerate((n, 20))]
    made.add("multi", spec("multi_linear", [act("x", "in", T, k), *weights, *outs, COUNT]))
    w = weight("linear", "w", 3 * 32, 20)
    made.add(
        "grouped", spec("grouped_linear", [act("x", "in", T, 60), w, act("y", "out", T, 96), COUNT], groups=3)
    )
    pair = [weight("gated_linear", name, 40, 36) for name in ("w1", "w3")]
    made.add(
        "gated",
        spec("gated_linear", [act("x", "in", T, 36), *pair, act("y", "out", T, 40), COUNT], clamp=2.0),
    )
    return made


def _inputs(n: int, k: int, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((n, k), dtype=np.float32)
    return rng.standard_normal((T, k), dtype=np.float32), bf16(w) if dtype == "bfloat16" else w


def _run(
    lab: Lab, name: str, x: np.ndarray, count: int, n: int, variant: str, **weights: np.ndarray
) -> np.ndarray:
    y = nans(T, n)
    lab.call(name, variant, x=with_dead_rows(x[:count], T), y=y, count=count_buffer(count), **weights)
    assert np.isnan(y[count:]).all(), "rows past the count were written"
    return y[:count]


@pytest.mark.parametrize("name", SHAPES)
def test_linear_equals_float64(lab: Lab, name: str) -> None:
    n, k, dtype = SHAPES[name]
    x, w = _inputs(n, k, dtype)
    want = ref.linear(x.astype(np.float64), w.astype(np.float64))
    for variant in VARIANTS:
        for count in COUNTS:
            close(_run(lab, name, x, count, n, variant, w=w), want[:count])


@pytest.mark.parametrize("name", SHAPES)
def test_linear_bits_do_not_depend_on_rows_threads_or_variant(lab: Lab, name: str) -> None:
    n, k, dtype = SHAPES[name]
    x, w = _inputs(n, k, dtype, seed=1)
    whole = _run(lab, name, x, T, n, VARIANTS[0], w=w)
    for variant in VARIANTS:
        for count in COUNTS:
            assert np.array_equal(_run(lab, name, x, count, n, variant, w=w), whole[:count])
        single = np.concatenate([_run(lab, name, x[t : t + 1], 1, n, variant, w=w) for t in range(T)])
        assert np.array_equal(single, whole)
        set_threads(1)
        assert np.array_equal(_run(lab, name, x, T, n, variant, w=w), whole)
        set_threads(2)


def test_multi_linear_has_the_bits_of_linear(lab: Lab) -> None:
    n, k, dtype = SHAPES["bf16"]
    x, w = _inputs(n, k, dtype, seed=2)
    other = bf16(np.random.default_rng(3).standard_normal((20, k)))
    single = _run(lab, "bf16", x, 17, n, VARIANTS[0], w=w)
    for variant in VARIANTS:
        y0, y1 = nans(T, n), nans(T, 20)
        lab.call(
            "multi",
            variant,
            x=with_dead_rows(x[:17], T),
            w0=w,
            w1=other,
            y0=y0,
            y1=y1,
            count=count_buffer(17),
        )
        assert np.array_equal(y0[:17], single)
        close(y1[:17], ref.linear(x[:17].astype(np.float64), other.astype(np.float64)))


def test_grouped_linear_equals_float64(lab: Lab) -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((T, 60), dtype=np.float32), rng.standard_normal((96, 20), dtype=np.float32)
    want = ref.grouped_linear(x.astype(np.float64), w.astype(np.float64), 3)
    whole = _run(lab, "grouped", x, T, 96, VARIANTS[0], w=w)
    close(whole, want)
    for variant in VARIANTS:
        assert np.array_equal(_run(lab, "grouped", x, 5, 96, variant, w=w), whole[:5])


def test_gated_linear_equals_float64(lab: Lab) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((T, 36), dtype=np.float32)
    w1, w3 = (rng.standard_normal((40, 36), dtype=np.float32) for _ in range(2))
    x64 = x.astype(np.float64)
    want = ref.swiglu(ref.linear(x64, w1.astype(np.float64)), ref.linear(x64, w3.astype(np.float64)), 2.0)
    whole = _run(lab, "gated", x, T, 40, VARIANTS[0], w1=w1, w3=w3)
    close(whole, want)
    for variant in VARIANTS:
        for count in (1, 2, 5, 17):
            assert np.array_equal(_run(lab, "gated", x, count, 40, variant, w1=w1, w3=w3), whole[:count])


def test_code_is_exact_and_needs_no_library(lab: Lab) -> None:
    lab.check_code()
