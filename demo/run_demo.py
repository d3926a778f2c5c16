"""The demo: build the bundled model, serve it, talk to it, rewind it. Run by `make demo`.

Exits with 0 only if every rewound session went on exactly like a session that never went the other way.
"""

import signal
import sys
import time
from types import FrameType

import grpc

from demo_client import Client
from demo_rewind import CAPTION, COLUMNS, RewindTour, Row
from demo_server import ARTIFACT, DemoError, build, serving
from demo_talk import Talk
from demo_view import View, machine_name
from ds4c_runtime import chat
from ds4c_runtime.tokenizer import Tokenizer

QUESTIONS = (
    "What is a fork?",
    "Tell me about the compressor.",
    "Explain speculative decoding.",
    "Add up 12, 30, 7.",
    "Who are you?",
    "Goodbye.",
)
"""Asked after the two that are shown, so that the session is long enough for its window to have moved on."""


def converse(view: View, client: Client, session: str, tokenizer: Tokenizer) -> Talk:
    """Two exchanges shown as they stream, the rest in short."""
    talk = Talk(client, session, tokenizer, view)
    view.step("A fact, streamed token by token over gRPC")
    talk.ask("What is rewind?")
    view.step("Arithmetic: the model calls a tool, the demo runs it, the model copies the result")
    talk.ask("What is 47 times 89?")
    view.step("The same session goes on, to be long enough for the rewinds")
    for question in QUESTIONS:
        talk.ask(question)
    return talk


def show_rewinds(view: View, client: Client, talk: Talk) -> list[Row]:
    """The table."""
    tokens = talk.history
    view.step(f"Rewind: sessions of these {len(tokens)} tokens, each with one way back")
    rows = RewindTour(client, tokens, talk.first_prompt).rows()
    view.table("Rewind on " + machine_name(), COLUMNS, [row.cells() for row in rows], CAPTION)
    return rows


def run(view: View) -> int:
    """The whole demo; gives the exit status."""
    start = time.perf_counter()
    view.step("Build: the bundled DeepSeek-V4 checkpoint (3 M parameters) becomes kernels and packed weights")
    build(view)
    view.step("Serve: a process that knows nothing of the compiler loads the artifact")
    with serving(view) as address, grpc.insecure_channel(address) as channel:
        view.say(f"serving on {address}")
        client, tokenizer = Client(channel), Tokenizer.from_file(ARTIFACT / "tokenizer.json")
        with client.session() as session:
            talk = converse(view, client, session, tokenizer)
        rows = show_rewinds(view, client, talk)
    wrong = [row.what for row in rows if not row.same]
    if wrong:
        print(
            f"demo failed: expected the tokens of a fresh session, got others after {', '.join(wrong)}",
            file=sys.stderr,
        )
        return 1
    seconds = time.perf_counter() - start
    view.say(
        f"\nEvery session went on exactly like a fresh one. The server is stopped; {seconds:.0f} s in all."
    )
    return 0


def end_on_signal(signal_number: int, frame: FrameType | None) -> None:
    """Unwind the stack, which stops the server."""
    sys.exit(128 + signal_number)


def main() -> int:
    """Run; every expected failure is one line."""
    signal.signal(signal.SIGTERM, end_on_signal)
    try:
        return run(View())
    except DemoError as error:
        print(f"demo failed: {error}", file=sys.stderr)
    except chat.ToolCallError as error:
        print(f"demo failed: the model wrote a broken tool call: {error}", file=sys.stderr)
    except grpc.RpcError as error:
        print(f"demo failed: {error.code().name}: {error.details()}", file=sys.stderr)
    except KeyboardInterrupt:
        print("demo stopped", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
