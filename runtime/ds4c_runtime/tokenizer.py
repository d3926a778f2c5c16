"""Text to tokens and back, for byte-level BPE tokenizers in the `tokenizers` format.

Markers such as `<｜User｜>` are tokens only where the caller says so; in other text they are ordinary
characters. What the markers mean is in `chat.py`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from ds4c_runtime.errors import ArtifactError, InvalidRequestError


class Tokenizer:
    """A loaded `tokenizer.json`."""

    def __init__(self, text: str) -> None:
        """Read the text of a `tokenizer.json`.

        Raises:
            ArtifactError: not a byte-level BPE tokenizer, or one in which plain text yields a marker.
        """
        import tokenizers

        self.sha256 = hashlib.sha256(text.encode()).hexdigest()
        try:
            spec = cast(dict[str, Any], json.loads(text))
            self._full = tokenizers.Tokenizer.from_str(text)
            markers = cast(list[dict[str, Any]], spec["added_tokens"])
            self.markers: dict[str, int] = {m["content"]: m["id"] for m in markers}
            self._plain = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
            decoder = cast(str, spec["decoder"]["type"])
        except Exception as error:  # the library raises bare Exception
            raise ArtifactError(f"tokenizer rejected: expected a tokenizer.json, got {error}") from error
        if decoder != "ByteLevel":
            raise ArtifactError(f"tokenizer rejected: expected decoder 'ByteLevel', got {decoder!r}")
        self.vocab_size: int = self._full.get_vocab_size(with_added_tokens=True)
        self._bytes = self._token_bytes()
        ids = set(self.markers.values())
        for content in self.markers:
            if ids & set(self.encode(content)):
                raise ArtifactError(
                    f"tokenizer rejected: expected {content!r} in text to be no marker, got one"
                )

    @staticmethod
    def from_file(path: Path | str) -> Tokenizer:
        """Load a `tokenizer.json`.

        Raises:
            ArtifactError: unreadable or rejected.
        """
        try:
            return Tokenizer(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"tokenizer rejected: expected a readable {path}, got {error}") from error

    def marker(self, content: str) -> int:
        """Id of a marker.

        Raises:
            ArtifactError: the tokenizer has none of that text.
        """
        if content not in self.markers:
            raise ArtifactError(
                f"chat markup refused: expected a marker {content!r} in the tokenizer, got none"
            )
        return self.markers[content]

    def encode(self, text: str, *, bos_token_id: int | None = None, parse_special: bool = False) -> list[int]:
        """Tokens of a text.

        Args:
            text: any text.
            bos_token_id: put before the tokens if given.
            parse_special: read markers in the text as markers. Only for text the caller wrote itself.

        Raises:
            InvalidRequestError: the text has lone surrogates, which no encoding can hold.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"text refused: expected Unicode text, got {error}", field="text"
            ) from error
        tokenizer = self._full if parse_special else self._plain
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return ([] if bos_token_id is None else [bos_token_id]) + ids

    def token_bytes(self, token: int) -> bytes:
        """Bytes a token stands for; markers stand for their text.

        Raises:
            InvalidRequestError: no such token.
        """
        if not 0 <= token < len(self._bytes):
            raise InvalidRequestError(
                f"token refused: expected an id in [0, {len(self._bytes)}), got {token}", field="tokens"
            )
        return self._bytes[token]

    def decode(self, tokens: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of tokens; bytes that are not UTF-8 become U+FFFD. `skip_special` drops all markers."""
        dropped = set(self.markers.values()) if skip_special else set[int]()
        return b"".join(self.token_bytes(t) for t in tokens if t not in dropped).decode("utf-8", "replace")

    def stream_decoder(self) -> StreamDecoder:
        """Decoder for tokens that come one by one."""
        return StreamDecoder(self)

    def _token_bytes(self) -> list[bytes]:
        table = {chr(code): byte for byte, code in enumerate(_byte_level_codes())}
        contents = {id_: content for content, id_ in self.markers.items()}
        result: list[bytes] = []
        for token in range(self.vocab_size):
            text = self._full.id_to_token(token) or ""
            if token in contents or any(c not in table for c in text):
                result.append(contents.get(token, text).encode())
            else:
                result.append(bytes(table[c] for c in text))
        return result


class StreamDecoder:
    """Turns tokens into text, holding back the bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is complete after this token."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    @property
    def is_clean(self) -> bool:
        """Whether no bytes are held back."""
        return not self._decoder.getstate()[0]

    def flush(self) -> str:
        """Text of the bytes held back, as U+FFFD; the decoder starts anew."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def _byte_level_codes() -> Sequence[int]:
    """Code point that stands for each byte in the vocabulary of a byte-level BPE.

    Printable bytes stand for themselves, the others for the code points from 256 on, in order
    (Source: the byte encoder published with GPT-2).
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    extra = iter(range(256, 512))
    return [byte if byte in printable else next(extra) for byte in range(256)]
