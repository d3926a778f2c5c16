"""The conversation of the demo: one session, text shown as it streams, tool calls run on the way."""

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

    def _prompt(self, message: chat.Message) -> list[int]:
        """Tokens of the next turn; those before it are in the session already."""
        pieces = chat.render_continuation([message]) if self.history else chat.render([message])
        return chat.encode(self._tokenizer, pieces)

    def _say(self, message: chat.Message) -> Reply:
        """Send one turn and stream the answer."""
        prompt = self._prompt(message)
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
        for call in chat.parse_tool_calls(reply.text):
            result = run_tool(call.name, call.arguments)
            arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
            self._view.speaker("tool", f"{call.name}({arguments}) returns {result}")
            answer = self._say(chat.Message(chat.Role.TOOL, result))
            if result not in answer.text:
                raise DemoError(f"answer lost the result: expected {result} in it, got {answer.text!r}")
