"""The token history of a session: the truth that model state is a cache of."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """Tokens in order, with a digest that costs only the tokens added since it was last asked for."""

    def __init__(self, tokenizer_sha256: str = "", tokens: Iterable[int] = ()) -> None:
        self._tokenizer = bytes.fromhex(tokenizer_sha256)
        self._tokens = array("I", tokens)
        self._hash = hashlib.sha256()
        self._hashed = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def slice(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens at positions `[start, end)`."""
        return tuple(self._tokens[start:end])

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each token occurs, `[V]` int64."""
        return np.bincount(np.array(self._tokens, np.int64), minlength=vocab_size)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self._tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        assert 0 <= length <= len(self._tokens)
        del self._tokens[length:]
        if length < self._hashed:
            self._hash, self._hashed = hashlib.sha256(), 0

    def digest(self) -> str:
        """Hex sha256 over the tokens as little-endian u32 and then the tokenizer's sha256 (32 bytes)."""
        fresh = np.array(self._tokens[self._hashed :], dtype="<u4")
        self._hash.update(fresh.tobytes())
        self._hashed = len(self._tokens)
        final = self._hash.copy()
        final.update(self._tokenizer)
        return final.hexdigest()
