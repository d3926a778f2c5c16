"""The part of the demo that rewinds: each row is compared with a session that never went the other way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo_client import Client, Moved, Reply

GENERATED = 16
"""Tokens that the model adds before each rewind: the rewind then lands among decoded tokens too."""

CONTINUED = 24
"""Tokens compared after each rewind."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    moved: Moved
    from_position: int
    next_token_ms: float
    decode_ms: float
    same: bool

    def cells(self) -> list[str]:
        """The row as text."""
        return [
            self.what,
            f"{self.from_position} -> {self.moved.position}",
            self.moved.kind,
            str(self.moved.replayed_tokens),
            f"{self.moved.return_ms:.2f}",
            f"{self.next_token_ms:.2f}",
            f"{self.decode_ms:.2f}",
            "yes" if self.same else "NO",
        ]


COLUMNS = (
    "rewind",
    "position",
    "kind",
    "replayed tokens",
    "ms to return",
    "ms to next token",
    "ms of a decode step",
    "same as fresh",
)
CAPTION = """\
ms to return: the call itself. ms to next token: the Generate call after it, up to its first token.
Both are seen from the client, gRPC included. same as fresh: the next tokens, their log-probabilities and
the digest of the history equal those of a new session that was only ever fed the surviving tokens.\
"""


def fresh_continuation(client: Client, survivors: Sequence[int], prompt: Sequence[int]) -> Reply:
    """What a new session says that never saw the dropped tokens."""
    with client.session() as session:
        return client.generate(session, [*survivors, *prompt], max_tokens=CONTINUED, ignore_eos=True)


class RewindTour:
    """Rewinds sessions that hold `history`, one session for each row."""

    def __init__(self, client: Client, history: Sequence[int], first_prompt: Sequence[int]) -> None:
        self._client = client
        self._history = list(history)
        self._first_prompt = list(first_prompt)

    def _prepare(self, session: str) -> tuple[list[int], float]:
        """Feed the history, decode some tokens; gives all tokens and the ms of a decode step."""
        reply = self._client.generate(session, self._history, max_tokens=GENERATED, ignore_eos=True)
        return [*self._history, *reply.tokens], reply.decode_ms()

    def _row(self, what: str, target: Callable[[int], int]) -> Row:
        with self._client.session() as session:
            tokens, decode_ms = self._prepare(session)
            moved = self._client.rewind(session, target(len(tokens)))
            survivors = tokens[: moved.position]
            prompt = [] if survivors else self._first_prompt  # nothing to go on from at position 0
            went_on = self._client.generate(session, prompt, max_tokens=CONTINUED, ignore_eos=True)
        fresh = fresh_continuation(self._client, survivors, prompt)
        return Row(what, moved, len(tokens), went_on.first_token_ms, decode_ms, went_on.same_as(fresh))

    def _fork_row(self) -> Row:
        """Fork, let the child go on, then the parent: the child must not have touched it."""
        with self._client.session() as parent:
            tokens, decode_ms = self._prepare(parent)
            moved = self._client.fork(parent)
            try:
                child = self._client.generate(moved.session_id, [], max_tokens=CONTINUED, ignore_eos=True)
            finally:
                self._client.close(moved.session_id)
            after = self._client.generate(parent, [], max_tokens=CONTINUED, ignore_eos=True)
        fresh = fresh_continuation(self._client, tokens, [])
        same = child.same_as(fresh) and after.same_as(fresh)
        return Row("fork", moved, len(tokens), child.first_token_ms, decode_ms, same)

    def rows(self) -> list[Row]:
        """All rows, from the shortest way back to the longest."""
        return [
            self._row("by 1", lambda position: position - 1),
            self._row("by 5", lambda position: position - 5),
            self._row("to the middle", lambda position: position // 2),
            self._row("to 0", lambda _: 0),
            self._fork_row(),
        ]
