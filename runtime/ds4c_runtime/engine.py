"""An engine: one loaded artifact on one device, sessions by id, generations in turn.

All public methods may be called from any thread; one worker thread does the work. A call that changes
a session marks it busy at once and refuses a second one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from ds4c_runtime.devices import device_for
from ds4c_runtime.engine_core import EngineLimits, check_expected, check_resident, session_info
from ds4c_runtime.engine_sessions import SessionCalls
from ds4c_runtime.errors import (
    DrainingError,
    InvalidRequestError,
    NoTokenizerError,
    PositionOutOfRangeError,
    QueueFullError,
    RuntimeFailure,
)
from ds4c_runtime.generation import Generation, GenerationRun, OnEvent
from ds4c_runtime.guards import check_length, check_tokens
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.manifest_checks import check_horizon, verify_file, verifying
from ds4c_runtime.memory_plan import plan_memory
from ds4c_runtime.registry import Entry
from ds4c_runtime.requests import Event, Finished, GenerationRequest, LoadInfo, Started, TokenDelta
from ds4c_runtime.store.session_store import Storage
from ds4c_runtime.tokenizer import Tokenizer
from ds4c_runtime.transport import CopyMode
from ds4c_runtime.worker import Body, Task, once

__all__ = ["Engine", "EngineLimits", "GenerationResult"]

OnFailure = Callable[[RuntimeFailure], None]
CANCEL_SECONDS = 60.0
"""How long a shutdown waits for cancelled generations, each of which ends after the step it is in."""


@dataclass(frozen=True)
class GenerationResult:
    """All events of a generation put together."""

    started: Started | None
    tokens: tuple[int, ...]
    text: str
    finished: Finished


class Engine(SessionCalls):
    """See the module; made by `Engine.load`, or from parts by tests."""

    @staticmethod
    def load(
        path: Path | str,
        *,
        max_sessions: int = 8,
        memory_budget: int | None = None,
        snapshot_budget: int | None = None,
        copy_mode: CopyMode = CopyMode.DEVICE,
        max_resident: int | None = None,
        storage: Storage | None = None,
        threads: int = 1,
        device: str | None = None,
        max_queue: int = 64,
        max_running: int | None = None,
        on_failure: OnFailure = lambda _: None,
    ) -> Engine:
        """Check and load an artifact.

        Args:
            path: artifact folder.
            max_sessions: sessions that may exist.
            memory_budget: bytes for everything; `None` takes what `max_sessions` full sessions need.
            snapshot_budget: bytes for snapshots, a part of `memory_budget`; `None` chooses.
            copy_mode: where snapshots are kept.
            max_resident: sessions whose state is in memory at once; by default `max_sessions`.
            storage: where sessions are kept beyond the life of the engine; `None`: nowhere.
            threads: threads of a kernel.
            device: name of the device; by default that of the artifact's target.
            max_queue: generations that may wait.
            max_running: generations served in turn, by default as many as slots.
            on_failure: called from another thread if weights that are hashed in the background turn out
                wrong; from then on every call fails with that error.

        Raises:
            ArtifactError: malformed, or files that were not built.
            DeviceError: this machine cannot run it.
            MemoryBudgetError: it does not fit, with the numbers.
            InvalidRequestError: an argument below its least value.
        """
        folder = Path(path)
        manifest = Manifest.read(folder)
        check_horizon(manifest)
        slots = check_resident(max_sessions, max_resident)
        plan_memory(manifest, slots, memory_budget, snapshot_budget)
        if threads < 1:
            raise InvalidRequestError(
                f"engine not loaded: expected at least 1 thread, got {threads}", field="threads"
            )
        loaded = device_for(manifest, device)
        with verifying(folder, manifest) as unverified:
            has_tokenizer = manifest.file("tokenizer.json") is not None
            tokenizer = Tokenizer.from_file(folder / "tokenizer.json") if has_tokenizer else None
            loaded.load(folder, manifest, threads)
        engine = Engine(
            manifest,
            loaded,
            tokenizer,
            max_sessions=max_sessions,
            max_queue=max_queue,
            max_running=max_running,
            memory_budget=memory_budget,
            snapshot_budget=snapshot_budget,
            copy_mode=copy_mode,
            max_resident=max_resident,
            storage=storage,
        )
        if unverified:
            arguments = (folder, unverified, on_failure)
            threading.Thread(target=engine._verify, args=arguments, name="ds4c-verify", daemon=True).start()
        return engine

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown(0)

    def generate(
        self,
        request: GenerationRequest,
        owner: str = "",
        on_event: OnEvent = lambda _: None,
        *,
        bounded: bool = True,
    ) -> Generation:
        """Begin a generation.

        Args:
            request: what to do.
            owner: owner of the session.
            on_event: called on the worker thread with `Started`, `PrefillProgress`, `TokenDelta` and
                `Finished`. It must not block; what it raises ends the generation.
            bounded: pause while more than 256 events are not acknowledged; `Generation.acknowledge`.

        Returns:
            The handle. Its future has `Finished`, or the error that ended the generation; the session
            is then free.

        Raises:
            InvalidRequestError, NoTokenizerError, UnknownSessionError, SessionBusyError,
                StaleContinuationError, PositionOutOfRangeError, ContextLengthError, SessionLimitError,
                QueueFullError, DrainingError: refused, nothing has changed.
        """
        self._refuse_failed()
        self._refuse_draining()
        self._check_request(request)
        is_temporary = not request.session_id
        if is_temporary:
            self._check_start(request, 0, self.manifest.model.context)
            entry = self._registry.reserve(None, owner, is_temporary=True)
        else:
            entry = self._registry.acquire(request.session_id, owner)
            with self._registry.held_on_error(entry):
                info = session_info(entry)
                check_expected(info, request.expected_position, request.expected_digest)
                self._check_start(request, info.position, info.capacity)
        return self._begin(request, entry, on_event, bounded)

    def submit_generate(
        self,
        request: GenerationRequest,
        owner: str = "",
        on_event: OnEvent = lambda _: None,
        *,
        bounded: bool = True,
    ) -> Future[Generation]:
        """As `generate`, with refusals in the future, which is done at once."""
        begun: Future[Generation] = Future()
        try:
            begun.set_result(self.generate(request, owner, on_event, bounded=bounded))
        except RuntimeFailure as error:
            begun.set_exception(error)
        return begun

    def run(
        self, request: GenerationRequest, owner: str = "", on_event: OnEvent = lambda _: None
    ) -> GenerationResult:
        """Generate and wait; errors as `generate`, and what ends the generation."""
        events: list[Event] = []

        def collect(event: Event) -> None:
            events.append(event)
            on_event(event)

        finished = self.generate(request, owner, collect, bounded=False).done.result()
        deltas = [e for e in events if isinstance(e, TokenDelta)]
        return GenerationResult(
            next((e for e in events if isinstance(e, Started)), None),
            tuple(t for d in deltas for t in d.token_ids),
            "".join(d.text for d in deltas),
            finished,
        )

    def cancel_generation(self, generation_id: str, owner: str = "") -> bool:
        """Cancel a generation; `False` if none of that id of this owner runs or waits."""
        handle = self._generations.get((owner, generation_id))
        if handle is None:
            return False
        handle.cancel()
        return True

    def load_info(self) -> LoadInfo:
        """How busy the engine is."""
        parked, stored = self._registry.parked, self._stored
        return LoadInfo(
            running_generations=self._worker.running,
            waiting_generations=self._worker.waiting,
            resident_sessions=len(self._registry) - parked,
            max_sessions=self.limits.max_sessions,
            state_bytes_used=self._store.bytes_used,
            state_bytes_budget=self._store.bytes_total,
            is_draining=self._is_draining,
            snapshot_bytes_used=self._store.snapshots.bytes_used,
            snapshot_bytes_budget=self._store.snapshots.budget,
            parked_sessions=parked,
            stored_bytes_used=0 if stored is None else stored.bytes_used,
            stored_bytes_budget=None if stored is None else stored.disk_budget,
        )

    def session_states(self) -> tuple[int, int]:
        """How many sessions have a valid state, and how many one that their next use rebuilds."""
        return self._registry.states()

    def drain(self) -> None:
        """Refuse new sessions and generations from now on; what runs goes on."""
        self._is_draining = True

    def shutdown(self, wait_seconds: float = 30.0) -> bool:
        """Drain, wait, cancel what still runs, keep the sessions, and stop the worker. May be called again.

        Sessions are kept if the engine has a folder for them: their states, as far as its budget goes.

        Returns:
            Whether all generations ended by themselves within `wait_seconds`.
        """
        self.drain()
        is_idle = self._worker.wait_idle(wait_seconds)
        if not is_idle:
            for handle in list(self._generations.values()):
                handle.cancel()
            self._worker.wait_idle(CANCEL_SECONDS)
        if self._stored is not None:
            last = self._residency.save_all if self.failure is None else self._stored.distrust
            with contextlib.suppress(DrainingError):  # it was shut down before
                self._worker.submit(Task(once(last))).result()
        self._worker.stop()
        self._residency.close()
        return is_idle

    def _begin(
        self, request: GenerationRequest, entry: Entry, on_event: OnEvent, bounded: bool
    ) -> Generation:
        handle = Generation(entry.session_id, on_event, self._worker.wake, bounded=bounded)
        run = GenerationRun(
            request,
            handle,
            self.manifest,
            self.tokenizer,
            self.counters,
            on_rewind=lambda report: self._count_rewind(entry, report),
            is_temporary=entry.is_temporary,
            now=self._now,
        )

        def body() -> Body[Finished]:
            residency = self._residency
            session = residency.open(entry, None) if entry.is_temporary else residency.session(entry)
            session.timeline.takes_marks = not entry.is_temporary
            return (yield from run.body(session))

        def on_end(_: bool) -> None:
            run.hand_over_rewinds()
            self._generations.pop((entry.owner, handle.id), None)
            if entry.is_temporary:
                self._close(entry)
            else:
                self._hand_back(entry)

        task = Task(
            body(),
            after_slice=lambda: self._publish(entry),
            on_end=on_end,
            on_result=handle.emit,
            is_paused=lambda: handle.is_paused,
            is_urgent=lambda: handle.is_cancelled,
        )
        handle.done = task.future
        self._generations[(entry.owner, handle.id)] = handle
        if not self._worker.queue(task, self.limits.max_queue):
            self._generations.pop((entry.owner, handle.id), None)
            (self._registry.remove if entry.is_temporary else self._registry.release)(entry)
            raise QueueFullError(
                f"generation refused: expected at most {self.limits.max_queue} waiting generations, "
                "got one more; retry later"
            )
        return handle

    def _check_request(self, request: GenerationRequest) -> None:
        vocab_size = self.manifest.model.vocab_size
        request.validate(vocab_size)
        check_tokens(request.tokens, vocab_size)
        if self.tokenizer is None and (request.return_text or request.stop.needs_text):
            raise NoTokenizerError(
                "generation refused: expected an artifact with tokenizer.json for text, got one without; "
                "ask for token ids only"
            )

    def _check_start(self, request: GenerationRequest, position: int, capacity: int) -> None:
        to = request.rewind_to
        if to is not None and not 0 <= to <= position:
            raise PositionOutOfRangeError("rewind", to, position, field="rewind_to")
        start = position if to is None else to
        if not request.tokens and not start:
            raise InvalidRequestError(
                "generation refused: expected tokens for an empty session, got none", field="tokens"
            )
        check_length(start + len(request.tokens), capacity)

    def _verify(self, folder: Path, names: tuple[str, ...], on_failure: OnFailure) -> None:
        try:
            for name in names:
                verify_file(folder, self.manifest, name)
        except (RuntimeFailure, OSError) as error:
            failure = error if isinstance(error, RuntimeFailure) else RuntimeFailure(str(error))
            self.failure = failure
            for handle in list(self._generations.values()):
                handle.cancel()
            on_failure(failure)
