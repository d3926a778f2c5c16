"""Token histories against plain lists: slices, cuts, prefixes that never change, digests."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4c_runtime.history import BLOCK_TOKENS, History, Prefix

TOKENIZER = "ab" * 32
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["extend", "truncate", "prefix", "replace", "slice"]), st.integers(0, 10**6)),
    max_size=25,
)
LENGTHS = st.sampled_from([0, 1, 2, 100, 255, 256, 257, 300, 511, 512, 513, 700])


def digest(tokens: list[int], tokenizer: str = TOKENIZER) -> str:
    """As the contract says: tokens as little-endian u32, then the tokenizer's sha256."""
    return hashlib.sha256(np.array(tokens, "<u4").tobytes() + bytes.fromhex(tokenizer)).hexdigest()


def some(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint64).tolist()


@settings(max_examples=200)
@given(ACTIONS, st.lists(LENGTHS, min_size=25, max_size=25))
def test_like_a_list(actions: list[tuple[str, int]], lengths: list[int]) -> None:
    history, want = History(TOKENIZER), list[int]()
    kept: list[tuple[Prefix, list[int]]] = []
    for (action, number), length in zip(actions, lengths, strict=False):
        if action == "extend":
            added = some(length, number)
            history.extend(tuple(added) if number % 2 else added)
            want += added
        elif action == "truncate":
            to = number % (len(want) + 1)
            history.truncate(to)
            del want[to:]
        elif action == "prefix":
            to = number % (len(want) + 1)
            kept.append((history.prefix(to), want[:to]))
        elif action == "replace" and kept:
            prefix, tokens = kept[number % len(kept)]
            history.replace(prefix)
            want = list(tokens)
        else:
            start, end = sorted((number % (len(want) + 1), length))
            assert history.slice(start, end) == tuple(want[start:end])
        assert len(history) == len(want)
        assert history.slice(0, len(want)) == tuple(want)
        assert history.digest() == digest(want)
        at = number % (len(want) + 1)
        assert history.digest_at(at) == digest(want[:at])
        for prefix, tokens in kept:
            pairs = zip(tokens, want, strict=False)
            different = (i for i, (mine, other) in enumerate(pairs) if mine != other)
            assert history.common(prefix) == next(different, min(len(tokens), len(want)))
        for prefix, tokens in kept:  # whatever happens to the history they came from
            assert (len(prefix), prefix.tokens()) == (len(tokens), tuple(tokens))
            assert history.starts_with(prefix) == (want[: len(tokens)] == tokens)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 512, 600])
def test_slices_at_the_borders_of_blocks(length: int) -> None:
    tokens = some(length, length)
    history = History("", tokens)
    for start in {0, 1, 200, 255, 256, 257, 511, 512, length}:
        for end in {0, 1, 255, 256, 257, 512, 513, length, length + 9}:
            assert history.slice(start, end) == tuple(tokens[start:end])


def test_prefixes_share_blocks() -> None:
    history = History("", some(4 * BLOCK_TOKENS + 5, 1))
    one, other = history.prefix(3 * BLOCK_TOKENS + 7), history.prefix(4 * BLOCK_TOKENS + 5)
    assert all(a is b for a, b in zip(one.blocks, other.blocks, strict=False))
    history.truncate(2 * BLOCK_TOKENS + 1)
    history.extend([1, 2])
    copy = History("")
    copy.replace(one)
    assert copy.prefix(BLOCK_TOKENS).blocks[0] is other.blocks[0]
    copy.extend([3])
    assert len(one) == 3 * BLOCK_TOKENS + 7


def test_equal_blocks_that_are_not_shared_are_equal() -> None:
    tokens = some(2 * BLOCK_TOKENS + 5, 6)
    history = History("", tokens)
    assert history.starts_with(History("", tokens).prefix(len(tokens)))
    for wrong in (0, 2 * BLOCK_TOKENS - 1, 2 * BLOCK_TOKENS):
        other = [*tokens[:wrong], tokens[wrong] ^ 1, *tokens[wrong + 1 :]]
        assert not history.starts_with(History("", other).prefix(len(other)))


def test_a_digest_costs_one_block_whatever_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    from ds4c_runtime import history as module

    history = History(TOKENIZER, some(40 * BLOCK_TOKENS + 3, 2))
    hashed: list[int] = []
    to_array = np.array

    def counting(tokens: array[int], *, dtype: str) -> np.ndarray:
        hashed.append(len(tokens))
        return to_array(tokens, dtype=dtype)

    monkeypatch.setattr(module.np, "array", counting)
    for at in (40 * BLOCK_TOKENS + 3, 20 * BLOCK_TOKENS, 17 * BLOCK_TOKENS + 255, 0):
        history.digest_at(at)
    assert len(hashed) == 4
    assert max(hashed) < BLOCK_TOKENS


def test_tokenizer_and_order_are_part_of_the_digest() -> None:
    assert History("", [1, 2]).digest() == digest([1, 2], "")
    assert len({History(t, x).digest() for t in ("", TOKENIZER) for x in ([1, 2], [2, 1], [1])}) == 6


def test_counts() -> None:
    history = History("", [3, 1, 3] * 200)
    assert history.counts(5).tolist() == [0, 200, 0, 400, 0]


@pytest.mark.parametrize("to", [-1, 3])
def test_cuts_outside_are_mistakes_of_the_caller(to: int) -> None:
    history = History("", [1, 2])
    for cut in (history.truncate, history.prefix):
        with pytest.raises(AssertionError):
            cut(to)


def test_long_extensions_take_time_by_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in elements that are copied: each token once, and not the rest of all tokens for each block."""
    from ds4c_runtime import history as module

    copied: list[int] = []

    class Counting(array):  # type: ignore[type-arg]
        def __getitem__(self, index: object) -> object:
            found = super().__getitem__(index)  # type: ignore[call-overload]
            copied.append(len(found) if isinstance(index, slice) else 1)
            return Counting("I", found) if isinstance(index, slice) else found

    monkeypatch.setattr(module, "array", Counting)
    given = some(64 * BLOCK_TOKENS + 9, 4)
    assert History(TOKENIZER, given).slice(0, len(given)) == tuple(given)
    assert sum(copied) < 3 * len(given)
