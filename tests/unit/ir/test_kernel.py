"""Kernel specs: exact text, and a digest that sees everything that shapes a kernel's code."""

from dataclasses import fields, replace

import pytest
from example_modules import TINY, stage
from sizes import slow

from ds4c.ir.kernel import BlockLayout, KernelSpec, Operand
from ds4c.passes.program import program_of

SPEC = KernelSpec(
    "rms_norm",
    (("eps", 1e-6), ("heads", 4)),
    (
        Operand("x", "in", "float32", (64, 128)),
        Operand("w", "weight", "bfloat16", (128,), "row"),
        Operand("s", "ring", "float32", (28, 64), "", 4096, 4),
        Operand("y", "out", "float32", (64, 128)),
    ),
)
CHANGES = {
    "name": "z",
    "role": "append",
    "dtype": "float64",
    "shape": (64, 129),
    "layout": "panels",
    "stride_bytes": 64,
    "every": 8,
}


def test_json_round_trip() -> None:
    assert KernelSpec.from_json(SPEC.to_json()) == SPEC
    assert SPEC.symbol == f"rms_norm_{SPEC.digest}"
    assert len(SPEC.digest) == 12


@pytest.mark.parametrize("name", [slow(each) if each == "tiny-128" else each for each in TINY])
def test_json_round_trip_of_real_kernels(name: str) -> None:
    for symbol, spec in program_of(stage(name, "plan-buffers")).kernels.items():
        again = KernelSpec.from_json(spec.to_json())
        assert again == spec
        assert again.symbol == symbol


def test_every_field_is_tried() -> None:
    assert set(CHANGES) == {f.name for f in fields(Operand)}


@pytest.mark.parametrize("index", range(len(SPEC.operands)))
@pytest.mark.parametrize("field", CHANGES)
def test_the_digest_sees_every_field_of_every_operand(field: str, index: int) -> None:
    operands = list(SPEC.operands)
    operands[index] = replace(operands[index], **{field: CHANGES[field]})
    assert replace(SPEC, operands=tuple(operands)).digest != SPEC.digest


def test_the_digest_sees_op_attributes_and_order() -> None:
    others = [
        replace(SPEC, op="head_norm"),
        replace(SPEC, attrs=(("eps", 1.0000001e-6), ("heads", 4))),
        replace(SPEC, attrs=(("eps", 1e-6), ("heads", 5))),
        replace(SPEC, attrs=(("eps", 1e-6),)),
        replace(SPEC, attrs=(("eps", 1e-6), ("head", 4))),
        replace(SPEC, operands=SPEC.operands[:-1]),
        replace(SPEC, operands=SPEC.operands[::-1]),
    ]
    assert len({SPEC.digest, *(o.digest for o in others)}) == len(others) + 1


def test_the_digest_does_not_see_the_order_of_attributes() -> None:
    assert replace(SPEC, attrs=SPEC.attrs[::-1]).digest == SPEC.digest


def test_look_up() -> None:
    assert SPEC.attr("heads") == 4
    assert SPEC.operand("w").dtype == "bfloat16"
    assert SPEC.has("w")
    assert not SPEC.has("scratch")
    with pytest.raises(KeyError):
        SPEC.attr("clamp")
    with pytest.raises(KeyError):
        SPEC.operand("scratch")


@pytest.mark.parametrize(("rows", "segments"), [(1, 1), (16, 15), (17, 16), (64, 8), (256, 3)])
def test_block_layout_parts_are_aligned_and_apart(rows: int, segments: int) -> None:
    layout = BlockLayout(rows, segments)
    sizes = [(layout.positions, rows), (layout.row_segment, rows)]
    sizes += [(layout.segment_starts, segments + 1), (layout.slots, segments)]
    end = 2
    for at, size in sizes:
        assert at * 4 % 64 == 0
        assert at >= end
        end = at + size
    assert layout.size >= end
    assert layout.size * 4 % 64 == 0
