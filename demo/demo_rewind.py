"""The part of the demo that rewinds: each row is compared with a session that never went the other way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from demo_client import Client, Moved, Reply

GENERATED = 16
"""Tokens that the model adds before each rewind: the rewind then lands among decoded tokens too."""

CONTINUED = 24
"""Tokens compared after each rewind."""

REPEATS = 5
"""Each row is done so often, in sessions of its own; times are medians."""


@dataclass(frozen=True)
class Row:
    """One way back: what it did, what it cost, and whether the session went on like a fresh one."""

    what: str
    moved: Moved
    from_position: int
    replayed_tokens: int
    next_token_ms: float
    decode_ms: float
    runtime_decode_ms: float
    same: bool

    def cells(self) -> list[str]:
        """The row as text."""
        return [
            self.what,
            f"{self.from_position}→{self.moved.position}",
            self.moved.kind,
            str(self.replayed_tokens),
            f"{self.moved.return_ms:.2f} ({self.moved.runtime_ms:.2f})",
            f"{self.next_token_ms:.2f}",
            f"{self.decode_ms:.2f} ({self.runtime_decode_ms:.2f})",
            "yes" if self.same else "NO",
        ]


COLUMNS = (
    "rewind",
    "position",
    "kind",
    "replayed\ntokens",
    "ms to\nreturn",
    "ms to\nnext",
    "ms of\na step",
    "same",
)
CAPTION = f"""\
replayed tokens: run again, by the call or for the next token. ms to return: the
call itself. ms to next: the Generate call after it, up to its first token. ms
of a step: one decode step. Medians of {REPEATS} as the client sees them, gRPC included;
in brackets what the runtime takes of it. same: the next {CONTINUED} tokens, their
log-probabilities and the digest of the history equal those of a new session
that was only ever fed the surviving tokens.\
"""


def summary(rows: Sequence[Row]) -> Row:
    """One row from its repetitions: medians of the times; all must be as fresh."""
    first = rows[0]
    return replace(
        first,
        moved=replace(
            first.moved,
            return_ms=median(row.moved.return_ms for row in rows),
            runtime_ms=median(row.moved.runtime_ms for row in rows),
        ),
        next_token_ms=median(row.next_token_ms for row in rows),
        decode_ms=median(row.decode_ms for row in rows),
        runtime_decode_ms=median(row.runtime_decode_ms for row in rows),
        same=all(row.same for row in rows),
    )


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

    def _prepare(self, session: str) -> tuple[list[int], Reply]:
        """Feed the history, decode some tokens; gives all tokens and the reply that decoded."""
        reply = self._client.generate(session, self._history, max_tokens=GENERATED, ignore_eos=True)
        return [*self._history, *reply.tokens], reply

    def _row(self, what: str, target: Callable[[int], int]) -> Row:
        with self._client.session() as session:
            tokens, decoded = self._prepare(session)
            moved = self._client.rewind(session, target(len(tokens)))
            survivors = tokens[: moved.position]
            prompt = [] if survivors else self._first_prompt  # nothing to go on from at position 0
            went_on = self._client.generate(session, prompt, max_tokens=CONTINUED, ignore_eos=True)
        fresh = fresh_continuation(self._client, survivors, prompt)
        same = went_on.same_as(fresh)
        return self._row_of(what, moved, tokens, went_on, decoded, same)

    @staticmethod
    def _row_of(
        what: str, moved: Moved, tokens: Sequence[int], went_on: Reply, decoded: Reply, same: bool
    ) -> Row:
        replayed = moved.replayed_tokens + went_on.replayed_tokens
        return Row(
            what,
            moved,
            len(tokens),
            replayed,
            went_on.first_token_ms,
            decoded.decode_ms(),
            decoded.runtime_decode_ms,
            same,
        )

    def _fork_row(self) -> Row:
        """Fork, let the child go on, then the parent: the child must not have touched it."""
        with self._client.session() as parent:
            tokens, decoded = self._prepare(parent)
            moved = self._client.fork(parent)
            try:
                child = self._client.generate(moved.session_id, [], max_tokens=CONTINUED, ignore_eos=True)
            finally:
                self._client.close(moved.session_id)
            after = self._client.generate(parent, [], max_tokens=CONTINUED, ignore_eos=True)
        fresh = fresh_continuation(self._client, tokens, [])
        same = child.same_as(fresh) and after.same_as(fresh)
        return self._row_of("fork", moved, tokens, child, decoded, same)

    def rows(self) -> list[Row]:
        """All rows, from the shortest way back to the longest, then the fork."""
        ways: list[tuple[str, Callable[[int], int]]] = [
            ("by 1", lambda position: position - 1),
            ("by 5", lambda position: position - 5),
            ("to middle", lambda position: position // 2),
            ("to 0", lambda _: 0),
        ]
        rows = [summary([self._row(what, target) for _ in range(REPEATS)]) for what, target in ways]
        return [*rows, summary([self._fork_row() for _ in range(REPEATS)])]
