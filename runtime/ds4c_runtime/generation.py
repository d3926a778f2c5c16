"""One generation: rewind or rebuild, prefill, decode, stop. Runs on the worker thread in slices.

Which token is next is `sampler.py`'s matter, what of the text is final is `stops.py`'s.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ds4c_runtime.counters import Counters, Now
from ds4c_runtime.errors import InvalidRequestError, NoProgressError
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.progress import ProgressGuard
from ds4c_runtime.reports import RewindCause, RewindKind, RewindReport
from ds4c_runtime.requests import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PrefillProgress,
    Started,
    Timing,
    TokenDelta,
    Usage,
)
from ds4c_runtime.sampler import Sampler, token_logprobs
from ds4c_runtime.session import Session
from ds4c_runtime.snapshot import SnapshotOrigin
from ds4c_runtime.stops import Release, TokenText
from ds4c_runtime.tokenizer import Tokenizer
from ds4c_runtime.worker import Body

MAX_UNACKNOWLEDGED = 256
"""Events a consumer may lag behind before its generation is paused."""
TOOL_CALL_END = "</｜DSML｜tool_calls>"
OnEvent = Callable[[Event], None]
OnRewind = Callable[[RewindReport], None]


class Generation:
    """Handle of a running generation; all methods may be called from any thread."""

    def __init__(
        self, session_id: str, on_event: OnEvent, wake: Callable[[], None], *, bounded: bool
    ) -> None:
        self.id = secrets.token_hex(16)
        self.session_id = session_id
        self.done: Future[Finished] = Future()
        self._on_event = on_event
        self._wake = wake
        self._bounded = bounded
        self._lock = threading.Lock()
        self._sent = 0
        self._acknowledged = 0
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_cancelled

    @property
    def is_paused(self) -> bool:
        """Whether the consumer lags too far behind."""
        behind = self._sent - self._acknowledged
        return self._bounded and not self._is_cancelled and behind > MAX_UNACKNOWLEDGED

    def cancel(self) -> None:
        """End after the current chunk or step; what was done stays a valid prefix."""
        self._is_cancelled = True
        self._wake()

    def acknowledge(self, events: int = 1) -> None:
        """Say that `events` more events were taken.

        Raises:
            InvalidRequestError: more than were sent.
        """
        with self._lock:
            if events < 0 or self._acknowledged + events > self._sent:
                raise InvalidRequestError(
                    f"acknowledge refused: expected at most {self._sent - self._acknowledged} events, "
                    f"got {events}",
                    field="events",
                )
            self._acknowledged += events
        self._wake()

    def emit(self, event: Event) -> None:
        """Hand out an event; called by the worker thread only."""
        with self._lock:
            self._sent += 1
        self._on_event(event)


class Clock:
    """Times of a generation."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self.submitted = now()
        self.begun = self.submitted
        self.rewind = 0.0
        self.prefill = 0.0
        self.first_token: float | None = None
        self.last_token: float | None = None

    def token(self) -> None:
        """A token was chosen."""
        self.last_token = self._now()
        if self.first_token is None:
            self.first_token = self.last_token

    def timing(self) -> Timing:
        """All times, now that the generation ends."""
        queue = self.begun - self.submitted
        if self.first_token is None or self.last_token is None:
            return Timing(queue, self.prefill, rewind=self.rewind)
        first, last = self.first_token, self.last_token
        tail = self._now() - last
        return Timing(queue, self.prefill, first - self.submitted, last - first, self.rewind, tail)


class GenerationRun:
    """What a generation does with its session."""

    def __init__(
        self,
        request: GenerationRequest,
        handle: Generation,
        manifest: Manifest,
        tokenizer: Tokenizer | None,
        counters: Counters,
        *,
        on_rewind: OnRewind,
        is_temporary: bool,
        now: Now,
    ) -> None:
        """Prepare; `on_rewind` gets every report once, when nothing is added to it any more."""
        self._request = request
        self._handle = handle
        self._counters = counters
        self._on_rewind = on_rewind
        self._vocab_size = manifest.model.vocab_size
        self._is_temporary = is_temporary
        stop = request.stop
        self._eos = frozenset(() if stop.ignore_eos else manifest.model.eos_token_ids)
        self._stop_tokens = frozenset(stop.token_ids)
        self._sampler = Sampler(request.sampling, seed=secrets.randbits(64))
        needs_text = request.return_text or stop.needs_text
        self._text = TokenText(tokenizer if needs_text else None, stop.strings)
        self._tail = TokenText(tokenizer) if stop.at_tool_call_end else None
        self._tail_text = ""
        self._now = now
        self._clock = Clock(now)
        self._guard = ProgressGuard()
        self._rewinds: list[RewindReport] = []
        self._handed_over = 0
        self._input = self._cached = self._generated = self._sent = self._discarded = 0

    def body(self, session: Session) -> Body[Finished]:
        """The whole generation; yields between slices."""
        session.timeline.guard = self._guard
        try:
            return (yield from self._body(session))
        except NoProgressError:
            self._counters.no_progress.add()
            raise
        finally:
            session.timeline.guard = None

    def _body(self, session: Session) -> Body[Finished]:
        self._clock.begun = self._now()
        handle = self._handle
        yield from self._reach_start(session)
        if handle.is_cancelled:
            return self._finished(session, FinishReason.CANCELLED)
        self._start(session)
        started = self._now()
        yield from self._prefill(session)
        self._clock.prefill = self._now() - started
        if not self._is_temporary and self._request.tokens and session.position == self._input:
            session.keep_snapshot(SnapshotOrigin.PROMPT_END)
        if session.position < self._input or handle.is_cancelled:
            return self._finished(session, FinishReason.CANCELLED)
        try:
            reason, matched = yield from self._decode(session)
        except BaseException:
            self._send(session, self._text.finish())
            raise
        if reason is not FinishReason.STOP_STRING:
            self._send(session, self._text.finish())
        if not self._is_temporary:
            session.keep_snapshot(SnapshotOrigin.TURN_END)
        return self._finished(session, reason, matched)

    def _reach_start(self, session: Session) -> Body[None]:
        """Rewind if asked to; rebuild if the state is invalid."""
        started = self._now()
        to = self._request.rewind_to
        if to is not None:
            session.check_rewind(to)
            report = session.rewind(to, defer=True)
        elif not session.state_valid:
            report = stale_report(session)
        else:
            return
        try:
            yield from rebuild_slices(session, lambda: self._handle.is_cancelled)
        finally:
            self._clock.rewind = seconds = self._now() - started
            self._rewinds.append(rebuilt(report, session, seconds))

    def _start(self, session: Session) -> None:
        request = self._request
        replayed = sum(r.replayed_tokens for r in self._rewinds)
        if not request.tokens:
            # The first token needs the logits of the last one; if they are made again, say so at the start.
            before = session.logits_replayed
            session.logits()
            again = session.logits_replayed - before
            replayed += again
            if again and self._rewinds:
                self._rewinds[0] = self._rewinds[0]._replace(replayed_tokens=again)
        rewind = self._rewinds[0] if self._rewinds else None
        self._input = session.position + len(request.tokens)
        self._cached = session.position - replayed
        self._counters.prefill_tokens.add("session", by=self._cached)
        self.hand_over_rewinds()
        handle = self._handle
        handle.emit(Started(handle.id, handle.session_id, session.position, self._cached, rewind))

    def _prefill(self, session: Session) -> Body[None]:
        tokens, size = self._request.tokens, session.chunk_tokens
        for start in range(0, len(tokens), size):
            if self._handle.is_cancelled:
                return
            part = tokens[start : start + size]
            done = start + len(part)
            session.timeline.check_room(len(tokens) - start)
            session.advance(part, wanted=int(done == len(tokens)))
            self._counters.prefill_tokens.add("compute", by=len(part))
            if self._request.prefill_progress:
                self._handle.emit(PrefillProgress(done, len(tokens)))
            yield

    def _decode(self, session: Session) -> Body[tuple[FinishReason, str]]:
        request, stop = self._request, self._request.stop
        counts = session.timeline.history.counts(self._vocab_size) if request.sampling.needs_counts else None
        while True:
            if stop.max_output_tokens is not None and self._generated >= stop.max_output_tokens:
                return FinishReason.LENGTH, ""
            if session.position >= session.capacity:
                return FinishReason.CONTEXT_FULL, ""
            if self._handle.is_cancelled:
                return FinishReason.CANCELLED, ""
            logits = session.logits()
            assert logits is not None, "nothing to continue"
            may_stop = self._generated >= stop.min_output_tokens
            banned = () if may_stop else self._eos | self._stop_tokens
            token = self._sampler.sample(logits, session.position, counts, banned)
            self._clock.token()
            self._guard.token()
            if token in self._eos:
                return FinishReason.EOS, ""
            if token in self._stop_tokens:
                return FinishReason.STOP_TOKEN, ""
            known = None if request.logprobs is None else token_logprobs(logits, token, request.logprobs)
            session.advance([token], wanted=1)
            self._generated += 1
            if counts is not None:
                counts[token] += 1
            release = self._text.push(token, known, may_stop=self._generated >= stop.min_output_tokens)
            self._send(session, release)
            if release.matched:
                return FinishReason.STOP_STRING, release.matched
            if self._completes_tool_call(token):
                return FinishReason.TOOL_CALL, ""
            yield

    def _completes_tool_call(self, token: int) -> bool:
        if self._tail is None:
            return False
        self._tail_text += self._tail.push(token).text
        if TOOL_CALL_END in self._tail_text:
            return True
        self._tail_text = self._tail_text[-len(TOOL_CALL_END) :]
        return False

    def _send(self, session: Session, release: Release) -> None:
        """Hand out final tokens, and drop those that a stop string takes away."""
        request = self._request
        position = self._input + self._sent
        self._sent += len(release.tokens)
        self._counters.generated_tokens.add(by=len(release.tokens))
        ids = release.tokens if request.return_token_ids else ()
        text = release.text if request.return_text else ""
        if ids or text:
            self._handle.emit(TokenDelta(position, ids, text, release.logprobs))
        if release.dropped:
            self._discarded += release.dropped
            report = session.rewind(session.position - release.dropped, cause=RewindCause.STOP, defer=True)
            self._rewinds.append(report)
            self.hand_over_rewinds()

    def hand_over_rewinds(self) -> None:
        """Give the reports that were not given yet to `on_rewind`."""
        while self._handed_over < len(self._rewinds):
            self._handed_over += 1
            self._on_rewind(self._rewinds[self._handed_over - 1])

    def _finished(self, session: Session, reason: FinishReason, matched: str = "") -> Finished:
        evaluated = min(self._input, session.position)
        usage = Usage(evaluated, self._cached, self._sent, self._discarded)
        timing = self._clock.timing()
        self._counters.generation(timing.first_token, timing.tail)
        return Finished(
            reason,
            session.position,
            session.digest,
            matched,
            usage,
            timing,
            tuple(self._rewinds),
            not self._is_temporary,
        )


def rebuild_slices(session: Session, is_cancelled: Callable[[], bool] = lambda: False) -> Body[None]:
    """Rebuild a session chunk by chunk; yields between chunks."""
    while not session.state_valid and not is_cancelled():
        session.rebuild_chunk()
        yield


def rebuilt(report: RewindReport, session: Session, seconds: float) -> RewindReport:
    """Report of a deferred rewind after its replay or rebuild; unchanged if that was cut short."""
    return session.recovered(report, seconds) if report.kind is RewindKind.DEFERRED else report


def stale_report(session: Session) -> RewindReport:
    """Report, before its rebuild, of a session whose state was lost."""
    position, reason = session.position, session.timeline.rebuild_reason()
    return RewindReport(RewindKind.DEFERRED, RewindCause.CLIENT, reason, position, position, 0, 0, 0.0, 0.0)
