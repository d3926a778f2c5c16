"""Calls that no client should make, over real gRPC on the fake engine: documented status, sound server."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from bad_input.helpers import PATHS, check_line
from fake_executable import fake_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from port import check
from unit.serve.grpc_harness import TOKENIZER, Serving, collect, failure, run, serving, token_ids, until

from ds4c_runtime.errors import PositionOutOfRangeError, RuntimeFailure
from ds4c_serve.client import failure_of
from ds4c_serve.v1 import engine_pb2 as pb

PROMPT = tuple(range(2, 42))
Call = Callable[[Serving], Any]


def rewind(session_id: str = "a", **fields: Any) -> Call:
    return lambda s: s.sessions.Rewind(pb.RewindRequest(session_id=session_id, **fields))


def plan(session_id: str = "a", **fields: Any) -> Call:
    return lambda s: s.sessions.PlanRewind(pb.PlanRewindRequest(session_id=session_id, **fields))


def fork(session_id: str = "a", **fields: Any) -> Call:
    return lambda s: s.sessions.ForkSession(pb.ForkSessionRequest(session_id=session_id, **fields))


def close(session_id: str) -> Call:
    return lambda s: s.sessions.CloseSession(pb.CloseSessionRequest(session_id=session_id))


def generate(session_id: str = "a", tokens: tuple[int, ...] = (1,), **fields: Any) -> Call:
    return lambda s: s.generate(session_id, tokens, **fields)


def text(content: str, **fields: Any) -> Call:
    return lambda s: s.generate("a", prompt=pb.Prompt(text=content, **fields))


def raw(method: str, content: bytes) -> Call:
    service, _, name = method.partition("/")
    path = f"/ds4c.v1.{service}/{name}"
    if name in ("Generate", "ResumeGenerate"):
        return lambda s: Raw(s.channel.unary_stream(path)(content))
    return lambda s: s.channel.unary_unary(path)(content)


class Raw:
    """A stream whose messages are left as bytes."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def read(self) -> Any:
        return await self.call.read()


BAD = ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
TOO_LONG = ("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED")
GONE = ("NOT_FOUND", "SESSION_NOT_FOUND")
RANGE = ("OUT_OF_RANGE", "POSITION_OUT_OF_RANGE")
NOT_UTF8 = b"\x0a\x02\xff\xfe"
"""Field 1, which is a session id or a text in every request, of two bytes that are not UTF-8."""

CASES: dict[str, tuple[Call, str, str]] = {
    "prompt longer than the context": (generate("", (1,) * 300), *TOO_LONG),
    "prompt longer than what is left": (generate("a", (1,) * 217), *TOO_LONG),
    "text longer than the context": (text("word " * 5000), *TOO_LONG),
    "token out of range": (generate("a", (1, 1024)), *BAD),
    "token of 32 bits": (generate("a", (2**32 - 1,)), *BAD),
    "stop token out of range": (generate("a", stop=pb.StopCondition(token_ids=[1024])), *BAD),
    "bias of an unknown token": (generate("a", sampling=pb.Sampling(logit_bias={1024: 1.0})), *BAD),
    "bias without end": (generate("a", sampling=pb.Sampling(logit_bias={3: math.inf})), *BAD),
    "empty prompt, new session": (generate("", ()), *BAD),
    "empty text, new session": (lambda s: s.generate("", prompt=pb.Prompt(text="")), *BAD),
    "empty stop string": (generate("a", stop=pb.StopCondition(strings=[""])), *BAD),
    "endless stop string": (generate("a", stop=pb.StopCondition(strings=["x" * 2000])), *BAD),
    "temperature of nothing": (generate("a", sampling=pb.Sampling(temperature=math.nan)), *BAD),
    "handle without a session": (generate("", expected_prefix_digest="x"), *BAD),
    "position without a session": (generate("", expected_position=4), *BAD),
    "20 MiB of text": (text("x" * (20 << 20)), "RESOURCE_EXHAUSTED", ""),
    "20 MiB of id": (rewind("x" * (20 << 20), to_position=1), "RESOURCE_EXHAUSTED", ""),
    "unary: not UTF-8": (raw("SessionService/GetSession", NOT_UTF8), *BAD),
    "stream: not UTF-8": (raw("InferenceService/Generate", NOT_UTF8), *BAD),
    "tokenize: not UTF-8": (raw("InferenceService/Tokenize", NOT_UTF8), *BAD),
    "unary: cut": (raw("SessionService/Rewind", b"\x0a\x05a"), *BAD),
    "stream: cut": (raw("InferenceService/Generate", b"\x32\x7f\x0a"), *BAD),
    "stream: no message": (raw("InferenceService/ResumeGenerate", b"\xff" * 12), *BAD),
    "unknown method": (raw("SessionService/Nonsense", b""), "UNIMPLEMENTED", ""),
    "unknown session: generate": (generate("gone"), *GONE),
    "unknown session: rewind": (rewind("gone", to_position=0), *GONE),
    "unknown session: plan": (plan("gone", drop_tokens=0), *GONE),
    "unknown session: fork": (fork("gone"), *GONE),
    "unknown session: close": (close("gone"), *GONE),
    "unknown session of 1 MiB": (close("é" * (1 << 19)), *GONE),
    "closed session: generate": (generate("closed"), *GONE),
    "closed session: rewind": (rewind("closed", to_position=0), *GONE),
    "closed session: plan": (plan("closed", to_position=0), *GONE),
    "closed session: fork": (fork("closed"), *GONE),
    "closed session: close": (close("closed"), *GONE),
    "rewind beyond the end": (rewind(to_position=41), *RANGE),
    "rewind far beyond the end": (rewind(to_position=2**64 - 1), *RANGE),
    "rewind below zero": (rewind(drop_tokens=41), *RANGE),
    "rewind far below zero": (rewind(drop_tokens=2**32 - 1), *RANGE),
    "plan beyond the end": (plan(to_position=41), *RANGE),
    "plan below zero": (plan(drop_tokens=41), *RANGE),
    "fork beyond the end": (fork(at_position=41), *RANGE),
    "rewind in generate beyond the end": (generate("a", rewind_to=41), *RANGE),
    "rewind to nothing": (rewind(), *BAD),
    "no session named": (rewind("", to_position=0), *BAD),
    "fork to a taken id": (fork(new_session_id="a"), "ALREADY_EXISTS", "SESSION_EXISTS"),
    "fork to no id": (fork(new_session_id="a/b"), *BAD),
    "moved meanwhile": (rewind(to_position=1, expected_position=39), "ABORTED", "CONTINUATION_STALE"),
    "other digest": (generate("a", expected_prefix_digest="0" * 100_000), "ABORTED", "CONTINUATION_STALE"),
    "too dear": (rewind(to_position=5, max_replay_tokens=4), "FAILED_PRECONDITION", "REWIND_TOO_DEAR"),
    "page of no list": (
        lambda s: s.sessions.ListSessions(pb.ListSessionsRequest(page_token="ü")), *BAD
    ),
}  # fmt: skip


async def idle(s: Serving) -> None:
    """Nothing runs or waits; the counters follow the end of a stream by a moment."""

    def is_idle() -> bool:
        load = s.engine.load_info()
        return (load.running_generations, load.waiting_generations) == (0, 0)

    await until(is_idle)


async def sound(s: Serving) -> None:
    """The server still answers, and the session that was there goes on as a fresh one would."""
    await idle(s)
    assert (await s.get("a")).position == 40
    rest = token_ids(await collect(s.generate("", (*PROMPT, 5), max_tokens=4)))
    assert token_ids(await collect(s.generate("a", (5,), max_tokens=4))) == rest


async def prepared(s: Serving) -> None:
    await s.open("a")
    await s.prefill("a", PROMPT)
    await s.open("closed")
    await s.sessions.CloseSession(pb.CloseSessionRequest(session_id="closed"))


@pytest.mark.parametrize(("call", "code", "reason"), CASES.values(), ids=CASES)
def test_refused_calls(call: Call, code: str, reason: str) -> None:
    async def scenario() -> None:
        async with serving(tokenizer_path=TOKENIZER) as s:
            await prepared(s)
            made = call(s)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (collect(made) if hasattr(made, "read") else made)
            what = failure_of(caught.value)
            assert (what.code, what.reason) == (code, reason)
            if reason:
                check_line(f"error: {what.message}")
            await sound(s)

    run(scenario())


@pytest.mark.parametrize(
    "call",
    [
        generate("a", prompt=pb.Prompt(text="x")),
        generate("a", return_text=True),
        lambda s: s.inference.Tokenize(pb.TokenizeRequest(text="x")),
        lambda s: s.inference.Detokenize(pb.DetokenizeRequest(tokens=pb.TokenIds(ids=[1]))),
        generate("a", stop=pb.StopCondition(at_tool_call_end=True)),
    ],
    ids=["prompt", "answer", "tokenize", "detokenize", "tool call"],
)
def test_without_a_tokenizer_text_is_refused_and_tokens_work(call: Call) -> None:
    async def scenario() -> None:
        async with serving() as s:
            await prepared(s)
            what = await failure(call(s))
            assert (what.code, what.reason) == ("FAILED_PRECONDITION", "NO_TOKENIZER")
            check_line(f"error: {what.message}")
            await sound(s)

    run(scenario())


WRITERS: dict[str, Call] = {
    "generate": generate("a"),
    "rewind": rewind(to_position=1),
    "fork": fork("a"),
    "close": close("a"),
}


@pytest.mark.parametrize("second", WRITERS.values(), ids=WRITERS)
def test_a_second_writer_is_told_that_the_session_is_busy(second: Call) -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.01) as s:
            await s.open("a")
            first = s.generate("a", (1,), stop=pb.StopCondition(ignore_eos=True))
            await first.read()
            what = await failure(second(s))
            assert (what.code, what.reason) == ("ABORTED", "SESSION_BUSY")
            assert what.retry_seconds > 0
            first.cancel()
            await until(lambda: not s.engine.get_session("a").is_busy)
            made = second(s)
            await (collect(made) if hasattr(made, "read") else made)

    run(scenario())


def test_two_writers_at_once_end_as_one_after_the_other_or_busy() -> None:
    async def scenario() -> None:
        async with serving(context=2048) as s:
            await s.open("a")

            async def write(token: int) -> int:
                try:
                    return len(token_ids(await collect(s.generate("a", (token,), max_tokens=3))))
                except grpc.aio.AioRpcError as error:
                    if failure_of(error).reason != "SESSION_BUSY":
                        raise
                    return -1

            done = await asyncio.gather(*(write(token) for token in range(2, 22)))
            assert max(done) > 0
            expected = sum(count + 1 for count in done if count >= 0)
            assert (await s.get("a")).position == expected

    run(scenario())


CLIENT = """
import sys
import grpc
from ds4c_serve.client import stubs
from ds4c_serve.v1 import engine_pb2 as pb
request = pb.GenerateRequest(session_id="a", prompt=pb.Prompt(tokens=pb.TokenIds(ids=[1] * 3000)),
                             prefill_progress=True)
for response in stubs(grpc.insecure_channel(sys.argv[1])).inference.Generate(request):
    print("going", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda n: n.name)
def test_a_client_that_goes_during_prefill(number: signal.Signals) -> None:
    """Killed, ended, or stopped so that it reads no more: the finished part stays, others are served."""

    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.02) as s:
            await s.open("a")
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, s.target],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": PATHS},
            )
            try:
                assert client.stdout is not None
                await asyncio.to_thread(client.stdout.readline)
                await until(lambda: s.engine.get_session("a").position > 24)
                client.send_signal(number)
                if number is not signal.SIGSTOP:
                    await until(lambda: not s.engine.get_session("a").is_busy)
                    assert 24 < (await s.get("a")).position < 3000
                assert len(token_ids(await collect(s.generate("", (1, 2), max_tokens=3)))) == 3
            finally:
                client.kill()
                client.wait()
            await until(lambda: not s.engine.get_session("a").is_busy)
            position = (await s.get("a")).position
            assert len(token_ids(await collect(s.generate("a", (7,), max_tokens=3)))) == 3
            assert (await s.get("a")).position == position + 4

    run(scenario(), 40)


@pytest.mark.parametrize("to", [-1, 41, 10**9, -(2**63)])
def test_a_session_itself_refuses_positions(to: int) -> None:
    session = fake_machine().open()
    session.prefill(list(PROMPT))
    for call in (session.rewind, session.plan_rewind, session.fork):
        with pytest.raises(PositionOutOfRangeError):
            call(to)
    assert session.position == 40
    session.close()
    with pytest.raises(RuntimeFailure, match="closed"):
        session.rewind(0)


# --- any field of any request

STATUSES = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED", "FAILED_PRECONDITION", "OUT_OF_RANGE",
    "RESOURCE_EXHAUSTED", "UNIMPLEMENTED",
}  # fmt: skip
"""What a client may be answered besides OK; UNKNOWN, INTERNAL and UNAVAILABLE are not among it."""

SERVICES = {"InferenceService": "inference", "SessionService": "sessions", "ModelService": "models"}
METHODS = [
    (service, method) for service in SERVICES for method in pb.DESCRIPTOR.services_by_name[service].methods
]
CHANGING = [
    m for m in METHODS if m[1].name in ("Generate", "OpenSession", "ForkSession", "Rewind", "PlanRewind")
]
"""Methods that do most, and so are called as often as all together."""
WORDS = st.sampled_from(["", "a", "b", "c", "closed", "x" * 200, "é" * 3000, "a/b", "\x00", "a\nb", "=="])
INTEGERS = {
    "INT32": (-(2**31), 2**31 - 1),
    "UINT32": (0, 2**32 - 1),
    "INT64": (-(2**63), 2**63 - 1),
    "UINT64": (0, 2**64 - 1),
}


def numbers(kind: str) -> st.SearchStrategy[int]:
    low, high = INTEGERS[kind]
    near = st.integers(max(low, -2), 50)
    return near | near | st.sampled_from([low, high, 255, 256, 257, 1023, 1024]) | st.integers(low, high)


def values(field: Any) -> st.SearchStrategy[Any]:
    """One value of a field."""
    kind = next(
        name.removeprefix("TYPE_")
        for name in ("TYPE_INT32", "TYPE_UINT32", "TYPE_INT64", "TYPE_UINT64", "TYPE_STRING", "TYPE_BOOL",
                     "TYPE_FLOAT", "TYPE_MESSAGE")
        if field.type == getattr(field, name)
    )  # fmt: skip
    if kind in INTEGERS:
        return numbers(kind)
    return {
        "STRING": lambda: WORDS | st.text(max_size=20),
        "BOOL": st.booleans,
        "FLOAT": lambda: st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0, 1e-40]),
        "MESSAGE": lambda: messages(field.message_type),
    }[kind]()


@st.composite
def messages(draw: st.DrawFn, descriptor: Any) -> dict[str, Any]:
    """Some fields of a message as keyword arguments."""
    made: dict[str, Any] = {}
    every = list(descriptor.fields)
    if not every:
        return made
    for field in draw(st.lists(st.sampled_from(every), max_size=5, unique_by=lambda f: f.name)):
        entry = field.message_type if field.type == field.TYPE_MESSAGE else None
        if entry is not None and entry.GetOptions().map_entry:
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            made[field.name] = draw(st.dictionaries(values(key), values(value), max_size=3))
        elif field.is_repeated:
            made[field.name] = draw(st.lists(values(field), max_size=6))
        else:
            made[field.name] = draw(values(field))
    return made


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, Any]:
    """Service, method and a request; most name a session that exists and generate little."""
    service, method = draw(st.sampled_from(METHODS) | st.sampled_from(CHANGING))
    fields = draw(messages(method.input_type))
    names = {field.name for field in method.input_type.fields}
    if "session_id" in names and draw(st.integers(0, 3)):
        fields["session_id"] = draw(st.sampled_from(["a", "b", "c"]))
    if method.name == "Generate":
        if draw(st.booleans()):
            ids = draw(st.lists(st.integers(0, 1023), min_size=1, max_size=9))
            fields["prompt"] = {"tokens": {"ids": ids}}
        most = fields.setdefault("stop", {}).get("max_output_tokens", 9)
        fields["stop"]["max_output_tokens"] = min(most, 9)
    make = getattr(pb, method.input_type.name)
    try:
        return service, method.name, make(**fields)
    except (TypeError, ValueError):  # two members of a oneof are given; a client cannot make that either
        return service, method.name, make()


async def answer(s: Serving, service: str, method: str, request: Any) -> str:
    """The name of the status of a call."""
    stub = getattr(s, SERVICES[service])
    call = getattr(stub, method)(request, timeout=15)
    try:
        await (collect(call) if hasattr(call, "read") else call)
    except grpc.aio.AioRpcError as error:
        what = failure_of(error)
        assert what.reason or what.code == "UNAUTHENTICATED", what
        assert "\n" not in what.message
        return what.code
    return "OK"


def check_calls(calls: list[tuple[str, str, Any]]) -> None:
    """A server answers them all, and one that it must answer well after them."""

    async def scenario() -> None:
        async with serving(tokenizer_path=TOKENIZER, max_sessions=6) as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            await s.open("b")
            for service, method, request in calls:
                code = await answer(s, service, method, request)
                assert code in {"OK", *STATUSES}, (method, request, code)
            await idle(s)
            for info in s.engine.list_sessions():
                assert not info.is_busy
            check(s.engine)
            if (await s.models.GetLoad(pb.GetLoadRequest())).resident_sessions == 6:
                await s.sessions.CloseSession(
                    pb.CloseSessionRequest(session_id=s.engine.list_sessions()[0].session_id)
                )
            assert len(token_ids(await collect(s.generate("", PROMPT, max_tokens=4)))) == 4

    run(scenario(), 120)


CALLS = st.lists(requests(), min_size=10, max_size=40)


@given(calls=CALLS)
@settings(max_examples=20)
def test_any_request_is_answered_with_a_documented_status(calls: list[tuple[str, str, Any]]) -> None:
    check_calls(calls)


@pytest.mark.more
@given(calls=CALLS)
@settings(max_examples=400)
def test_many_requests_are_answered_with_a_documented_status(calls: list[tuple[str, str, Any]]) -> None:
    check_calls(calls)


def check_bytes(method: tuple[str, Any], content: bytes) -> None:
    """A server answers them in the place of a request."""
    service, descriptor = method

    async def scenario() -> None:
        async with serving(tokenizer_path=TOKENIZER, max_sessions=6) as s:
            await prepared(s)
            call = raw(f"{service}/{descriptor.name}", content)(s)
            try:
                await (collect(call) if hasattr(call, "read") else call)
            except grpc.aio.AioRpcError as error:
                assert error.code().name in STATUSES  # noqa: PT017 - OK is as good
            await idle(s)

    run(scenario(), 60)


BYTES = st.binary(max_size=40) | st.binary(min_size=1, max_size=200)


@given(method=st.sampled_from(METHODS), content=BYTES)
@settings(max_examples=20)
def test_any_bytes_are_answered_with_a_documented_status(method: tuple[str, Any], content: bytes) -> None:
    check_bytes(method, content)


@pytest.mark.more
@given(method=st.sampled_from(METHODS), content=BYTES)
@settings(max_examples=600)
def test_many_bytes_are_answered_with_a_documented_status(method: tuple[str, Any], content: bytes) -> None:
    check_bytes(method, content)
