"""The server's life and its standard services: health, reflection, model facts, loading, drain, TLS."""

import asyncio
import subprocess
import threading
from pathlib import Path

import grpc
import pytest
from fake_executable import fake_engine
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from unit.serve.grpc_harness import TOKENIZER, collect, failure, run, serving, token_ids, until

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve import client
from ds4c_serve.listen import parse_address
from ds4c_serve.server import Server, ServerConfig, TlsFiles
from ds4c_serve.v1 import engine_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OUR_SERVICES = ["ds4c.v1.InferenceService", "ds4c.v1.SessionService", "ds4c.v1.ModelService"]


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return (await health_pb2_grpc.HealthStub(channel).Check(request)).status


async def reflect(channel: grpc.aio.Channel, **request: str) -> list:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)

    async def ask():
        yield reflection_pb2.ServerReflectionRequest(**request)

    return [answer async for answer in stub.ServerReflectionInfo(ask())]


def test_health_knows_the_server_each_service_and_the_model() -> None:
    async def scenario() -> None:
        async with serving() as s:
            for name in ["", *OUR_SERVICES, "model/fake"]:
                assert await health_of(s.channel, name) == SERVING
            assert (await failure(health_of(s.channel, "model/other"))).code == "NOT_FOUND"

    run(scenario())


def test_reflection_lists_the_services_and_serves_the_contract() -> None:
    async def scenario() -> None:
        async with serving() as s:
            (answer,) = await reflect(s.channel, list_services="")
            names = {service.name for service in answer.list_services_response.service}
            assert {*OUR_SERVICES, "grpc.health.v1.Health"} <= names
            (answer,) = await reflect(s.channel, file_containing_symbol="ds4c.v1.SessionService")
            files = [
                descriptor_pb2.FileDescriptorProto.FromString(raw)
                for raw in answer.file_descriptor_response.file_descriptor_proto
            ]
            assert "ds4c.v1" in {file.package for file in files}

    run(scenario())


def test_reflection_can_be_switched_off() -> None:
    async def scenario() -> None:
        async with serving(reflection=False) as s:
            codes: list[str] = []
            while codes[-1:] != ["UNIMPLEMENTED"] and len(codes) < 5:
                codes.append((await failure(reflect(s.channel, list_services=""))).code)
            # A refusal that overtakes the request resets the stream, which gRPC calls INTERNAL.
            assert codes[-1] == "UNIMPLEMENTED"
            assert set(codes) <= {"UNIMPLEMENTED", "INTERNAL"}

    run(scenario())


def test_model_info_capabilities_and_load() -> None:
    async def scenario() -> None:
        async with serving(max_sessions=3, max_queue=5, horizon=6, context=256) as s:
            info = await s.models.GetModelInfo(pb.GetModelInfoRequest())
            able = await s.models.GetCapabilities(pb.GetCapabilitiesRequest())
            idle = await s.models.GetLoad(pb.GetLoadRequest())

            manifest = s.engine.manifest
            assert (info.served_model_name, info.artifact_id) == ("fake", manifest.artifact_id)
            assert (info.vocab_size, info.max_context_length) == (1024, 256)
            assert list(info.eos_token_ids) == [1]
            assert info.HasField("bos_token_id")
            assert info.target == "cpu:fake"
            assert able.can_rewind
            assert able.can_fork
            assert able.best_rewind_kind == pb.REWIND_KIND_IN_PLACE
            assert list(able.rewind_kinds) == [
                pb.REWIND_KIND_IN_PLACE,
                pb.REWIND_KIND_SNAPSHOT,
                pb.REWIND_KIND_SNAPSHOT_REPLAY,
                pb.REWIND_KIND_REBUILD,
            ]
            assert (able.max_sessions, able.max_queue, able.horizon) == (3, 5, 6)
            assert able.max_draft_tokens == 0
            assert able.can_pin_snapshots
            assert (idle.running_generations, idle.resident_sessions, idle.max_sessions) == (0, 0, 3)
            await s.open("a")
            await s.prefill("a", (1, 2, 3))
            used = await s.models.GetLoad(pb.GetLoadRequest())
            assert used.resident_sessions == 1
            assert 0 < used.state_bytes_used <= used.state_bytes_budget

    run(scenario())


def test_before_the_artifact_is_loaded_calls_are_told_to_wait() -> None:
    async def scenario() -> None:
        gate = threading.Event()

        def slow_load():
            gate.wait(10)
            return fake_engine()

        server = Server(ServerConfig((parse_address("127.0.0.1:0"),)))
        (target,) = await server.start()
        loading = asyncio.create_task(server.load(slow_load))
        async with grpc.aio.insecure_channel(target) as channel:
            assert await health_of(channel, "") == NOT_SERVING
            what = await failure(client.stubs(channel).models.GetLoad(pb.GetLoadRequest()))
            assert (what.code, what.reason) == ("UNAVAILABLE", "LOADING")
            assert what.retry_seconds > 0
            gate.set()
            engine = await loading
            assert await health_of(channel, "model/fake") == SERVING
        await server.stop(0)
        await asyncio.to_thread(engine.shutdown, 5.0)

    run(scenario())


def test_drain_refuses_new_generations_and_lets_running_ones_finish() -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.01) as s:
            call = s.generate("", (1,), max_tokens=60)
            await call.read()
            draining = asyncio.create_task(s.server.drain(s.engine))
            await until(lambda: s.engine.load_info().is_draining)
            assert await health_of(s.channel, "") == NOT_SERVING
            what = await failure(s.generate("", (1,)))
            assert (what.code, what.reason) == ("UNAVAILABLE", "DRAINING")
            assert what.retry_seconds > 0
            assert (await s.models.GetLoad(pb.GetLoadRequest())).draining
            responses = await collect(call)
            assert responses[-1].finished.reason == pb.FINISH_REASON_LENGTH
            await draining

    run(scenario())


def test_drain_time_over_cancels_and_still_sends_finished() -> None:
    async def scenario() -> None:
        config = ServerConfig((parse_address("127.0.0.1:0"),), drain_seconds=0.2)
        server = Server(config)
        (target,) = await server.start()
        engine = await server.load(lambda: fake_engine(context=4096, step_delay_seconds=0.01))
        async with grpc.aio.insecure_channel(target) as channel:
            stub = client.stubs(channel).inference
            request = pb.GenerateRequest(
                prompt=pb.Prompt(tokens=pb.TokenIds(ids=[1])),
                stop=pb.StopCondition(max_output_tokens=4000),
                return_token_ids=True,
            )
            call = stub.Generate(request)
            await call.read()
            begun = asyncio.get_running_loop().time()
            draining = asyncio.create_task(server.drain(engine))
            responses = await collect(call)
            assert responses[-1].finished.reason == pb.FINISH_REASON_CANCELLED
            assert len(token_ids(responses)) == responses[-1].finished.usage.output_tokens
            await draining
            assert asyncio.get_running_loop().time() - begun < 4
            assert (await failure(stub.Generate(request))).code == "UNAVAILABLE"

    run(scenario())


def test_open_address_is_refused_before_anything_is_bound() -> None:
    with pytest.raises(InvalidRequestError, match="--auth-token-file"):
        Server(ServerConfig((parse_address("0.0.0.0:0"),)))


def make_certificates(folder: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca")
    for name in ("server", "alice", "bob"):
        names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", *names)
        signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-days", "2", *signing)


def test_mutual_tls_names_the_owner(tmp_path: Path) -> None:
    make_certificates(tmp_path)

    def channel(target: str, name: str | None) -> grpc.aio.Channel:
        pair = (None, None) if name is None else (tmp_path / f"{name}.key", tmp_path / f"{name}.crt")
        read = [path.read_bytes() if path is not None else None for path in pair]
        credentials = grpc.ssl_channel_credentials((tmp_path / "ca.crt").read_bytes(), *read)
        return grpc.aio.secure_channel(target.replace("127.0.0.1", "localhost"), credentials)

    async def scenario() -> None:
        tls = TlsFiles(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
        server = Server(ServerConfig((parse_address("127.0.0.1:0"),), tls=tls))
        (target,) = await server.start()
        engine = await server.load(fake_engine)
        async with channel(target, "alice") as alice, channel(target, "bob") as bob:
            opened = client.stubs(alice).sessions.OpenSession(pb.OpenSessionRequest(session_id="a"))
            assert (await opened).session.session_id == "a"
            what = await failure(client.stubs(bob).sessions.GetSession(pb.GetSessionRequest(session_id="a")))
            assert what.reason == "SESSION_NOT_FOUND"
        async with channel(target, None) as stranger:
            what = await failure(client.stubs(stranger).models.GetLoad(pb.GetLoadRequest()))
            assert (what.code, what.reason) == ("UNAVAILABLE", "")
        await server.stop(0)
        await asyncio.to_thread(engine.shutdown, 5.0)

    run(scenario())


def test_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"absent\.key"):
        TlsFiles(tmp_path / "absent.crt", tmp_path / "absent.key").credentials()


def test_a_defect_is_internal_logged_and_keeps_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(tokenizer_path=TOKENIZER) as s:

            def broken(*_arguments: object, **_options: object) -> list[int]:
                raise ZeroDivisionError("secret words")

            s.engine.tokenizer.encode = broken
            what = await failure(s.inference.Tokenize(pb.TokenizeRequest(text="secret words")))
            assert (what.code, what.reason) == ("INTERNAL", "INTERNAL")
            assert "secret" not in what.message

    run(scenario())
    assert "ZeroDivisionError" in caplog.text


def test_one_log_line_a_call_without_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(tokenizer_path=TOKENIZER) as s:
            await s.inference.Tokenize(pb.TokenizeRequest(text="private words"))
            await failure(s.get("gone"))

    with caplog.at_level("INFO", logger="ds4c_serve"):
        run(scenario())
    facts = [record.facts for record in caplog.records if record.getMessage() == "call"]
    assert [(fact["method"], fact["code"]) for fact in facts] == [
        ("Tokenize", "OK"),
        ("GetSession", "NOT_FOUND"),
    ]
    assert facts[1]["reason"] == "SESSION_NOT_FOUND"
    assert "private" not in str(facts)


def test_messages_become_data_with_words_for_enums() -> None:
    message = pb.RewindResponse(
        session=pb.Session(session_id="a", position=7),
        rewind=pb.RewindReport(kind=pb.REWIND_KIND_SNAPSHOT_REPLAY, from_position=9),
    )
    message.rewind.replay_time.FromMilliseconds(1500)
    data = client.to_data(message)

    assert data["session"]["position"] == 7
    assert data["rewind"]["kind"] == "snapshot_replay"
    assert data["rewind"]["rebuild_reason"] == "unspecified"
    assert data["rewind"]["replay_time"] == 1.5
    assert "restore_time" not in data["rewind"]


def test_one_log_line_a_rewind(caplog: pytest.LogCaptureFixture) -> None:
    """Of calls, of the start of a generation, of a stop string: each once, with who asked."""

    async def scenario() -> None:
        async with serving(horizon=6, tokenizer_path=TOKENIZER) as s:
            await s.open("a")
            await s.prefill("a", tuple(range(10, 50)))
            rewind = pb.RewindRequest(session_id="a", request_id="r-1", to_position=20)
            await s.sessions.Rewind(rewind)
            await s.sessions.ForkSession(pb.ForkSessionRequest(session_id="a", new_session_id="b"))
            await failure(s.sessions.Rewind(pb.RewindRequest(session_id="a", to_position=99)))
            text = "".join(r.delta.text for r in await collect(s.generate("b", (7,), return_text=True)))
            stop = pb.StopCondition(max_output_tokens=8, strings=[text[4:7]])
            await collect(s.generate("a", (7,), rewind_to=20, stop=stop, request_id="r-2"))

    with caplog.at_level("INFO", logger="ds4c_serve"):
        run(scenario())
    facts = [record.facts for record in caplog.records if record.getMessage() == "rewind"]
    assert facts[0] | {"ms": 0} == {
        "request_id": "r-1", "session_id": "a", "from": 40, "to": 20, "base": 0, "kind": "rebuild",
        "cause": "client", "reason": "no_snapshot", "replayed": 20, "ms": 0,
    }  # fmt: skip
    assert facts[0]["ms"] > 0
    found = [(f["request_id"], f["session_id"], f["to"], f["kind"], f["cause"], f["reason"]) for f in facts]
    assert found[1:3] == [("", "b", 20, "in_place", "branch", ""), ("r-2", "a", 20, "none", "client", "")]
    assert [(f["request_id"], f["cause"]) for f in facts[3:]] == [("r-2", "stop")]
