"""`ds4c chat`: talk to the model; take tokens or turns back, branch, see figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ds4c.cli.common import (
    ArtifactArgument,
    CommandFailure,
    DeviceOption,
    ThreadsOption,
    describe_failure,
    print_note,
)
from ds4c.cli.run import (
    SeedOption,
    SystemOption,
    TemperatureOption,
    ThinkOption,
    TopKOption,
    TopPOption,
    figures,
    sampling,
    stream,
)

if TYPE_CHECKING:
    from ds4c.cli.conversation import Conversation, Reply
    from ds4c_runtime.reports import RewindReport

HELP = """/rewind N     take back the last N tokens; /rewind ID: go to a snapshot
/undo         take back the last turn
/snapshots    list what is retained of the branch
/branch NAME  go on in a branch; a new one starts here (no NAME: list them)
/stats        position, branches, figures of the last answer
/quit         leave (also end of input)"""


def run(
    artifact: ArtifactArgument,
    system: SystemOption = "",
    think: ThinkOption = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    seed: SeedOption = 0,
    threads: ThreadsOption = 1,
    device: DeviceOption = None,
    branches: Annotated[int, typer.Option(min=1, help="Most branches.")] = 8,
) -> None:
    """Talk to the model. Lines that begin with / are commands; /help lists them.

    Example: ds4c chat out/m        (then: What is rewind?   /undo   /branch other)
    """
    from ds4c.cli.conversation import Conversation
    from ds4c_runtime.engine import Engine

    with Engine.load(artifact, max_sessions=branches, threads=threads, device=device) as engine:
        talk = Conversation(
            engine,
            sampling(temperature, top_p, top_k, seed),
            system=system,
            thinking=think,
            max_tokens=max_tokens,
        )
        print_note(
            f"{engine.manifest.model.name}, context {engine.manifest.model.context}; /help lists commands"
        )
        Chat(talk).loop()


class Chat:
    """Reads lines, answers or obeys."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._last: Reply | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "/rewind": self._rewind,
            "/undo": self._undo,
            "/snapshots": self._snapshots,
            "/branch": self._branch,
            "/stats": self._stats,
            "/help": lambda _: print_note(HELP),
        }

    def loop(self) -> None:
        """Until end of input or /quit; a failed line leaves the conversation as it was."""
        while True:
            try:
                line = self._read()
                if line is None or line == "/quit":
                    return
                if line:
                    self._obey(line)
            except Exception as error:
                described = describe_failure(error)
                if described is None:
                    raise
                print_note(f"error: {described[0]}")

    def _read(self) -> str | None:
        if sys.stdin.isatty():
            sys.stderr.write(f"{self._talk.name}> ")
            sys.stderr.flush()
        line = sys.stdin.buffer.readline()
        try:
            return line.decode("utf-8").strip() if line else None
        except UnicodeDecodeError:
            raise CommandFailure("line not read: expected UTF-8, got other bytes; type it again") from None

    def _obey(self, line: str) -> None:
        if not line.startswith("/"):
            self._last = self._talk.say(line, stream)
            stream("\n")
            return
        word, _, rest = line.partition(" ")
        if word not in self._commands:
            raise CommandFailure(f"command: expected one of {', '.join(self._commands)}, /quit, got {word}")
        self._commands[word](rest.strip())

    def _rewind(self, rest: str) -> None:
        if rest.isascii() and rest.isdigit():
            self._report(self._talk.rewind(int(rest)))
        elif rest in [snapshot.snapshot_id for snapshot in self._talk.snapshots()]:
            self._report(self._talk.go_to(rest))
        else:
            raise CommandFailure(
                f"/rewind: expected a number of tokens or an id of /snapshots, got {rest!r}; try again"
            )

    def _undo(self, _: str) -> None:
        self._report(self._talk.undo())

    def _snapshots(self, _: str) -> None:
        for snapshot in self._talk.snapshots():
            here = "  <- here" if snapshot.position == self._talk.position else ""
            pinned = ", pinned" if snapshot.is_pinned else ""
            print_note(
                f"{snapshot.snapshot_id}  position {snapshot.position}, {snapshot.origin.value}{pinned}{here}"
            )

    def _branch(self, name: str) -> None:
        if not name:
            print_note(", ".join(f"*{n}" if n == self._talk.name else n for n in self._talk.branches))
            return
        report = self._talk.fork(name)
        if report is not None:
            self._report(report)
        print_note(f"branch {name}, position {self._talk.position}")

    def _report(self, report: RewindReport) -> None:
        using = f" from snapshot {report.snapshot_id}" if report.snapshot_id else ""
        print_note(
            f"[{report.kind.name.lower()}: {report.from_position} -> {report.to_position}, "
            f"{report.replayed_tokens} tokens replayed{using}, "
            f"{(report.restore_seconds + report.replay_seconds) * 1e3:.2f} ms]"
        )

    def _stats(self, _: str) -> None:
        talk = self._talk
        print_note(f"branch {talk.name} of {len(talk.branches)}, position {talk.position}")
        if self._last is not None:
            print_note(figures(self._last))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat")(run)
