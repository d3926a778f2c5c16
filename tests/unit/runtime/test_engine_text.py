"""Text of generations on the fake device: streaming, stop strings across tokens, tool calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_executable import fake_engine

from ds4c_runtime.engine import Engine
from ds4c_runtime.reports import RewindCause, RewindKind
from ds4c_runtime.requests import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    StopParams,
    TokenDelta,
)
from ds4c_runtime.tokenizer import Tokenizer

TOKENIZER = Path(__file__).parents[3] / "demo" / "model" / "tokenizer.json"
PROMPT = tuple(range(100, 140))
NO_EOS = StopParams(max_output_tokens=10, ignore_eos=True)


class Script:
    """Makes the fake model say a given text after the prompt."""

    def __init__(self, text: str, prompt: int = len(PROMPT)) -> None:
        self.tokenizer = Tokenizer.from_file(TOKENIZER)
        self.tokens = self.tokenizer.encode(text)
        self.first = prompt

    def __call__(self, position: int, token: int) -> int | None:
        index = position + 1 - self.first
        return self.tokens[index] if 0 <= index < len(self.tokens) else 1


def say(text: str, stop: StopParams, **fields: object) -> tuple[Script, list[Event], Finished, Engine]:
    script = Script(text)
    engine = fake_engine(tokenizer_path=TOKENIZER, favour=script, horizon=20)
    engine.open_session("s")
    events: list[Event] = []
    request = GenerationRequest(tokens=PROMPT, session_id="s", stop=stop, **fields)  # type: ignore[arg-type]
    done = engine.generate(request, "", events.append).done.result()
    return script, events, done, engine


def text_of(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, TokenDelta))


def ids_of(events: list[Event]) -> list[int]:
    return [t for e in events if isinstance(e, TokenDelta) for t in e.token_ids]


def test_text_until_eos() -> None:
    script, events, done, engine = say("The result is 42. Größe ✓ done", StopParams())
    with engine:
        assert text_of(events) == "The result is 42. Größe ✓ done"
        assert ids_of(events) == script.tokens
        assert (done.reason, done.end_position) == (FinishReason.EOS, 40 + len(script.tokens))


@pytest.mark.parametrize("stop", ["STOP", "one STOP", "P", " STOP t", "sorry STOP two"])
def test_stop_string_across_tokens(stop: str) -> None:
    text = "sorry STOP two" if stop.startswith("sorry") else "say one STOP two"
    script, events, done, engine = say(text, StopParams(strings=("zzz", stop)))
    with engine:
        assert text_of(events) == text[: text.index(stop)]
        assert (done.reason, done.matched_stop) == (FinishReason.STOP_STRING, stop)
        kept = ids_of(events)
        assert kept == script.tokens[: len(kept)]
        assert text_of(events).startswith(script.tokenizer.decode(kept))
        info = engine.get_session("s")
        assert info.position == done.end_position == 40 + len(kept)
        assert info.digest == done.digest
        assert info.state_valid
        assert done.usage.output_tokens == len(kept)
        assert done.usage.discarded_tokens > 0
        (report,) = done.rewinds
        assert (report.cause, report.kind) == (RewindCause.STOP, RewindKind.IN_PLACE)
        # Nothing that was dropped shows in what follows.
        engine.open_session("fresh")
        fresh = engine.run(GenerationRequest(tokens=(*PROMPT, *kept, 5), session_id="fresh", stop=NO_EOS))
        again = engine.run(GenerationRequest(tokens=(5,), session_id="s", stop=NO_EOS))
        assert again.tokens == fresh.tokens


def test_text_that_only_looks_like_a_stop_string_is_sent_in_the_end() -> None:
    text = "one STO two STOX S"
    script, events, done, engine = say(text, StopParams(strings=("STOP",)))
    with engine:
        assert text_of(events) == text
        assert ids_of(events) == script.tokens
        assert done.reason is FinishReason.EOS


def test_stop_string_beyond_the_horizon_is_deferred_and_still_right() -> None:
    text = "a" + "1 2 3 4 5 6 7 8 9 " * 2
    script = Script(text)
    with fake_engine(tokenizer_path=TOKENIZER, favour=script, horizon=4) as engine:
        engine.open_session("s")
        stop = StopParams(strings=(text[1:-1],))
        result = engine.run(GenerationRequest(tokens=PROMPT, session_id="s", stop=stop))
        (report,) = result.finished.rewinds
        assert (report.kind, result.finished.continuable) == (RewindKind.DEFERRED, True)
        assert result.text == "a"
        assert not engine.get_session("s").state_valid
        again = engine.run(GenerationRequest(tokens=(5,), session_id="s", stop=NO_EOS))
        assert again.started is not None
        assert again.started.rewind is not None
        assert again.started.rewind.kind is RewindKind.SNAPSHOT_REPLAY
        assert again.started.rewind.replayed_tokens == 1
        kept = result.tokens
        assert again.tokens == engine.run(GenerationRequest(tokens=(*PROMPT, *kept, 5), stop=NO_EOS)).tokens


def test_stop_string_is_not_looked_for_below_the_least_number_of_tokens() -> None:
    script, events, done, engine = say("STOP STOP STOP", StopParams(strings=("STOP",), min_output_tokens=4))
    with engine:
        assert text_of(events).startswith("STOP")
        assert done.reason is FinishReason.STOP_STRING
        assert len(ids_of(events)) >= 4 or done.usage.discarded_tokens
        assert len(script.tokens) > 4


def test_tool_call_end() -> None:
    text = "\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>"
    script = Script("")
    script.tokens = script.tokenizer.encode(text, parse_special=True)
    with fake_engine(tokenizer_path=TOKENIZER, favour=script) as engine:
        result = engine.run(GenerationRequest(tokens=PROMPT, stop=StopParams(at_tool_call_end=True)))
        assert result.finished.reason is FinishReason.TOOL_CALL
        assert result.text == text
        assert result.tokens == tuple(script.tokens)


def test_max_tokens_flushes_held_text_and_unfinished_characters() -> None:
    script, events, done, engine = say("ab✓cd", StopParams(strings=("zz✓",), max_output_tokens=3))
    with engine:
        assert len(ids_of(events)) == 3
        assert text_of(events) == script.tokenizer.decode(script.tokens[:3])
        assert done.end_position == 43
