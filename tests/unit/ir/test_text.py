"""The text form: parse and print are inverse at every stage, and floats keep every bit."""

import math
from collections.abc import Iterable

import pytest
from example_modules import PIPELINE, stage, stages
from sizes import more
from xdsl.dialects.builtin import FloatAttr, ModuleOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import ParseError

from ds4c.ir.dialect import parse_module, print_module
from ds4c.ir.tensor_ops import RmsNormOp
from ds4c.passes.pipeline import PASSES


def check_round_trips(modules: Iterable[ModuleOp]) -> int:
    """Number of texts; one that several passes leave alone is parsed once and equal to each module."""
    parsed: dict[str, ModuleOp] = {}
    for module in modules:
        text = print_module(module)
        if text not in parsed:
            parsed[text] = parse_module(text)
            assert print_module(parsed[text]) == text
        assert module.is_structurally_equivalent(parsed[text])
    return len(parsed)


@pytest.mark.parametrize("name", ["tiny-8", "tiny-delta"])
def test_round_trip_first_between_and_last(name: str) -> None:
    at = dict(stages(name))
    assert check_round_trips([at["input"], at["insert-snapshots"], at["plan-buffers"]]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-8", "tiny-delta", more("tiny-128")])
def test_round_trip_at_every_stage(name: str) -> None:
    assert check_round_trips(module for _, module in stages(name)) > 5


@pytest.mark.slow
def test_structural_equality_sees_a_changed_number() -> None:
    """Guards the test above: it would pass with an equality that sees nothing."""
    module = stage("tiny-8", "input")
    again = parse_module(print_module(module).replace("copies = 4", "copies = 4, note = 1"))
    assert not module.is_structurally_equivalent(again)


def norm_with(eps: float) -> RmsNormOp:
    text = """
    func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>) {
      %y = ds4.rms_norm %x, %g {eps = 1.0 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
      func.return
    }"""
    module = parse_module(text)
    op = next(o for o in module.walk() if isinstance(o, RmsNormOp))
    op.eps = FloatAttr(eps, 64)
    again = parse_module(print_module(module))
    return next(o for o in again.walk() if isinstance(o, RmsNormOp))


@pytest.mark.parametrize(
    "value",
    [1e-6, 1 / 3, 0.1, 512**-0.5, 1e-20, 1.5, 5e-324, 1.7976931348623157e308, math.pi, -0.0, 123456789.0],
)
def test_floats_keep_every_bit(value: float) -> None:
    got = norm_with(value).eps.value.data
    assert got.hex() == value.hex()


def test_a_text_has_no_line_that_is_hard_to_read_for_the_states() -> None:
    """Values name a state; its contract stands on the declaration alone."""
    text = print_module(stage("tiny-8", "input"))
    assert "!ds4.state<@l2.kv>" in text
    assert text.count("affine_map") == sum(" reads " in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ds4.state @a shelf : tensor<?x4xf32> every 1", "ring"),
        ("ds4.state @a ring : tensor<?x4xf32>", "every"),
        ("ds4.state ring : tensor<?x4xf32> every 1", "symbol name"),
        ("func.func @f(%x : !ds4.blob) { func.return }", "ds4.blob"),
    ],
)
def test_malformed_text_names_the_place(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_module(text, "file.mlir")
    assert "file.mlir:1:" in str(caught.value)
    assert message in str(caught.value)


def test_every_op_of_the_dialect_occurs_in_some_stage() -> None:
    """The round trip above covers the whole dialect."""
    seen: set[str] = set()
    for name in ("tiny-8", "tiny-delta"):
        for after in ("input", *PIPELINE):
            op: Operation
            for op in dict(stages(name))[after].walk():
                seen.add(op.name)
    from ds4c.ir.dialect import DS4

    assert {op.name for op in DS4.operations} <= seen
    assert set(PIPELINE) == set(PASSES)
