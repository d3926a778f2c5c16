"""A session: one mutable timeline of tokens and the model state that matches it.

The rules of rewind and fork are here: what is allowed, what it costs, what is reported. How the state
gets there is `timeline.py`. Not thread-safe: the engine's worker thread, or a test, owns it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ds4c_runtime.errors import (
    InvalidRequestError,
    NotInArtifactError,
    PositionOutOfRangeError,
    RewindTooDearError,
    StateInvalidError,
)
from ds4c_runtime.guards import check_capacity, check_chunk, check_length, check_tokens
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind, RewindPlan, RewindReport
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Logits, Stepper
from ds4c_runtime.timeline import Timeline, run


class Session:
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
        self.epoch = 0
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
        """Bytes of slot and pages; pages shared with a fork count in both."""
        arenas = self._executor.manifest.arenas
        return arenas.state_slot + len(self._line.lease.pages) * arenas.page

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
            started = time.perf_counter()
            self._line.evaluate_last_again()
            self.logits_replayed += 1
            if self.last_rewind is not None:
                self.last_rewind = self.last_rewind._replace(
                    replayed_tokens=1, replay_seconds=time.perf_counter() - started
                )
        return self._line.saved_logits()

    def plan_rewind(self, to: int) -> RewindPlan:
        """Say what `rewind(to)` would do; changes nothing.

        Raises:
            PositionOutOfRangeError: `to` is not in `[0, position]`.
        """
        if not 0 <= to <= self.position:
            raise PositionOutOfRangeError("rewind", to, self.position)
        return self._line.plan(to)

    def can_rewind(self, to: int) -> bool:
        """Whether `rewind(to)` would succeed without a rebuild; `False` outside `[0, position]`."""
        return 0 <= to <= self.position and self.plan_rewind(to).kind is not RewindKind.REBUILD

    def check_rewind(self, to: int, max_replay_tokens: int | None = None) -> RewindPlan:
        """Say what `rewind(to)` would do, with all its refusals; changes nothing.

        Raises:
            PositionOutOfRangeError: `to` is not in `[0, position]`.
            RewindTooDearError: more than `max_replay_tokens` tokens would have to be run.
            MemoryBudgetError: a rebuild would not find enough pages.
        """
        plan = self.plan_rewind(to)
        if max_replay_tokens is not None and plan.replay_tokens > max_replay_tokens:
            raise RewindTooDearError(plan.replay_tokens, plan.base_position, max_replay_tokens)
        if plan.kind is RewindKind.REBUILD:
            self._line.store.check_room(self._line.lease, 0, to, fresh=True)
        return plan

    def rewind(
        self,
        to: int,
        *,
        max_replay_tokens: int | None = None,
        cause: RewindCause = RewindCause.CLIENT,
        defer: bool = False,
    ) -> RewindReport:
        """Move back to an earlier position.

        Args:
            to: target, in tokens.
            max_replay_tokens: refuse if more tokens would have to be run.
            cause: for the report.
            defer: instead of rebuilding now, only shorten the history (`DEFERRED`), which is never
                refused for cost; `rebuild_chunk`, `rebuild` or the next `prefill` brings the state back.

        Raises:
            PositionOutOfRangeError, RewindTooDearError, MemoryBudgetError: refused, nothing has changed.
            BackendFailedError: the device failed in a rebuild; the history ends at `to`, the state is
                invalid.
        """
        started = time.perf_counter()
        line = self._line
        position = len(line.history)
        kind = line.kind(to, position) if 0 <= to <= position else RewindKind.REBUILD
        if kind is RewindKind.REBUILD or not self._is_open:
            return self._rewind_by_rebuild(to, cause, max_replay_tokens, defer)
        # No plan is made and nothing is built twice here: this path is a hundredth of a decode step.
        if kind is RewindKind.IN_PLACE:
            line.shorten(to, keep_state=True)
            self.epoch += 1
        seconds = time.perf_counter() - started
        report = RewindReport(kind, cause, RebuildReason.NOT_REBUILT, position, to, to, 0, seconds, 0.0)
        self.last_rewind = report
        return report

    def _rewind_by_rebuild(
        self, to: int, cause: RewindCause, max_replay_tokens: int | None, defer: bool
    ) -> RewindReport:
        started = time.perf_counter()
        self._require_open()
        plan = self.plan_rewind(to) if defer else self.check_rewind(to, max_replay_tokens)
        kind = RewindKind.DEFERRED if defer and to else RewindKind.REBUILD
        source = self.position
        self._line.shorten(to, keep_state=False)
        self.epoch += 1
        seconds = time.perf_counter() - started
        report = RewindReport(
            kind, cause, plan.rebuild_reason, source, to, plan.base_position, 0, seconds, 0.0
        )
        self.last_rewind = report
        if not defer:
            self.rebuild()
            replay_seconds = time.perf_counter() - started - seconds
            report = report._replace(replayed_tokens=to, replay_seconds=replay_seconds)
            self.last_rewind = report
        return report

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

    def fork(
        self,
        at: int | None = None,
        *,
        session_id: str = "",
        capacity: int | None = None,
        defer: bool = False,
    ) -> tuple[Session, RewindReport]:
        """Open a session with the first `at` tokens of this one, which does not change.

        Pages are shared and ring rows copied if a rewind to `at` would be in place; otherwise the new
        session is rebuilt from the history.

        Args:
            at: position, by default the current one.
            session_id: name of the new session.
            capacity: of the new session, by default that of this one.
            defer: leave a needed rebuild to the caller (`DEFERRED`).

        Raises:
            PositionOutOfRangeError: `at` is not in `[0, position]`.
            NotInArtifactError: the artifact has no fork.
            ContextLengthError: `capacity` is below `at`.
            SessionLimitError, MemoryBudgetError: no room.
            BackendFailedError: the device failed; there is no new session.
        """
        self._require_open()
        at = self.position if at is None else at
        if not 0 <= at <= self.position:
            raise PositionOutOfRangeError("fork", at, self.position, field="at_position")
        if not self._executor.manifest.capabilities.fork:
            raise NotInArtifactError("fork refused: expected an entry point 'fork', got none; build it again")
        room = self.capacity if capacity is None else capacity
        check_length(at, room)
        line = self._line
        child = Session(self._executor, line.store, session_id, room, line.tokenizer_sha256)
        try:
            report = self._fill(child, at, defer)
        except BaseException:
            child.close()
            raise
        child.last_rewind = report
        return child, report

    def _fill(self, child: Session, at: int, defer: bool) -> RewindReport:
        started = time.perf_counter()
        line = child.timeline
        line.history.extend(self._line.history.slice(0, at))
        if self.can_rewind(at):
            line.adopt(self._line, at)
            kind, reason, base = RewindKind.IN_PLACE, RebuildReason.NOT_REBUILT, at
        else:
            kind, reason, base = RewindKind.REBUILD, self.plan_rewind(at).rebuild_reason, 0
            line.store.check_room(line.lease, 0, at)
        copied = time.perf_counter()
        if kind is RewindKind.REBUILD and defer and at:
            kind = RewindKind.DEFERRED
        if kind is RewindKind.REBUILD:
            child.rebuild()
        replayed = at if kind is RewindKind.REBUILD else 0
        times = (copied - started, time.perf_counter() - copied)
        return RewindReport(kind, RewindCause.BRANCH, reason, self.position, at, base, replayed, *times)

    def close(self) -> None:
        """Give back slot and pages; the session can do nothing more. Closing twice is allowed."""
        if self._is_open:
            self._line.store.close(self._line.lease)
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


def step_sessions(executor: Stepper, work: Sequence[tuple[Session, Sequence[int], int]]) -> list[Logits]:
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
    return results
