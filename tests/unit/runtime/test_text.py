"""Tokenizer, streaming of text and stop strings, on the demo model's tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers

from ds4c_runtime.errors import ArtifactError, InvalidRequestError
from ds4c_runtime.stops import TokenText
from ds4c_runtime.tokenizer import Tokenizer

PATH = Path(__file__).parents[3] / "demo" / "model" / "tokenizer.json"
TOKENIZER = Tokenizer.from_file(PATH)
TEXTS = ["", "Hello!", "12 345 times 7", "Größe ✓ 漢字 🎉\n\n  x", "<think>", "\x00\x7f\ufffd", "a" * 300]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    decoder = TOKENIZER.stream_decoder()
    assert "".join(decoder.push(t) for t in tokens) + decoder.flush() == text


def test_markers_in_text_are_no_markers_unless_asked_for() -> None:
    markers = set(TOKENIZER.markers.values())
    for marker, token in TOKENIZER.markers.items():
        text = f"a {marker} b"
        plain = TOKENIZER.encode(text)
        assert not markers & set(plain)
        assert TOKENIZER.decode(plain) == text
        assert token in TOKENIZER.encode(text, parse_special=True)
    assert TOKENIZER.encode("x", bos_token_id=0)[0] == 0
    assert TOKENIZER.decode(TOKENIZER.encode("a<think>b", parse_special=True), skip_special=True) == "ab"
    assert TOKENIZER.marker("<think>") == 1013
    with pytest.raises(ArtifactError):
        TOKENIZER.marker("<none>")


def test_decoding_equals_the_tokenizers_library() -> None:
    library = tokenizers.Tokenizer.from_file(str(PATH))
    chooser = random.Random(1)
    for _ in range(500):
        tokens = chooser.choices(range(TOKENIZER.vocab_size), k=chooser.randint(0, 20))
        expected = library.decode(tokens, skip_special_tokens=False)
        decoder = TOKENIZER.stream_decoder()
        assert TOKENIZER.decode(tokens) == expected
        assert "".join(decoder.push(t) for t in tokens) + decoder.flush() == expected


def test_unfinished_characters_are_held_back() -> None:
    tokens = TOKENIZER.encode("🎉")
    assert len(tokens) > 1
    decoder = TOKENIZER.stream_decoder()
    for token in tokens[:-1]:
        assert decoder.push(token) == ""
        assert not decoder.is_clean
    assert decoder.push(tokens[-1]) == "🎉"
    assert decoder.is_clean
    decoder.push(tokens[0])
    assert decoder.flush() == "\ufffd"
    assert decoder.is_clean


def test_refusals() -> None:
    with pytest.raises(InvalidRequestError):
        TOKENIZER.encode("\ud800")
    for token in (-1, 1024):
        with pytest.raises(InvalidRequestError):
            TOKENIZER.decode([token])
    for text in ("", "{}", "[]", "{"):
        with pytest.raises(ArtifactError):
            Tokenizer(text)
    spec = json.loads(PATH.read_text())
    spec["decoder"] = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": False}
    with pytest.raises(ArtifactError, match="ByteLevel"):
        Tokenizer(json.dumps(spec))
    with pytest.raises(ArtifactError):
        Tokenizer.from_file(PATH / "missing")


def released(text: str, stops: tuple[str, ...]) -> tuple[str, list[int], str, int]:
    stream, out, ids = TokenText(TOKENIZER, stops), "", list[int]()
    for token in TOKENIZER.encode(text):
        release = stream.push(token)
        out += release.text
        ids += release.tokens
        # What was released can never be part of a later match.
        assert not any(stop in out for stop in stops)
        if release.matched:
            return out, ids, release.matched, release.dropped
    last = stream.finish()
    return out + last.text, ids + list(last.tokens), "", 0


def test_random_stop_strings_are_found_where_the_text_has_them() -> None:
    chooser = random.Random(2)
    for _ in range(600):
        text = "".join(chooser.choices("abé✓ 1", k=chooser.randint(1, 25)))
        stops = tuple("".join(chooser.choices("abé✓ 1", k=chooser.randint(1, 4))) for _ in range(2))
        out, ids, matched, dropped = released(text, stops)
        tokens = TOKENIZER.encode(text)
        assert ids == tokens[: len(ids)]
        hits = [text.find(s) for s in stops if s in text]
        if not hits:
            assert (out, ids, matched) == (text, tokens, "")
            continue
        assert matched in stops
        assert out + matched == text[: len(out) + len(matched)]
        kept = b"".join(TOKENIZER.token_bytes(t) for t in ids)
        assert out.encode().startswith(kept)
        kept.decode()
        assert dropped >= 1
        # No token is dropped whose text is wholly before the match.
        one_more = b"".join(TOKENIZER.token_bytes(t) for t in tokens[: len(ids) + 1])
        assert (
            len(one_more) > len(out.encode())
            or not out.encode().startswith(one_more)
            or not is_text(one_more)
        )
        # The match that is found first ends no later than any other.
        assert len(out) + len(matched) <= min(text.find(s) + len(s) for s in stops if s in text) + 8


def is_text(data: bytes) -> bool:
    return data == data.decode("utf-8", "replace").encode()


def test_text_is_released_as_soon_as_it_is_final() -> None:
    stream = TokenText(TOKENIZER, ("xyz",))
    for token in TOKENIZER.encode("plain words"):
        assert stream.push(token).tokens == (token,)
    held = [stream.push(t) for t in TOKENIZER.encode("x")]
    assert [h.tokens for h in held] == [()]
    assert stream.push(TOKENIZER.encode("q")[0]).text == "xq"


def test_of_several_matches_the_first_and_longest_counts() -> None:
    assert released("xx abcd", ("bc", "abc", "abcd"))[0:3:2] in (("xx ", "abcd"), ("xx ", "abc"))


def test_of_stop_strings_that_begin_at_one_place_the_longest_counts() -> None:
    (token,) = TOKENIZER.encode(" the")  # all of them appear at once
    for stops in ((" t", " the", " th"), (" the", " th", " t")):
        release = TokenText(TOKENIZER, stops).push(token)
        assert (release.text, release.matched, release.dropped) == ("", " the", 1)


def test_without_stop_strings_nothing_is_held() -> None:
    stream = TokenText(TOKENIZER)
    for token in TOKENIZER.encode("a🎉b"):
        assert stream.push(token).tokens == (token,)
    silent = TokenText(None)
    assert silent.push(5).tokens == (5,)
    assert silent.finish().text == ""
