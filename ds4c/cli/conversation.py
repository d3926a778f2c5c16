"""A conversation in one process: an engine, one session per branch, turns as positions.

What `ds4c run` and `ds4c chat` share. Reads and writes nothing itself: text goes to a callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ds4c.cli.common import CommandFailure

if TYPE_CHECKING:
    from ds4c_runtime.engine import Engine
    from ds4c_runtime.reports import RewindReport
    from ds4c_runtime.requests import Finished
    from ds4c_runtime.sampler import SamplingParams
    from ds4c_runtime.snapshot import SnapshotInfo

OnText = Callable[[str], None]


@dataclass(frozen=True)
class Reply:
    """One answer: its text and how it ended."""

    text: str
    finished: Finished


@dataclass
class Branch:
    """A session and where its turns begin, in tokens."""

    session_id: str
    turns: list[int] = field(default_factory=list[int])
    has_answer: bool = False
    """Whether the last turn was answered, so that the next prompt has to close it."""


class Conversation:
    """Turns on the current branch of an engine."""

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParams,
        *,
        system: str = "",
        thinking: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        if engine.tokenizer is None:
            raise CommandFailure(
                "text refused: expected an artifact with tokenizer.json, got one without; build it from a "
                "checkpoint that has one, or send token ids (`ds4c client generate --tokens`)"
            )
        self._engine, self._tokenizer = engine, engine.tokenizer
        self._sampling, self._system, self._thinking = sampling, system, thinking
        self._max_tokens = max_tokens
        self.branches = {"main": Branch(engine.open_session().session_id)}
        self.name = "main"

    @property
    def branch(self) -> Branch:
        """The current branch."""
        return self.branches[self.name]

    @property
    def position(self) -> int:
        """Tokens of the current branch."""
        return self._engine.get_session(self.branch.session_id).position

    def say(self, text: str, on_text: OnText) -> Reply:
        """Add a user's turn and generate the answer, streaming its text."""
        return self.generate(self._prompt(text), on_text)

    def continue_raw(self, text: str, on_text: OnText) -> Reply:
        """Append plain text after the begin marker and go on; no chat markup."""
        bos = self._engine.manifest.model.bos_token_id if self.position == 0 else None
        return self.generate(self._tokenizer.encode(text, bos_token_id=bos), on_text)

    def _prompt(self, text: str) -> list[int]:
        from ds4c_runtime import chat

        user = chat.Message(chat.Role.USER, text)
        if self.branch.has_answer:
            pieces = chat.render_continuation([user], thinking=self._thinking)
        else:
            system = [chat.Message(chat.Role.SYSTEM, self._system)] if self._system else []
            pieces = chat.render([*system, user], thinking=self._thinking)
        return chat.encode(self._tokenizer, pieces)

    def generate(self, tokens: list[int], on_text: OnText) -> Reply:
        """Append tokens and generate; an interrupt ends the answer, which stays in the session."""
        from ds4c_runtime.requests import GenerationRequest, StopParams, TokenDelta

        parts: list[str] = []

        def on_event(event: object) -> None:
            if isinstance(event, TokenDelta) and event.text:
                parts.append(event.text)
                on_text(event.text)

        branch, start = self.branch, self.position
        request = GenerationRequest(
            tokens=tuple(tokens),
            session_id=branch.session_id,
            sampling=self._sampling,
            stop=StopParams(max_output_tokens=self._max_tokens),
        )
        generation = self._engine.generate(request, on_event=on_event, bounded=False)
        try:
            finished = generation.done.result()
        except KeyboardInterrupt:
            generation.cancel()
            finished = generation.done.result()
        branch.turns.append(start)
        branch.has_answer = True
        return Reply("".join(parts), finished)

    def rewind(self, drop: int) -> RewindReport:
        """Take back the last `drop` tokens of the branch."""
        _, report = self._engine.rewind(self.branch.session_id, drop=drop)
        return self._moved(report)

    def snapshots(self) -> list[SnapshotInfo]:
        """What is retained of the branch."""
        return self._engine.list_snapshots(self.branch.session_id)

    def go_to(self, snapshot_id: str) -> RewindReport:
        """Go to a snapshot of the branch, also to what an earlier rewind took back."""
        _, report = self._engine.rewind(self.branch.session_id, to_snapshot=snapshot_id)
        return self._moved(report)

    def undo(self) -> RewindReport:
        """Take back the last turn, question and answer."""
        if not self.branch.turns:
            raise CommandFailure("undo refused: expected a turn to take back, got none")
        _, report = self._engine.rewind(self.branch.session_id, to=self.branch.turns[-1])
        return self._moved(report)

    def _moved(self, report: RewindReport) -> RewindReport:
        branch, position = self.branch, report.to_position
        branch.turns = [t for t in branch.turns if t < position]
        branch.has_answer = position > 0
        return report

    def fork(self, name: str) -> RewindReport | None:
        """Go on in branch `name`: an existing one, or a new one that forks from here (then its report)."""
        report = None
        if name not in self.branches:
            info, report = self._engine.fork(self.branch.session_id)
            self.branches[name] = Branch(info.session_id, list(self.branch.turns), self.branch.has_answer)
        self.name = name
        return report
