"""Build: `ds4c build` of the checkpoint, process start to exit."""

from __future__ import annotations

from benchmarks.own import Files
from benchmarks.pairs import Goal, Row, clock_row

GOAL = Goal("<=", 20.0)


def build(files: Files) -> Row:
    """Seconds of a build with default options; the builds themselves ran when the files were made."""
    return clock_row("build", files.weights, files.builds, GOAL)
