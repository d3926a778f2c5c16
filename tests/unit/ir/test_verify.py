"""Verifier messages, `what: expected .., got ..`: one wrong module each in `verify_cases.mlir`."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.utils.exceptions import VerifyException

import ds4c.ir
from ds4c.ir.dialect import parse_module
from ds4c.ir.kernel import KernelSpec, Operand

PREFIX = "// MESSAGE: "
SPEC = KernelSpec("add", (), (Operand("x", "in", "float32", (8, 4)),))
SPEC_TEXT = SPEC.to_json().replace('"', "\\22")


@dataclass(frozen=True)
class Wrong:
    """A module that the verifier must refuse, and what it must say."""

    title: str
    message: str
    text: str


def _wrong(text: str) -> Wrong:
    title, message = text.splitlines()[:2]
    assert message.startswith(PREFIX), title
    return Wrong(title.removeprefix("// "), message.removeprefix(PREFIX), text)


CASES = [
    _wrong(part) for part in (Path(__file__).parent / "verify_cases.mlir").read_text().split("// -----\n")
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.title)
def test_message(case: Wrong) -> None:
    with pytest.raises(VerifyException) as caught:
        parse_module(case.text)
    assert case.message in str(caught.value)


def test_titles_are_unique() -> None:
    assert len({c.title for c in CASES}) == len(CASES) > 80


def test_every_verifier_has_a_case() -> None:
    verified: set[str] = set()
    for file in Path(ds4c.ir.__file__).parent.glob("*_ops.py"):
        for part in re.split(r"^class ", file.read_text(), flags=re.MULTILINE)[1:]:
            if "def verify_(self)" in part:
                verified |= set(re.findall(r'^    name = "(ds4\.\w+)"', part, flags=re.MULTILINE))
    assert len(verified) > 25
    assert {n for n in verified if not any(c.message.startswith((f"{n}:", f"{n} @")) for c in CASES)} == set()


KERNEL = """
func.func @f(%x : tensor<?x4xf32>) {{
  ds4.call_kernel "{0}"(%x) states [] {{spec = "{1}"}} : (tensor<?x4xf32>) -> ()
  func.return
}}
"""


@pytest.mark.parametrize(
    "text",
    [
        "ds4.state @a ring : tensor<?x2x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>",
        "ds4.state @a append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, d0 floordiv 4)>",
        "ds4.state @a host : tensor<?x1xi32> every 1",
        "ds4.state @a opaque : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>",
        KERNEL.format(SPEC.symbol, SPEC_TEXT),
    ],
)
def test_right_modules_pass(text: str) -> None:
    parse_module(text)


def test_a_kernel_call_whose_name_is_not_the_digest_of_its_spec() -> None:
    with pytest.raises(VerifyException, match=f"name: expected {SPEC.symbol}, got add_000000000000"):
        parse_module(KERNEL.format("add_000000000000", SPEC_TEXT))
