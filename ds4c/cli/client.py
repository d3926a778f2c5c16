"""`ds4c client`: call a server over gRPC; a thin shell over the stubs."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.client_call import (
    MOST_SECONDS,
    MOST_U32,
    MOST_U64,
    Connection,
    SessionArgument,
    making_request,
    open_stubs,
    run_call,
)
from ds4c.cli.client_snapshots import pin, snapshots, unpin
from ds4c.cli.client_text import describe_plan, describe_rewind, describe_session, summary
from ds4c.cli.common import JsonOption, print_json, print_note, print_result, read_text, usage_error

if TYPE_CHECKING:
    from ds4c_serve.v1 import engine_pb2 as pb


ToOption = Annotated[
    int | None, typer.Option("--to", max=MOST_U64, help="Target position.", show_default=False)
]
DropOption = Annotated[
    int | None,
    typer.Option("--drop", min=0, max=MOST_U32, help="Tokens to drop from the end.", show_default=False),
]
ToSnapshotOption = Annotated[
    str | None, typer.Option("--to-snapshot", help="Id of a snapshot.", show_default=False)
]
ExpectedOption = Annotated[
    int | None,
    typer.Option(
        "--expected-position",
        min=0,
        max=MOST_U64,
        help="Refuse unless the session is here.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add `client` and its sub-commands."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback()(connect)
    for name, command in COMMANDS.items():
        group.command(name)(command)
    app.add_typer(group, name="client")


def connect(
    context: typer.Context,
    addr: Annotated[str, typer.Option(help="HOST:PORT or unix:PATH of the server.")] = "127.0.0.1:50051",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token; else DS4C_TOKEN.", show_default=False)
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file; switches TLS on.", show_default=False)
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the client.", show_default=False)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the client.", show_default=False)] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_SECONDS, help="Deadline of the call in seconds.", show_default=False),
    ] = None,
) -> None:
    """Call a server: generate, rewind, fork, plan, sessions, snapshots.

    Example: ds4c client --addr 127.0.0.1:50051 generate -p "The capital of France is" --json
    """
    if (tls_cert or tls_key) and not (tls_ca and tls_cert and tls_key):
        usage_error(
            "client refused: expected --tls-ca, --tls-cert and --tls-key together, got only some; give all"
        )
    token = os.environ.get("DS4C_TOKEN", "")
    if token_file is not None:
        lines = [line.strip() for line in read_text(token_file, "a token file").splitlines()]
        token = next((line for line in lines if line and not line.startswith("#")), "")
        if not token:
            usage_error(f"client refused: expected a token in {token_file}, got none; write one line into it")
    if not token.isascii() or not token.isprintable():
        usage_error(
            "client refused: expected a token of printable ASCII, got other characters; check the token"
        )
    context.obj = Connection(addr, token, tls_ca, tls_cert, tls_key, timeout)


def generate(
    context: typer.Context,
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Session id; none: one for this call.")
    ] = "",
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Text.", show_default=False)] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Token ids instead of text: 1,2,3.", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, max=MOST_U32, help="Most tokens.", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Share of the likeliest tokens.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, max=MOST_U32, help="0: all tokens.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_U64, help="Of the draws.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may repeat.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on at end of sequence.")] = False,
    rewind_to: Annotated[
        int | None, typer.Option(min=0, max=MOST_U64, help="Rewind first.", show_default=False)
    ] = None,
    expected_position: ExpectedOption = None,
    parse_special: Annotated[bool, typer.Option(help="Read markers of special tokens in text.")] = False,
    add_bos: Annotated[bool, typer.Option(help="Begin-of-sequence token before the text.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print token ids instead of text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Append a prompt and generate; streams text, or token ids with --ids or --tokens.

    Example: ds4c client generate chat-1 -p "Hello" --max-tokens 20 --stop "."
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    if prompt is not None and tokens is not None:
        usage_error("generate refused: expected --prompt or --tokens, got both; give one")
    wants_ids = ids or tokens is not None
    with making_request():
        request = pb.GenerateRequest(
            session_id=session,
            rewind_to=rewind_to,
            expected_position=expected_position,
            sampling=pb.Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed),
            stop=pb.StopCondition(max_output_tokens=max_tokens, strings=stop or [], ignore_eos=ignore_eos),
            return_text=not wants_ids,
            return_token_ids=wants_ids or as_json,
        )
        if prompt is not None:
            request.prompt.CopyFrom(pb.Prompt(text=prompt, parse_special=parse_special, add_bos=add_bos))
        elif tokens is not None:
            request.prompt.tokens.ids.extend(parse_ids(tokens))
    with open_stubs(context) as (stubs, arguments):
        call = stubs.inference.Generate(request, **arguments)
        try:
            document = consume(call, quiet=as_json, as_ids=wants_ids)
        finally:
            call.cancel()
    if as_json:
        print_json(document)
    else:
        print_note(summary(document))


def parse_ids(text: str) -> list[int]:
    """Read `1,2,3`.

    Raises:
        CommandFailure: it is something else (exit code 2).
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts) or any(
        int(part) > MOST_U32 for part in parts
    ):
        usage_error(f"--tokens refused: expected ids such as 1,2,3, got {text[:80]!r}; correct them")
    return [int(part) for part in parts]


def consume(call: Any, *, quiet: bool, as_ids: bool) -> dict[str, Any]:
    """Read a stream to its end, print what arrives unless quiet, and give it all as one document."""
    from ds4c_serve.client import to_data

    document: dict[str, Any] = {"text": "", "token_ids": []}
    for response in call:
        event = response.WhichOneof("event")
        if event == "delta":
            document["text"] += response.delta.text
            document["token_ids"] += list(response.delta.token_ids)
            if not quiet:
                show(response.delta, as_ids)
        elif event in ("started", "finished"):
            document[event] = to_data(getattr(response, event))
    if not quiet:
        print_result("")
    return document


def show(delta: "pb.TokenDelta", as_ids: bool) -> None:
    """Print what one message brought, at once."""
    sys.stdout.write("".join(f"{token} " for token in delta.token_ids) if as_ids else delta.text)
    sys.stdout.flush()


def rewind(
    context: typer.Context,
    session: SessionArgument,
    to: ToOption = None,
    drop: DropOption = None,
    to_snapshot: ToSnapshotOption = None,
    expected_position: ExpectedOption = None,
    max_replay: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_U32, help="Refuse if more tokens must be run.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Move a session back to a position or by a count, or to a snapshot.

    Example: ds4c client rewind chat-1 --drop 5 --json
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    with making_request():
        request = pb.RewindRequest(
            session_id=session, expected_position=expected_position, max_replay_tokens=max_replay
        )
        set_target(request, to, drop, to_snapshot)
    run_call(context, "sessions", "Rewind", request, as_json, describe_rewind)


def fork(
    context: typer.Context,
    session: SessionArgument,
    new_id: Annotated[str, typer.Option("--new-id", help="Id of the new session; none: random.")] = "",
    at: Annotated[
        int | None, typer.Option(min=0, max=MOST_U64, help="Position of the fork.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new session from a position of another.

    Example: ds4c client fork chat-1 --at 12 --new-id chat-2
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    with making_request():
        request = pb.ForkSessionRequest(session_id=session, new_session_id=new_id, at_position=at)
    run_call(context, "sessions", "ForkSession", request, as_json, describe_rewind)


def plan(
    context: typer.Context,
    session: SessionArgument,
    to: ToOption = None,
    drop: DropOption = None,
    to_snapshot: ToSnapshotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a rewind would cost, without doing it.

    Example: ds4c client plan chat-1 --to 0
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    with making_request():
        request = pb.PlanRewindRequest(session_id=session)
        set_target(request, to, drop, to_snapshot)
    run_call(context, "sessions", "PlanRewind", request, as_json, describe_plan)


def sessions(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the sessions of the caller.

    Example: ds4c client sessions --json
    """
    from ds4c_serve.client import to_data
    from ds4c_serve.v1 import engine_pb2 as pb

    found: list[dict[str, Any]] = []
    with open_stubs(context) as (stubs, arguments):
        token = ""
        while True:
            answer = stubs.sessions.ListSessions(pb.ListSessionsRequest(page_token=token), **arguments)
            found += [to_data(session) for session in answer.sessions]
            token = answer.next_page_token
            if not token:
                break
    if as_json:
        print_json({"sessions": found})
    for session in [] if as_json else found:
        print_result(describe_session(session))


def open_session(
    context: typer.Context,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Session id; none: random.")] = "",
    capacity: Annotated[
        int, typer.Option(min=0, max=MOST_U64, help="Greatest position; 0: that of the model.")
    ] = 0,
    idle_seconds: Annotated[
        float | None,
        typer.Option(
            min=0, max=MOST_SECONDS, help="Close it after this long without use.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Open an empty session.

    Example: ds4c client open chat-1 --idle-seconds 600
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    with making_request():
        request = pb.OpenSessionRequest(session_id=session, capacity=capacity)
        if idle_seconds is not None:
            request.idle_ttl.FromNanoseconds(round(idle_seconds * 1e9))
    run_call(
        context,
        "sessions",
        "OpenSession",
        request,
        as_json,
        lambda answer: describe_session(answer["session"]),
    )


def close_session(context: typer.Context, session: SessionArgument, as_json: JsonOption = False) -> None:
    """Close a session.

    Example: ds4c client close chat-1
    """
    from ds4c_serve.v1 import engine_pb2 as pb

    with making_request():
        request = pb.CloseSessionRequest(session_id=session)
    run_call(
        context,
        "sessions",
        "CloseSession",
        request,
        as_json,
        lambda _answer: f"session {session} closed",
    )


def info(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the model, its capabilities and the load of the server.

    Example: ds4c client info --json
    """
    from ds4c_serve.client import to_data
    from ds4c_serve.v1 import engine_pb2 as pb

    with open_stubs(context) as (stubs, arguments):
        document = {
            "model": to_data(stubs.models.GetModelInfo(pb.GetModelInfoRequest(), **arguments)),
            "capabilities": to_data(stubs.models.GetCapabilities(pb.GetCapabilitiesRequest(), **arguments)),
            "load": to_data(stubs.models.GetLoad(pb.GetLoadRequest(), **arguments)),
        }
    if as_json:
        print_json(document)
        return
    for part, values in document.items():
        for name, value in values.items():
            print_result(f"{part:13} {name}: {value}")


def set_target(request: Any, to: int | None, drop: int | None, to_snapshot: str | None) -> None:
    """Put the target of a rewind into its request.

    Raises:
        CommandFailure: not exactly one is given (exit code 2).
    """
    given = [target for target in (to, drop, to_snapshot) if target is not None]
    if len(given) != 1:
        usage_error(
            f"rewind refused: expected one of --to, --drop and --to-snapshot, got {len(given)}; give one"
        )
    if to is not None and to < 0:
        usage_error(f"rewind refused: expected a position of at least 0, got {to}; count from the start")
    if to is not None:
        request.to_position = to
    elif drop is not None:
        request.drop_tokens = drop
    else:
        request.to_snapshot_id = to_snapshot


COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate,
    "rewind": rewind,
    "fork": fork,
    "plan": plan,
    "snapshots": snapshots,
    "pin": pin,
    "unpin": unpin,
    "sessions": sessions,
    "open": open_session,
    "close": close_session,
    "info": info,
}
