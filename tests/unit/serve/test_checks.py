"""Borders of requests and answers, without a server."""

from __future__ import annotations

import pytest
from fake_executable import fake_engine

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.checks import check_token_ids, new_session_id, pin
from ds4c_serve.convert import duration, timestamp
from ds4c_serve.errors import cut
from ds4c_serve.v1 import engine_pb2 as pb


def test_a_token_is_below_the_size_of_the_vocabulary() -> None:
    with fake_engine(vocab_size=1024) as engine:
        assert check_token_ids([0, 1023], engine, "ids") == [0, 1023]
        assert check_token_ids([], engine, "ids") == []
        for ids in ([5, 1024], [5, 1024, 2000]):
            with pytest.raises(InvalidRequestError, match="below 1024, got 1024 at index 1") as caught:
                check_token_ids(ids, engine, "ids")
            assert caught.value.field == "ids"


def test_a_session_id_has_at_most_128_characters() -> None:
    assert new_session_id("a" * 128, "id") == "a" * 128
    assert new_session_id("", "id") is None, "the engine chooses"
    for wrong in ("a" * 129, "a b", "ä"):
        with pytest.raises(InvalidRequestError, match=f"got {len(wrong)} characters") as caught:
            new_session_id(wrong, "id")
        assert caught.value.field == "id"


def test_a_label_has_at_most_128_printable_characters() -> None:
    def label(text: str) -> str:
        return pin(pb.PinSnapshotRequest(session_id="s", position=1, label=text)).label

    assert label("a" * 128) == "a" * 128
    for wrong in ("a" * 129, "a\n"):
        with pytest.raises(InvalidRequestError, match=f"got {len(wrong)} characters") as caught:
            label(wrong)
        assert caught.value.field == "label"


@pytest.mark.parametrize(
    ("seconds", "whole", "nanoseconds"), [(0.0, 0, 0), (1.5, 1, 500_000_000), (3e-9, 0, 3), (2.0, 2, 0)]
)
def test_times_are_exact_to_the_nanosecond(seconds: float, whole: int, nanoseconds: int) -> None:
    for message in (duration(seconds), timestamp(seconds)):
        assert (message.seconds, message.nanos) == (whole, nanoseconds)


def test_only_a_longer_text_is_cut() -> None:
    assert cut("0123456789", 10) == "0123456789"
    assert cut("0123456789a", 10) == "01 ... 9a"
