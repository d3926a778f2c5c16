"""`ds4c run`: generate text from a prompt; the text on stdout, figures on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.common import (
    ArtifactArgument,
    DeviceOption,
    ExitCode,
    JsonOption,
    ThreadsOption,
    print_json,
    print_note,
    read_text,
)

if TYPE_CHECKING:
    from ds4c.cli.conversation import Reply
    from ds4c_runtime.sampler import SamplingParams

TemperatureOption = Annotated[float, typer.Option(min=0, help="0 is greedy.")]
TopPOption = Annotated[float, typer.Option(help="Keep the likeliest tokens of this share.")]
TopKOption = Annotated[int, typer.Option(min=0, help="Keep this many tokens; 0: all.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the draws.")]
SystemOption = Annotated[str, typer.Option(help="System message.")]
ThinkOption = Annotated[bool, typer.Option("--think", help="Let the model think aloud first.")]


def run(
    artifact: ArtifactArgument,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text; `-` reads stdin.")],
    raw: Annotated[bool, typer.Option("--raw", help="Plain continuation without chat markup.")] = False,
    system: SystemOption = "",
    think: ThinkOption = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens.")] = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    seed: SeedOption = 0,
    threads: ThreadsOption = 1,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Generate an answer to a prompt. An interrupt ends it, with what is there and exit code 130.

    Example: ds4c run out/m -p "What is rewind?"
    """
    from ds4c.cli.conversation import Conversation
    from ds4c_runtime.engine import Engine
    from ds4c_runtime.requests import FinishReason

    text = read_text(Path("-"), "a prompt") if prompt == "-" else prompt
    with Engine.load(artifact, max_sessions=1, threads=threads, device=device) as engine:
        talk = Conversation(
            engine,
            sampling(temperature, top_p, top_k, seed),
            system=system,
            thinking=think,
            max_tokens=max_tokens,
        )
        write = quiet if as_json else stream
        reply = talk.continue_raw(text, write) if raw else talk.say(text, write)
    if as_json:
        print_json(document(reply))
    else:
        stream("\n")
        print_note(figures(reply))
    return ExitCode.INTERRUPTED if reply.finished.reason is FinishReason.CANCELLED else ExitCode.OK


def sampling(temperature: float, top_p: float, top_k: int, seed: int) -> SamplingParams:
    """Sampling parameters of the options."""
    from ds4c_runtime.sampler import SamplingParams

    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)


def stream(text: str) -> None:
    """Write text on stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def quiet(_: str) -> None:
    """Write nothing."""


def document(reply: Reply) -> dict[str, Any]:
    """The result for `--json`; times in seconds."""
    f = reply.finished
    return {
        "text": reply.text,
        "finish_reason": f.reason.value,
        "input_tokens": f.usage.input_tokens,
        "output_tokens": f.usage.output_tokens,
        "end_position": f.end_position,
        "first_token_s": round(f.timing.first_token, 4),
        "decode_s": round(f.timing.decode, 4),
    }


def figures(reply: Reply) -> str:
    """One line about an answer."""
    f = reply.finished
    rate = f"{(f.usage.output_tokens - 1) / f.timing.decode:.0f} tokens/s" if f.timing.decode else "no rate"
    return (
        f"[{f.reason.value}; {f.usage.input_tokens} tokens in, {f.usage.output_tokens} out, first after "
        f"{f.timing.first_token * 1e3:.1f} ms, {rate}]"
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)
