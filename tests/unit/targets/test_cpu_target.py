"""What the cpu target answers: layouts, packing, variants, and refusals that name the dimension."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from unit.targets.kernel_lab import BF16, act, block_operand, spec, weight

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec, Operand
from ds4c.passes.target import Target, get_target
from ds4c_targets.cpu import TARGET
from ds4c_targets.cpu import target as module


def test_the_target_is_found_by_name() -> None:
    found: Target = get_target("cpu")
    assert found.name == "cpu"
    assert found.fusions()[0] == "fuse-reads"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(16, 4), (20, 7), (1, 1), (3, 33, 5)])
def test_panels_hold_every_weight_once_and_zeros(dtype: str, shape: tuple[int, ...]) -> None:
    made = np.random.default_rng(0).standard_normal(shape).astype(BF16 if dtype == "bfloat16" else dtype)
    packed = TARGET.pack(made, "panel16")
    assert packed.nbytes == TARGET.packed_bytes("panel16", dtype, shape)
    assert packed.flags.c_contiguous
    *_, rows, width = shape
    pair = 2 if dtype == "bfloat16" else 1
    matrices = made.reshape(-1, rows, width).astype(np.float32)
    panels = packed.astype(np.float32).reshape(len(matrices), -(-rows // 16), -(-width // pair), 16, pair)
    back = panels.transpose(0, 1, 3, 2, 4).reshape(len(matrices), -(-rows // 16) * 16, -1)
    assert np.array_equal(back[:, :rows, :width], matrices)
    assert np.count_nonzero(back) == np.count_nonzero(matrices)


def test_rows_keep_their_type_and_int64_is_narrowed() -> None:
    table = np.arange(6).reshape(2, 3)
    assert TARGET.pack(table, "row").dtype == np.int32
    assert TARGET.packed_bytes("row", "int64", (2, 3)) == 24
    assert TARGET.packed_bytes("row", "float64", (2, 3)) == 48
    with pytest.raises(TargetError, match="values that int32 holds"):
        TARGET.pack(table + (1 << 40), "row")
    with pytest.raises(TargetError, match="expected row or panel16, got 'tile'"):
        TARGET.pack(table, "tile")


def test_layouts() -> None:
    assert TARGET.weight_layout("linear", "w", "float32", (4, 4)) == "panel16"
    assert TARGET.weight_layout("hc_mix", "fn", "float32", (4, 4)) == "panel16"
    assert TARGET.weight_layout("hc_mix", "base", "float32", (4,)) == "row"
    assert TARGET.weight_layout("embed", "table", "bfloat16", (4, 4)) == "row"


def test_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TARGET.resolve_variant("generic") == "generic"
    assert "avx512vl" in TARGET.variant_features("avx512")
    assert set(TARGET.variant_features("generic")) < set(TARGET.variant_features("avx512"))
    with pytest.raises(TargetError, match="expected one of generic, avx512, got neon"):
        TARGET.resolve_variant("neon")
    monkeypatch.setattr(module, "host_features", lambda: frozenset(TARGET.variant_features("generic")))
    assert TARGET.resolve_variant("") == "generic"
    monkeypatch.setattr(module, "host_features", lambda: frozenset({"avx", "fma"}))
    with pytest.raises(TargetError, match="without abm, avx2"):
        TARGET.resolve_variant("")


@pytest.mark.slow  # imports tvm
def test_every_op_of_the_table_has_an_emitter() -> None:
    from ds4c_targets.cpu.emit import EMITTERS
    from ds4c_targets.cpu.scratch import OPS

    assert set(EMITTERS) == OPS


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "message"),
    [
        ("index_scores", [], {}, "cpu kernel: expected one of .*, got index_scores"),
        (
            "grouped_linear",
            [act("x", "in", 2, 8), weight("grouped_linear", "w", 24, 4), act("y", "out", 2, 24)],
            {"groups": 2},
            "output rows of a group a multiple of 16, got 12",
        ),
        ("hc_mix", [act("x", "in", 2, 3, 8)], {}, "streams 1, 2 or 4, got 3"),
        (
            "attention",
            [act("q", "in", 2, 40), weight("attention", "sink", 2), act("own", "in", 2, 20)],
            {"window": 8},
            "channels of a head a multiple of 16, got 20",
        ),
    ],
)
def test_refused_shapes_are_named(
    op: str, operands: list[Operand], attrs: dict[str, int], message: str
) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        TARGET.scratch_bytes(KernelSpec(op, tuple(attrs.items()), tuple(operands)))
    assert caught.value.exit_code == 5


def test_scratch_does_not_grow_with_the_rows_of_attention() -> None:
    def size(rows: int, context: int) -> int:
        page = Operand("rows", "append", "float32", (4, 32), "", 512, 4)
        old = act("old", "in", 1, 8, 32)
        operands = [
            act("q", "in", rows, 64),
            weight("attention", "sink", 2),
            old,
            act("own", "in", rows, 32),
            page,
        ]
        operands += [block_operand("at", rows, 1), Operand("pages", "pages", "int32", (1, 64))]
        made = spec(
            "attention", [*operands, act("o", "out", rows, 64)], window=8, every=4, scale=1.0, context=context
        )
        return TARGET.scratch_bytes(made)

    assert size(1, 1024) == size(512, 1024) < size(1, 4096)
    assert size(1, 1024) % 64 == 0


def test_every_variant_fits_the_scratch_and_covers_all_rows() -> None:
    from ds4c_targets.cpu.args import VARIANTS
    from ds4c_targets.cpu.scratch import SCORE_TILE

    assert set(VARIANTS) == set(module.description()["variants"])
    for variant in VARIANTS.values():
        rows = [rows for rows, _ in variant.tiles]
        assert variant.wide[0] <= SCORE_TILE
        assert rows[-1] == 1
        assert all(small < large <= 2 * small for large, small in itertools.pairwise(rows))
