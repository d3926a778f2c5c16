"""The conversation of the demo: one session, text shown as it streams, tool calls run on the way."""

from collections.abc import Sequence

from demo_client import Client, Reply
from demo_server import DemoError
from demo_tools import run_tool
from demo_view import View
from ds4c_runtime import chat
from ds4c_runtime.tokenizer import Tokenizer

MAX_TOKENS = 160


class Talk:
    """One session and the tokens it holds."""

    def __init__(self, client: Client, session: str, tokenizer: Tokenizer, view: View) -> None:
        self._client, self._session, self._tokenizer, self._view = client, session, tokenizer, view
        self.history: list[int] = []
        self.first_prompt: list[int] = []

    def _prompt(self, messages: Sequence[chat.Message]) -> list[int]:
        """Tokens of the next turn; those before it are in the session already."""
        render = chat.render_continuation if self.history else chat.render
        return chat.encode(self._tokenizer, render(messages))

    def _say(self, *messages: chat.Message) -> Reply:
        """Send one turn and stream the answer."""
        prompt = self._prompt(messages)
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
        reply = self._say(chat.Message(chat.Role.USER, question))
        results = [self._run(call) for call in chat.parse_reply(reply.text).tool_calls]
        if not results:
            return
        answer = self._say(*[chat.Message(chat.Role.TOOL, result) for result in results])
        if not all(result in answer.text for result in results):
            raise DemoError(f"answer lost a result: expected {results} in it, got {answer.text!r}")

    def _run(self, call: chat.ToolCall) -> str:
        """Run a tool and show what it returned."""
        result = run_tool(call.name, call.arguments)
        arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
        self._view.speaker("tool", f"{call.name}({arguments}) returns {result}")
        return result
