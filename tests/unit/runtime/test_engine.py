"""The engine on the fake device: sessions by id and owner, generations, refusals, pauses, shutdown."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_executable import fake_engine, small_manifest
from port import check, device_of, fail_next_call, verify_weights

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import (
    ArtifactError,
    BackendFailedError,
    ContextLengthError,
    DeviceError,
    DrainingError,
    InvalidRequestError,
    MemoryBudgetError,
    NoTokenizerError,
    PositionOutOfRangeError,
    QueueFullError,
    RewindTooDearError,
    SessionBusyError,
    SessionExistsError,
    SessionLimitError,
    StaleContinuationError,
    UnknownSessionError,
)
from ds4c_runtime.generation import MAX_UNACKNOWLEDGED
from ds4c_runtime.manifest import FileEntry
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind
from ds4c_runtime.requests import (
    Event,
    FinishReason,
    GenerationRequest,
    PrefillProgress,
    Started,
    StopParams,
    TokenDelta,
)
from ds4c_runtime.sampler import SamplingParams

PROMPT = tuple(range(100, 140))
NO_EOS = StopParams(max_output_tokens=10, ignore_eos=True)


def ids_only(**fields: object) -> GenerationRequest:
    return GenerationRequest(**{"return_text": False, "tokens": PROMPT, "stop": NO_EOS, **fields})  # type: ignore[arg-type]


def wait_for(condition: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with fake_engine() as made:
        yield made
        check(made)


@pytest.fixture
def slow() -> Iterator[Engine]:
    with fake_engine(step_delay_seconds=0.01, max_running=1, max_queue=1) as made:
        yield made


def test_events_of_a_generation_and_the_session_after_it(engine: Engine) -> None:
    engine.open_session("s", "me")
    events: list[Event] = []
    done = engine.generate(ids_only(session_id="s", prefill_progress=True), "me", events.append).done.result()
    assert isinstance(events[0], Started)
    assert (events[0].session_id, events[0].start_position, events[0].cached_input_tokens) == ("s", 0, 0)
    assert events[0].rewind is None
    assert events[1:3] == [PrefillProgress(24, 40), PrefillProgress(40, 40)]
    deltas = [e for e in events if isinstance(e, TokenDelta)]
    assert [d.position for d in deltas] == list(range(40, 50))
    assert all(len(d.token_ids) == 1 and d.text == "" for d in deltas)
    assert events[-1] is done
    assert (done.reason, done.end_position, done.continuable) == (FinishReason.LENGTH, 50, True)
    assert (done.usage.input_tokens, done.usage.cached_input_tokens, done.usage.output_tokens) == (40, 0, 10)
    assert done.timing.prefill > 0
    assert done.timing.first_token > 0
    assert done.timing.decode > 0
    info = engine.get_session("s", "me")
    assert (info.position, info.digest, info.state_valid, info.is_busy) == (50, done.digest, True, False)


def test_two_turns_equal_one_and_rewind_repeats(engine: Engine) -> None:
    whole = engine.run(ids_only(stop=StopParams(max_output_tokens=20, ignore_eos=True)))
    assert not whole.finished.continuable
    engine.open_session("s")
    first = engine.run(ids_only(session_id="s"))
    second = engine.run(ids_only(session_id="s", tokens=()))
    assert second.started is not None
    assert (second.started.start_position, second.started.cached_input_tokens) == (50, 50)
    assert first.tokens + second.tokens == whole.tokens
    assert whole.finished.digest == second.finished.digest
    again = engine.run(ids_only(session_id="s", tokens=(), rewind_to=57))
    assert again.started is not None
    assert again.started.rewind is not None
    assert (again.started.rewind.kind, again.started.rewind.replayed_tokens) == (RewindKind.IN_PLACE, 1)
    assert again.started.cached_input_tokens == 56
    assert again.tokens[:3] == whole.tokens[17:]
    far = engine.run(ids_only(session_id="s", tokens=(), rewind_to=45))
    assert far.started is not None
    assert far.started.rewind is not None
    far_rewind = far.started.rewind  # from the end of the first prompt
    assert (far_rewind.kind, far_rewind.base_position) == (RewindKind.SNAPSHOT_REPLAY, 40)
    assert (far_rewind.replayed_tokens, far_rewind.rebuild_reason) == (5, RebuildReason.NOT_REBUILT)
    assert far.started.cached_input_tokens == 40 == far.finished.usage.cached_input_tokens
    assert far.finished.rewinds == (far.started.rewind,)
    assert far.tokens == whole.tokens[5:15]


def test_sessions_of_another_owner_are_not_there(engine: Engine) -> None:
    engine.open_session("s", "me")
    engine.open_session("s", "you", capacity=30)
    for call in (
        lambda: engine.get_session("s", "other"),
        lambda: engine.close_session("s", "other"),
        lambda: engine.rewind("s", "other", to=0),
        lambda: engine.plan_rewind("s", "other", to=0),
        lambda: engine.fork("s", "other"),
        lambda: engine.generate(ids_only(session_id="s"), "other"),
    ):
        with pytest.raises(UnknownSessionError):
            call()
    assert [s.session_id for s in engine.list_sessions("me")] == ["s"]
    assert engine.list_sessions("other") == []
    assert engine.get_session("s", "you").capacity == 30
    engine.close_session("s", "me")
    with pytest.raises(UnknownSessionError):
        engine.get_session("s", "me")


def test_open_refusals(engine: Engine) -> None:
    engine.open_session("s")
    with pytest.raises(SessionExistsError):
        engine.open_session("s")
    for bad in ("", "a/b", "x" * 129, "é"):
        with pytest.raises(InvalidRequestError) as refused:
            engine.open_session(bad)
        assert refused.value.field == "session_id"
    with pytest.raises(InvalidRequestError):
        engine.open_session(capacity=257)
    ids = {engine.open_session().session_id for _ in range(7)}
    assert len(ids) == 7
    with pytest.raises(SessionLimitError):
        engine.open_session()
    with pytest.raises(SessionLimitError):
        engine.run(ids_only())
    assert engine.load_info().resident_sessions == 8
    engine.close_session("s")
    engine.run(ids_only())


def test_request_refusals_leave_the_session_free(engine: Engine) -> None:
    info = engine.open_session("s", capacity=60)
    engine.run(ids_only(session_id="s"))
    now = engine.get_session("s")
    cases: list[tuple[dict[str, object], type[Exception]]] = [
        ({"tokens": (1024,)}, InvalidRequestError),
        ({"tokens": (-1,)}, InvalidRequestError),
        ({"logprobs": 65}, InvalidRequestError),
        ({"sampling": SamplingParams(temperature=-1)}, InvalidRequestError),
        ({"stop": StopParams(max_output_tokens=-1)}, InvalidRequestError),
        ({"stop": StopParams(strings=("",))}, InvalidRequestError),
        ({"stop": StopParams(token_ids=(1024,))}, InvalidRequestError),
        ({"stop": StopParams(min_output_tokens=3, max_output_tokens=2)}, InvalidRequestError),
        ({"return_text": True}, NoTokenizerError),
        ({"stop": StopParams(strings=("x",))}, NoTokenizerError),
        ({"tokens": (), "rewind_to": 0}, InvalidRequestError),
        ({"rewind_to": 51}, PositionOutOfRangeError),
        ({"rewind_to": -1}, PositionOutOfRangeError),
        ({"tokens": PROMPT}, ContextLengthError),
        ({"expected_position": 49}, StaleContinuationError),
        ({"expected_digest": info.digest}, StaleContinuationError),
    ]
    for fields, error in cases:
        with pytest.raises(error):
            engine.generate(ids_only(session_id="s", **fields))
        assert engine.submit_generate(ids_only(session_id="s", **fields)).exception() is not None
    after = engine.get_session("s")
    assert (after.position, after.digest, after.is_busy) == (now.position, now.digest, False)
    with pytest.raises(StaleContinuationError) as stale:
        engine.generate(ids_only(session_id="s", expected_position=3))
    assert (stale.value.position, stale.value.digest) == (50, now.digest)
    assert stale.value.metadata == {"position": "50", "digest": now.digest}
    for sent in ("a\nb", "\x1b[31m", "a\n" * 1_000_000):  # what a caller sends is no line of ours
        with pytest.raises(StaleContinuationError) as stale:
            engine.run(ids_only(session_id="s", tokens=(1,), expected_digest=sent))
        assert str(stale.value).isprintable()
        assert len(str(stale.value)) < 400
    fits = ids_only(session_id="s", tokens=(1,), expected_position=50, expected_digest=now.digest)
    assert engine.run(fits).finished.reason is FinishReason.CONTEXT_FULL
    with pytest.raises(InvalidRequestError):
        engine.run(ids_only(tokens=()))


def test_rewind_calls(engine: Engine) -> None:
    engine.open_session("s")
    engine.run(ids_only(session_id="s"))
    info, report = engine.rewind("s", drop=3)
    assert (info.position, info.epoch, info.is_busy, report.kind) == (47, 1, False, RewindKind.IN_PLACE)
    with pytest.raises(InvalidRequestError):
        engine.rewind("s")
    with pytest.raises(InvalidRequestError):
        engine.rewind("s", to=1, drop=1)
    for bad in ({"to": 48}, {"to": -1}, {"drop": 48}, {"drop": -1}):
        with pytest.raises(PositionOutOfRangeError):
            engine.rewind("s", **bad)
    with pytest.raises(StaleContinuationError):
        engine.rewind("s", to=40, expected_position=50)
    plan = engine.plan_rewind("s", to=20)
    assert (plan.kind, plan.replay_tokens) == (RewindKind.REBUILD, 20)
    assert plan.estimated_seconds > 0
    with pytest.raises(RewindTooDearError):
        engine.rewind("s", to=20, max_replay_tokens=19)
    assert engine.get_session("s").position == 47
    info, report = engine.rewind("s", to=30, max_replay_tokens=30)
    assert (info.position, report.kind, report.replayed_tokens) == (30, RewindKind.REBUILD, 30)
    assert report.replay_seconds > 0
    info, report = engine.rewind("s", to=10, defer=True)
    assert (info.state_valid, report.kind) == (False, RewindKind.DEFERRED)
    continued = engine.run(ids_only(session_id="s", tokens=(7,)))
    assert continued.started is not None
    assert continued.started.rewind is not None
    assert continued.started.rewind.kind is RewindKind.REBUILD
    assert continued.started.rewind.rebuild_reason is RebuildReason.SNAPSHOT_INVALIDATED
    assert continued.tokens == engine.run(ids_only(tokens=(*PROMPT[:10], 7))).tokens


def test_fork_calls(engine: Engine) -> None:
    engine.open_session("s", "me")
    engine.run(ids_only(session_id="s"), "me")
    info, report = engine.fork("s", "me", new_id="t")
    assert (info.session_id, info.parent_session_id, info.forked_at, info.position) == ("t", "s", 50, 50)
    assert (report.kind, report.cause) == (RewindKind.IN_PLACE, RewindCause.BRANCH)
    old, report = engine.fork("s", "me", at=20)
    assert (report.kind, report.replayed_tokens, old.state_valid) == (RewindKind.REBUILD, 20, True)
    same = [engine.run(ids_only(session_id=i, tokens=()), "me").tokens for i in ("s", "t")]
    assert same[0] == same[1]
    with pytest.raises(SessionExistsError):
        engine.fork("s", "me", new_id="t")
    with pytest.raises(PositionOutOfRangeError):
        engine.fork("s", "me", at=61)
    fail_next_call(engine)
    with pytest.raises(BackendFailedError):
        engine.fork("s", "me", new_id="u")
    assert len(engine.list_sessions("me")) == 3
    assert not engine.get_session("s", "me").is_busy


def test_busy_session_refuses_changes_and_answers_readers(slow: Engine) -> None:
    slow.open_session("s")
    started = threading.Event()
    generation = slow.generate(ids_only(session_id="s"), "", lambda _: started.set())
    assert started.wait(5)
    for call in (
        lambda: slow.generate(ids_only(session_id="s")),
        lambda: slow.rewind("s", to=0),
        lambda: slow.fork("s"),
        lambda: slow.close_session("s"),
    ):
        with pytest.raises(SessionBusyError) as busy:
            call()
        assert busy.value.retry
    assert slow.get_session("s").is_busy
    assert slow.plan_rewind("s", to=0).base_position == 0
    generation.done.result()
    slow.rewind("s", to=0)
    slow.close_session("s")


def test_cancel_in_the_middle_of_a_prefill_keeps_a_valid_prefix() -> None:
    with fake_engine(step_delay_seconds=0.005, context=4096) as engine:
        engine.open_session("s")
        events: list[Event] = []

        def on_event(event: Event) -> None:
            events.append(event)
            if isinstance(event, PrefillProgress) and event.done == 72:
                generation.cancel()

        tokens = tuple(i % 1000 for i in range(2000))
        request = ids_only(session_id="s", tokens=tokens, prefill_progress=True)
        generation = engine.generate(request, "", on_event)
        done = generation.done.result()
        assert (done.reason, done.end_position, done.continuable) == (FinishReason.CANCELLED, 72, True)
        assert (done.usage.input_tokens, done.usage.output_tokens) == (72, 0)
        assert engine.get_session("s").digest == done.digest
        rest = engine.run(ids_only(session_id="s", tokens=tokens[72:100], expected_digest=done.digest))
        assert rest.tokens == engine.run(ids_only(tokens=tokens[:100])).tokens
        assert not engine.cancel_generation(generation.id)


def test_cancel_while_decoding_and_by_id(engine: Engine) -> None:
    engine.open_session("s", "me")
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, TokenDelta) and event.position == 44:
            assert not engine.cancel_generation(event_id(events), "other")
            assert engine.cancel_generation(event_id(events), "me")

    done = engine.generate(ids_only(session_id="s"), "me", on_event).done.result()
    assert (done.reason, done.end_position, done.usage.output_tokens) == (FinishReason.CANCELLED, 45, 5)


def event_id(events: list[Event]) -> str:
    assert isinstance(events[0], Started)
    return events[0].generation_id


def test_cancel_while_rebuilding_leaves_the_history_and_the_next_call_rebuilds() -> None:
    engine = fake_engine(snapshot_budget=0)
    engine.open_session("s")
    engine.run(ids_only(session_id="s", tokens=(*PROMPT, *PROMPT, *PROMPT)))
    device = device_of(engine)
    device.step_delay_seconds = 0.05
    generation = engine.generate(ids_only(session_id="s", tokens=(), rewind_to=100))
    calls = device.calls
    wait_for(lambda: device.calls > calls)
    generation.cancel()
    done = generation.done.result()
    device.step_delay_seconds = 0
    assert (done.reason, done.end_position) == (FinishReason.CANCELLED, 100)
    assert not engine.get_session("s").state_valid
    again = engine.run(ids_only(session_id="s", tokens=()))
    assert again.started is not None
    assert again.started.rewind is not None
    assert again.started.rewind.kind is RewindKind.REBUILD
    assert again.tokens == engine.run(ids_only(tokens=(*PROMPT, *PROMPT, *PROMPT[:20]))).tokens


def test_waiting_generations_queue_limit_and_cancel_before_the_turn(slow: Engine) -> None:
    long = StopParams(max_output_tokens=100, ignore_eos=True)
    first = slow.generate(ids_only(stop=long), bounded=False)
    events: list[Event] = []
    second = slow.generate(ids_only(), "", events.append)
    assert (slow.load_info().running_generations, slow.load_info().waiting_generations) == (1, 1)
    with pytest.raises(QueueFullError) as full:
        slow.generate(ids_only())
    assert full.value.retry
    assert slow.load_info().resident_sessions == 2
    second.cancel()
    done = second.done.result(2)
    assert not first.done.done()
    assert done.reason is FinishReason.CANCELLED
    assert events == [done]
    third = slow.generate(ids_only())
    first.cancel()
    assert third.done.result().reason is FinishReason.LENGTH


def test_generations_take_turns(engine: Engine) -> None:
    order: list[int] = []
    device_of(engine).step_delay_seconds = 0.002
    runs = [
        engine.generate(ids_only(), "", lambda e, n=n: order.append(n) if isinstance(e, TokenDelta) else None)
        for n in range(3)
    ]
    for run in runs:
        run.done.result()
    third = len(order) // 3
    assert set(order[third : 2 * third]) == {0, 1, 2}


def test_a_consumer_that_lags_pauses_its_own_generation_only() -> None:
    with fake_engine(context=1024) as engine:
        stop = StopParams(max_output_tokens=500, ignore_eos=True)
        events: list[Event] = []
        lagging = engine.generate(ids_only(stop=stop), "", events.append)
        wait_for(lambda: lagging.is_paused)
        time.sleep(0.05)
        assert len(events) == MAX_UNACKNOWLEDGED + 1
        assert engine.run(ids_only()).finished.reason is FinishReason.LENGTH
        with pytest.raises(InvalidRequestError):
            lagging.acknowledge(len(events) + 1)
        lagging.acknowledge(100)
        wait_for(lambda: len(events) == MAX_UNACKNOWLEDGED + 101)
        lagging.cancel()
        assert lagging.done.result().reason is FinishReason.CANCELLED


def test_consumer_that_raises_ends_its_generation(engine: Engine) -> None:
    engine.open_session("s")

    def on_event(event: Event) -> None:
        if isinstance(event, TokenDelta) and event.position == 42:
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        engine.generate(ids_only(session_id="s"), "", on_event).done.result()
    info = engine.get_session("s")
    assert (info.is_busy, info.state_valid, info.position) == (False, True, 43)


def test_device_failure_and_the_next_generation(engine: Engine) -> None:
    engine.open_session("s")
    fail_next_call(engine, 7)  # two chunks of the prompt, a snapshot, four tokens
    with pytest.raises(BackendFailedError):
        engine.run(ids_only(session_id="s"))
    info = engine.get_session("s")
    assert (info.position, info.state_valid, info.is_busy) == (44, False, False)
    resumed = engine.run(ids_only(session_id="s", tokens=()))
    assert resumed.started is not None
    assert resumed.started.rewind is not None
    assert resumed.started.rewind.kind is RewindKind.SNAPSHOT_REPLAY
    assert resumed.started.rewind.replayed_tokens == 4
    whole = engine.run(ids_only(stop=StopParams(max_output_tokens=14, ignore_eos=True)))
    assert resumed.tokens == whole.tokens[4:]


def test_eos_and_stop_tokens_are_neither_sent_nor_kept(engine: Engine) -> None:
    free = engine.run(ids_only()).tokens
    for eos in (True, False):
        made = fake_engine(manifest=small_manifest(eos_token_ids=(free[4],))) if eos else engine
        stop = StopParams() if eos else StopParams(token_ids=(free[4],))
        made.open_session("s")
        result = made.run(ids_only(session_id="s", stop=stop))
        assert result.tokens == free[:4]
        assert result.finished.reason is (FinishReason.EOS if eos else FinishReason.STOP_TOKEN)
        assert result.finished.end_position == 44 == made.get_session("s").position
        held = StopParams(min_output_tokens=6, max_output_tokens=6, token_ids=stop.token_ids)
        later = made.run(ids_only(stop=held))
        assert later.tokens[:4] == free[:4]
        assert free[4] not in later.tokens
        assert later.finished.reason is FinishReason.LENGTH
        ignoring = made.run(ids_only(stop=StopParams(max_output_tokens=10, ignore_eos=True)))
        assert ignoring.tokens == free
        made.close_session("s")
    made.shutdown(0)


def test_the_token_after_the_least_number_may_be_the_end() -> None:
    """Every token wants to be the end of sequence: two are forbidden to be, the third is."""
    with fake_engine(favour=lambda _position, _token: 1) as made:
        result = made.run(ids_only(stop=StopParams(min_output_tokens=2, max_output_tokens=9)))
        assert (len(result.tokens), result.finished.reason) == (2, FinishReason.EOS)
        assert 1 not in result.tokens


def test_no_output_only_appends_the_prompt(engine: Engine) -> None:
    engine.open_session("s")
    result = engine.run(ids_only(session_id="s", stop=StopParams(max_output_tokens=0)))
    assert (result.tokens, result.finished.reason) == ((), FinishReason.LENGTH)
    assert engine.get_session("s").position == 40
    assert engine.run(ids_only(session_id="s", tokens=())).tokens == engine.run(ids_only()).tokens


def test_context_full_ends_a_generation(engine: Engine) -> None:
    engine.open_session("s", capacity=45)
    result = engine.run(ids_only(session_id="s"))
    assert (len(result.tokens), result.finished.reason) == (5, FinishReason.CONTEXT_FULL)
    again = engine.run(ids_only(session_id="s", tokens=()))
    assert (again.tokens, again.finished.reason) == ((), FinishReason.CONTEXT_FULL)


def test_sampling_is_the_same_for_the_same_seed_also_after_a_rewind(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=50, seed=5)
    engine.open_session("s")
    first = engine.run(ids_only(session_id="s", sampling=sampling))
    assert first.tokens == engine.run(ids_only(sampling=sampling)).tokens
    again = engine.run(ids_only(session_id="s", tokens=(), sampling=sampling, rewind_to=45))
    assert again.tokens[:5] == first.tokens[5:]
    other = engine.run(ids_only(sampling=SamplingParams(temperature=1.0, top_k=50, seed=6)))
    assert other.tokens != first.tokens
    unseeded = SamplingParams(temperature=1.0)
    assert engine.run(ids_only(sampling=unseeded)).tokens != engine.run(ids_only(sampling=unseeded)).tokens


def test_penalties_count_the_history_and_logprobs_are_sent(engine: Engine) -> None:
    first = engine.run(ids_only(logprobs=3))
    biased = {first.tokens[0]: 50.0}
    plain = engine.run(ids_only(sampling=SamplingParams(logit_bias=biased)))
    assert set(plain.tokens) == {first.tokens[0]}
    once = engine.run(ids_only(sampling=SamplingParams(logit_bias=biased, presence_penalty=60)))
    assert once.tokens[0] == first.tokens[0]
    assert once.tokens.count(first.tokens[0]) == 1
    events: list[Event] = []
    engine.run(ids_only(logprobs=3), "", events.append)
    (delta, *_) = [e for e in events if isinstance(e, TokenDelta)]
    (known,) = delta.logprobs
    assert known.token_id == delta.token_ids[0] == known.top[0][0]
    assert known.logprob == known.top[0][1] >= known.top[1][1] >= known.top[2][1]
    assert len(known.top) == 3


def test_memory_budget_is_checked_with_numbers() -> None:
    engine = fake_engine(max_sessions=2)
    memory = engine.limits.memory
    engine.shutdown(0)
    least = memory.fixed + 8 * memory.page
    with pytest.raises(MemoryBudgetError, match=rf"at least {least} bytes .* got {least - 1}"):
        fake_engine(max_sessions=2, memory_budget=least - 1)
    snapshots = 20_032
    with fake_engine(max_sessions=2, memory_budget=least + snapshots, snapshot_budget=snapshots) as small:
        assert small.limits.memory.page_count == 8
        small.open_session("a")
        small.open_session("b")
        small.run(ids_only(session_id="a", tokens=PROMPT * 3))
        pinned = small.pin_snapshot("a", position=130)
        with pytest.raises(MemoryBudgetError) as refused:
            small.run(ids_only(session_id="b", tokens=PROMPT * 4))
        assert refused.value.retry
        info = small.get_session("b")
        assert (info.state_valid, info.is_busy, info.position) == (True, False, 0)
        small.unpin_snapshot("a", pinned.snapshot_id)
        small.run(ids_only(session_id="b", tokens=PROMPT * 4))
        assert not small.get_session("a").state_valid
    with pytest.raises(InvalidRequestError):
        fake_engine(max_sessions=0)


def test_drain_refuses_new_work_and_shutdown_cancels_what_is_left() -> None:
    engine = fake_engine(step_delay_seconds=0.01)
    engine.open_session("s")
    generation = engine.generate(ids_only(session_id="s"), bounded=False)
    engine.drain()
    for call in (lambda: engine.generate(ids_only()), engine.open_session, lambda: engine.fork("s")):
        with pytest.raises(DrainingError):
            call()
    assert engine.shutdown(10)
    assert generation.done.result().reason is FinishReason.LENGTH
    assert engine.shutdown(0)
    with pytest.raises(DrainingError):
        engine.rewind("s", to=0)
    other = fake_engine(step_delay_seconds=0.01)
    endless = StopParams(ignore_eos=True)
    running = other.generate(ids_only(stop=endless), bounded=False)
    assert not other.shutdown(0.05)
    assert running.done.result().reason is FinishReason.CANCELLED


def test_cancelling_a_future_does_not_disturb_the_worker(engine: Engine) -> None:
    future = engine.submit_open_session("s")
    assert not future.cancel()
    assert future.result().session_id == "s"
    assert isinstance(engine.submit_close_session("nope").exception(), UnknownSessionError)


def test_weights_that_turn_out_wrong_stop_the_engine(tmp_path: Path) -> None:
    """What `Engine.load` starts in the background for artifacts too large to hash at once."""
    (tmp_path / "weights.bin").write_bytes(b"other")
    wrong = FileEntry("weights.bin", "0" * 64, 5)
    manifest = dataclasses.replace(small_manifest(), files=(wrong,))
    seen: list[Exception] = []
    with fake_engine(manifest=manifest, step_delay_seconds=0.005) as engine:
        engine.open_session("s")
        running = engine.generate(ids_only(session_id="s", stop=StopParams(ignore_eos=True)), bounded=False)
        verify_weights(engine, tmp_path, ("weights.bin",), seen.append)
        assert [type(e) for e in seen] == [ArtifactError]
        assert running.done.result().reason is FinishReason.CANCELLED
        for call in (
            lambda: engine.rewind("s", to=0),
            lambda: engine.generate(ids_only()),
            engine.open_session,
        ):
            with pytest.raises(ArtifactError, match="expected sha256"):
                call()


def test_load_refuses_before_it_loads(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a file"):
        Engine.load(tmp_path)
    (tmp_path / "manifest.json").write_text(small_manifest(capacity_change=-1).to_json())
    with pytest.raises(ArtifactError, match="expected a capacity of at least 14 rows"):
        Engine.load(tmp_path)
    (tmp_path / "manifest.json").write_text(small_manifest().to_json())
    with pytest.raises(MemoryBudgetError):
        Engine.load(tmp_path, memory_budget=1000)
    with pytest.raises(InvalidRequestError):
        Engine.load(tmp_path, threads=0)
    with pytest.raises(DeviceError):
        Engine.load(tmp_path, device="none")
