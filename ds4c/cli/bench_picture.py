"""A profile for people: a table with bars in the terminal, or a PNG where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds4c.cli.bench_profile import KernelTime, Profile
from ds4c.cli.common import CommandFailure, ExitCode, print_result, print_table

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
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandFailure(
            "picture not drawn: expected matplotlib, got none; pip install matplotlib, or leave out -o",
            ExitCode.UNUSABLE,
        )
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    mpl.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

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
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(staging, dpi=130, format="png")
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
        pyplot.close(figure)
