"""Generate over a real connection: the stream, cancel, deadline, back-pressure, refusals."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from unit.serve.grpc_harness import TOKENIZER, collect, failure, run, serving, token_ids, until

from ds4c_serve.client import stubs
from ds4c_serve.v1 import engine_pb2 as pb


def test_stream_has_started_tokens_and_finished_in_order() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            responses = await collect(s.generate("a", (5, 6, 7), max_tokens=6, request_id="turn-1"))

            assert [r.sequence for r in responses] == list(range(1, len(responses) + 1))
            assert responses[0].WhichOneof("event") == "started"
            assert responses[-1].WhichOneof("event") == "finished"
            assert {r.WhichOneof("event") for r in responses[1:-1]} == {"delta"}
            started, finished = responses[0].started, responses[-1].finished
            assert (started.session_id, started.start_position, started.request_id) == ("a", 0, "turn-1")
            assert started.rewind.kind == pb.REWIND_KIND_NONE
            assert finished.reason == pb.FINISH_REASON_LENGTH
            assert finished.end_position == 3 + 6
            assert (finished.usage.input_tokens, finished.usage.output_tokens) == (3, 6)
            assert finished.continuable
            assert len(token_ids(responses)) == 6
            positions = [r.delta.position for r in responses[1:-1]]
            assert positions[0] == 3
            assert (await s.get("a")).prefix_digest == finished.prefix_digest

    run(scenario())


def test_server_answers_what_the_engine_answers_and_repeats_itself() -> None:
    async def scenario() -> None:
        async with serving() as s:
            streams = [await collect(s.generate("", (9, 8, 7), max_tokens=12)) for _ in range(2)]

            assert token_ids(streams[0]) == token_ids(streams[1])
            assert len(token_ids(streams[0])) == 12
            assert not streams[0][-1].finished.continuable
            listed = await s.sessions.ListSessions(pb.ListSessionsRequest())
            assert list(listed.sessions) == []

    run(scenario())


def test_deltas_follow_each_other_without_gap_or_overlap() -> None:
    async def scenario() -> None:
        async with serving() as s:
            responses = await collect(s.generate("", (1, 2), max_tokens=200, stop=None))
            deltas = [r.delta for r in responses if r.WhichOneof("event") == "delta"]

            assert len(token_ids(responses)) == 200
            ends = [delta.position + len(delta.token_ids) for delta in deltas]
            assert [delta.position for delta in deltas[1:]] == ends[:-1]

    run(scenario())


def test_text_goes_in_and_out_and_special_markers_only_if_asked() -> None:
    async def scenario() -> None:
        async with serving(tokenizer_path=TOKENIZER, favour=lambda _position, _token: 70) as s:
            tokenized = await s.inference.Tokenize(pb.TokenizeRequest(text="hi <｜User｜>"))
            special = await s.inference.Tokenize(pb.TokenizeRequest(text="hi <｜User｜>", parse_special=True))
            assert len(special.tokens.ids) < len(tokenized.tokens.ids)
            text = (await s.inference.Detokenize(pb.DetokenizeRequest(tokens=tokenized.tokens))).text
            assert text == "hi <｜User｜>"

            for prompt, ids in (
                (pb.Prompt(text="hi <｜User｜>"), tokenized.tokens.ids),
                (pb.Prompt(text="hi <｜User｜>", parse_special=True), special.tokens.ids),
            ):
                responses = await collect(s.generate("", prompt=prompt, max_tokens=3, return_text=True))
                assert responses[-1].finished.usage.input_tokens == len(ids)
                spoken = "".join(r.delta.text for r in responses)
                expected = await s.inference.Detokenize(
                    pb.DetokenizeRequest(tokens=pb.TokenIds(ids=[70, 70, 70]))
                )
                assert spoken == expected.text != ""

    run(scenario())


def test_text_without_a_tokenizer_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as s:
            calls = [
                s.generate("", prompt=pb.Prompt(text="hello")),
                s.generate("", (1,), return_text=True),
                s.inference.Tokenize(pb.TokenizeRequest(text="hello")),
                s.inference.Detokenize(pb.DetokenizeRequest(tokens=pb.TokenIds(ids=[1]))),
            ]
            for call in calls:
                what = await failure(call)
                assert (what.code, what.reason) == ("FAILED_PRECONDITION", "NO_TOKENIZER")

    run(scenario())


def test_logprobs_carry_alternatives() -> None:
    async def scenario() -> None:
        async with serving() as s:
            responses = await collect(s.generate("", (4, 5), max_tokens=3, logprobs=2))
            logprobs = [entry for r in responses for entry in r.delta.logprobs]

            assert [entry.token_id for entry in logprobs] == token_ids(responses)
            for entry in logprobs:
                assert entry.logprob <= 0
                assert len(entry.alternatives) == 2
                assert entry.alternatives[0].token_id == entry.token_id, "greedy takes the likeliest"
                assert entry.alternatives[0].logprob >= entry.alternatives[1].logprob

    run(scenario())


def test_prefill_progress_only_if_asked() -> None:
    async def scenario() -> None:
        async with serving(max_rows=8) as s:
            prompt = tuple(range(2, 42))
            quiet = await collect(s.generate("", prompt, max_tokens=1))
            told = await collect(s.generate("", prompt, max_tokens=1, prefill_progress=True))

            assert not [r for r in quiet if r.WhichOneof("event") == "prefill"]
            progress = [r.prefill for r in told if r.WhichOneof("event") == "prefill"]
            assert len(progress) >= 2
            done = [entry.done_tokens for entry in progress]
            assert done == sorted(done)
            assert done[-1] == progress[-1].total_tokens == 40

    run(scenario())


def test_rewind_inside_generate_is_reported() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            first = await collect(s.generate("a", (1, 2, 3), max_tokens=5))
            again = await collect(s.generate("a", (), max_tokens=5, rewind_to=3, expected_position=8))

            assert token_ids(first) == token_ids(again)
            report = again[0].started.rewind
            assert (report.from_position, report.to_position) == (8, 3)
            assert report.kind == pb.REWIND_KIND_IN_PLACE
            assert again[-1].finished.prefix_digest == first[-1].finished.prefix_digest

    run(scenario())


def test_stale_expectations_are_refused_and_say_where_the_session_is() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            finished = await s.prefill("a", (1, 2, 3))
            for fields in ({"expected_position": 2}, {"expected_prefix_digest": "0" * 64}):
                what = await failure(s.generate("a", (4,), **fields))
                assert (what.code, what.reason) == ("ABORTED", "CONTINUATION_STALE")
                assert what.metadata["position"] == "3"
                assert what.metadata["digest"] == finished.prefix_digest
            assert (await s.get("a")).position == 3
            fine = await collect(
                s.generate("a", (4,), expected_position=3, expected_prefix_digest=finished.prefix_digest)
            )
            assert fine[-1].finished.end_position == 3 + 1 + 8

    run(scenario())


def test_cancel_in_the_middle_of_a_prefill_keeps_the_finished_part() -> None:
    async def scenario() -> None:
        async with serving(context=4096, max_rows=16, step_delay_seconds=0.01) as s:
            await s.open("a")
            call = s.generate("a", tuple([3] * 3000), max_tokens=1, prefill_progress=True)
            while (await call.read()).WhichOneof("event") != "prefill":
                pass
            call.cancel()

            await until(lambda: s.engine.load_info().running_generations == 0, 2)
            session = await s.get("a")
            assert 0 < session.position < 3000
            assert session.position % 16 == 0
            assert session.state_valid
            again = await collect(s.generate("a", (5,), max_tokens=2, expected_position=session.position))
            assert again[-1].finished.reason == pb.FINISH_REASON_LENGTH
            assert again[0].started.rewind.kind == pb.REWIND_KIND_NONE

    run(scenario())


def test_health_and_other_sessions_answer_during_a_prefill() -> None:
    async def scenario() -> None:
        async with serving(context=4096, max_rows=16, step_delay_seconds=0.02) as s:
            await s.open("a")
            call = s.generate("a", tuple([3] * 3000), max_tokens=1, prefill_progress=True)
            while (await call.read()).WhichOneof("event") != "prefill":
                pass
            health = health_pb2_grpc.HealthStub(s.channel)
            loop = asyncio.get_running_loop()
            for _ in range(10):
                begun = loop.time()
                answer = await health.Check(health_pb2.HealthCheckRequest(service="ds4c.v1.InferenceService"))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                assert loop.time() - begun < 0.5
            assert len(token_ids(await collect(s.generate("", (1, 2), max_tokens=3)))) == 3
            assert s.engine.load_info().running_generations >= 1, "the prefill must still run"
            call.cancel()

    run(scenario())


def test_deadline_ends_the_generation() -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.01) as s:
            await s.open("a")
            what = await failure(s.generate("a", (3,), max_tokens=4000, timeout=0.3))

            assert (what.code, what.reason) == ("DEADLINE_EXCEEDED", "")
            await until(lambda: s.engine.load_info().running_generations == 0, 2)
            session = await s.get("a")
            assert 0 < session.position < 1000

    run(scenario())


def test_cancel_generation_by_id_ends_the_stream_with_finished() -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.005) as s:
            await s.open("a")
            call = s.generate("a", (3,), max_tokens=4000)
            started = (await call.read()).started
            request = pb.CancelGenerationRequest(generation_id=started.generation_id)

            assert (await s.inference.CancelGeneration(request)).was_running
            responses = await collect(call)
            assert responses[-1].finished.reason == pb.FINISH_REASON_CANCELLED
            assert responses[-1].finished.end_position == (await s.get("a")).position
            assert not (await s.inference.CancelGeneration(request)).was_running

    run(scenario())


def test_a_second_writer_is_told_that_the_session_is_busy() -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.01) as s:
            await s.open("a")
            call = s.generate("a", (3,), max_tokens=4000)
            await call.read()
            rewind = s.sessions.Rewind(pb.RewindRequest(session_id="a", drop_tokens=1))
            for second in (s.generate("a", (4,)), rewind):
                what = await failure(second)
                assert (what.code, what.reason) == ("ABORTED", "SESSION_BUSY")
                assert what.retry_seconds > 0
            call.cancel()

    run(scenario())


def test_a_reader_that_stops_holds_up_its_own_generation_only() -> None:
    # Without probing the client grants 64 KiB; a token with 64 alternatives takes about 0.7 KiB.
    small_window = [("grpc.http2.bdp_probe", 0)]

    async def scenario() -> None:
        async with (
            serving(context=4096, eos_token_ids=()) as s,
            grpc.aio.insecure_channel(s.target, options=small_window) as channel,
        ):
            await s.open("slow")
            request = pb.GenerateRequest(session_id="slow", logprobs=64, return_token_ids=True)
            request.prompt.tokens.ids.append(3)
            call = stubs(channel).inference.Generate(request)
            await call.read()
            position, steady = 0, 0
            while steady < 5:
                await asyncio.sleep(0.1)
                now = (await s.get("slow")).position
                position, steady = now, steady + 1 if now == position else 0
            assert 256 < position < 2000, "the engine must wait for the reader"
            assert len(token_ids(await collect(s.generate("", (1, 2), max_tokens=5)))) == 5
            for _ in range(50):
                await call.read()
            await until(lambda: s.engine.get_session("slow").position > position)
            call.cancel()
            await until(lambda: s.engine.load_info().running_generations == 0)

    run(scenario())


INVALID = ("INVALID_ARGUMENT", "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("fields", "code", "reason", "field"),
    [
        ({"tokens": (5000,)}, *INVALID, "prompt.tokens.ids"),
        ({"sampling": pb.Sampling(temperature=-1)}, *INVALID, "sampling.temperature"),
        ({"sampling": pb.Sampling(top_p=float("nan"))}, *INVALID, "sampling.top_p"),
        ({"sampling": pb.Sampling(logit_bias={9999: 1.0})}, *INVALID, "sampling.logit_bias"),
        ({"logprobs": 65}, *INVALID, "logprobs"),
        ({"prompt": pb.Prompt(parse_special=True)}, *INVALID, "prompt.parse_special"),
        ({"session_id": "gone", "tokens": (1,)}, "NOT_FOUND", "SESSION_NOT_FOUND", None),
        ({"tokens": tuple([1] * 300)}, "INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", None),
        ({"detach_ttl": {"seconds": 1}}, "UNIMPLEMENTED", "NOT_IN_ARTIFACT", None),
        ({"stop": pb.StopCondition(token_ids=[9999])}, *INVALID, "stop.token_ids"),
        ({"stop": pb.StopCondition(strings=["x"])}, "FAILED_PRECONDITION", "NO_TOKENIZER", None),
        ({"speculation": pb.Speculation(enabled=True)}, "UNIMPLEMENTED", "NOT_IN_ARTIFACT", None),
        ({"speculation": pb.Speculation(drafter="mtp")}, "UNIMPLEMENTED", "NOT_IN_ARTIFACT", None),
        ({"request_id": "x" * 129}, *INVALID, "request_id"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(fields: dict, code: str, reason: str, field: str | None) -> None:
    async def scenario() -> None:
        async with serving() as s:
            options = {"tokens": (1, 2), **fields}
            what = await failure(s.generate(options.pop("session_id", ""), **options))

            assert (what.code, what.reason) == (code, reason)
            assert field is None or what.fields == (field,)
            assert s.engine.load_info().running_generations == 0

    run(scenario())


def test_context_error_tells_the_numbers() -> None:
    async def scenario() -> None:
        async with serving(context=64) as s:
            what = await failure(s.generate("", tuple([1] * 65)))

            assert (what.metadata["n_prompt_tokens"], what.metadata["n_ctx"]) == ("65", "64")

    run(scenario())


def test_speculation_switched_off_is_no_error() -> None:
    async def scenario() -> None:
        async with serving() as s:
            speculation = pb.Speculation(enabled=False, max_draft_tokens=4)
            assert len(token_ids(await collect(s.generate("", (1,), speculation=speculation)))) == 8

    run(scenario())


def test_resume_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with serving() as s:
            what = await failure(s.inference.ResumeGenerate(pb.ResumeGenerateRequest(generation_id="g")))
            assert (what.code, what.reason) == ("UNIMPLEMENTED", "NOT_IN_ARTIFACT")

    run(scenario())


def test_a_full_queue_says_when_to_retry() -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.02, max_queue=1, max_running=1) as s:
            first = s.generate("", (1,), max_tokens=4000)
            await first.read()
            second = s.generate("", (1,), max_tokens=1)
            await until(lambda: s.engine.load_info().waiting_generations == 1)
            what = await failure(s.generate("", (1,), max_tokens=1))

            assert (what.code, what.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
            assert what.retry_seconds > 0
            first.cancel()
            assert (await collect(second))[-1].finished.reason == pb.FINISH_REASON_LENGTH

    run(scenario())


@pytest.mark.slow
def test_request_larger_than_the_limit_is_refused_by_the_transport() -> None:
    async def scenario() -> None:
        async with serving() as s:
            what = await failure(s.get("x" * (20 << 20)))
            assert (what.code, what.reason) == ("RESOURCE_EXHAUSTED", ""), "no details: not our overload"
            capabilities = await s.models.GetCapabilities(pb.GetCapabilitiesRequest())
            assert capabilities.max_request_bytes == 16 << 20
            # 5 MiB are above the 4 MiB that gRPC allows by itself, so the server read it.
            fine = await failure(s.generate("", tuple([1] * (5 << 20))))
            assert (fine.code, fine.reason) == ("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED")

    run(scenario())


def test_request_id_of_the_metadata_is_echoed() -> None:
    async def scenario() -> None:
        async with serving() as s:
            call = s.models.GetLoad(pb.GetLoadRequest(), metadata=(("x-request-id", "r-17"),))
            await call
            assert dict(await call.initial_metadata())["x-request-id"] == "r-17"

    run(scenario())
