"""Snapshots over a real connection: listed, pinned, gone back to, and what a client sees of it all."""

import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_executable import small_manifest
from port import SnapshotOrigin
from unit.serve.grpc_harness import Serving, collect, failure, run, serving, token_ids

from ds4c_serve.v1 import engine_pb2 as pb

ALICE, BOB = "alice-token-0001", "bob-token-000002"
PROMPT = tuple(range(10, 110))


@asynccontextmanager
async def filled(**options: Any) -> AsyncIterator[Serving]:
    """A session "a" of 100 tokens with snapshots at 32, 64, 96 and 100, and a horizon of 6."""
    async with serving(**{"horizon": 6, "page_tokens": 32, **options}) as s:
        await s.open("a")
        await s.prefill("a", PROMPT)
        yield s


async def listed(s: Serving, session_id: str = "a") -> list[pb.Snapshot]:
    request = pb.ListSnapshotsRequest(session_id=session_id)
    return list((await s.sessions.ListSnapshots(request, metadata=s.metadata)).snapshots)


async def at(s: Serving, position: int) -> pb.Snapshot:
    (found,) = [snapshot for snapshot in await listed(s) if snapshot.position == position]
    return found


async def pin(s: Serving, **fields: Any) -> pb.Snapshot:
    request = pb.PinSnapshotRequest(**{"session_id": "a", **fields})
    return (await s.sessions.PinSnapshot(request, metadata=s.metadata)).snapshot


async def rewind(s: Serving, **fields: Any) -> pb.RewindResponse:
    request = pb.RewindRequest(**{"session_id": "a", **fields})
    return await s.sessions.Rewind(request, metadata=s.metadata)


def test_the_list_is_by_position_and_says_who_took_what() -> None:
    async def scenario() -> None:
        async with filled() as s:
            before = time.time()
            finished = (await collect(s.generate("a", (1, 2), max_tokens=5)))[-1].finished
            found = await listed(s)
            assert [(one.position, one.origin) for one in found] == [
                (32, pb.SNAPSHOT_ORIGIN_INTERVAL),
                (64, pb.SNAPSHOT_ORIGIN_INTERVAL),
                (96, pb.SNAPSHOT_ORIGIN_INTERVAL),
                (100, pb.SNAPSHOT_ORIGIN_PROMPT_END),
                (102, pb.SNAPSHOT_ORIGIN_PROMPT_END),
                (107, pb.SNAPSHOT_ORIGIN_TURN_END),
            ]
            last = found[-1]
            assert last.prefix_digest == finished.prefix_digest
            assert (last.pinned, last.has_logits, last.on_device, last.label) == (False, True, True, "")
            assert before - 1 <= last.create_time.ToNanoseconds() / 1e9 <= time.time() + 1
            able = await s.models.GetCapabilities(pb.GetCapabilitiesRequest())
            load = await s.models.GetLoad(pb.GetLoadRequest())
            assert able.can_pin_snapshots
            assert able.max_snapshots_per_session >= len(found)
            assert 0 < max(one.bytes for one in found) <= able.snapshot_bytes
            assert load.snapshot_bytes_used == sum(one.bytes for one in found)
            assert load.snapshot_bytes_used < load.snapshot_bytes_budget

    run(scenario())


@pytest.mark.parametrize(
    ("target", "to", "base", "kind"),
    [
        ({"to_position": 96}, 96, 96, pb.REWIND_KIND_IN_PLACE),
        ({"to_position": 64}, 64, 64, pb.REWIND_KIND_SNAPSHOT),
        ({"drop_tokens": 36}, 64, 64, pb.REWIND_KIND_SNAPSHOT),
        ({"to_position": 80}, 80, 64, pb.REWIND_KIND_SNAPSHOT_REPLAY),
        ({"drop_tokens": 67}, 33, 32, pb.REWIND_KIND_SNAPSHOT_REPLAY),
        ({"to_position": 31}, 31, 0, pb.REWIND_KIND_REBUILD),
    ],
)
def test_a_rewind_far_back_does_what_plan_said(target: dict, to: int, base: int, kind: int) -> None:
    async def scenario() -> None:
        async with filled() as s:
            used = {one.position: one.snapshot_id for one in await listed(s)}
            with_snapshot = kind in (pb.REWIND_KIND_SNAPSHOT, pb.REWIND_KIND_SNAPSHOT_REPLAY)
            snapshot_id = used[base] if with_snapshot else ""
            plan = await s.sessions.PlanRewind(pb.PlanRewindRequest(session_id="a", **target))
            done = await rewind(s, **target)
            assert (plan.kind, plan.base_position, plan.to_position) == (kind, base, to)
            assert (done.rewind.kind, done.rewind.base_position) == (kind, base)
            assert done.rewind.replayed_tokens == plan.replay_tokens == to - base
            assert done.rewind.snapshot_id == plan.snapshot_id == snapshot_id
            assert (done.session.position, done.session.state_valid) == (to, True)
            again = token_ids(await collect(s.generate("a", (7, 8), max_tokens=10)))
            fresh = token_ids(await collect(s.generate("", (*PROMPT[:to], 7, 8), max_tokens=10)))
            assert again == fresh

    run(scenario())


def test_a_rewind_to_a_snapshot_and_forward_again() -> None:
    async def scenario() -> None:
        async with filled() as s:
            answer = token_ids(await collect(s.generate("a", (1, 2), max_tokens=20)))
            end = (await listed(s))[-1]
            target = {"to_snapshot_id": (await at(s, 64)).snapshot_id}
            plan = await s.sessions.PlanRewind(pb.PlanRewindRequest(session_id="a", **target))
            assert (plan.kind, plan.to_position) == (pb.REWIND_KIND_SNAPSHOT, 64)
            done = await rewind(s, **target, expected_position=122, max_replay_tokens=0)
            assert (done.session.position, done.rewind.snapshot_id) == (64, target["to_snapshot_id"])
            await collect(s.generate("a", (9,), max_tokens=3))
            done = await rewind(s, to_snapshot_id=end.snapshot_id)
            assert (done.rewind.kind, done.session.position) == (pb.REWIND_KIND_SNAPSHOT, 122)
            assert done.session.prefix_digest == end.prefix_digest
            again = token_ids(await collect(s.generate("a", (3,), max_tokens=6)))
            fresh = await collect(s.generate("", (*PROMPT, 1, 2, *answer, 3), max_tokens=6))
            assert again == token_ids(fresh)

    run(scenario())


def test_a_generation_says_which_snapshot_it_went_back_to() -> None:
    async def scenario() -> None:
        async with filled() as s:
            snapshot = await at(s, 64)
            responses = await collect(s.generate("a", (7,), rewind_to=70, max_tokens=4))
            report = responses[0].started.rewind
            assert (report.kind, report.base_position) == (pb.REWIND_KIND_SNAPSHOT_REPLAY, 64)
            assert (report.snapshot_id, report.replayed_tokens) == (snapshot.snapshot_id, 6)
            assert responses[-1].finished.rewinds[0] == report
            assert responses[0].started.cached_input_tokens == 64

    run(scenario())


def test_pins_by_id_and_by_position() -> None:
    async def scenario() -> None:
        async with filled() as s:
            by_id = await pin(s, snapshot_id=(await at(s, 64)).snapshot_id, label="über")
            assert (by_id.position, by_id.pinned, by_id.label) == (64, True, "über")
            taken = await pin(s, position=50)
            assert (taken.position, taken.pinned, taken.origin) == (50, True, pb.SNAPSHOT_ORIGIN_CLIENT)
            assert (await s.get("a")).position == 100
            assert [one.position for one in await listed(s) if one.pinned] == [50, 64]
            for _ in range(2):
                request = pb.UnpinSnapshotRequest(session_id="a", snapshot_id=by_id.snapshot_id)
                await s.sessions.UnpinSnapshot(request)
            assert [one.position for one in await listed(s) if one.pinned] == [50]
            await rewind(s, to_position=50)
            fresh = token_ids(await collect(s.generate("", PROMPT[:50], max_tokens=6)))
            assert token_ids(await collect(s.generate("a", (), max_tokens=6))) == fresh

    run(scenario())


def test_when_pins_fill_the_budget_one_more_is_refused_and_may_be_retried() -> None:
    async def scenario() -> None:
        async with filled(snapshot_budget=3 * 4608) as s:
            kept: list[str] = []

            async def pin_down_from(position: int) -> None:
                for each in range(position, 0, -1):
                    kept.append((await pin(s, position=each)).snapshot_id)

            what = await failure(pin_down_from(100))
            assert len(kept) in (2, 3)
            assert (what.code, what.reason) == ("RESOURCE_EXHAUSTED", "MEMORY_BUDGET")
            assert what.retry_seconds > 0
            unpin = pb.UnpinSnapshotRequest(session_id="a", snapshot_id=kept[0])
            await s.sessions.UnpinSnapshot(unpin)
            assert (await pin(s, position=90)).pinned

    run(scenario())


REFUSED: dict[str, tuple[str, dict[str, Any], str, str, str | None]] = {
    "list: unknown session": ("ListSnapshots", {"session_id": "x"}, "NOT_FOUND", "SESSION_NOT_FOUND", None),
    "list: no session": ("ListSnapshots", {}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "session_id"),
    "pin: unknown snapshot": (
        "PinSnapshot", {"session_id": "a", "snapshot_id": "x"}, "NOT_FOUND", "SNAPSHOT_NOT_FOUND", None,
    ),
    "pin: no target": ("PinSnapshot", {"session_id": "a"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "target"),
    "pin: empty id": (
        "PinSnapshot", {"session_id": "a", "snapshot_id": ""}, "INVALID_ARGUMENT", "INVALID_ARGUMENT",
        "snapshot_id",
    ),
    "pin: 0": (
        "PinSnapshot", {"session_id": "a", "position": 0}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "position",
    ),
    "pin: above": (
        "PinSnapshot", {"session_id": "a", "position": 2**63 + 1}, "OUT_OF_RANGE", "POSITION_OUT_OF_RANGE",
        "position",
    ),
    "pin: long label": (
        "PinSnapshot", {"session_id": "a", "position": 9, "label": "x" * 129}, "INVALID_ARGUMENT",
        "INVALID_ARGUMENT", "label",
    ),
    "pin: label of controls": (
        "PinSnapshot", {"session_id": "a", "position": 9, "label": "a\x1b[2J"}, "INVALID_ARGUMENT",
        "INVALID_ARGUMENT", "label",
    ),
    "unpin: unknown": (
        "UnpinSnapshot", {"session_id": "a", "snapshot_id": "x"}, "NOT_FOUND", "SNAPSHOT_NOT_FOUND", None,
    ),
    "unpin: empty": (
        "UnpinSnapshot", {"session_id": "a"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "snapshot_id",
    ),
    "rewind: unknown": (
        "Rewind", {"session_id": "a", "to_snapshot_id": "x"}, "NOT_FOUND", "SNAPSHOT_NOT_FOUND", None,
    ),
    "rewind: deferred": (
        "Rewind", {"session_id": "a", "to_snapshot_id": "s1", "defer_rebuild": True}, "INVALID_ARGUMENT",
        "INVALID_ARGUMENT", "defer_rebuild",
    ),
    "rewind: empty": (
        "Rewind", {"session_id": "a", "to_snapshot_id": ""}, "INVALID_ARGUMENT", "INVALID_ARGUMENT",
        "to_snapshot_id",
    ),
    "plan: unknown": (
        "PlanRewind", {"session_id": "a", "to_snapshot_id": "x"}, "NOT_FOUND", "SNAPSHOT_NOT_FOUND", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("method", "fields", "code", "reason", "field"), REFUSED.values(), ids=REFUSED)
def test_refusals_by_code_reason_and_field(
    method: str, fields: dict[str, Any], code: str, reason: str, field: str | None
) -> None:
    async def scenario() -> None:
        async with filled() as s:
            request = getattr(pb, f"{method}Request")(**fields)
            what = await failure(getattr(s.sessions, method)(request))
            assert (what.code, what.reason) == (code, reason)
            assert field is None or what.fields == (field,)
            assert (await s.get("a")).position == 100
            assert len(await listed(s)) == 4

    run(scenario())


def test_snapshots_belong_to_the_owner_of_their_session() -> None:
    async def scenario() -> None:
        async with filled(tokens=(ALICE, BOB), token=ALICE) as s:
            snapshot = await at(s, 64)
            s.token = BOB
            for call in (
                lambda: listed(s),
                lambda: pin(s, position=3),
                lambda: rewind(s, to_snapshot_id=snapshot.snapshot_id),
            ):
                assert (await failure(call())).reason == "SESSION_NOT_FOUND"
            await s.open("a")
            await s.prefill("a", PROMPT)
            what = await failure(rewind(s, to_snapshot_id=snapshot.snapshot_id))
            assert what.reason == "SNAPSHOT_NOT_FOUND"

    run(scenario())


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("ListSnapshots", {}),
        ("PinSnapshot", {"position": 1}),
        ("UnpinSnapshot", {"snapshot_id": "s1"}),
        ("Rewind", {"to_snapshot_id": "s1"}),
        ("PlanRewind", {"to_snapshot_id": "s1"}),
    ],
)
def test_an_artifact_without_snapshots_says_so(method: str, fields: dict[str, Any]) -> None:
    manifest = small_manifest()
    able = dataclasses.replace(manifest.capabilities, pin_snapshots=False)

    async def scenario() -> None:
        async with serving(manifest=dataclasses.replace(manifest, capabilities=able)) as s:
            await s.open("a")
            request = getattr(pb, f"{method}Request")(session_id="a", **fields)
            what = await failure(getattr(s.sessions, method)(request))
            assert (what.code, what.reason) == ("UNIMPLEMENTED", "NOT_IN_ARTIFACT")
            found = await s.models.GetCapabilities(pb.GetCapabilitiesRequest())
            assert not found.can_pin_snapshots
            assert found.max_snapshots_per_session == found.snapshot_bytes == 0

    run(scenario())


def test_origins_have_the_names_of_the_runtime() -> None:
    names = {name.removeprefix("SNAPSHOT_ORIGIN_") for name in pb.SnapshotOrigin.keys()}
    assert names == {origin.name for origin in SnapshotOrigin} | {"UNSPECIFIED"}
