"""`python -m benchmarks.readme`: writes the figures of `latest.json` to the tables of README.md."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.own import DTYPES, ROOT

BEGIN, END = "<!-- figures of `make bench`: begin -->", "<!-- figures of `make bench`: end -->"
ABSENT = "-"
Cell = Callable[[Mapping[str, Any]], str]


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.3g}x"


def _ratio_and_times(row: Mapping[str, Any]) -> str:
    return f"{_ratio(row)} ({row['ours']:.3g} ms, {row['theirs']:.3g} ms)"


def _ratio_and_speeds(row: Mapping[str, Any]) -> str:
    return f"{_ratio(row)} ({row['ours']:.0f}, {row['theirs']:.0f} tokens/s)"


def _number(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.3g}"


def _percent(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2%}" if row["ratio"] < 0.1 else f"{row['ratio']:.0%}"


def _excess(row: Mapping[str, Any]) -> str:
    return f"{row['ratio'] - 1:+.1%}"


def _seconds(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.3g} s"


TIMES: tuple[tuple[str, str, str, Cell], ...] = (
    ("decode, one token after 512, over llama.cpp", "decode", "llama.cpp", _ratio_and_times),
    ("decode over transformers eager (float32)", "decode", "transformers", _ratio),
    ("prefill of 512 tokens over llama.cpp", "prefill", "llama.cpp", _ratio_and_speeds),
    ("prefill over transformers", "prefill", "transformers", _ratio),
    ("a step of 6 rows over llama.cpp", "rows6", "llama.cpp", _ratio),
    ("decode step, as a multiple of reading the active weights once", "stream", "read stream", _number),
    ("rewind in place at 256, share of a decode step", "rewind_256", "decode step", _percent),
    ("rewind in place at 16k, share of a decode step", "rewind_16384", "decode step", _percent),
    ("rewind to a snapshot at 256, share of a decode step", "restore_256", "decode step", _percent),
    ("rewind to a snapshot at 16k, share of a decode step", "restore_16384", "decode step", _percent),
    ("snapshot and replay at 256, over a prefill of the same tokens", "replay_256", "prefill", _number),
    ("snapshot and replay at 16k, over a prefill of the same tokens", "replay_16384", "prefill", _number),
    ("cost of keeping snapshots, prefill of 1000", "snapshots_prefill", "no snapshots", _excess),
    ("cost of keeping snapshots, turns of 128", "snapshots_decode", "no snapshots", _excess),
    ("decode at 8k, as a multiple of that at 512", "decode_8k", "context 512", _number),
    ("9 gRPC streams and a health poll, share of the speed without gRPC", "grpc", "no gRPC", _percent),
    ("load to ready", "load_ready", "clock", _seconds),
    ("build", "build", "clock", _seconds),
)
"""Label, figure, peer and form of each line."""
SIZES: tuple[tuple[str, str, str], ...] = (
    *(
        (f"session of {name}, {ability}", f"bytes_session_{context}", f"llama.cpp n_rs_seq {rollback}")
        for context, name in ((256, "256"), (1024, "1k"), (4096, "4k"), (16384, "16k"))
        for rollback, ability in ((0, "theirs cannot go back"), (8, "theirs by up to 8"))
    ),
    ("one more token that can be taken back", "bytes_horizon", "llama.cpp"),
    ("snapshot at 1k, without compressed rows", "bytes_snapshot", "llama.cpp"),
    ("whole state at 1k", "bytes_state", "llama.cpp"),
)


def tables(data: Mapping[str, Any]) -> str:
    """Markdown of both tables; a figure that was not measured is a dash."""
    rows = {(r["figure"], r["peer"], r["weights"]): r for r in data["rows"]}
    lines = ["| | " + " | ".join(f"{w} weights" for w in DTYPES) + " |", "|---" * (1 + len(DTYPES)) + "|"]
    for label, figure, peer, form in TIMES:
        found = (rows.get((figure, peer, weights)) for weights in DTYPES)
        lines.append(f"| {label} | " + " | ".join(ABSENT if r is None else form(r) for r in found) + " |")
    lines += ["", "| bytes | ours, float32 rows | llama.cpp, float32 rows | llama.cpp, float16 rows |"]
    lines.append("|---|---|---|---|")
    for label, figure, peer in SIZES:
        row = next((r for (f, p, _), r in rows.items() if (f, p) == (figure, peer)), None)
        facts = {} if row is None else row["facts"]
        cells = (facts.get(f"{side}_bytes") for side in ("ours", "theirs", "theirs_f16"))
        lines.append(f"| {label} | " + " | ".join(ABSENT if c is None else f"{c:,.0f}" for c in cells) + " |")
    return "\n".join(lines)


def with_tables(text: str, data: Mapping[str, Any]) -> str:
    """A text with what stands between the marks replaced.

    Raises:
        ValueError: it has not both marks once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md: expected {BEGIN} and {END} once, got another number")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables(data)}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Entry."""
    path = ROOT / "README.md"
    data = json.loads((ROOT / "benchmarks" / "latest.json").read_text(encoding="utf-8"))
    text = with_tables(path.read_text(encoding="utf-8"), data)
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
