"""Chat encoding of DeepSeek-V4: messages to tokens, and tool calls out of text.

The form is that of DeepSeek's published V4 chat template: one begin marker, system text without a marker,
`<｜User｜>` and `<｜Assistant｜>` turns, `</think>` right after the assistant marker when it does not think
aloud, DSML blocks for tool calls, `<tool_result>` in user turns. Text of messages never becomes a marker.
Not here yet: the header that lists tool schemas, response formats and reasoning effort.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ds4c_runtime.errors import InvalidRequestError
from ds4c_runtime.tokenizer import Tokenizer

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

_INVOKE = re.compile(rf'<{DSML}invoke name="([^"]*)">(.*?)</{DSML}invoke>', re.DOTALL)
_PARAMETER = re.compile(
    rf'<{DSML}parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML}parameter>', re.DOTALL
)


class Role(StrEnum):
    """Who says a message; `tool` carries the result of a tool call."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class ToolCall:
    """A tool the model asks for. String arguments are raw text in the markup, all others JSON."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One message; `reasoning` and `tool_calls` belong to the assistant's."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Marker:
    """A special token in a rendered conversation, told apart from text that looks like it."""

    text: str


Piece = str | Marker


def render(messages: Sequence[Message], *, thinking: bool = False) -> list[Piece]:
    """Markers and text of a whole conversation, ready for the assistant to go on.

    Args:
        messages: system messages first; the last one is a user's or a tool's.
        thinking: the assistant thinks aloud before it answers.

    Raises:
        InvalidRequestError: no messages, a system message after the first turn, or the assistant's last.
    """
    system = [m.content for m in messages if m.role is Role.SYSTEM]
    turns = messages[len(system) :]
    if any(m.role is Role.SYSTEM for m in turns):
        raise _invalid("system messages before all others", "one in between")
    pieces: list[Piece] = [Marker(BOS), "\n\n".join(system)]
    return [*pieces, *_turns(turns, thinking)]


def render_continuation(messages: Sequence[Message], *, thinking: bool = False) -> list[Piece]:
    """Markers and text that follow an assistant's turn that is in the session already.

    The end marker of that turn comes first: a session never holds it (it is not kept when it is drawn).

    Raises:
        InvalidRequestError: no messages, or one that is neither a user's nor a tool's.
    """
    if any(m.role not in (Role.USER, Role.TOOL) for m in messages):
        raise _invalid("messages of a user or a tool", "another role")
    return [Marker(EOS), *_turns(messages, thinking)]


def _turns(messages: Sequence[Message], thinking: bool) -> list[Piece]:
    if not messages or messages[-1].role is Role.ASSISTANT:
        raise _invalid("a last message of a user or a tool", "none or the assistant's")
    keeps_reasoning = any(m.tool_calls or m.role is Role.TOOL for m in messages)
    last_user = max((i for i, m in enumerate(messages) if m.role is Role.USER), default=-1)
    pieces: list[Piece] = []
    previous: Role | None = None
    for i, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            kept = message.reasoning if keeps_reasoning or i > last_user else ""
            pieces += _assistant(message, kept)
        else:
            shared = previous in (Role.USER, Role.TOOL)
            pieces += ["\n\n"] if shared else [Marker(USER)]
            pieces.append(_user_text(message))
        previous = message.role
    return [*pieces, Marker(ASSISTANT), Marker(THINK if thinking else END_THINK)]


def _user_text(message: Message) -> str:
    if message.role is Role.USER:
        return message.content
    # only the closing tag could end the result early
    return f"<tool_result>{message.content.replace('</tool_result>', '&lt;/tool_result>')}</tool_result>"


def _assistant(message: Message, reasoning: str) -> list[Piece]:
    thought: list[Piece] = [Marker(THINK), reasoning] if reasoning else []
    return [
        Marker(ASSISTANT),
        *thought,
        Marker(END_THINK),
        message.content,
        *render_tool_calls(message.tool_calls),
        Marker(EOS),
    ]


def render_tool_calls(calls: Sequence[ToolCall]) -> list[Piece]:
    """The DSML block of some tool calls; nothing for none."""
    if not calls:
        return []
    pieces: list[Piece] = ["\n\n", *_tag("tool_calls"), "\n"]
    for call in calls:
        pieces += [*_tag(f'invoke name="{call.name}"'), "\n"]
        for name, value in call.arguments.items():
            is_text = isinstance(value, str)
            text = value if isinstance(value, str) else json.dumps(value)
            opening = f'parameter name="{name}" string="{"true" if is_text else "false"}"'
            pieces += [*_tag(opening), text, *_tag("parameter", "</"), "\n"]
        pieces += [*_tag("invoke", "</"), "\n"]
    return [*pieces, *_tag("tool_calls", "</")]


def _tag(text: str, opening: str = "<") -> list[Piece]:
    return [opening, Marker(DSML), text + ">"]


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Tool calls in a text of the assistant, in order; none if there is no complete block.

    A parameter that is not valid JSON where JSON is announced is kept as text.
    """
    calls: list[ToolCall] = []
    for name, body in _INVOKE.findall(text):
        arguments = {key: _value(kind, raw) for key, kind, raw in _PARAMETER.findall(body)}
        calls.append(ToolCall(name, arguments))
    return tuple(calls)


def _value(kind: str, raw: str) -> Any:
    if kind == "true":
        return raw
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def encode(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> list[int]:
    """Token ids of a rendered conversation; adjoining texts are tokenized together.

    Raises:
        ArtifactError: the tokenizer lacks a marker.
    """
    ids: list[int] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        ids += [*(tokenizer.encode(text) if text else []), tokenizer.marker(piece.text)]
        text = ""
    return ids + (tokenizer.encode(text) if text else [])


def _invalid(expected: str, got: str) -> InvalidRequestError:
    return InvalidRequestError(f"messages refused: expected {expected}, got {got}", field="messages")
