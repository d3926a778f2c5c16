"""Tables of README.md from a run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.own import ROOT
from benchmarks.readme import BEGIN, END, SIZES, TIMES, tables, with_tables


def row(figure: str, peer: str, weights: str, ratio: float, **facts: float) -> dict[str, Any]:
    return {
        "figure": figure,
        "peer": peer,
        "weights": weights,
        "ratio": ratio,
        "ours": 3.357,
        "theirs": 6.43,
        "facts": facts,
    }


RUN = {
    "rows": [
        row("decode", "llama.cpp", "f32", 1.914),
        row("rewind_256", "decode step", "bf16", 0.00882),
        row("grpc", "no gRPC", "f32", 0.978),
        row("snapshots_prefill", "no snapshots", "f32", 0.9991),
        row("bytes_horizon", "llama.cpp", "f32", 0.04, ours_bytes=19456.0, theirs_bytes=491520.0),
    ]
}


def test_lines_of_what_was_measured_and_dashes_for_the_rest() -> None:
    lines = tables(RUN).splitlines()
    assert "| decode, one token after 512, over llama.cpp | 1.91x (3.36 ms, 6.43 ms) | - |" in lines
    assert "| rewind in place at 256, share of a decode step | - | 0.88% |" in lines
    assert any(line.endswith("share of the speed without gRPC | 98% | - |") for line in lines)
    assert "| cost of keeping snapshots, prefill of 1000 | -0.1% | - |" in lines
    assert "| one more token that can be taken back | 19,456 | 491,520 | - |" in lines
    assert len(lines) == len(TIMES) + len(SIZES) + 5


def test_only_what_is_between_the_marks_changes() -> None:
    text = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter\n", RUN)
    assert text == f"before\n{BEGIN}\n{tables(RUN)}\n{END}\nafter\n"
    assert with_tables(text, RUN) == text
    with pytest.raises(ValueError, match="got another number"):
        with_tables("no marks", RUN)


def test_the_readme_has_the_marks() -> None:
    assert with_tables((ROOT / "README.md").read_text(encoding="utf-8"), RUN)
