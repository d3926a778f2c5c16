"""What the demo prints: plain words, streamed text, one table. Colours only on a terminal."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 100


class View:
    """Writes to standard output."""

    def __init__(self) -> None:
        self._fresh_line = True
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, no_color=True, width=PLAIN_WIDTH)

    def step(self, text: str) -> None:
        """Announce what happens next."""
        self._console.print(f"\n== {text}", style="bold", markup=False)

    def say(self, text: str) -> None:
        """One plain line."""
        self._console.print(text, markup=False)

    def speaker(self, name: str, text: str = "") -> None:
        """Begin a line of the conversation; streamed text may follow it."""
        self._fresh_line = True
        self._console.print(f"{name:>10}: ", style="cyan", end="", markup=False)
        if text:
            self._console.print(text, markup=False)

    def stream(self, text: str) -> None:
        """Text as it arrives, without a line end. Lines of a tool call are set in under each other."""
        if self._fresh_line:
            text = text.lstrip("\n")  # a tool call begins with empty lines
        self._fresh_line = self._fresh_line and not text
        indented = text.replace("\n", "\n" + " " * 12)
        self._console.print(indented, end="", markup=False, soft_wrap=True)

    def end_line(self) -> None:
        """End a streamed line."""
        self._console.print()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
        """A table whose first three columns are words and whose others are numbers."""
        table = Table(
            title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left"
        )
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index < 3 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        self._console.print(caption, markup=False)


def machine_name() -> str:
    """The processor as it names itself, and how many cores this process may use."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"
