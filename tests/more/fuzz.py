"""Wrong input made of right input, and a bound in time for what hypothesis does with it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

T = TypeVar("T")
ROUND = 200
"""Examples between two looks at the clock."""
LONGEST_SECONDS = 10.0
"""What one example may take; the largest inputs here take milliseconds."""


def fuzz(cases: st.SearchStrategy[T], check: Callable[[T], object], *, seconds: float, seed: int) -> None:
    """Check cases until the time is over, two rounds at least. A failure is shrunk and shown."""
    until, count = time.monotonic() + seconds, 0

    def timed(case: T) -> None:
        nonlocal count
        count += 1
        begun = time.monotonic()
        check(case)
        assert time.monotonic() - begun < LONGEST_SECONDS, "it took too long"

    limits = settings(
        max_examples=ROUND, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    while time.monotonic() < until or count < 2 * ROUND:
        with_seed(seed + count)(limits(given(cases)(timed)))()


def refused(call: Callable[[], object], error: type[Exception]) -> None:
    """Make a call that may end well or with one clear line of the documented error, and with nothing else."""
    try:
        call()
    except error as said:
        line = str(said)
        assert line.strip(), "an error without a word"
        assert "\n" not in line, "an error of several lines"


INTERESTING = [b"", b"\0", b"\xff", b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x80", b"-1", b"9" * 30]
INTERESTING += [
    b'"',
    b"{",
    b"[" * 50,
    b"]",
    b"\n",
    b"\xe9",
    b"/*",
    b"*/",
    b"\\",
    b"\xc0\x80",
    b"\x08",
    b"1e999",
]


@st.composite
def mutants(draw: st.DrawFn, right: Sequence[bytes]) -> bytes:
    """Some right bytes after one to six edits; now and then bytes of no origin."""
    if draw(st.integers(0, 40)) == 0:
        return draw(st.binary(max_size=400))
    data = draw(st.sampled_from(right))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([0, 1, 1, 2, 4, 8, 64, 1000]))
        kind = draw(st.integers(0, 5))
        if kind == 0:  # a bit
            here = data[at : at + 1]
            new = bytes([here[0] ^ 1 << draw(st.integers(0, 7))]) if here else b"\0"
            length = 1
        elif kind == 1:  # something that is often wrong
            new = draw(st.sampled_from(INTERESTING))
        elif kind == 2:  # any bytes
            new = draw(st.binary(max_size=8))
        elif kind == 3:  # less
            new = b""
        elif kind == 4:  # a piece of itself, again or in place of another
            start = draw(st.integers(0, len(data)))
            new = data[start : start + draw(st.sampled_from([1, 4, 16, 200]))]
        else:  # the end
            new, length = b"", len(data)
        data = data[:at] + new + data[at + length :]
    return data


NUMBERS = [-(2**63), -1, 0, 1, 63, 64, 65, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30]
SCALARS: list[Any] = [None, True, False, 0, 1, -1, 7, 63, 64, 2**31, 2**63, 2**64, 10**30, 0.5, 1e300]
SCALARS += ["", "x", "float32", "\ud800", "a" * 300, "../../x", "\n", [], {}, [[]], [1], {"kind": "ring"}]


@st.composite
def json_mutants(draw: st.DrawFn, right: object) -> Any:
    """A JSON value with one to four values replaced, dropped, doubled, renamed or swapped with another."""
    value: Any = copy.deepcopy(right)
    for _ in range(draw(st.integers(1, 4))):
        places = _places(value)
        if not places:
            return value
        box, key = draw(st.sampled_from(places))
        kind, here = draw(st.integers(0, 9)), box[key]
        alike = [other[name] for other, name in places if type(other[name]) is type(here)]
        if kind <= 4 and isinstance(here, int):
            box[key] = draw(st.integers(-2, 300) | st.sampled_from(NUMBERS)) + here * draw(st.booleans())
        elif kind <= 4:
            box[key] = copy.deepcopy(draw(st.sampled_from(alike)))
        elif kind <= 6:
            box[key] = copy.deepcopy(draw(st.sampled_from(SCALARS)))
        elif kind == 7:
            del box[key]
        elif kind == 8 and isinstance(box, list):
            box.insert(key, copy.deepcopy(here))
        elif kind == 8:
            box[draw(st.sampled_from(["", "x", "kind", "name"]))] = copy.deepcopy(here)
        else:
            other, name = draw(st.sampled_from(places))
            box[key] = copy.deepcopy(other[name])
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every list or object in a value, with each of its keys."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, list):
        found = [(value, i) for i in range(len(value))]
    elif isinstance(value, dict):
        found = [(value, key) for key in value]
    return found + [place for box, key in found for place in _places(box[key])]


@st.composite
def text_mutants(draw: st.DrawFn, right: Sequence[str]) -> str:
    """A text with words dropped, doubled, swapped or replaced; what stands between them stays."""
    words = _split(draw(st.sampled_from(right)))
    for _ in range(draw(st.integers(1, 5))):
        at, other = draw(st.integers(0, len(words) - 1)), draw(st.integers(0, len(words) - 1))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            words[at] = ""
        elif kind == 1:
            words[at] += " " + words[other]
        elif kind == 2:
            words[at], words[other] = words[other], words[at]
        elif kind == 3:
            words[at] = draw(
                st.sampled_from(["(", ")", "{", "}", "[", "]", ";", "//", "é", "0x", "99999999999"])
            )
        else:
            del words[at + 1 :]
    return "".join(words)


def _split(text: str) -> list[str]:
    """Words, numbers, single signs and the space between them: joined, they are the text."""
    words: list[str] = []
    for char in text:
        is_word = char.isalnum() or char == "_"
        if words and is_word and (words[-1][-1].isalnum() or words[-1][-1] == "_"):
            words[-1] += char
        else:
            words.append(char)
    return words
