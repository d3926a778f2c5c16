"""The part of a session that only goes forwards: tokens in, logits out, rebuilds of known tokens.

`session.py` adds the ways back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4c_runtime.errors import (
    InvalidRequestError,
    StateInvalidError,
)
from ds4c_runtime.guards import check_capacity, check_chunk, check_length, check_tokens
from ds4c_runtime.reports import RewindReport
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Logits, Stepper
from ds4c_runtime.timeline import Timeline, run


class SessionBase:
    """One timeline; `position` tokens long, at most `capacity`."""

    def __init__(
        self,
        executor: Stepper,
        store: StateStore,
        session_id: str,
        capacity: int | None = None,
        tokenizer_sha256: str = "",
    ) -> None:
        """Open an empty session.

        `session_id` is for messages, `capacity` by default the context of the model in tokens,
        `tokenizer_sha256` (hex, or empty) a part of the digest.

        Raises:
            InvalidRequestError: `capacity` is not in `[1, context]`.
            SessionLimitError: all slots are taken.
        """
        self.session_id = session_id
        self.capacity = check_capacity(capacity, executor.manifest.model.context)
        self.last_rewind: RewindReport | None = None
        self.logits_replayed = 0
        self._executor = executor
        self._line = Timeline(executor, store, tokenizer_sha256)
        self._is_open = True

    @property
    def position(self) -> int:
        """Number of tokens in the history."""
        return self._line.position

    @property
    def epoch(self) -> int:
        """How often the session was rewound; tells handles of before from those of now."""
        return self._line.epoch

    @property
    def high_water(self) -> int:
        """One past the highest row written since the state was last filled from position 0."""
        return self._line.high_water

    @property
    def floor(self) -> int:
        """Lowest position whose rows a fork brought along; 0 otherwise."""
        return self._line.floor

    @property
    def horizon(self) -> int:
        """Tokens below `high_water` that a rewind reaches without a rebuild."""
        return self._executor.limits.horizon

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of one step."""
        return self._executor.limits.max_rows

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens."""
        return self._line.history.slice(0, self.position)

    @property
    def digest(self) -> str:
        """Hex sha256 of history and tokenizer; see `History.digest`."""
        return self._line.history.digest()

    @property
    def state_valid(self) -> bool:
        """Whether the state is that of the whole history."""
        return self._line.is_valid

    @property
    def state_bytes(self) -> int:
        """Bytes of slot, pages and snapshots; what is shared with a fork counts in both."""
        arenas = self._executor.manifest.arenas
        pages = len(self._line.lease.pages) * arenas.page
        return arenas.state_slot + pages + self._line.ring.bytes

    @property
    def timeline(self) -> Timeline:
        """Slot, pages and state counters, for the store's readers and for tests."""
        return self._line

    def prefill(self, tokens: Sequence[int], *, chunk: int | None = None) -> None:
        """Append tokens and evaluate them in chunks; rebuilds first if the state is invalid.

        `chunk` is the number of tokens per step, by default the most the artifact allows; it changes no bit.

        Raises:
            InvalidRequestError: a token is not in the vocabulary or `chunk` is not in `[1, max_rows]`.
            ContextLengthError: the tokens do not fit; nothing has changed.
            MemoryBudgetError: no pages for the tokens; nothing has changed.
            BackendFailedError: the device failed. The history holds the chunks that were finished,
                the state is invalid.
        """
        size = check_chunk(chunk, self._executor.limits.max_rows)
        self.check_tokens(tokens)
        self._line.check_room(len(tokens))
        self.rebuild()
        for start in range(0, len(tokens), size):
            self.advance(tokens[start : start + size], wanted=int(start + size >= len(tokens)))

    def step(self, tokens: Sequence[int], *, all_logits: bool = False) -> Logits:
        """Append tokens and return logits.

        Returns:
            float32 `[1, V]`, the distribution at the new position, or `[len(tokens), V]`, one row after
            each token.

        Raises:
            StateInvalidError: the state is invalid.
            InvalidRequestError: no token, or one outside the vocabulary.
            ContextLengthError, MemoryBudgetError, BackendFailedError: as `prefill`.
        """
        self.require_valid()
        self.check_tokens(tokens)
        if not tokens:
            raise InvalidRequestError("step refused: expected at least one token, got none", field="tokens")
        self._line.check_room(len(tokens))
        limits = self._executor.limits
        size = min(limits.max_rows, limits.max_logit_rows) if all_logits else limits.max_rows
        results: list[Logits] = []
        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            results.append(self.advance(part, wanted=len(part) if all_logits else 1))
        return np.concatenate(results) if all_logits else results[-1]

    def advance(self, tokens: Sequence[int], wanted: int) -> Logits:
        """Append and evaluate one chunk of checked tokens; returns the logits of the last `wanted` rows."""
        return step_sessions(self._executor, [(self, tokens, wanted)])[0]

    def logits(self) -> Logits | None:
        """Logits at the current position, `[V]` float32; `None` at position 0.

        The row is that of the last block if it is still held. Otherwise the last token is evaluated
        once more, which `last_rewind` then counts as one replayed token.

        Raises:
            StateInvalidError: the state is invalid.
            BackendFailedError: the device failed; the state is invalid.
        """
        self.require_valid()
        if self.position == 0:
            return None
        if self._line.saved_logits() is None:
            started = self._executor.now()
            self._line.evaluate_last_again()
            self.logits_replayed += 1
            if self.last_rewind is not None:
                self.last_rewind = self.last_rewind._replace(
                    replayed_tokens=1, replay_seconds=self._executor.now() - started
                )
        return self._line.saved_logits()

    def rebuild(self) -> None:
        """Run chunks until the state is valid; does nothing if it is.

        Raises:
            MemoryBudgetError: no pages; the state stays invalid.
            BackendFailedError: the device failed; the state stays invalid.
        """
        self._require_open()
        while not self.state_valid:
            self.rebuild_chunk()

    def rebuild_chunk(self) -> None:
        """Run one chunk of a rebuild, at most `max_rows` tokens; errors as `rebuild`."""
        self._line.rebuild_chunk()

    def close(self) -> None:
        """Give back slot and pages; the session can do nothing more. Closing twice is allowed."""
        if self._is_open:
            self._line.close()
            self._is_open = False

    def require_valid(self) -> None:
        """Refuse what reads the state while it is not that of the history.

        Raises:
            StateInvalidError: the state is invalid, or the session is closed.
        """
        self._require_open()
        if not self.state_valid:
            raise StateInvalidError(
                f"session {self.session_id!r} refused: expected a state of {self.position} tokens, "
                f"got one of {self._line.evaluated}; prefill or rewind it first"
            )

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse tokens that are not in the vocabulary or do not fit.

        Raises:
            InvalidRequestError, ContextLengthError: naming token or numbers.
        """
        check_tokens(tokens, self._executor.manifest.model.vocab_size)
        check_length(self.position + len(tokens), self.capacity)

    def _require_open(self) -> None:
        if not self._is_open:
            raise StateInvalidError(
                f"session {self.session_id!r} refused: expected an open session, got a closed one"
            )


def step_sessions(executor: Stepper, work: Sequence[tuple[SessionBase, Sequence[int], int]]) -> list[Logits]:
    """Append tokens to several sessions in one step.

    Args:
        executor: runs the step.
        work: per session its tokens (at least one) and the number of last rows whose logits are wanted.

    Returns:
        Per session float32 `[wanted, V]`.

    Raises:
        InvalidRequestError: a session twice, no tokens, or more rows than the artifact allows.
        StateInvalidError, ContextLengthError, MemoryBudgetError: refused, nothing has changed.
        BackendFailedError: the device failed; histories are as before, the states are invalid.
    """
    if len({id(session) for session, _, _ in work}) != len(work):
        raise InvalidRequestError("step refused: expected each session once, got one twice", field="sessions")
    for session, tokens, wanted in work:
        session.require_valid()
        session.check_tokens(tokens)
        if not 0 <= wanted <= len(tokens) or not tokens:
            raise InvalidRequestError(
                f"step refused: expected at least one token and no more logit rows than tokens, got "
                f"{len(tokens)} tokens and {wanted} rows",
                field="tokens",
            )
    results = run(executor, [(s.timeline, s.position, tokens, wanted) for s, tokens, wanted in work])
    for session, tokens, _ in work:
        line = session.timeline
        line.history.extend(tokens)
        line.evaluated = line.position
    for session, _, _ in work:
        session.timeline.keep_marked()
    return results
