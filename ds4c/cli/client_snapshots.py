"""`ds4c client snapshots`, `pin`, `unpin`: what a session retains, and what it must not give up."""

from typing import Annotated, Any

import typer

from ds4c.cli.client_call import MOST_U64, SessionArgument, making_request, run_call
from ds4c.cli.client_text import describe_snapshot
from ds4c.cli.common import JsonOption, usage_error

SnapshotArgument = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Snapshot id.", show_default=False)]


def snapshots(context: typer.Context, session: SessionArgument, as_json: JsonOption = False) -> None:
    """List the snapshots of a session, by position.

    Example: ds4c client snapshots chat-1
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    def describe(answer: dict[str, Any]) -> str:
        found = answer["snapshots"]
        return "\n".join(map(describe_snapshot, found)) or f"session {session} retains no snapshots"

    with making_request():
        request = pb.ListSnapshotsRequest(session_id=session)
    run_call(context, "sessions", "ListSnapshots", request, as_json, describe)


def pin(
    context: typer.Context,
    session: SessionArgument,
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Snapshot id; else --at.")] = "",
    at: Annotated[
        int | None,
        typer.Option("--at", min=1, max=MOST_U64, help="Position; takes one there.", show_default=False),
    ] = None,
    label: Annotated[str, typer.Option(help="For people; at most 128 characters.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Keep a snapshot until it is unpinned: one of the list, or one at a position.

    Example: ds4c client pin chat-1 --at 512 --label before-the-tool-call
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    if bool(snapshot) == (at is not None):
        usage_error("pin refused: expected a snapshot id or --at, got both or none; give one")
    with making_request():
        request = pb.PinSnapshotRequest(session_id=session, label=label)
        if at is not None:
            request.position = at
        else:
            request.snapshot_id = snapshot
    run_call(
        context,
        "sessions",
        "PinSnapshot",
        request,
        as_json,
        lambda answer: describe_snapshot(answer["snapshot"]),
    )


def unpin(
    context: typer.Context, session: SessionArgument, snapshot: SnapshotArgument, as_json: JsonOption = False
) -> None:
    """Let a pinned snapshot be given up again when room is short.

    Example: ds4c client unpin chat-1 s42
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    with making_request():
        request = pb.UnpinSnapshotRequest(session_id=session, snapshot_id=snapshot)
    run_call(
        context,
        "sessions",
        "UnpinSnapshot",
        request,
        as_json,
        lambda _answer: f"snapshot {snapshot} of session {session} may go",
    )
