"""The chat markup of DeepSeek-V4: messages to tokens, and tool calls out of generated text.

A rendered chat is a list of pieces: markers, which become one token each, and text, which never does
(a user who writes `<think>` gets ordinary characters). Sampling and sessions are not known here.

Source: the chat template published with DeepSeek-V4; the layout is described in the functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn, cast

from ds4c_runtime.errors import InvalidRequestError
from ds4c_runtime.tokenizer import Tokenizer

RESULT_END = "</tool_result>"
ESCAPED_RESULT_END = "&lt;/tool_result&gt;"


@dataclass(frozen=True)
class Marker:
    """A piece of markup that is one token."""

    content: str


Piece = Marker | str

BOS = Marker("<｜begin▁of▁sentence｜>")
EOS = Marker("<｜end▁of▁sentence｜>")
USER = Marker("<｜User｜>")
ASSISTANT = Marker("<｜Assistant｜>")
THINK = Marker("<think>")
END_THINK = Marker("</think>")
DSML = Marker("｜DSML｜")


class Role(Enum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class ToolCall:
    """A call the model makes; `arguments` hold strings or other JSON values."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Message:
    """One message. `reasoning` and `tool_calls` belong to the assistant; a tool's content is its result.

    Results of several calls are given in the order of the calls.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Reply:
    """What the model said: reasoning, text for the user, tool calls."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = field(default=())


class ToolCallError(ValueError):
    """Generated text has the beginning of a tool call and not a whole one.

    Attributes:
        start: index of the character in the text where the tool calls begin.
    """

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] = (),
    thinking: bool = False,
    keep_reasoning: bool = False,
) -> tuple[Piece, ...]:
    """Render a conversation up to where the assistant is to speak.

    System messages and tool schemas come first, without a marker, then user and assistant turns; user
    and tool messages in a row share one user turn. Reasoning of earlier turns is dropped unless there
    are tools or `keep_reasoning`.

    Args:
        messages: the conversation, ending with a user or tool message.
        tools: JSON schemas of functions, with `name`, `description`, `parameters`.
        thinking: let the model reason before it answers.
        keep_reasoning: render the reasoning of all earlier turns.

    Raises:
        InvalidRequestError: messages in an order that the markup cannot say.
    """
    system = [m.content for m in messages if m.role is Role.SYSTEM]
    if tools:
        system.append(tools_text(tools))
    turns = [m for m in messages if m.role is not Role.SYSTEM]
    keeps = thinking and (keep_reasoning or bool(tools))
    pieces: list[Piece] = [BOS, *_with_markers("\n\n".join(s for s in system if s), bool(tools))]
    return (*pieces, *_turns(turns, thinking, keeps))


def tools_text(tools: Iterable[Mapping[str, object]]) -> str:
    """The system text that offers tools, given as JSON schemas."""
    return _TOOLS_HEAD + "".join(json.dumps(tool) + "\n" for tool in tools) + _TOOLS_FOOT


def render_continuation(messages: Sequence[Message], *, thinking: bool = False) -> tuple[Piece, ...]:
    """Render what follows an answer that is in the history already.

    A session does not keep the end-of-sentence token of an answer, so this begins with it.

    Args:
        messages: new user and tool messages.
        thinking: let the model reason before it answers.

    Raises:
        InvalidRequestError: no messages, or others than user and tool messages.
    """
    for message in messages:
        if message.role not in (Role.USER, Role.TOOL):
            _refuse(f"expected user and tool messages, got one of role {message.role.value!r}")
    return (EOS, *_turns(messages, thinking, True, follows_answer=True))


def encode(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> list[int]:
    """Tokens of rendered pieces; neighbouring texts are encoded as one.

    Raises:
        ArtifactError: the tokenizer has no such marker.
        InvalidRequestError: text that is not Unicode.
    """
    tokens: list[int] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        tokens += [*tokenizer.encode(text), tokenizer.marker(piece.content)]
        text = ""
    return tokens + tokenizer.encode(text)


def parse_reply(text: str, *, thinking: bool = False) -> Reply:
    """Take generated text apart.

    Args:
        text: all text after the assistant marker and its `<think>` or `</think>`.
        thinking: whether the prompt ended with `<think>`; then text up to `</think>` is reasoning.

    Raises:
        ToolCallError: a tool call that is not whole or not well formed.
    """
    reasoning = ""
    offset = 0
    if thinking:
        reasoning, found, text = text.partition(END_THINK.content)
        if not found:
            return Reply("", reasoning)
        offset = len(reasoning) + len(found)
    start = text.find(_OPEN_CALLS)
    if start < 0:
        return Reply(text, reasoning)
    calls = _CallReader(text, start + len(_OPEN_CALLS), offset + start).read()
    return Reply(text[:start].rstrip("\n"), reasoning, calls)


def _turns(
    messages: Sequence[Message], thinking: bool, keeps_reasoning: bool, *, follows_answer: bool = False
) -> list[Piece]:
    if not messages or messages[-1].role is Role.ASSISTANT:
        _refuse("expected a user or tool message at the end, got none")
    last_user = max((i for i, m in enumerate(messages) if m.role is Role.USER), default=-1)
    pieces: list[Piece] = []
    before = Role.ASSISTANT if follows_answer else None
    for index, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            if before not in (Role.USER, Role.TOOL):
                _refuse("expected a user or tool message before each of the assistant, got none")
            pieces += _answer(message, thinking and (keeps_reasoning or index > last_user))
        else:
            if message.role is Role.TOOL and before in (None, Role.USER):
                _refuse("expected a tool result right after the call, got one elsewhere")
            pieces += [USER] if before in (None, Role.ASSISTANT) else ["\n\n"]
            pieces.append(_said(message))
        before = message.role
    return [*pieces, ASSISTANT, THINK if thinking else END_THINK]


def _said(message: Message) -> str:
    if message.role is Role.USER:
        return message.content
    return f"<tool_result>{message.content.replace(RESULT_END, ESCAPED_RESULT_END)}{RESULT_END}"


def _answer(message: Message, with_reasoning: bool) -> list[Piece]:
    pieces: list[Piece] = [ASSISTANT]
    if with_reasoning:
        pieces += [THINK, message.reasoning]
    pieces += [END_THINK, message.content]
    if message.tool_calls:
        pieces += ["\n\n<", DSML, "tool_calls>\n"]
        for call in message.tool_calls:
            pieces += _call(call)
        pieces += ["</", DSML, "tool_calls>"]
    return [*pieces, EOS]


def _call(call: ToolCall) -> list[Piece]:
    pieces: list[Piece] = ["<", DSML, f'invoke name="{_name(call.name)}">\n']
    for key, value in call.arguments.items():
        is_text = isinstance(value, str)
        text = value if isinstance(value, str) else json.dumps(value)
        pieces += ["<", DSML, f'parameter name="{_name(key)}" string="{"true" if is_text else "false"}">']
        pieces += [text, "</", DSML, "parameter>\n"]
    return [*pieces, "</", DSML, "invoke>\n"]


def _name(name: str) -> str:
    if not name or set(name) & set('"<>\n'):
        _refuse(f'expected a name without " < > and line breaks, got {name[:40]!r}')
    return name


def _with_markers(text: str, has_tools: bool) -> list[Piece]:
    """Text with the markers of the tools header as markers; nothing else in it can be one."""
    if not has_tools:
        return [text] if text else []
    before, head, after = text.partition(_TOOLS_HEAD)
    parts: list[Piece] = [before]
    for index, part in enumerate(head.split("<think>")):
        parts += [THINK] if index else []
        parts += _split(part)
    return [p for p in (*parts, after) if p]


def _split(text: str) -> list[Piece]:
    pieces: list[Piece] = []
    rest = text
    while rest:
        hits = [(rest.find(m.content), m) for m in (DSML, END_THINK) if m.content in rest]
        if not hits:
            return [*pieces, rest]
        at, marker = min(hits, key=lambda hit: hit[0])
        pieces += [rest[:at], marker]
        rest = rest[at + len(marker.content) :]
    return pieces


def _refuse(what: str) -> NoReturn:
    raise InvalidRequestError(f"chat refused: {what}", field="messages")


_OPEN_CALLS = f"<{DSML.content}tool_calls>"
_CLOSE_CALLS = f"</{DSML.content}tool_calls>"
_OPEN_INVOKE = f'<{DSML.content}invoke name="'
_CLOSE_INVOKE = f"</{DSML.content}invoke>"
_OPEN_PARAMETER = f'<{DSML.content}parameter name="'
_CLOSE_PARAMETER = f"</{DSML.content}parameter>"


class _CallReader:
    """Reads the inside of a tool call block in one go, left to right."""

    def __init__(self, text: str, at: int, start: int) -> None:
        self._text = text
        self._at = at
        self._start = start

    def read(self) -> tuple[ToolCall, ...]:
        calls: list[ToolCall] = []
        while not self._takes(_CLOSE_CALLS):
            self._expect(_OPEN_INVOKE)
            name = self._until('">')
            arguments: dict[str, object] = {}
            while not self._takes(_CLOSE_INVOKE):
                self._expect(_OPEN_PARAMETER)
                key = self._until('" string="')
                kind = self._until('">')
                if kind not in ("true", "false") or key in arguments:
                    self._fail(f"expected parameters once each, true or false, got {key!r} {kind!r}")
                arguments[key] = self._value(self._until(_CLOSE_PARAMETER), kind == "true")
            calls.append(ToolCall(name, arguments))
        if self._text[self._at :].strip():
            self._fail("expected nothing after the calls, got more text")
        if not calls:
            self._fail("expected at least one call, got none")
        return tuple(calls)

    def _value(self, raw: str, is_text: bool) -> object:
        if is_text:
            return raw
        try:
            return cast(object, json.loads(raw))
        except (ValueError, RecursionError):
            self._fail(f"expected JSON in a parameter that is no string, got {raw[:40]!r}")

    def _takes(self, wanted: str) -> bool:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        if not self._text.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        return True

    def _expect(self, wanted: str) -> None:
        if not self._takes(wanted):
            self._fail(f"expected {wanted!r}, got {self._text[self._at : self._at + 30]!r}")

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            self._fail(f"expected {end!r}, got the end of the text")
        part, self._at = self._text[self._at : found], found + len(end)
        return part

    def _fail(self, what: str) -> NoReturn:
        raise ToolCallError(f"tool call not read: {what}", self._start)


# The wording below is part of the model's prompt format: the model was trained on these words.
_TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, \
arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_FOOT = """
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
