"""Calls over real gRPC with messages that are almost right: an answer or a documented refusal, no more."""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st
from more.fuzz import fuzz, mutants
from more.servers import ON_FAKE_ENGINE, ROOT, Ask, ServeProcess, answer

from ds4c_serve.client import failure_of, stubs
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]
SECONDS = 30
TOKENIZER = ROOT / "demo" / "model" / "tokenizer.json"
PROMPT = tuple(range(20, 60))

REFUSALS = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED", "FAILED_PRECONDITION", "OUT_OF_RANGE",
    "RESOURCE_EXHAUSTED", "UNIMPLEMENTED",
}  # fmt: skip
"""Statuses that the contract has for a wrong call; UNKNOWN, INTERNAL and UNAVAILABLE are not among them."""

RIGHT: dict[str, list[Any]] = {
    "InferenceService/Generate": [
        Ask(PROMPT, 4).request("a"),
        Ask((3, 4), 4, seed=5).request(logprobs=2, prefill_progress=True),
        pb.GenerateRequest(
            request_id="r1",
            session_id="a",
            expected_position=40,
            rewind_to=7,
            prompt=pb.Prompt(text="What is rewind?", parse_special=True),
            sampling=pb.Sampling(temperature=0.5, top_p=0.9, top_k=9, min_p=0.1, seed=1, logit_bias={7: 1.5}),
            stop=pb.StopCondition(max_output_tokens=5, token_ids=[4], strings=["ab"], at_tool_call_end=True),
            speculation=pb.Speculation(enabled=False, drafter="x"),
            return_text=True,
            detach_ttl=Duration(seconds=3),
        ),
    ],
    "InferenceService/ResumeGenerate": [pb.ResumeGenerateRequest(generation_id="0f" * 16, after_sequence=3)],
    "InferenceService/CancelGeneration": [pb.CancelGenerationRequest(generation_id="0f" * 16)],
    "InferenceService/Tokenize": [pb.TokenizeRequest(text="What is rewind?", parse_special=True)],
    "InferenceService/Detokenize": [pb.DetokenizeRequest(tokens=pb.TokenIds(ids=PROMPT), skip_special=True)],
    "SessionService/OpenSession": [
        pb.OpenSessionRequest(session_id="b", capacity=100, idle_ttl=Duration(seconds=1, nanos=5)),
        pb.OpenSessionRequest(),
    ],
    "SessionService/CloseSession": [pb.CloseSessionRequest(session_id="b")],
    "SessionService/GetSession": [pb.GetSessionRequest(session_id="a")],
    "SessionService/ListSessions": [pb.ListSessionsRequest(page_size=2, page_token="YQ==")],
    "SessionService/ForkSession": [
        pb.ForkSessionRequest(session_id="a", new_session_id="c", at_position=9),
        pb.ForkSessionRequest(session_id="a"),
    ],
    "SessionService/Rewind": [
        pb.RewindRequest(session_id="a", request_id="r2", to_position=33, max_replay_tokens=9),
        pb.RewindRequest(session_id="a", drop_tokens=2, expected_position=40, defer_rebuild=True),
        pb.RewindRequest(session_id="a", to_snapshot_id="s1"),
    ],
    "SessionService/PlanRewind": [
        pb.PlanRewindRequest(session_id="a", to_position=33),
        pb.PlanRewindRequest(session_id="a", to_snapshot_id="s1"),
    ],
    "SessionService/ListSnapshots": [pb.ListSnapshotsRequest(session_id="a")],
    "SessionService/PinSnapshot": [
        pb.PinSnapshotRequest(session_id="a", position=12, label="here"),
        pb.PinSnapshotRequest(session_id="a", snapshot_id="s1"),
    ],
    "SessionService/UnpinSnapshot": [pb.UnpinSnapshotRequest(session_id="a", snapshot_id="s1")],
    "ModelService/GetModelInfo": [pb.GetModelInfoRequest()],
    "ModelService/GetCapabilities": [pb.GetCapabilitiesRequest()],
    "ModelService/GetLoad": [pb.GetLoadRequest()],
}
CHANGING = ("InferenceService/Generate", "SessionService/Rewind", "SessionService/ForkSession")
"""Methods that do most, and so are called as often as all together."""
STREAMS = ("InferenceService/Generate", "InferenceService/ResumeGenerate")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServeProcess]:
    made = ServeProcess(TOKENIZER, tmp_path / "log", "--max-sessions", "6", program=ON_FAKE_ENGINE)
    yield made
    assert made.end() == 0, made.log.read_text()
    assert "Traceback" not in made.log.read_text()


WORDS = st.sampled_from(["", "a", "b", "c", "s1", "x" * 200, "é" * 3000, "a/b", "\0", "a\nb", "==", "0" * 64])
NUMBERS = st.integers(0, 60) | st.sampled_from([127, 128, 129, 1023, 1024, 2**31 - 1, 2**31, 2**32 - 1])


def value_of(field: Any) -> st.SearchStrategy[Any]:
    """A value that a field of this type can have on the wire, often a wrong one."""
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return WORDS | st.text(max_size=20)
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0, 1e-40])
    if field.type in (field.TYPE_UINT64,):
        return NUMBERS | st.just(2**64 - 1)
    if field.type in (field.TYPE_INT32, field.TYPE_INT64):
        return st.integers(-60, 60) | st.sampled_from([-(2**31), 2**31 - 1])
    return NUMBERS


@st.composite
def field_mutants(draw: st.DrawFn, right: Sequence[Message]) -> bytes:
    """A right message with one to four fields cleared or set to something else."""
    message = copy.deepcopy(draw(st.sampled_from(right)))
    for _ in range(draw(st.integers(1, 4))):
        place: Any = message
        while True:
            fields = list(place.DESCRIPTOR.fields)
            if not fields:
                break
            field = draw(st.sampled_from(fields))
            if field.message_type is None:
                break
            if field.is_repeated:  # a map, of numbers to numbers in this contract
                getattr(place, field.name)[draw(NUMBERS)] = draw(st.floats(width=32))
                break
            place = getattr(place, field.name)
            place.SetInParent()
        if not fields or field.message_type is not None:
            continue
        if draw(st.integers(0, 4)) == 0:
            place.ClearField(field.name)
        elif field.is_repeated:
            getattr(place, field.name).append(draw(value_of(field)))
        else:
            setattr(place, field.name, draw(value_of(field)))
    return message.SerializeToString()


def cases() -> st.SearchStrategy[tuple[str, bytes]]:
    """A method and the bytes of a message."""

    def message(method: str) -> st.SearchStrategy[tuple[str, bytes]]:
        every = field_mutants(RIGHT[method])
        of_bytes = mutants([request.SerializeToString() for request in RIGHT[method]])
        return st.tuples(st.just(method), every | every | of_bytes)

    return (st.sampled_from(sorted(RIGHT)) | st.sampled_from(CHANGING)).flatmap(message)


def with_snapshot(method: str, content: bytes, snapshot_id: str) -> bytes:
    """The message with the id of a snapshot that exists in the place of "s1"."""
    message = type(RIGHT[method][0])()
    try:
        message.ParseFromString(content)
    except DecodeError:
        return content
    for name in ("snapshot_id", "to_snapshot_id"):
        if getattr(message, name, "") == "s1":
            setattr(message, name, snapshot_id)
            return message.SerializeToString()
    return content


def status(channel: grpc.Channel, method: str, content: bytes) -> str:
    """The name of the status that a call with these bytes ends with."""
    path = f"/ds4c.v1.{method}"
    try:
        if method in STREAMS:
            list(channel.unary_stream(path)(content, timeout=20))
        else:
            channel.unary_unary(path)(content, timeout=20)
    except grpc.RpcError as error:
        what = failure_of(error)
        assert what.reason, what
        assert "\n" not in what.message
        return what.code
    return "OK"


def test_every_method_has_a_right_message() -> None:
    every = {f"{name}/{m.name}" for name, s in pb.DESCRIPTOR.services_by_name.items() for m in s.methods}
    assert set(RIGHT) == every


def test_almost_right_messages(server: ServeProcess, seed: int) -> None:
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    snapshot_id = ""
    with grpc.insecure_channel(server.target) as channel:
        client = stubs(channel)

        def fresh() -> list[int]:
            return answer(list(client.inference.Generate(Ask(PROMPT, 8).request())), 8)

        def emptied() -> None:
            """Only the sessions "a", with the prompt and a snapshot at its end, and "b" are there."""
            nonlocal snapshot_id
            for session in client.sessions.ListSessions(pb.ListSessionsRequest()).sessions:
                client.sessions.CloseSession(pb.CloseSessionRequest(session_id=session.session_id))
            for name in ("a", "b"):
                client.sessions.OpenSession(pb.OpenSessionRequest(session_id=name))
            list(client.inference.Generate(Ask(PROMPT, 0).request("a")))
            listed = client.sessions.ListSnapshots(pb.ListSnapshotsRequest(session_id="a")).snapshots
            snapshot_id = listed[-1].snapshot_id

        def check(case: tuple[str, bytes]) -> None:
            if sum(found.values()) % 25 == 0:
                emptied()
            method, content = case
            code = status(channel, method, with_snapshot(method, content, snapshot_id))
            found[method, code] += 1
            assert code in {"OK", *REFUSALS}, code

        expected = fresh()
        for method, requests in RIGHT.items():
            for request in requests:
                emptied()
                check((method, request.SerializeToString()))
        fuzz(cases(), check, seconds=SECONDS, seed=seed)
        assert fresh() == expected
        emptied()
        assert answer(list(client.inference.Generate(Ask((), 8).request("a"))), 8) == expected
        load = client.models.GetLoad(pb.GetLoadRequest())
        assert (load.running_generations, load.waiting_generations, load.draining) == (0, 0, False)
    print(collections.Counter(code for _, code in found.elements()))
    answered = {method for method, code in found if code == "OK"}
    assert answered == set(RIGHT) - {"InferenceService/ResumeGenerate"}, "each but one is also answered"
