"""Tokens of Metal text: names, numbers and punctuation, with their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ds4c_runtime.package.texts import without_comments

INCLUDE = "#include <metal_stdlib>"

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?:0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[a-zA-Z]*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark><<=|>>=|::|\+\+|--|->|&&|\|\||<<|>>|[-+*/%&|^=!<>]=|[-+*/%&|^=!<>~?:;,.(){}\[\]])"
)


class Found(Exception):
    """A fault: what was expected and what is there."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got[:120]


class Tokens:
    """Tokens with a place; `word` is empty at the end."""

    def __init__(self, tokens: Sequence[tuple[str, int]]) -> None:
        self.all = tokens
        self.at = 0

    @property
    def word(self) -> str:
        """The token at the place."""
        return self.peek(0)

    def peek(self, ahead: int) -> str:
        """A token near the place."""
        at = self.at + ahead
        return self.all[at][0] if 0 <= at < len(self.all) else ""

    def take(self) -> str:
        """The token at the place, which moves on."""
        word = self.word
        self.at += 1
        return word

    def expect(self, word: str) -> None:
        """Move over a token that must be there."""
        if self.word != word:
            raise self.found(f"`{word}`")
        self.at += 1

    def found(self, expected: str) -> Found:
        """The fault of the token at the place."""
        line = self.all[min(self.at, len(self.all) - 1)][1] if self.all else 0
        return Found(expected, f"`{self.word or 'the end'}` in line {line}")

    def list_until(self, closing: str) -> list[list[str]]:
        """Tokens up to a closing bracket, split at the commas outside of other brackets; moves behind it."""
        parts: list[list[str]] = [[]]
        depth = 0
        while self.word and (depth or self.word != closing):
            depth += (self.word in _OPEN) - (self.word in _CLOSE)
            if self.word == "," and not depth:
                parts.append([])
            else:
                parts[-1].append(self.word)
            self.at += 1
        self.expect(closing)
        return parts if parts != [[]] else []


_OPEN, _CLOSE = ("(", "[", "{"), (")", "]", "}")


def tokens_of(text: str) -> Tokens:
    """Tokens of a text whose only directive is the include of the standard library.

    Raises:
        Found: another directive, or a character that belongs to no token.
    """
    lines = without_comments(text).split("\n")
    made: list[tuple[str, int]] = []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            if line.strip() != INCLUDE:
                raise Found(f"{INCLUDE} as the only directive", line.strip())
            continue
        made += [(word, number) for word in _words(line, number)]
    return Tokens(made)


def _words(line: str, number: int) -> list[str]:
    words: list[str] = []
    at = 0
    while at < len(line):
        found = _TOKEN.match(line, at)
        if found is None:
            raise Found("text of tokens", f"{line[at]!r} in line {number}")
        if found.lastgroup != "space":
            words.append(found.group())
        at = found.end()
    return words
