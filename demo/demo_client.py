"""A small gRPC client: the calls of ds4c.v1 that the demo makes, timed as the client sees them."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf.duration_pb2 import Duration

from ds4c_serve.v1 import engine_pb2 as pb
from ds4c_serve.v1 import engine_pb2_grpc as rpc

DEADLINE_SECONDS = 60.0


@dataclass
class Reply:
    """What one Generate call sent."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    text: str = ""
    first_token_ms: float = 0.0
    """From the call to the first token."""

    all_tokens_ms: float = 0.0
    """From the call to the last token."""

    replayed_tokens: int = 0
    """Tokens of the session that had to be run again before the prompt."""

    end_position: int = 0
    digest: str = ""
    reason: str = ""

    runtime_decode_ms: float = 0.0
    """Mean time of a decode step by the server's own clock, without gRPC."""

    def decode_ms(self) -> float:
        """Mean time between two tokens, as the client sees it."""
        return (self.all_tokens_ms - self.first_token_ms) / max(1, len(self.tokens) - 1)

    def same_as(self, other: "Reply") -> bool:
        """Equal tokens, equal log-probabilities to the last bit, equal history."""
        return (self.tokens, self.logprobs, self.digest) == (other.tokens, other.logprobs, other.digest)


@dataclass(frozen=True)
class Moved:
    """What a rewind or a fork did, and how long the call took."""

    session_id: str
    position: int
    kind: str
    replayed_tokens: int
    return_ms: float
    runtime_ms: float
    """The part of it that the server's runtime took, without gRPC."""


def milliseconds(duration: Duration) -> float:
    """A protobuf duration in ms."""
    return duration.ToTimedelta().total_seconds() * 1e3


def kind_name(report: pb.RewindReport) -> str:
    """`IN_PLACE` and so on."""
    return pb.RewindKind.Name(report.kind).removeprefix("REWIND_KIND_")


class Client:
    """Sessions and generations on one server; greedy always."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._inference = rpc.InferenceServiceStub(channel)
        self._sessions = rpc.SessionServiceStub(channel)

    @contextmanager
    def session(self) -> Generator[str]:
        """A new session, closed at the end of the block."""
        opened = self._sessions.OpenSession(pb.OpenSessionRequest(), timeout=DEADLINE_SECONDS)
        try:
            yield opened.session.session_id
        finally:
            self.close(opened.session.session_id)

    def close(self, session_id: str) -> None:
        """Close a session."""
        self._sessions.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=DEADLINE_SECONDS)

    def generate(
        self,
        session_id: str,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        ignore_eos: bool = False,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Append `prompt` and let the model go on, greedily.

        `on_text` gets the text piece by piece, as it arrives.
        """
        request = pb.GenerateRequest(
            session_id=session_id,
            prompt=pb.Prompt(tokens=pb.TokenIds(ids=prompt)) if prompt else None,
            stop=pb.StopCondition(max_output_tokens=max_tokens, ignore_eos=ignore_eos),
            logprobs=0,
            return_text=True,
            return_token_ids=True,
        )
        reply, start = Reply(), time.perf_counter()
        for response in self._inference.Generate(request, timeout=DEADLINE_SECONDS):
            elapsed_ms = (time.perf_counter() - start) * 1e3
            event = response.WhichOneof("event")
            if event == "started":
                reply.replayed_tokens = response.started.start_position - response.started.cached_input_tokens
            elif event == "delta":
                delta = response.delta
                reply.first_token_ms = reply.first_token_ms or elapsed_ms
                reply.all_tokens_ms = elapsed_ms
                reply.tokens += delta.token_ids
                reply.logprobs += [entry.logprob for entry in delta.logprobs]
                reply.text += delta.text
                if on_text is not None and delta.text:
                    on_text(delta.text)
            elif event == "finished":
                reply.end_position = response.finished.end_position
                steps = max(1, len(reply.tokens) - 1)
                reply.runtime_decode_ms = milliseconds(response.finished.timing.decode) / steps
                reply.digest = response.finished.prefix_digest
                reply.reason = pb.FinishReason.Name(response.finished.reason).removeprefix("FINISH_REASON_")
        return reply

    def rewind(self, session_id: str, to_position: int) -> Moved:
        """Move a session back."""
        start = time.perf_counter()
        request = pb.RewindRequest(session_id=session_id, to_position=to_position)
        answer = self._sessions.Rewind(request, timeout=DEADLINE_SECONDS)
        return self._moved(answer, start)

    def fork(self, session_id: str) -> Moved:
        """Make a second session from the same history."""
        start = time.perf_counter()
        request = pb.ForkSessionRequest(session_id=session_id)
        answer = self._sessions.ForkSession(request, timeout=DEADLINE_SECONDS)
        return self._moved(answer, start)

    @staticmethod
    def _moved(answer: pb.RewindResponse | pb.ForkSessionResponse, start: float) -> Moved:
        return_ms = (time.perf_counter() - start) * 1e3
        session, report = answer.session, answer.rewind
        runtime_ms = milliseconds(report.restore_time) + milliseconds(report.replay_time)
        kind, replayed = kind_name(report), report.replayed_tokens
        return Moved(session.session_id, session.position, kind, replayed, return_ms, runtime_ms)
