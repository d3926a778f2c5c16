"""`ds4c bench`: how fast an artifact runs here: prefill, decode, verify blocks, rewinds, load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.common import ArtifactArgument, JsonOption, print_json, result_console, usage_error

if TYPE_CHECKING:
    from ds4c_runtime.local import LocalModel
    from ds4c_runtime.session import Session

VERIFY_ROWS = 6
"""Rows of a full DSpark block: the anchor and five drafts."""


def run(
    artifact: ArtifactArgument,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Position at which steps are timed.")] = 512,
    repeats: Annotated[int, typer.Option(min=3, help="Measurements; the median is reported.")] = 15,
    as_json: JsonOption = False,
) -> None:
    """Measure load, prefill, decode, verify blocks and rewinds; medians, after a warm-up.

    Example: ds4c bench out/m --context 512 --json
    """
    from ds4c_runtime.local import open_local

    start = time.perf_counter()
    model = open_local(artifact, threads=threads)
    load_ms = (time.perf_counter() - start) * 1e3
    most = model.manifest.model.context
    if context + 16 * repeats > most:
        usage_error(
            f"--context: expected at most {most - 16 * repeats} (context less the steps), got {context}"
        )
    result = {
        "artifact": str(artifact),
        "artifact_id": model.manifest.artifact_id,
        "target": f"{model.manifest.target.name}:{model.manifest.target.variant}",
        "threads": threads,
        "context": context,
        "load_ms": round(load_ms, 2),
        **measure(model, context, repeats),
    }
    if as_json:
        print_json(result)
    else:
        _print(result)


def measure(model: LocalModel, context: int, repeats: int) -> dict[str, float]:
    """Times of one session at a position; milliseconds unless the name says otherwise."""
    import numpy as np

    tokens = np.random.default_rng(0).integers(0, model.manifest.model.vocab_size, context).tolist()
    session = model.session("bench")
    prefill = _median(lambda: _prefill(session, tokens), max(3, repeats // 4))
    _prefill(session, tokens)
    decode = _median(lambda: _step(session, tokens[:1], context), repeats)
    verify = _median(lambda: _step(session, tokens[:VERIFY_ROWS], context), repeats)
    out = {
        "prefill_tokens_per_s": round(context / (prefill / 1e3), 1),
        "prefill_ms": round(prefill, 3),
        "decode_step_ms": round(decode, 4),
        "decode_tokens_per_s": round(1e3 / decode, 1),
        "rows6_step_ms": round(verify, 4),
        "rewind_in_place_ms": round(_rewind(session, tokens[:VERIFY_ROWS], context, repeats), 5),
    }
    session.close()
    return out


def _prefill(session: Session, tokens: list[int]) -> float:
    session.rewind(0)
    start = time.perf_counter()
    session.prefill(tokens)
    return time.perf_counter() - start


def _step(session: Session, tokens: list[int], position: int) -> float:
    """One step of some rows at a position, undone in place afterwards."""
    start = time.perf_counter()
    session.step(tokens, all_logits=True)
    seconds = time.perf_counter() - start
    session.rewind(position)
    return seconds


def _rewind(session: Session, tokens: list[int], position: int, repeats: int) -> float:
    def once() -> float:
        session.step(tokens)
        start = time.perf_counter()
        session.rewind(position)
        return time.perf_counter() - start

    return _median(once, repeats)


def _median(measurement: Callable[[], float], repeats: int) -> float:
    """Median in milliseconds; the first measurement is a warm-up."""
    import statistics

    measurement()
    return statistics.median(measurement() for _ in range(repeats)) * 1e3


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("figure", "value", title=f"{result['artifact']} on {result['target']}")
    for name, value in result.items():
        if name not in ("artifact", "artifact_id", "target"):
            table.add_row(name, str(value))
    result_console().print(table)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(run)
