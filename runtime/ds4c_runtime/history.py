"""The token history of a session: the truth that model state is a cache of.

Tokens lie in immutable blocks that sessions, forks and snapshots share, each with the state of the hash
after it, so a digest or a copy at any position costs one block and not the whole history.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """`BLOCK_TOKENS` tokens and the sha256 state after them."""

    tokens: array[int]
    hash: Any

    @staticmethod
    def after(previous: Any, tokens: array[int]) -> _Block:
        state = previous.copy()
        state.update(_bytes(tokens))
        return _Block(tokens, state)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first tokens of a history as they were when it was taken; never changes."""

    blocks: tuple[_Block, ...]
    tail: array[int]

    def __len__(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + len(self.tail)

    def tokens(self) -> tuple[int, ...]:
        """All tokens."""
        return tuple(t for block in self.blocks for t in block.tokens) + tuple(self.tail)


class History:
    """Tokens in order, with a digest that costs at most one block."""

    def __init__(self, tokenizer_sha256: str = "", tokens: Iterable[int] = ()) -> None:
        self._tokenizer = bytes.fromhex(tokenizer_sha256)
        self._blocks: list[_Block] = []
        self._tail: array[int] = array("I")
        self._length = 0
        self.extend(array("I", tokens))

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens at positions `[start, end)`."""
        end = min(end, self._length)
        full = len(self._blocks) * BLOCK_TOKENS
        if start >= full:
            return tuple(self._tail[start - full : max(0, end - full)])
        first, last = start // BLOCK_TOKENS, -(-min(end, full) // BLOCK_TOKENS)
        found: list[int] = []
        for block in self._blocks[first:last]:
            found.extend(block.tokens)
        found.extend(self._tail[: max(0, end - full)])
        return tuple(found[start - first * BLOCK_TOKENS : end - first * BLOCK_TOKENS])

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each token occurs, `[V]` int64."""
        return np.bincount(np.array(self.slice(0, self._length), np.int64), minlength=vocab_size)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        added = array("I", tokens)
        self._length += len(added)
        end = BLOCK_TOKENS - len(self._tail)
        self._tail.extend(added[:end])
        while len(self._tail) == BLOCK_TOKENS:
            self._blocks.append(_Block.after(self._hash_of_blocks(), self._tail))
            self._tail = added[end : end + BLOCK_TOKENS]
            end += BLOCK_TOKENS

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        assert 0 <= length <= self._length
        full = len(self._blocks) * BLOCK_TOKENS
        if length >= full:
            del self._tail[length - full :]
        else:
            keep = length // BLOCK_TOKENS
            self._tail = self._blocks[keep].tokens[: length - keep * BLOCK_TOKENS]
            del self._blocks[keep:]
        self._length = length

    def prefix(self, length: int) -> Prefix:
        """The first `length` tokens, kept as they are now; shares the blocks."""
        assert 0 <= length <= self._length
        keep = min(length // BLOCK_TOKENS, len(self._blocks))
        rest = length - keep * BLOCK_TOKENS
        source = self._blocks[keep].tokens if keep < len(self._blocks) else self._tail
        return Prefix(tuple(self._blocks[:keep]), source[:rest])

    def replace(self, prefix: Prefix) -> None:
        """Become the tokens of a prefix."""
        self._blocks, self._tail = list(prefix.blocks), prefix.tail[:]
        self._length = len(prefix)

    def starts_with(self, prefix: Prefix) -> bool:
        """Whether the first tokens are those of a prefix."""
        if len(prefix) > self._length:
            return False
        for mine, other in zip(self._blocks, prefix.blocks, strict=False):
            if mine is not other and mine.tokens != other.tokens:
                return False
        full = len(prefix.blocks) * BLOCK_TOKENS
        return self.slice(full, len(prefix)) == tuple(prefix.tail)

    def common(self, prefix: Prefix) -> int:
        """How many first tokens are those of a prefix; costs a look at each block that is not shared."""
        shared = 0
        for mine, other in zip(self._blocks, prefix.blocks, strict=False):
            if mine is not other and mine.tokens != other.tokens:
                return shared * BLOCK_TOKENS + _common(mine.tokens, other.tokens)
            shared += 1
        # One of the two has less than a block left.
        start = shared * BLOCK_TOKENS
        rest = prefix.blocks[shared].tokens if shared < len(prefix.blocks) else prefix.tail
        return start + _common(self.slice(start, start + BLOCK_TOKENS), rest)

    def digest(self) -> str:
        """Hex sha256 over the tokens as little-endian u32 and then the tokenizer's sha256 (32 bytes)."""
        return self.digest_at(self._length)

    def digest_at(self, length: int) -> str:
        """Digest of the first `length` tokens."""
        keep = min(length // BLOCK_TOKENS, len(self._blocks))
        state = self._blocks[keep - 1].hash.copy() if keep else hashlib.sha256()
        source = self._blocks[keep].tokens if keep < len(self._blocks) else self._tail
        state.update(_bytes(source[: length - keep * BLOCK_TOKENS]))
        state.update(self._tokenizer)
        return state.hexdigest()

    def _hash_of_blocks(self) -> Any:
        return self._blocks[-1].hash if self._blocks else hashlib.sha256()


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of equal leading tokens."""
    shared = min(len(first), len(second))
    return next((i for i in range(shared) if first[i] != second[i]), shared)


def _bytes(tokens: array[int]) -> bytes:
    return np.array(tokens, dtype="<u4").tobytes()
