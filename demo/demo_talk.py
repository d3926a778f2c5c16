"""The conversation of the demo: one session, text shown as it streams, tool calls run on the way."""

import json
import re
from dataclasses import dataclass

from demo_client import Client, Reply
from demo_server import DemoError
from demo_tools import run_tool
from demo_view import View
from ds4c_runtime.tokenizer import Tokenizer

MAX_TOKENS = 160
BOS, EOS, USER, ASSISTANT, END_THINK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "</think>",
)


@dataclass(frozen=True)
class ToolCall:
    """What the model asks for."""

    name: str
    arguments: dict[str, object]


def parse_call(text: str) -> ToolCall | None:
    """The first tool call in DeepSeek's markup, or None."""
    invoke = re.search(r'<｜DSML｜invoke name="([^"]*)">(.*?)</｜DSML｜invoke>', text, re.DOTALL)
    if invoke is None:
        return None
    pattern = r'<｜DSML｜parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜parameter>'
    found = re.findall(pattern, invoke.group(2), re.DOTALL)
    return ToolCall(invoke.group(1), {k: v if s == "true" else json.loads(v) for k, s, v in found})


class Talk:
    """One session and the tokens it holds."""

    def __init__(self, client: Client, session: str, tokenizer: Tokenizer, view: View) -> None:
        self._client, self._session, self._tokenizer, self._view = client, session, tokenizer, view
        self.history: list[int] = []
        self.first_prompt: list[int] = []

    def _user_turn(self, text: str) -> list[int]:
        """Tokens that end the turn before and hand the user's to the model; the text is never markup."""
        marker, before = self._tokenizer.marker, EOS if self.history else BOS
        tail = [marker(ASSISTANT), marker(END_THINK)]
        return [marker(before), marker(USER), *self._tokenizer.encode(text), *tail]

    def _say(self, text: str) -> Reply:
        """Send one user turn and stream the answer."""
        prompt = self._user_turn(text)
        self.first_prompt = self.first_prompt or prompt
        self._view.speaker("model")
        reply = self._client.generate(self._session, prompt, max_tokens=MAX_TOKENS, on_text=self._view.stream)
        self._view.end_line()
        self.history += [*prompt, *reply.tokens]
        if len(self.history) != reply.end_position:
            raise DemoError(
                f"session drifted: expected position {len(self.history)}, got {reply.end_position}"
            )
        if reply.reason != "EOS":
            raise DemoError(f"answer cut: expected the model to end it, got {reply.reason}")
        return reply

    def ask(self, question: str) -> None:
        """Put a question; run the tool if the model calls one, and let it answer."""
        self._view.speaker("you", question)
        reply = self._say(question)
        call = parse_call(reply.text)
        if call is None:
            return
        result = run_tool(call.name, call.arguments)
        arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
        self._view.speaker("tool", f"{call.name}({arguments}) returns {result}")
        answer = self._say(f"<tool_result>{result}</tool_result>")
        if result not in answer.text:
            raise DemoError(f"answer lost the result: expected {result} in it, got {answer.text!r}")
