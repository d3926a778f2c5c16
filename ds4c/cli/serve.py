"""`ds4c serve`: load an artifact and serve it over gRPC until a signal."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ds4c.cli.common import (
    ArtifactArgument,
    CommandFailure,
    DeviceOption,
    ExitCode,
    ThreadsOption,
    format_bytes,
    parse_bytes,
    print_note,
    print_result,
    usage_error,
)

if TYPE_CHECKING:
    from ds4c_runtime.engine import Engine
    from ds4c_runtime.store.session_store import Storage
    from ds4c_serve.server import ServerConfig


def register(app: typer.Typer) -> None:
    """Add `serve`."""
    app.command("serve")(serve)


Listen = Annotated[
    list[str], typer.Option("--grpc-listen", help="HOST:PORT, [IPV6]:PORT or unix:PATH; may repeat.")
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        help="HOST:PORT or [IPV6]:PORT of http://HOST:PORT/metrics for Prometheus; port 0: any.",
        show_default=False,
    ),
]
MaxSessions = Annotated[int, typer.Option(min=1, help="Sessions that can exist at once.")]
MaxQueue = Annotated[int, typer.Option(min=0, help="Generations that can wait.")]
MemoryBudget = Annotated[
    str | None, typer.Option(help="Most memory for state, in bytes or as 512MiB, 4GiB.", show_default=False)
]
SnapshotBudget = Annotated[
    str | None,
    typer.Option(
        help="Most memory for snapshots, a part of --memory-budget; default: what their spacing needs.",
        show_default=False,
    ),
]
SnapshotCopies = Annotated[
    Literal["device", "host", "host-async", "host-pinned"],
    typer.Option(
        help="Where snapshots are kept: in the memory of the device; on the host, each step waits for the "
        "copy; on the host, copied beside the next steps; the same in memory that is never paged out."
    ),
]
MaxResident = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sessions in memory at once; default: --max-sessions.",
        show_default=False,
    ),
]
SessionDir = Annotated[
    Path | None,
    typer.Option(help="Keep sessions in this folder: they outlive the server.", show_default=False),
]
SessionDiskBudget = Annotated[
    str | None,
    typer.Option(help="Most bytes of states in --session-dir; default: any.", show_default=False),
]
TokenFile = Annotated[
    Path | None, typer.Option(help="Bearer tokens, one a line; mode 600.", show_default=False)
]
PemFile = Annotated[Path | None, typer.Option(help="PEM file.", show_default=False)]
ClientCa = Annotated[
    Path | None, typer.Option(help="PEM file; clients must show a certificate of it.", show_default=False)
]
DrainSeconds = Annotated[
    float, typer.Option(min=0, help="How long streams may go on after the first SIGTERM or SIGINT.")
]
ReadyFd = Annotated[
    int | None, typer.Option(help="Write the addresses to this descriptor when ready.", show_default=False)
]
Reflection = Annotated[
    bool | None,
    typer.Option(
        "--reflection/--no-reflection", help="Default: on loopback addresses only.", show_default=False
    ),
]


def serve(
    artifact: ArtifactArgument,
    grpc_listen: Listen = ["127.0.0.1:50051"],  # noqa: B006 - typer needs a list and only reads it
    metrics_listen: MetricsListen = None,
    threads: ThreadsOption = 1,
    device: DeviceOption = None,
    max_sessions: MaxSessions = 8,
    memory_budget: MemoryBudget = None,
    snapshot_budget: SnapshotBudget = None,
    snapshot_copies: SnapshotCopies = "device",
    max_resident: MaxResident = None,
    session_dir: SessionDir = None,
    session_disk_budget: SessionDiskBudget = None,
    max_queue: MaxQueue = 64,
    auth_token_file: TokenFile = None,
    tls_cert: PemFile = None,
    tls_key: PemFile = None,
    tls_client_ca: ClientCa = None,
    drain_seconds: DrainSeconds = 30.0,
    ready_fd: ReadyFd = None,
    reflection: Reflection = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Form of the log on stderr.")] = "text",
) -> int:
    """Serve an artifact over gRPC (ds4c.v1, health, reflection) until SIGTERM or SIGINT.

    Prints one line when ready. The first signal drains: new generations are refused, running streams go on
    for up to --drain-seconds. A second signal ends at once. Exit code 0 after a drain.

    --metrics-listen answers GET /metrics with counters of rewinds, snapshots, sessions and calls; whoever may
    call the server may read it, with the same tokens and certificates.

    With --session-dir histories are on disk before a turn is answered. When memory is short, idle sessions
    give way, the cheapest to rebuild first: state to the folder, beyond its budget only history stays.

    Example: ds4c serve out/m --grpc-listen 127.0.0.1:50051 --metrics-listen 127.0.0.1:9090
    Example: ds4c serve out/m --session-dir sessions --max-sessions 64 --max-resident 8
    """
    # The transport writes its own lines about failed binds; ours says the same in one.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from ds4c_runtime.engine import Engine
    from ds4c_runtime.transport import CopyMode
    from ds4c_serve import log
    from ds4c_serve.listen import ListenError
    from ds4c_serve.server import OnFailure
    from ds4c_serve.server import serve as serve_until_signal

    if ready_fd is not None:
        check_descriptor(ready_fd)
    tls = (tls_cert, tls_key, tls_client_ca)
    config = make_config(grpc_listen, metrics_listen, auth_token_file, tls, drain_seconds, reflection)
    budget = parse_bytes(memory_budget, "--memory-budget") if memory_budget is not None else None
    snapshots = parse_bytes(snapshot_budget, "--snapshot-budget") if snapshot_budget is not None else None
    storage = make_storage(session_dir, session_disk_budget)
    log.configure(log_format)

    def load_engine(on_failure: OnFailure) -> Engine:
        return Engine.load(
            artifact,
            max_sessions=max_sessions,
            memory_budget=budget,
            snapshot_budget=snapshots,
            copy_mode=CopyMode(snapshot_copies.replace("-", "_")),
            max_resident=max_resident,
            storage=storage,
            threads=threads,
            device=device,
            max_queue=max_queue,
            on_failure=on_failure,
        )

    try:
        on_ready = partial(announce, ready_fd=ready_fd)
        return asyncio.run(serve_until_signal(config, load_engine, on_ready))
    except ListenError as error:
        raise CommandFailure(str(error), ExitCode.FAILED) from error


def check_descriptor(number: int) -> None:
    """Refuse a descriptor that cannot be written to, before anything is loaded.

    Raises:
        CommandFailure: it is not open (exit code 2).
    """
    try:
        os.write(number, b"")
    except OSError as error:
        usage_error(
            f"--ready-fd: expected an open descriptor, got {number} ({error.strerror}); open it for writing"
        )


def make_storage(folder: Path | None, disk_budget: str | None) -> "Storage | None":
    """Turn options into where sessions are kept; trouble there goes to the server's log.

    Raises:
        CommandFailure: a budget without a folder, or one that is no size (exit code 2).
    """
    from ds4c_runtime.store.session_store import Storage
    from ds4c_serve import log

    if folder is None and disk_budget is not None:
        usage_error("serve refused: expected --session-dir with --session-disk-budget, got none; give both")
    if folder is None:
        return None
    budget = parse_bytes(disk_budget, "--session-disk-budget") if disk_budget is not None else None
    return Storage(folder, budget, lambda kind, line: log.log_warning("session_store", kind=kind, error=line))


def make_config(
    listen: Sequence[str],
    metrics_listen: str | None,
    auth_token_file: Path | None,
    tls: tuple[Path | None, Path | None, Path | None],
    drain_seconds: float,
    reflection: bool | None,
) -> "ServerConfig":
    """Turn options into the server's configuration.

    Raises:
        CommandFailure: options contradict each other.
        InvalidRequestError: an address or the token file is refused.
    """
    from ds4c_serve.auth import read_tokens
    from ds4c_serve.listen import parse_address
    from ds4c_serve.server import ServerConfig, TlsFiles

    certificate, key, client_ca = tls
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise CommandFailure(
            "serve refused: expected --tls-cert and --tls-key together, and both with --tls-client-ca, "
            "got only some of them; give all",
            ExitCode.USAGE,
        )
    tokens = read_tokens(auth_token_file) if auth_token_file is not None else []
    from_environment = os.environ.get("DS4C_TOKEN", "")
    return ServerConfig(
        addresses=tuple(parse_address(text) for text in listen),
        tokens=tuple(tokens + ([from_environment] if from_environment else [])),
        tls=TlsFiles(certificate, key, client_ca) if certificate is not None and key is not None else None,
        drain_seconds=drain_seconds,
        reflection=reflection,
        metrics=parse_address(metrics_listen, "metrics_listen") if metrics_listen is not None else None,
    )


def announce(targets: Sequence[str], engine: "Engine", ready_fd: int | None) -> None:
    """Say on stdout, in one line, what is served where; on stderr what memory it may take."""
    model = engine.manifest.model
    load = engine.load_info()
    print_note(
        f"state memory: {format_bytes(load.state_bytes_budget)} for {load.max_sessions} sessions of up to "
        f"{model.context} tokens, {format_bytes(load.snapshot_bytes_budget)} for snapshots"
    )
    if load.parked_sessions:
        print_note(f"sessions: {load.parked_sessions} from before, brought back when they are used")
    print_result(f"ready: {model.name} ({engine.manifest.artifact_id[:12]}) on {' '.join(targets)}")
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w") as pipe:
            pipe.write(" ".join(targets) + "\n")
