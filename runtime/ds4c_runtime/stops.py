"""Pairs tokens with text, holds back what may be part of a stop string, and finds stop strings.

Pure: changes no session. What is released is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds4c_runtime.sampler import TokenLogprobs
from ds4c_runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Release:
    """Tokens and text that are final.

    Attributes:
        tokens: released tokens, in order.
        text: their text; after a match also the text between them and the stop string.
        logprobs: of the tokens, if they were given.
        matched: the stop string found, else empty.
        dropped: tokens after the released ones that are not to be kept; only with a match.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    matched: str = ""
    dropped: int = 0


@dataclass(frozen=True)
class _Held:
    token: int
    logprobs: TokenLogprobs | None
    end: int
    is_clean: bool


class TokenText:
    """Text of the tokens of one generation."""

    def __init__(self, tokenizer: Tokenizer | None, stop_strings: Sequence[str] = ()) -> None:
        """Without a tokenizer there is no text, and `stop_strings` must be empty."""
        assert tokenizer is not None or not stop_strings
        self._decoder = None if tokenizer is None else tokenizer.stream_decoder()
        self._stops = tuple(stop_strings)
        self._longest = max(map(len, stop_strings), default=0)
        self._held: list[_Held] = []
        self._text = ""

    def push(self, token: int, logprobs: TokenLogprobs | None = None, *, may_stop: bool = True) -> Release:
        """Take in a token.

        Args:
            token: the next token.
            logprobs: released with it.
            may_stop: look for stop strings; if not, all text is released and none can begin in it.
        """
        is_clean = True
        if self._decoder is not None:
            self._text += self._decoder.push(token)
            is_clean = self._decoder.is_clean
        self._held.append(_Held(token, logprobs, len(self._text), is_clean))
        if not self._stops or not may_stop:
            return self._release(len(self._held), len(self._text))
        start, matched = self._find()
        if matched:
            return self._stop(start, matched)
        return self._release(*self._safe(len(self._text) - self._suspicious()))

    def finish(self) -> Release:
        """Release everything; bytes of an unfinished character become U+FFFD."""
        if self._decoder is not None:
            self._text += self._decoder.flush()
        return self._release(len(self._held), len(self._text))

    def _find(self) -> tuple[int, str]:
        """Start and text of the stop string that begins first; of several the longest."""
        found = [(start, stop) for stop in self._stops if (start := self._text.find(stop)) >= 0]
        return min(found, key=lambda hit: (hit[0], -len(hit[1])), default=(-1, ""))

    def _stop(self, start: int, matched: str) -> Release:
        count, _ = self._safe(start)
        dropped = len(self._held) - count
        release = self._release(count, start)
        self._held, self._text = [], ""
        return Release(release.tokens, release.text, release.logprobs, matched, dropped)

    def _suspicious(self) -> int:
        """Length of the longest end of the text that could begin a stop string."""
        for length in range(min(self._longest - 1, len(self._text)), 0, -1):
            end = self._text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0

    def _safe(self, limit: int) -> tuple[int, int]:
        """Most tokens whose text ends at or before `limit` without an unfinished character, and that end."""
        for count in range(len(self._held), 0, -1):
            last = self._held[count - 1]
            if last.end <= limit and last.is_clean:
                return count, last.end
        return 0, 0

    def _release(self, count: int, length: int) -> Release:
        out, self._held = self._held[:count], self._held[count:]
        text, self._text = self._text[:length], self._text[length:]
        self._held = [_Held(h.token, h.logprobs, h.end - length, h.is_clean) for h in self._held]
        return Release(
            tuple(h.token for h in out), text, tuple(h.logprobs for h in out if h.logprobs is not None)
        )
