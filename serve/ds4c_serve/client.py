"""What a Python client needs beside the stubs: a channel with credentials, errors and messages as data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from ds4c_serve.v1 import engine_pb2_grpc

STATUS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class Failure:
    """A failed call as data.

    Attributes:
        code: Name of the status code, for example "ABORTED".
        message: Text of the server or of the transport.
        reason: `ErrorInfo.reason`; empty if the failure comes from the transport, so no server of ours spoke.
        metadata: `ErrorInfo.metadata`.
        retry_seconds: `RetryInfo.retry_delay`; None without one.
        fields: Field names of a `BadRequest`.
    """

    code: str
    message: str
    reason: str = ""
    metadata: Mapping[str, str] | None = None
    retry_seconds: float | None = None
    fields: tuple[str, ...] = ()


def channel_options() -> list[tuple[str, int]]:
    """Channel arguments that fit the server: answers up to 64 MiB, a ping each 30 s."""
    return [("grpc.max_receive_message_length", 64 << 20), ("grpc.keepalive_time_ms", 30_000)]


def connect(
    address: str,
    *,
    ca_file: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> grpc.Channel:
    """Open a channel; with a CA file over TLS, with certificate and key as a client that names itself.

    Opening never fails for an absent server; the first call does.

    Raises:
        OSError: a file cannot be read.
    """
    if ca_file is None:
        return grpc.insecure_channel(address, options=channel_options())
    credentials = grpc.ssl_channel_credentials(
        ca_file.read_bytes(),
        key.read_bytes() if key is not None else None,
        certificate.read_bytes() if certificate is not None else None,
    )
    return grpc.secure_channel(address, credentials, options=channel_options())


def authorization(token: str) -> list[tuple[str, str]]:
    """Metadata that carries a token; empty without one."""
    return [("authorization", f"Bearer {token}")] if token else []


@dataclass(frozen=True)
class Stubs:
    """The three services on one channel."""

    inference: engine_pb2_grpc.InferenceServiceStub
    sessions: engine_pb2_grpc.SessionServiceStub
    models: engine_pb2_grpc.ModelServiceStub


def stubs(channel: Any) -> Stubs:
    """Stubs of all services on a channel, `grpc` or `grpc.aio`."""
    return Stubs(
        engine_pb2_grpc.InferenceServiceStub(channel),
        engine_pb2_grpc.SessionServiceStub(channel),
        engine_pb2_grpc.ModelServiceStub(channel),
    )


def failure_of(error: Any) -> Failure:
    """Read a `grpc.RpcError` or `grpc.aio.AioRpcError`."""
    code, message = error.code().name, error.details() or ""
    raw = [value for key, value in error.trailing_metadata() or () if key == STATUS_KEY]
    if not raw:
        return Failure(code, message)
    reason, metadata, retry, fields = "", None, None, []
    for detail in status_pb2.Status.FromString(raw[0]).details:
        info, delay = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        wrong = error_details_pb2.BadRequest()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(delay):
            retry = delay.retry_delay.ToMilliseconds() / 1000
        elif detail.Unpack(wrong):
            fields = [violation.field for violation in wrong.field_violations]
    return Failure(code, message, reason, metadata, retry, tuple(fields))


def to_data(message: Message) -> dict[str, Any]:
    """A message as plain JSON values under the names of the contract.

    Integers stay integers, durations are seconds, times are ISO 8601 in UTC, enum values are their lower-case
    names without the prefix. Absent messages and optional fields are left out.
    """
    data: dict[str, Any] = {}
    fields: Iterable[Any] = message.DESCRIPTOR.fields
    for field in fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            data[field.name] = [_plain(item, field) for item in value]
        else:
            data[field.name] = _plain(value, field)
    return data


def _plain(value: Any, field: Any) -> Any:
    if isinstance(value, Duration):
        return value.ToNanoseconds() / 1e9
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return to_data(value)
    if field.enum_type is not None:
        return enum_word(value, field.enum_type)
    return value


def enum_word(number: int, enum: Any) -> str:
    """An enum value as a word: `REWIND_KIND_IN_PLACE` is `in_place`; an unknown number is `unspecified`."""
    names: Sequence[str] = [value.name for value in enum.values]
    known = enum.values_by_number.get(number)
    prefix = names[0].removesuffix("UNSPECIFIED")
    return known.name.removeprefix(prefix).lower() if known is not None else "unspecified"
