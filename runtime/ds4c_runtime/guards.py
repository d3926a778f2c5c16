"""Refusals that sessions and the engine share: tokens, capacities, chunk sizes. They change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ds4c_runtime.errors import ContextLengthError, InvalidRequestError


def check_tokens(tokens: Sequence[int], vocab_size: int, *, field: str = "tokens") -> None:
    """Refuse tokens outside `[0, vocab_size)`.

    Raises:
        InvalidRequestError: naming the first of them.
    """
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"tokens refused: expected ids in [0, {vocab_size}), got {token}", field=field
            )


def check_length(position: int, capacity: int) -> None:
    """Refuse a position beyond the capacity of a session.

    Raises:
        ContextLengthError: with both numbers, in tokens.
    """
    if position > capacity:
        raise ContextLengthError(position, capacity)


def check_capacity(capacity: int | None, context: int) -> int:
    """Capacity of a new session, in tokens; the context of the model if `None`.

    Raises:
        InvalidRequestError: not in `[1, context]`.
    """
    if capacity is not None and not 1 <= capacity <= context:
        raise InvalidRequestError(
            f"session not opened: expected a capacity of 1 to {context} tokens, got {capacity}",
            field="capacity",
        )
    return context if capacity is None else capacity


def check_chunk(chunk: int | None, most: int) -> int:
    """Tokens per step of a prefill; `most` if `None`.

    Raises:
        InvalidRequestError: not in `[1, most]`.
    """
    if chunk is not None and not 1 <= chunk <= most:
        raise InvalidRequestError(
            f"prefill refused: expected a chunk of 1 to {most} tokens, got {chunk}", field="chunk"
        )
    return most if chunk is None else chunk
