"""SessionService: open, read, fork, rewind and close the sessions of a caller, list and pin their snapshots.

Every handler names the owner, checks the request, calls the engine and translates the answer.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Sequence

from ds4c_runtime.errors import InvalidRequestError, RuntimeFailure, SessionBusyError, UnknownSessionError
from ds4c_runtime.requests import SessionInfo
from ds4c_serve import checks, convert
from ds4c_serve.auth import Authenticator
from ds4c_serve.backend import Backend, result_of
from ds4c_serve.context import Context
from ds4c_serve.log import LOGGER, log_event, log_rewind
from ds4c_serve.rpc import request_id, unary
from ds4c_serve.v1 import engine_pb2 as pb
from ds4c_serve.v1 import engine_pb2_grpc

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000


class SessionService(engine_pb2_grpc.SessionServiceServicer):
    """The sessions of each owner; another owner's session does not exist for a caller."""

    def __init__(self, backend: Backend, authenticator: Authenticator):
        self._backend = backend
        self._authenticator = authenticator

    @unary
    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionResponse:
        """Create an empty session."""
        owner = self._authenticator.owner(context)
        wanted = checks.open_session(request)
        engine = self._backend.engine
        info = await result_of(
            engine.submit_open_session(wanted.session_id, owner, wanted.capacity, wanted.idle_seconds)
        )
        return pb.OpenSessionResponse(session=convert.session(info))

    @unary
    async def CloseSession(
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        """End a session."""
        owner = self._authenticator.owner(context)
        session_id = checks.session_id(request.session_id)
        await result_of(self._backend.engine.submit_close_session(session_id, owner))
        return pb.CloseSessionResponse()

    @unary
    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """Read a session."""
        owner = self._authenticator.owner(context)
        session_id = checks.session_id(request.session_id)
        info = self._backend.engine.get_session(session_id, owner)
        return pb.GetSessionResponse(session=convert.session(info))

    @unary
    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """List a page of the caller's sessions."""
        owner = self._authenticator.owner(context)
        size, after = page_size(request.page_size), read_page_token(request.page_token)
        infos = self._backend.engine.list_sessions(owner)
        return page(infos, after, size)

    @unary
    async def ForkSession(self, request: pb.ForkSessionRequest, context: Context) -> pb.ForkSessionResponse:
        """Make a new session from a position of another."""
        owner = self._authenticator.owner(context)
        wanted = checks.fork(request)
        future = self._backend.engine.submit_fork(
            wanted.session_id, owner, at=wanted.at, new_id=wanted.new_id
        )
        info, report = await result_of(future)
        log_rewind(report, request_id(request, context), info.session_id)
        return pb.ForkSessionResponse(session=convert.session(info), rewind=convert.rewind(report))

    @unary
    async def Rewind(self, request: pb.RewindRequest, context: Context) -> pb.RewindResponse:
        """Move a session back."""
        owner = self._authenticator.owner(context)
        wanted = checks.rewind(request)
        future = self._backend.engine.submit_rewind(
            wanted.session_id,
            owner,
            to=wanted.to,
            drop=wanted.drop,
            to_snapshot=wanted.to_snapshot,
            expected_position=wanted.expected_position,
            max_replay_tokens=wanted.max_replay_tokens,
            defer=wanted.defer,
        )
        info, report = await result_of(future)
        log_rewind(report, request_id(request, context), info.session_id)
        return pb.RewindResponse(session=convert.session(info), rewind=convert.rewind(report))

    @unary
    async def PlanRewind(self, request: pb.PlanRewindRequest, context: Context) -> pb.PlanRewindResponse:
        """Price a rewind without doing it."""
        owner = self._authenticator.owner(context)
        wanted = checks.plan(request)
        future = self._backend.engine.submit_plan_rewind(
            wanted.session_id, owner, to=wanted.to, drop=wanted.drop, to_snapshot=wanted.to_snapshot
        )
        return convert.plan(await result_of(future))

    @unary
    async def ListSnapshots(
        self, request: pb.ListSnapshotsRequest, context: Context
    ) -> pb.ListSnapshotsResponse:
        """List what a session retains."""
        owner = self._authenticator.owner(context)
        session_id = checks.session_id(request.session_id)
        infos = await result_of(self._backend.engine.submit_list_snapshots(session_id, owner))
        return pb.ListSnapshotsResponse(snapshots=[convert.snapshot(info) for info in infos])

    @unary
    async def PinSnapshot(self, request: pb.PinSnapshotRequest, context: Context) -> pb.PinSnapshotResponse:
        """Keep a snapshot."""
        owner = self._authenticator.owner(context)
        wanted = checks.pin(request)
        future = self._backend.engine.submit_pin_snapshot(
            wanted.session_id,
            owner,
            snapshot_id=wanted.snapshot_id,
            position=wanted.position,
            label=wanted.label,
        )
        return pb.PinSnapshotResponse(snapshot=convert.snapshot(await result_of(future)))

    @unary
    async def UnpinSnapshot(
        self, request: pb.UnpinSnapshotRequest, context: Context
    ) -> pb.UnpinSnapshotResponse:
        """Let a snapshot go."""
        owner = self._authenticator.owner(context)
        session_id = checks.session_id(request.session_id)
        snapshot_id = checks.snapshot_id(request.snapshot_id)
        await result_of(self._backend.engine.submit_unpin_snapshot(session_id, snapshot_id, owner))
        return pb.UnpinSnapshotResponse()

    async def sweep_forever(self, every_seconds: float) -> None:
        """Close sessions that were idle for longer than they asked for, until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            try:
                await self.sweep(time.time())
            except RuntimeFailure as error:
                LOGGER.warning("sweep of idle sessions failed: %s", error)

    async def sweep(self, now: float) -> int:
        """Close the sessions whose idle time is over at `now`, seconds since the epoch of the system clock.

        Returns:
            The number closed.
        """
        closed = 0
        engine = self._backend.engine
        for (owner, session_id), idle_seconds in engine.idle_limits().items():
            try:
                info = engine.get_session(session_id, owner)
                if now - info.last_used_time <= idle_seconds:
                    continue
                await result_of(engine.submit_close_session(session_id, owner))
            except (SessionBusyError, UnknownSessionError):
                continue
            log_event("idle_session_closed", session_id=session_id, idle_seconds=idle_seconds)
            closed += 1
        return closed


def page(infos: Sequence[SessionInfo], after: str, size: int) -> pb.ListSessionsResponse:
    """Cut a page out of sessions: the first `size` with an id above `after`, in the order of ids."""
    rest = sorted((info for info in infos if info.session_id > after), key=lambda info: info.session_id)
    response = pb.ListSessionsResponse(sessions=[convert.session(info) for info in rest[:size]])
    if len(rest) > size:
        response.next_page_token = write_page_token(rest[size - 1].session_id)
    return response


def page_size(asked: int) -> int:
    """Entries of a page: 0 means 100, more than 1000 means 1000 as the contract says.

    Raises:
        InvalidRequestError: it is negative.
    """
    if asked < 0:
        raise InvalidRequestError(
            f"page refused: expected a page_size of at least 0, got {asked}", field="page_size"
        )
    return min(asked or DEFAULT_PAGE, LARGEST_PAGE)


def write_page_token(last_id: str) -> str:
    """The token of the page after a session id."""
    return base64.urlsafe_b64encode(last_id.encode()).decode()


def read_page_token(token: str) -> str:
    """The session id that a page starts after; empty for the first page.

    Raises:
        InvalidRequestError: the token is none of ours.
    """
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(
            "page refused: expected a page_token of the answer before, got another text", field="page_token"
        ) from error
