"""`ds4c bench`: how fast an artifact runs here: prefill, decode, verify blocks, rewinds, load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.common import (
    ArtifactArgument,
    DeviceOption,
    JsonOption,
    ThreadsOption,
    print_json,
    result_console,
    usage_error,
)

if TYPE_CHECKING:
    from ds4c_runtime.local import LocalModel
    from ds4c_runtime.session import Session

VERIFY_ROWS = 6
"""Rows of a full DSpark block: the anchor and five drafts."""
DEFAULT_CONTEXT = 512
SETTINGS = ("artifact", "artifact_id", "target")


def run(
    artifact: ArtifactArgument,
    threads: ThreadsOption = 1,
    device: DeviceOption = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="Position at which steps are timed; default 512, with --rewind 256, 1k, 4k and 16k.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=3, help="Measurements; the median is reported.")] = 15,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Time and bytes of rewinds by distance and by way.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Time of each kernel of a step; needs the extra `build`.")
    ] = False,
    rows: Annotated[int, typer.Option(min=1, help="With --profile: rows of the step.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            "--plot",
            help="With --profile or --rewind: also draw a PNG; needs matplotlib.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure load, prefill, decode, verify blocks and rewinds; medians, after a warm-up.

    Examples: ds4c bench out/m --context 512 --json; ds4c bench out/m --rewind --plot rewind.png
    """
    _check_options(profile, rewind, rows, output)
    at = DEFAULT_CONTEXT if context is None else context
    if profile:
        _check_profiled(artifact, device)
        _profile(artifact, rows, at, repeats, threads, output, as_json)
        return
    if rewind:
        _rewinds(artifact, threads, device, context, repeats, output, as_json)
        return
    result = measure_artifact(artifact, threads, at, repeats, device)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _check_options(profile: bool, rewind: bool, rows: int, output: Path | None) -> None:
    if profile and rewind:
        usage_error("--profile, --rewind: expected one of them, got both; run them one after the other")
    if rows != 1 and not profile:
        usage_error("--rows: expected it with --profile, got no --profile; add it")
    if output is not None:
        if not (profile or rewind):
            usage_error("--output: expected it with --profile or --rewind, got neither; add one")
        from ds4c.cli.bench_picture import check_picture

        check_picture()


def _check_profiled(artifact: Path, device: str | None) -> None:
    from ds4c_runtime.devices import default_device
    from ds4c_runtime.manifest import Manifest

    chosen = device or default_device(Manifest.read(artifact))
    if chosen != "cpu":
        usage_error(
            f"--profile: expected device cpu, whose kernels run one by one, got {chosen}; leave out --profile"
        )


def measure_artifact(
    artifact: Path, threads: int, context: int, repeats: int, device: str | None = None
) -> dict[str, Any]:
    """Everything `ds4c bench` reports; times in milliseconds unless the name says otherwise.

    Raises:
        CommandFailure: the artifact is too small for what was asked.
    """
    from ds4c_runtime.local import open_local

    start = time.perf_counter()
    model = open_local(artifact, threads=threads, device=device)
    load_ms = (time.perf_counter() - start) * 1e3
    check_limits(model, context, VERIFY_ROWS)
    return {
        "artifact": str(artifact),
        "artifact_id": model.manifest.artifact_id,
        "target": f"{model.manifest.target.name}:{model.manifest.target.variant}",
        "device": model.device.name,
        "threads": threads,
        "context": context,
        "repeats": repeats,
        "load_ms": round(load_ms, 2),
        **measure(model, context, repeats),
    }


def check_limits(model: LocalModel, context: int, rows: int) -> None:
    """Refuse an artifact in which a step of some rows does not fit.

    Raises:
        CommandFailure: naming the limit.
    """
    most = model.manifest.model.context - rows
    if context > most:
        usage_error(f"--context: expected at most {most} (context less a step of {rows} rows), got {context}")
    limits = model.manifest.limits
    if rows > min(limits.max_rows, limits.max_logit_rows):
        usage_error(
            f"bench refused: expected an artifact of at least {rows} rows and logit rows a step, got "
            f"{limits.max_rows} and {limits.max_logit_rows}; build it with larger --rows and --logit-rows"
        )


def measure(model: LocalModel, context: int, repeats: int) -> dict[str, float]:
    """Times of one session at a position; milliseconds unless the name says otherwise."""
    import numpy as np

    tokens = np.random.default_rng(0).integers(0, model.manifest.model.vocab_size, context).tolist()
    session = model.session("bench")
    start = time.perf_counter()
    session.prefill(tokens[:1])
    first = (time.perf_counter() - start) * 1e3
    prefill = _median(lambda: _prefill(session, tokens), max(3, repeats // 4))
    _prefill(session, tokens)
    block = (tokens * VERIFY_ROWS)[:VERIFY_ROWS]
    decode = _times(lambda: _step(session, block[:1], context), repeats)
    verify = _median(lambda: _step(session, block, context), repeats)
    step = statistics.median(decode)
    rewind = _median(lambda: _rewind_in_place(session, block, context), repeats)
    session.close()
    return {
        "first_step_ms": round(first, 3),
        "prefill_tokens_per_s": round(context / (prefill / 1e3), 1),
        "prefill_ms": round(prefill, 3),
        "decode_step_ms": round(step, 4),
        "decode_step_best_ms": round(min(decode), 4),
        "decode_step_worst_ms": round(max(decode), 4),
        "decode_tokens_per_s": round(1e3 / step, 1),
        "rows6_step_ms": round(verify, 4),
        "rewind_in_place_ms": round(rewind, 5),
        "rewind_share_of_step": round(rewind / step, 5),
    }


def _prefill(session: Session, tokens: list[int]) -> float:
    session.rewind(0)
    start = time.perf_counter()
    session.prefill(tokens)
    return time.perf_counter() - start


def _step(session: Session, tokens: list[int], position: int) -> float:
    """One step of some rows with all their logits at a position, undone in place afterwards."""
    start = time.perf_counter()
    session.step(tokens, all_logits=True)
    seconds = time.perf_counter() - start
    session.rewind(position)
    return seconds


def _rewind_in_place(session: Session, tokens: list[int], position: int) -> float:
    session.step(tokens)
    start = time.perf_counter()
    session.rewind(position)
    return time.perf_counter() - start


def _times(measurement: Callable[[], float], repeats: int) -> list[float]:
    """Milliseconds; the first measurement is a warm-up and left out."""
    measurement()
    return [measurement() * 1e3 for _ in range(repeats)]


def _median(measurement: Callable[[], float], repeats: int) -> float:
    return statistics.median(_times(measurement, repeats))


def _profile(
    artifact: Path,
    rows: int,
    context: int,
    repeats: int,
    threads: int,
    output: Path | None,
    as_json: bool,
) -> None:
    from ds4c.cli.bench_picture import draw_profile, print_profile, profile_data
    from ds4c.cli.bench_profile import profile
    from ds4c_runtime.manifest import Manifest

    manifest = Manifest.read(artifact)
    if rows > manifest.limits.max_rows:
        usage_error(f"--rows: expected at most {manifest.limits.max_rows} rows a step, got {rows}")
    if context + rows > manifest.model.context:
        usage_error(
            f"--context: expected at most {manifest.model.context - rows} with {rows} rows, got {context}"
        )
    found = profile(artifact, rows, context, repeats, threads)
    if output is not None:
        draw_profile(
            found, output, f"{manifest.model.name} on {manifest.target.name}:{manifest.target.variant}"
        )
    if as_json:
        print_json({"artifact": str(artifact), "artifact_id": manifest.artifact_id, **profile_data(found)})
    else:
        print_profile(found)


def _rewinds(
    artifact: Path,
    threads: int,
    device: str | None,
    context: int | None,
    repeats: int,
    output: Path | None,
    as_json: bool,
) -> None:
    from ds4c.cli.bench_picture import draw_rewinds, print_rewinds
    from ds4c.cli.bench_rewind import measure_rewinds

    result = measure_rewinds(artifact, threads, context, repeats, device)
    if output is not None:
        draw_rewinds(result, output)
    if as_json:
        print_json(result)
    else:
        print_rewinds(result)


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("figure", "value", title=f"{result['artifact']} on {result['target']}")
    for name, value in result.items():
        if name not in SETTINGS:
            table.add_row(name, str(value))
    result_console().print(table)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(run)
