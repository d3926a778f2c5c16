"""Sessions over a real connection: open, list, rewind, plan, fork, close, owners, idle time."""

import asyncio
import time

import pytest
from fake_executable import fake_engine
from google.protobuf.duration_pb2 import Duration
from port import close_idle
from unit.serve.grpc_harness import collect, failure, run, serving, token_ids, until

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.sessions import page_size, read_page_token, write_page_token
from ds4c_serve.v1 import engine_pb2 as pb

ALICE, BOB = "alice-token-0001", "bob-token-000002"
PROMPT = tuple(range(10, 50))


def test_a_new_session_is_empty_and_counts_from_there() -> None:
    async def scenario() -> None:
        async with serving(horizon=6) as s:
            before = time.time()
            session = await s.open("a", capacity=100)

            assert (session.session_id, session.position, session.capacity) == ("a", 0, 100)
            assert (session.high_water, session.floor, session.horizon, session.epoch) == (0, 0, 6, 0)
            assert session.state_valid
            assert not session.is_busy
            assert before - 1 <= session.create_time.ToNanoseconds() / 1e9 <= time.time() + 1
            await s.prefill("a", PROMPT)
            session = await s.get("a")
            assert (session.position, session.high_water) == (40, 40)
            assert session.state_bytes > 0

    run(scenario())


def test_ids_of_the_server_are_random_and_chosen_ones_are_checked() -> None:
    async def scenario() -> None:
        async with serving() as s:
            first, second = await s.open(""), await s.open("")
            assert first.session_id != second.session_id
            assert len(first.session_id) >= 16
            await s.open("mine")
            what = await failure(s.open("mine"))
            assert (what.code, what.reason) == ("ALREADY_EXISTS", "SESSION_EXISTS")
            for wrong in ("has space", "a/b", "x" * 129, "ümlaut"):
                what = await failure(s.open(wrong))
                assert (what.code, what.fields) == ("INVALID_ARGUMENT", ("session_id",))

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"capacity": 100_000}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ({"persistent": True}, "UNIMPLEMENTED", "NOT_IN_ARTIFACT"),
        ({"idle_ttl": Duration(seconds=0)}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ({"idle_ttl": Duration(seconds=-1)}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    ],
)
def test_sessions_that_are_refused(fields: dict, code: str, reason: str) -> None:
    async def scenario() -> None:
        async with serving() as s:
            what = await failure(s.open("a", **fields))
            assert (what.code, what.reason) == (code, reason)
            assert (await failure(s.get("a"))).reason == "SESSION_NOT_FOUND"

    run(scenario())


def test_session_limit_names_its_quota() -> None:
    async def scenario() -> None:
        async with serving(max_sessions=2) as s:
            await s.open("a")
            await s.open("b")
            what = await failure(s.open("c"))
            assert (what.code, what.reason) == ("RESOURCE_EXHAUSTED", "SESSION_LIMIT")
            assert what.retry_seconds > 0
            await s.sessions.CloseSession(pb.CloseSessionRequest(session_id="a"))
            assert (await s.open("c")).position == 0
            assert (await failure(s.get("a"))).reason == "SESSION_NOT_FOUND"

    run(scenario())


def test_a_full_memory_says_when_to_retry() -> None:
    async def scenario() -> None:
        with fake_engine(max_sessions=2) as engine:
            memory = engine.limits.memory
        least = memory.fixed + 8 * memory.page  # pages of 32 tokens, enough for one full session of the two
        room = {"memory_budget": least + 20_032, "snapshot_budget": 20_032}
        async with serving(max_sessions=2, **room) as s:
            await s.open("a")
            await s.open("b")
            await s.prefill("a", PROMPT * 4)
            pin = await s.sessions.PinSnapshot(
                pb.PinSnapshotRequest(session_id="a", position=len(PROMPT) * 4)
            )
            what = await failure(s.generate("b", PROMPT * 5))
            assert (what.code, what.reason) == ("RESOURCE_EXHAUSTED", "MEMORY_BUDGET")
            assert what.retry_seconds > 0
            assert ((await s.get("b")).position, (await s.get("b")).state_valid) == (0, True)
            unpin = pb.UnpinSnapshotRequest(session_id="a", snapshot_id=pin.snapshot.snapshot_id)
            await s.sessions.UnpinSnapshot(unpin)
            assert (await s.prefill("b", PROMPT * 5)).end_position == 200
            assert not (await s.get("a")).state_valid

    run(scenario())


@pytest.mark.parametrize(
    ("target", "to", "kind", "reason"),
    [
        ({"to_position": 40}, 40, pb.REWIND_KIND_NONE, pb.REBUILD_REASON_UNSPECIFIED),
        ({"drop_tokens": 0}, 40, pb.REWIND_KIND_NONE, pb.REBUILD_REASON_UNSPECIFIED),
        ({"drop_tokens": 1}, 39, pb.REWIND_KIND_IN_PLACE, pb.REBUILD_REASON_UNSPECIFIED),
        ({"to_position": 34}, 34, pb.REWIND_KIND_IN_PLACE, pb.REBUILD_REASON_UNSPECIFIED),
        ({"to_position": 33}, 33, pb.REWIND_KIND_SNAPSHOT_REPLAY, pb.REBUILD_REASON_UNSPECIFIED),
        ({"to_position": 32}, 32, pb.REWIND_KIND_SNAPSHOT, pb.REBUILD_REASON_UNSPECIFIED),
        ({"drop_tokens": 20}, 20, pb.REWIND_KIND_REBUILD, pb.REBUILD_REASON_NO_SNAPSHOT),
    ],
)
def test_rewind_does_what_plan_said_and_leaves_no_trace(target, to: int, kind: int, reason: int) -> None:
    async def scenario() -> None:
        async with serving(horizon=6) as s:
            await s.open("a")
            await s.prefill("a", PROMPT)

            plan = await s.sessions.PlanRewind(pb.PlanRewindRequest(session_id="a", **target))
            assert (await s.get("a")).position == 40
            assert (plan.kind, plan.rebuild_reason, plan.to_position) == (kind, reason, to)
            request = pb.RewindRequest(session_id="a", expected_position=40, **target)
            done = await s.sessions.Rewind(request)

            assert (done.session.position, done.rewind.kind) == (to, kind)
            assert (done.rewind.from_position, done.rewind.to_position) == (40, to)
            assert (done.rewind.rebuild_reason, done.rewind.cause) == (reason, pb.REWIND_CAUSE_CLIENT)
            assert (plan.base_position, plan.replay_tokens) == (
                done.rewind.base_position,
                done.rewind.replayed_tokens,
            )
            rest = await collect(s.generate("a", (7, 8), max_tokens=10))
            fresh = await collect(s.generate("", (*PROMPT[:to], 7, 8), max_tokens=10))
            assert token_ids(rest) == token_ids(fresh)

    run(scenario())


def test_rewind_to_the_start_empties_the_session() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            done = await s.sessions.Rewind(pb.RewindRequest(session_id="a", to_position=0))
            assert (done.session.position, done.rewind.to_position) == (0, 0)
            assert done.session.epoch == 1
            first = await collect(s.generate("a", (1, 2), max_tokens=4))
            fresh = await collect(s.generate("", (1, 2), max_tokens=4))
            assert token_ids(first) == token_ids(fresh)

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code", "reason", "field"),
    [
        ({"to_position": 41}, "OUT_OF_RANGE", "POSITION_OUT_OF_RANGE", "to_position"),
        ({"to_position": 2**63 + 5}, "OUT_OF_RANGE", "POSITION_OUT_OF_RANGE", "to_position"),
        ({"drop_tokens": 41}, "OUT_OF_RANGE", "POSITION_OUT_OF_RANGE", "drop_tokens"),
        ({}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "target"),
        ({"to_position": 1, "expected_position": 39}, "ABORTED", "CONTINUATION_STALE", None),
        ({"to_position": 5, "max_replay_tokens": 4}, "FAILED_PRECONDITION", "REWIND_TOO_DEAR", None),
        ({"to_snapshot_id": "x"}, "NOT_FOUND", "SNAPSHOT_NOT_FOUND", None),
        ({"to_position": 1, "session_id": "gone"}, "NOT_FOUND", "SESSION_NOT_FOUND", None),
        ({"to_position": 1, "session_id": ""}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "session_id"),
    ],
)
def test_refused_rewinds_change_nothing(fields: dict, code: str, reason: str, field: str | None) -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            before = await s.get("a")
            what = await failure(s.sessions.Rewind(pb.RewindRequest(**{"session_id": "a", **fields})))

            assert (what.code, what.reason) == (code, reason)
            assert field is None or what.fields == (field,)
            after = await s.get("a")
            assert (after.position, after.high_water, after.epoch, after.prefix_digest) == (
                before.position,
                before.high_water,
                before.epoch,
                before.prefix_digest,
            )

    run(scenario())


def test_a_deferred_rebuild_is_paid_for_by_the_next_use() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            request = pb.RewindRequest(session_id="a", to_position=20, defer_rebuild=True)
            done = await s.sessions.Rewind(request)
            assert (done.rewind.kind, done.session.position) == (pb.REWIND_KIND_DEFERRED, 20)
            assert not done.session.state_valid
            responses = await collect(s.generate("a", (7,), max_tokens=5))
            assert responses[0].started.rewind.kind == pb.REWIND_KIND_REBUILD
            fresh = await collect(s.generate("", (*PROMPT[:20], 7), max_tokens=5))
            assert token_ids(responses) == token_ids(fresh)

    run(scenario())


def test_too_dear_says_what_it_would_cost() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            request = pb.RewindRequest(session_id="a", to_position=20, max_replay_tokens=19)
            what = await failure(s.sessions.Rewind(request))
            assert what.metadata["replay_tokens"] == "20"
            assert what.metadata["base_position"] == "0"

    run(scenario())


def test_fork_goes_its_own_way_and_the_parent_stays() -> None:
    async def scenario() -> None:
        async with serving(horizon=6) as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            request = pb.ForkSessionRequest(session_id="a", new_session_id="b", at_position=36)
            forked = await s.sessions.ForkSession(request)

            assert (forked.session.session_id, forked.session.position) == ("b", 36)
            assert (forked.session.parent_session_id, forked.session.forked_at) == ("a", 36)
            assert forked.rewind.cause == pb.REWIND_CAUSE_BRANCH
            child = await collect(s.generate("b", (3, 4), max_tokens=10))
            parent = await collect(s.generate("a", (5, 6), max_tokens=10))
            assert token_ids(child) == token_ids(
                await collect(s.generate("", (*PROMPT[:36], 3, 4), max_tokens=10))
            )
            assert token_ids(parent) == token_ids(
                await collect(s.generate("", (*PROMPT, 5, 6), max_tokens=10))
            )

    run(scenario())


def test_fork_defaults_to_the_present_position_and_a_random_id() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("a")
            await s.prefill("a", PROMPT)
            forked = await s.sessions.ForkSession(pb.ForkSessionRequest(session_id="a"))
            assert forked.session.position == 40
            assert forked.session.session_id not in ("", "a")
            what = await failure(
                s.sessions.ForkSession(pb.ForkSessionRequest(session_id="a", at_position=41))
            )
            assert (what.code, what.reason) == ("OUT_OF_RANGE", "POSITION_OUT_OF_RANGE")
            what = await failure(
                s.sessions.ForkSession(pb.ForkSessionRequest(session_id="a", new_session_id="a"))
            )
            assert what.reason == "SESSION_EXISTS"

    run(scenario())


def test_listing_goes_through_pages_in_the_order_of_ids() -> None:
    async def scenario() -> None:
        async with serving(max_sessions=8) as s:
            for name in ("c", "a", "e", "b", "d"):
                await s.open(name)
            pages, token = [], ""
            while True:
                answer = await s.sessions.ListSessions(pb.ListSessionsRequest(page_size=2, page_token=token))
                pages.append([session.session_id for session in answer.sessions])
                token = answer.next_page_token
                if not token:
                    break
            assert pages == [["a", "b"], ["c", "d"], ["e"]]
            for fields in ({"page_size": -1}, {"page_token": "%%%"}):
                what = await failure(s.sessions.ListSessions(pb.ListSessionsRequest(**fields)))
                assert (what.code, what.fields) == ("INVALID_ARGUMENT", tuple(fields))

    run(scenario())


def test_page_tokens_and_sizes() -> None:
    assert read_page_token("") == ""
    assert read_page_token(write_page_token("a:b-c")) == "a:b-c"
    assert [page_size(asked) for asked in (0, 1, 1000, 5000)] == [100, 1, 1000, 1000]
    with pytest.raises(InvalidRequestError):
        read_page_token("not base64!")


def test_calls_without_a_token_are_refused_but_health_answers() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async def scenario() -> None:
        async with serving(tokens=(ALICE,), reflection=True) as s:
            calls = [
                lambda: s.get("a"),
                lambda: s.generate("", (1,)),
                lambda: s.models.GetLoad(pb.GetLoadRequest(), metadata=s.metadata),
            ]
            for token in ("", "wrong-token-00001"):
                s.token = token
                for call in calls:
                    what = await failure(call())
                    assert (what.code, what.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
            answer = await health_pb2_grpc.HealthStub(s.channel).Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            s.token = ALICE
            assert len(token_ids(await collect(s.generate("", (1,))))) == 8

    run(scenario())


def test_a_session_exists_only_for_its_owner() -> None:
    async def scenario() -> None:
        async with serving(tokens=(ALICE, BOB), token=ALICE, context=4096, step_delay_seconds=0.005) as s:
            await s.open("a")
            await s.prefill("a", (1, 2, 3))
            call = s.generate("a", (4,), max_tokens=4000)
            generation_id = (await call.read()).started.generation_id
            s.token = BOB
            others = [
                lambda: s.get("a"),
                lambda: s.generate("a", (1,)),
                lambda: s.sessions.Rewind(
                    pb.RewindRequest(session_id="a", to_position=0), metadata=s.metadata
                ),
                lambda: s.sessions.PlanRewind(
                    pb.PlanRewindRequest(session_id="a", to_position=0), metadata=s.metadata
                ),
                lambda: s.sessions.ForkSession(pb.ForkSessionRequest(session_id="a"), metadata=s.metadata),
                lambda: s.sessions.CloseSession(pb.CloseSessionRequest(session_id="a"), metadata=s.metadata),
            ]
            for other in others:
                what = await failure(other())
                assert (what.code, what.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND")
            listed = await s.sessions.ListSessions(pb.ListSessionsRequest(), metadata=s.metadata)
            assert list(listed.sessions) == []
            cancel = pb.CancelGenerationRequest(generation_id=generation_id)
            assert not (await s.inference.CancelGeneration(cancel, metadata=s.metadata)).was_running
            s.token = ALICE
            assert (await s.inference.CancelGeneration(cancel, metadata=s.metadata)).was_running
            await collect(call)
            assert (await s.get("a")).position > 3

    run(scenario())


def test_idle_sessions_are_closed_and_used_ones_are_not() -> None:
    async def scenario() -> None:
        async with serving() as s:
            await s.open("idle", idle_ttl=Duration(seconds=60))
            await s.open("kept")
            assert await close_idle(s.server, time.time() + 30) == 0
            assert (await s.get("idle")).position == 0
            assert await close_idle(s.server, time.time() + 61) == 1
            assert (await failure(s.get("idle"))).reason == "SESSION_NOT_FOUND"
            assert (await s.get("kept")).position == 0
            assert await close_idle(s.server, time.time() + 10_000) == 0

    run(scenario())


def test_the_sweep_runs_by_itself_and_spares_a_busy_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4c_serve.server.SWEEP_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.01) as s:
            await s.open("busy", idle_ttl=Duration(nanos=1_000_000))
            call = s.generate("busy", (1,), max_tokens=4000)
            await call.read()
            await asyncio.sleep(0.4)
            assert (await s.get("busy")).is_busy
            call.cancel()
            await until(lambda: s.engine.load_info().resident_sessions == 0)
            assert (await failure(s.get("busy"))).reason == "SESSION_NOT_FOUND"

    run(scenario())
