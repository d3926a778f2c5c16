"""The measured cells as a page of Markdown: what happened, in numbers and in the engines' own words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.machine import Machine
from benchmarks.peers_rewind.children import Measured, control, grid
from benchmarks.peers_rewind.grid import FOLLOW, MOST_DRAFTED, Outcome, Result
from benchmarks.peers_rewind.ways import LABELS, Variant

SHOWN = (Outcome.EXACT, Outcome.CLOSE, Outcome.DIFFERS, Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED)

HEAD = f"""# Rewind side by side

Written by `make peers-table`; do not edit. One checkpoint of random weights in float32 (preset `tiny-peers`:
window 128, compress ratios 0, 4 and 128) is read by every engine, from safetensors or from a GGUF of the
same arrays. A cell of the grid is a position P and a count n:

1. P tokens are prefilled, then n wrong tokens are decoded **one by one** (in one batch where a row says so);
2. the engine is asked to be at P again (*plain*), or first at P + n//2 and then at P (*stacked*), or its
   state after the wrong tokens is saved and loaded before it is asked for P (*saved*);
3. the {FOLLOW} right tokens are decoded one by one, and their logits are compared with those of a run of the
   same engine that was prefilled up to P and went straight on.

*exact*: the same bits. *close*: the largest difference is at most what the engine itself differs by at that
P when the same {FOLLOW} tokens come in one batch instead of one by one, without any rewind. *differs*: more
than that. *refused*: the rewind, the save or the load raised or answered no. *failed*: an evaluation raised.
*aborted*: the process ended. Each way runs in its own process with one thread. Cells with n = 0, where
nothing is taken back, are the controls.
"""


@dataclass(frozen=True)
class Agreement:
    """Rows of logits of one prompt, an engine against ours: the largest difference of a row."""

    engine: str
    rows: int
    median: float
    largest: float


def document(
    measured: Sequence[Measured],
    agreements: Sequence[Agreement],
    absent: Sequence[str],
    machine: Machine,
    positions: Sequence[int],
) -> str:
    """The whole page."""
    parts = [HEAD, _setting(measured, absent, machine, positions), summary(measured)]
    parts += [details(measured), _controls(measured, agreements)]
    return "\n".join(parts)


def _setting(
    measured: Sequence[Measured], absent: Sequence[str], machine: Machine, positions: Sequence[int]
) -> str:
    versions = {m.way.engine: m.version for m in measured}
    lines = [
        f"Grid: P in {', '.join(map(str, positions))}; n in 1 .. {MOST_DRAFTED} (stacked: from 2).",
        f"Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, Linux.",
        "Engines: " + "; ".join(f"{LABELS[e]} {v}" for e, v in versions.items()) + ".",
        *(f"Left out: {line}." for line in absent),
    ]
    return "\n".join(f"* {line}" for line in lines) + "\n"


def summary(measured: Sequence[Measured]) -> str:
    """A row for every way and variant."""
    lines = ["## All ways", ""]
    outcomes = " | ".join(SHOWN)
    lines.append(f"| engine | way | variant | cells | {outcomes} | largest diff. | argmax equal |")
    lines.append("|---|---|---|" + "---:|" * (len(SHOWN) + 3))
    for one in measured:
        for variant in one.way.variants:
            found = grid(one.results, variant)
            counts = Counter(r.outcome for r in found)
            shares = " | ".join(str(counts[outcome] or "") for outcome in SHOWN)
            compared = [r for r in found if r.outcome in SHOWN[:3]]
            largest = f"{max(r.largest for r in compared):.2g}" if compared else ""
            argmax = f"{sum(r.argmax for r in compared) / len(compared):.1%}" if compared else ""
            head = f"| {LABELS[one.way.engine]} | {one.way.call} | {variant} | {len(found)} "
            lines.append(f"{head}| {shares} | {largest} | {argmax} |")
    lines.append("")
    lines.append(
        "Largest difference and share of equal argmax are over the cells that could be compared; "
        "the logits have a standard deviation of about 1."
    )
    return "\n".join(lines) + "\n"


def details(measured: Sequence[Measured]) -> str:
    """The grid of every way whose cells are not all exact, and what the engine said."""
    lines = [
        "## Cell by cell",
        "",
        "`=` exact, a number the largest difference (`~` before it: close), otherwise the outcome. Variants "
        "of a way with the same cells share a grid; where all cells are refused there is none.",
    ]
    for one in measured:
        for variants in alike(one):
            found = grid(one.results, variants[0])
            outcomes = {r.outcome for r in found}
            if outcomes == {Outcome.EXACT}:
                continue
            names = ", ".join(variants)
            lines += ["", f"**{LABELS[one.way.engine]}, {one.way.call}: {names}**", ""]
            if len(outcomes) > 1 or Outcome.DIFFERS in outcomes:
                lines += [*_grid(found), ""]
            lines += [f"* {text}, {count} of {len(found)} cells" for text, count in messages(found).items()]
    return "\n".join(lines) + "\n"


def alike(one: Measured) -> list[list[Variant]]:
    """The variants of a way, those together whose common cells came out the same."""
    groups: list[list[Variant]] = []
    for variant in one.way.variants:
        for group in groups:
            shown = {(r.cell.position, r.cell.drafted): _shown(r) for r in grid(one.results, group[0])}
            other = grid(one.results, variant)
            if all(shown.get((r.cell.position, r.cell.drafted)) == _shown(r) for r in other):
                group.append(variant)
                break
        else:
            groups.append([variant])
    return groups


def _shown(result: Result) -> str:
    """A cell and what was said, without the step at which it was said."""
    return f"{symbol(result)} {result.detail.partition(': ')[2]}"


def _grid(found: Sequence[Result]) -> list[str]:
    columns = sorted({r.cell.drafted for r in found})
    by_row: dict[int, dict[int, Result]] = {}
    for result in found:
        by_row.setdefault(result.cell.position, {})[result.cell.drafted] = result
    lines = ["| P | P mod 4 | " + " | ".join(f"n={n}" for n in columns) + " |"]
    lines.append("|---:|---:|" + "---:|" * len(columns))
    for position, row in by_row.items():
        shown = " | ".join(symbol(row[n]) for n in columns)
        lines.append(f"| {position} | {position % 4} | {shown} |")
    return lines


def symbol(result: Result) -> str:
    """A cell in a few characters."""
    if result.outcome is Outcome.EXACT:
        return "="
    if result.outcome is Outcome.CLOSE:
        return f"~{result.largest:.1g}"
    if result.outcome is Outcome.DIFFERS:
        return f"{result.largest:.2g}"
    return str(result.outcome)


def messages(found: Sequence[Result]) -> Mapping[str, int]:
    """What an engine said and how often; texts that differ in numbers only are one."""
    said = Counter(
        f"{result.outcome}: `{re.sub(r'[0-9]+', '#', result.detail).replace('`', '')}`"
        for result in found
        if result.detail
    )
    return dict(said.most_common())


def _controls(measured: Sequence[Measured], agreements: Sequence[Agreement]) -> str:
    lines = ["## Controls", "", "| engine | way | controls exact | one by one against one batch |"]
    lines.append("|---|---|---:|---:|")
    for one in measured:
        found = control(one.results)
        exact = sum(r.outcome is Outcome.EXACT for r in found)
        noise = max(r.noise for r in found)
        lines.append(f"| {LABELS[one.way.engine]} | {one.way.call} | {exact} of {len(found)} | {noise:.2g} |")
    lines += ["", "Logits of one prompt against ours, largest difference of a row:", ""]
    lines += ["| engine | rows | median row | largest row |", "|---|---:|---:|---:|"]
    lines += [f"| {LABELS[a.engine]} | {a.rows} | {a.median:.1e} | {a.largest:.1e} |" for a in agreements]
    return "\n".join(lines) + "\n"
