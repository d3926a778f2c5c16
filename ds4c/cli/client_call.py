"""What every command of `ds4c client` shares: the connection, calls that become one line or a failure."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.common import CommandFailure, ExitCode, print_json, print_result, usage_error

if TYPE_CHECKING:
    from ds4c_serve.client import Stubs


@dataclass(frozen=True)
class Connection:
    """Options of the group that every sub-command needs."""

    address: str
    token: str
    ca_file: Path | None
    certificate: Path | None
    key: Path | None
    timeout: float | None


MOST_U32, MOST_U64 = (1 << 32) - 1, (1 << 64) - 1
MOST_SECONDS = 1e9

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)]


@contextmanager
def making_request() -> Generator[None]:
    """Refuse what the contract cannot hold: text that is not Unicode, numbers out of range.

    Raises:
        CommandFailure: a value does not fit its field (exit code 2).
    """
    try:
        yield
    except (ValueError, OverflowError) as error:
        usage_error(
            f"request not made: expected values that the contract can hold, got {error}; correct them"
        )


@contextmanager
def open_stubs(context: typer.Context) -> Generator["tuple[Stubs, dict[str, Any]]"]:
    """Give the stubs and the arguments of every call; failed calls become one line and an exit code.

    Raises:
        CommandFailure: a call failed; exit code 7 if no server could be reached.
    """
    # The transport writes its own lines about refused connections; ours says the same in one.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    from ds4c_serve import client

    connection: Connection = context.obj
    try:
        channel = client.connect(
            connection.address,
            ca_file=connection.ca_file,
            certificate=connection.certificate,
            key=connection.key,
        )
    except OSError as error:
        usage_error(
            f"TLS files not read: expected PEM files, got {error.strerror} at {error.filename}; check it"
        )
    arguments = {"metadata": client.authorization(connection.token), "timeout": connection.timeout}
    try:
        yield client.stubs(channel), arguments
    except grpc.RpcError as error:
        raise failure(client.failure_of(error), connection.address) from error
    finally:
        channel.close()


def failure(what: Any, address: str) -> CommandFailure:
    """Turn a failed call into the line that is printed and its exit code."""
    if what.code == "UNAVAILABLE" and not what.reason:
        line = f"server not reached: expected one at {address}, got {what.message}; start it or check --addr"
        return CommandFailure(line, ExitCode.UNREACHABLE)
    exit_code = {
        "INVALID_ARGUMENT": ExitCode.USAGE,
        "OUT_OF_RANGE": ExitCode.USAGE,
        "DATA_LOSS": ExitCode.MALFORMED,
    }.get(what.code, ExitCode.FAILED)
    if what.reason == "MEMORY_BUDGET":
        exit_code = ExitCode.MEMORY
    fields = f" (field {', '.join(what.fields)})" if what.fields else ""
    return CommandFailure(f"{what.reason or what.code}: {what.message}{fields}", exit_code)


def run_call(
    context: typer.Context,
    service: str,
    method: str,
    request: Any,
    as_json: bool,
    describe: Callable[[dict[str, Any]], str],
) -> None:
    """Make one unary call and print its answer."""
    from ds4c_serve.client import to_data

    with open_stubs(context) as (stubs, arguments):
        call: Callable[..., Any] = getattr(getattr(stubs, service), method)
        answer = to_data(call(request, **arguments))
    if as_json:
        print_json(answer)
    else:
        print_result(describe(answer))
