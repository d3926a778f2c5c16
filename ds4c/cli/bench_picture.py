"""Measurements for people: tables in the terminal, or a PNG where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds4c.cli.bench_profile import KernelTime, Profile
from ds4c.cli.common import CommandFailure, ExitCode, format_bytes, print_result, print_table

BAR = 30
COLUMNS = ("kernel", "shape", "calls", "us", "share", "MB", "GB/s", "")


def print_profile(profile: Profile) -> None:
    """Print kernels by time, largest first, with their share as a bar."""
    print_result(
        f"{profile.rows} rows at position {profile.position}: step {profile.step_microseconds:.0f} us, "
        f"kernels one by one {profile.kernel_microseconds:.0f} us"
    )
    largest = max((k.share for k in profile.kernels), default=1.0) or 1.0
    print_table(
        COLUMNS,
        [
            (
                kernel.op,
                kernel.shape,
                kernel.calls,
                f"{kernel.microseconds:.1f}",
                f"{kernel.share:.1%}",
                f"{kernel.num_bytes / 1e6:.2f}",
                _speed(kernel),
                "#" * round(BAR * kernel.share / largest),
            )
            for kernel in profile.kernels
        ],
    )


def _speed(kernel: KernelTime) -> str:
    speed = kernel.gigabytes_per_s
    return "" if speed is None else f"{speed:.1f}"


def profile_data(profile: Profile) -> dict[str, Any]:
    """A profile as plain JSON values."""
    kernels = [{**asdict(k), "gigabytes_per_s": k.gigabytes_per_s} for k in profile.kernels]
    return {**asdict(profile), "kernels": kernels}


def draw_profile(profile: Profile, path: Path, title: str) -> None:
    """Write a bar chart of all kernels as PNG; the file appears when it is complete.

    Raises:
        CommandFailure: matplotlib is not installed.
    """
    pyplot = _pyplot()
    kernels = profile.kernels[::-1]
    figure, axes = pyplot.subplots(figsize=(10, 0.26 * len(kernels) + 1.4))
    axes.barh(range(len(kernels)), [k.microseconds for k in kernels], color="#3b6ea5")
    for at, kernel in enumerate(kernels):
        text = f"{kernel.share:.1%}, {kernel.calls} calls, {_speed(kernel) or '?'} GB/s"
        axes.text(kernel.microseconds, at, f" {text}", va="center", fontsize=6)
    axes.set_yticks(range(len(kernels)), [f"{k.op} {k.shape}" for k in kernels], fontsize=6)
    axes.set_xlabel(f"microseconds of a step of {profile.rows} rows at position {profile.position}")
    axes.set_title(title, fontsize=8)
    axes.margins(x=0.25)
    figure.tight_layout()
    _save(figure, path, pyplot)


def check_picture() -> None:
    """Refuse a picture before anything is measured for it.

    Raises:
        CommandFailure: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandFailure(
            "picture not drawn: expected matplotlib, got none; pip install matplotlib, or leave out -o",
            ExitCode.UNUSABLE,
        )


def _pyplot() -> Any:
    check_picture()
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    mpl.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    return pyplot


def _save(figure: Any, path: Path, pyplot: Any) -> None:
    """Write a PNG; the file appears when it is complete."""
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(staging, dpi=130, format="png")
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
        pyplot.close(figure)


REWIND_COLUMNS = ("context", "distance", "way", "replayed", "ms", "steps", "ms to next token", "prefill ms")
CONTEXT_COLUMNS = (
    "context", "step ms", "prefill ms/token", "replay ms/token", "slot", "pages", "snapshot", "all snapshots",
)  # fmt: skip
COLOURS = {"in_place": "#2a7f62", "snapshot": "#3b6ea5", "snapshot_replay": "#c78a1f", "rebuild": "#b3452c"}


def print_rewinds(result: Mapping[str, Any]) -> None:
    """Print what `measure_rewinds` found: all rewinds, then a line for each context, then sizes."""
    print_result(
        f"{result['artifact']} on {result['target']}, horizon {result['horizon']}, medians; steps: ms as a "
        "multiple of a decode step"
    )
    print_table(REWIND_COLUMNS, [_rewind_cells(t) for t in result["rewind"]])
    print_result("")
    print_table(CONTEXT_COLUMNS, [_context_cells(c) for c in result["contexts"]])
    print_result("\n" + ", ".join(f"{name} {count}" for name, count in result["bytes"].items()))


def _rewind_cells(time: Mapping[str, Any]) -> tuple[object, ...]:
    way = time["kind"] if time["snapshots"] else f"{time['kind']}, snapshots dropped"
    prefill = "" if time["prefill_ms"] is None else f"{time['prefill_ms']:.3f}"
    return (
        time["context"], time["distance"], way, time["replayed_tokens"], f"{time['ms']:.4f}",
        f"{time['ms'] / time['decode_step_ms']:.4f}", f"{time['next_token_ms']:.3f}", prefill,
    )  # fmt: skip


def _context_cells(context: Mapping[str, Any]) -> tuple[object, ...]:
    replay = context["replay_ms_per_token"]
    return (
        context["context"],
        f"{context['decode_step_ms']:.3f}",
        f"{context['prefill_ms_per_token']:.3f}",
        "" if replay is None else f"{replay:.3f}",
        *(format_bytes(context[key]) for key in ("slot_bytes", "page_bytes", "snapshot_bytes")),
        f"{context['snapshots']}, {format_bytes(context['snapshots_bytes'])}",
    )


def draw_rewinds(result: Mapping[str, Any], path: Path) -> None:
    """Write rewinds by distance, and by replayed tokens, as PNG; the file appears when it is complete.

    Raises:
        CommandFailure: matplotlib is not installed.
    """
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.6))
    markers = dict(zip([c["context"] for c in result["contexts"]], "osD^v<>P", strict=False))
    for time in result["rewind"]:
        look = {"color": COLOURS[time["kind"]], "marker": markers[time["context"]], "markersize": 5, "ls": ""}
        left.plot(time["distance"], time["ms"], fillstyle="full" if time["snapshots"] else "none", **look)
        if time["prefill_ms"] is not None and time["snapshots"]:
            right.plot(time["prefill_ms"], time["ms"], **look)
    steps = [c["decode_step_ms"] for c in result["contexts"]]
    for height, text in ((min(steps), "one decode step"), (min(steps) / 100, "1 % of it")):
        left.axhline(height, color="black", linewidth=0.8, linestyle=":")
        left.text(1, height, text, fontsize=7, va="bottom")
    most = max((t["prefill_ms"] or 0.0 for t in result["rewind"] if t["snapshots"]), default=0.0) or 1.0
    right.plot([0, most], [0, most], color="black", linewidth=0.8, linestyle=":")
    left.set(xscale="log", yscale="log", xlabel="tokens back", ylabel="ms until the rewind returns")
    right.set(xlabel="ms of a prefill of the same tokens", ylabel="ms of the rewind, snapshot and replay")
    for kind, colour in COLOURS.items():
        left.plot([], [], "o", color=colour, label=kind.replace("_", " "))
    for context, marker in markers.items():
        left.plot([], [], marker, color="grey", label=f"at {context}")
    left.legend(fontsize=7)
    figure.suptitle(f"{result['artifact']} on {result['target']}, horizon {result['horizon']}", fontsize=9)
    figure.tight_layout()
    _save(figure, path, pyplot)
