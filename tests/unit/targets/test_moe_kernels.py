"""Routing and experts against float64, and their bits over row counts, threads and variants."""

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
    placed,
    set_threads,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.ir import numpy_ops as ref

T = 64
COUNTS = [0, 1, 2, 5, 6, 17, 40, 64]
ROUTES = {"few": (8, 2), "odd": (37, 5), "many": (300, 6)}
EXPERTS = {
    "small": (5, 3, 24, 20, "float32"),
    "bf16": (9, 2, 64, 40, "bfloat16"),
    "large": (4, 2, 128, 256, "float32"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("moe"))
    for name, (experts, k) in ROUTES.items():
        out = [act("experts", "out", T, k, dtype="int32"), act("weights", "out", T, k), COUNT]
        bias = weight("route_top", "bias", experts)
        made.add(
            f"top-{name}",
            spec("route_top", [act("logits", "in", T, experts), bias, *out], top_k=k, scale=1.5),
        )
        table = weight("route_hash", "table", 50, k, dtype="int32")
        tokens = act("tokens", "in", T, dtype="int32")
        made.add(
            f"hash-{name}",
            spec("route_hash", [act("logits", "in", T, experts), tokens, table, *out], scale=1.5),
        )
    for name, (experts, k, hidden, width, dtype) in EXPERTS.items():
        operands = [
            act("x", "in", T, width),
            act("experts", "in", T, k, dtype="int32"),
            act("weights", "in", T, k),
        ]
        operands += [weight("moe_experts", w, experts, hidden, width, dtype=dtype) for w in ("w1", "w3")]
        operands.append(weight("moe_experts", "w2", experts, width, hidden, dtype=dtype))
        made.add(name, spec("moe_experts", [*operands, act("y", "out", T, width), COUNT], clamp=2.0))
    return made


def _route(lab: Lab, name: str, variant: str, count: int, logits: np.ndarray, **given: np.ndarray) -> tuple:
    k = lab.specs[name].operand("experts").shape[1]
    experts, weights = nans(T, k, dtype=np.int32), nans(T, k)
    lab.call(
        name,
        variant,
        logits=with_dead_rows(logits[:count], T),
        experts=experts,
        weights=weights,
        count=count_buffer(count),
        **given,
    )
    assert np.isnan(weights[count:]).all()
    assert (experts[count:] == -99).all()
    return experts[:count], weights[:count]


@pytest.mark.parametrize("name", ROUTES)
def test_routes(lab: Lab, name: str) -> None:
    experts, k = ROUTES[name]
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((T, experts), dtype=np.float32) * 4
    logits[0] = -95.0
    logits[1, :3] = 90.0
    bias = rng.standard_normal(experts, dtype=np.float32) * np.float32(0.2)
    tokens = rng.integers(0, 50, T).astype(np.int32)
    table = rng.permuted(np.tile(np.arange(experts), (50, 1)), axis=1)[:, :k].astype(np.int32)
    wanted = {
        "top": (ref.route_top(logits.astype(np.float64), bias.astype(np.float64), k, 1.5), {"bias": bias}),
        "hash": (
            ref.route_hash(logits.astype(np.float64), tokens, table, 1.5),
            {"tokens": placed(tokens), "table": table},
        ),
    }
    for kind, ((want_experts, want_weights), given) in wanted.items():
        whole = _route(lab, f"{kind}-{name}", VARIANTS[0], T, logits, **given)
        assert np.array_equal(whole[0][1:], want_experts[1:])
        close(whole[1][1:], want_weights[1:])
        for variant in VARIANTS:
            for count in COUNTS:
                got = _route(lab, f"{kind}-{name}", variant, count, logits, **given)
                assert all(np.array_equal(g, w[:count]) for g, w in zip(got, whole, strict=True))


def test_equal_scores_go_to_the_lower_expert(lab: Lab) -> None:
    logits = np.zeros((1, 37), np.float32)
    logits[0, [30, 12, 20]] = 1.0
    got, weights = _route(lab, "top-odd", VARIANTS[0], 1, logits, bias=np.zeros(37, np.float32))
    assert got.tolist() == [[12, 20, 30, 0, 1]]
    assert weights[0, 0] == weights[0, 2] > weights[0, 3] == weights[0, 4]


def _experts(name: str, seed: int) -> dict[str, np.ndarray]:
    experts, k, hidden, width, dtype = EXPERTS[name]
    rng = np.random.default_rng(seed)
    made = {w: rng.standard_normal((experts, hidden, width), dtype=np.float32) / 4 for w in ("w1", "w3")}
    made["w2"] = rng.standard_normal((experts, width, hidden), dtype=np.float32) / 4
    if dtype == "bfloat16":
        made = {w: bf16(a) for w, a in made.items()}
    made["x"] = rng.standard_normal((T, width), dtype=np.float32)
    chosen = rng.permuted(np.tile(np.arange(experts), (T, 1)), axis=1)[:, :k]
    made["experts"] = chosen.astype(np.int32)
    made["weights"] = rng.random((T, k), dtype=np.float32)
    return made


def _moe(lab: Lab, name: str, variant: str, rows: slice, given: dict[str, np.ndarray]) -> np.ndarray:
    inputs = {n: with_dead_rows(given[n][rows], T) for n in ("x", "experts", "weights")}
    count = len(given["x"][rows])
    y = nans(T, given["x"].shape[1])
    lab.call(name, variant, y=y, count=count_buffer(count), **{**given, **inputs})
    assert np.isnan(y[count:]).all()
    return y[:count]


@pytest.mark.parametrize("name", EXPERTS)
def test_moe_experts(lab: Lab, name: str) -> None:
    given = _experts(name, 3)
    floats = {n: a if n == "experts" else a.astype(np.float64) for n, a in given.items()}
    want = ref.moe_experts(*(floats[n] for n in ("x", "experts", "weights", "w1", "w3", "w2")), 2.0)
    whole = _moe(lab, name, VARIANTS[0], slice(0, T), given)
    close(whole, want)
    for variant in VARIANTS:
        for count in COUNTS:
            assert np.array_equal(_moe(lab, name, variant, slice(0, count), given), whole[:count])
        single = [_moe(lab, name, variant, slice(t, t + 1), given) for t in range(T)]
        assert np.array_equal(np.concatenate(single), whole)
    set_threads(1)
    assert np.array_equal(_moe(lab, name, VARIANTS[0], slice(0, T), given), whole)
    set_threads(2)


def test_code_is_exact_and_needs_no_library(lab: Lab) -> None:
    lab.check_code()
