"""What a run leaves behind: a table on stdout, `latest.json`, a plot."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.agreement import Agreement
from benchmarks.machine import Machine
from benchmarks.pairs import Row

COLUMNS = (
    "figure",
    "against",
    "weights",
    "ours",
    "theirs",
    "ratio",
    "quartiles",
    "cpu",
    "pairs",
    "goal",
    "met",
    "",
)


def table(rows: Sequence[Row]) -> str:
    """Aligned columns, one row a figure."""
    texts = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(text[i]) for text in texts) for i in range(len(COLUMNS))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(text, widths, strict=True)).rstrip() for text in texts]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    is_clock = row.peer == "clock"
    met = {None: "", True: "yes", False: "NO"}[row.is_met]
    return (
        row.figure,
        "" if is_clock else row.peer,
        row.weights,
        f"{_number(row.ours)} {row.unit}",
        "" if is_clock else f"{_number(row.theirs)} {row.unit}",
        "" if is_clock else f"{_number(row.ratio)}x",
        f"{_number(row.low)}..{_number(row.high)}",
        "" if row.cpu_ratio is None else _number(row.cpu_ratio),
        str(row.pairs),
        "" if row.goal is None else str(row.goal),
        met,
        row.note,
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def document(
    rows: Sequence[Row],
    agreements: Sequence[Agreement],
    absent: Sequence[str],
    machines: tuple[Machine, Machine],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """The run as plain data; `rows` is what other programs read.

    Args:
        rows: figures.
        agreements: of logits, one a peer and weight type.
        absent: why a peer is missing, one line each.
        machines: before and after the run; their loads differ.
        settings: of the run.
    """
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**asdict(machines[0]), "load_after": machines[1].load},
        "settings": settings,
        "absent": list(absent),
        "agreement": [asdict(a) for a in agreements],
        "rows": [{**asdict(row), "goal": str(row.goal or ""), "met": row.is_met} for row in rows],
    }


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write to a temporary name, sync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with staging.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    staging.rename(path)


def plot(path: Path, rows: Sequence[Row], machine: Machine) -> str:
    """Draw the ratios with their quartiles and goals.

    Returns:
        One line: where the picture is, or why there is none.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return "plot: skipped, matplotlib is not installed (extra `peers`)"
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    mpl.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    shown = [row for row in rows if row.peer != "clock"]
    if not shown:
        return "plot: skipped, no figure with a ratio"
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(shown) + 1.6))
    for at, row in enumerate(reversed(shown)):
        colour = {True: "#2a7f62", False: "#b3452c", None: "#5f6b7a"}[row.is_met]
        axes.barh(at, row.ratio, color=colour, height=0.6)
        axes.plot([row.low, row.high], [at, at], color="black", linewidth=1.5)
        if row.goal is not None:
            axes.plot([row.goal.limit] * 2, [at - 0.4, at + 0.4], color="black", linewidth=2, linestyle=":")
        axes.text(row.ratio * 1.04, at + 0.18, f"{row.ratio:.3g}", va="bottom", fontsize=7)
    axes.set_yticks(range(len(shown)), [f"{r.figure} / {r.peer}, {r.weights}" for r in reversed(shown)])
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("ratio; line: quartiles, dots: goal, green: reached")
    axes.set_title(str(machine), fontsize=8)
    figure.tight_layout()
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    figure.savefig(staging, dpi=130, format="png")
    staging.rename(path)
    return f"plot: {path}"
