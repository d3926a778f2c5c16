"""A strict reader of MessagePack: what the notes of code objects use, and nothing else.

Source: the MessagePack specification (formats nil to map 32). Bytes, floats and extensions are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ds4c_runtime.package.elf import View, decode

MAX_DEPTH = 16

Value = None | bool | int | str | list["Value"] | dict[str, "Value"]


def unpack(view: View) -> Value:
    """The one value that the bytes of a view hold.

    Raises:
        ArtifactError: another format, a value that is cut, or bytes after it.
    """
    reader = _Reader(view)
    value = reader.value(0)
    if reader.at != len(view.data):
        raise view.wrong("one value", f"{len(view.data) - reader.at} bytes after it")
    return value


class _Reader:
    def __init__(self, view: View) -> None:
        self.view = view
        self.at = 0

    def number(self, form: str) -> int:
        """An integer in the notation of `struct`, big-endian."""
        size = {"B": 1, "H": 2, "I": 4, "Q": 8}[form.upper()]
        data = self.view.bytes(self.at, size, "a number")
        self.at += size
        return int.from_bytes(data, "big", signed=form.islower())

    def value(self, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise self.view.wrong(f"at most {MAX_DEPTH} levels", "more")
        tag = self.number("B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self.map(tag & 0x0F, depth)
        if tag < 0xA0:
            return self.array(tag & 0x0F, depth)
        if tag < 0xC0:
            return self.text(tag & 0x1F)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _INTEGERS:
            return self.number(_INTEGERS[tag])
        if tag in _SIZES:
            kind, form = _SIZES[tag]
            size = self.number(form)
            made: dict[str, Callable[[], Value]] = {
                "text": lambda: self.text(size),
                "array": lambda: self.array(size, depth),
                "map": lambda: self.map(size, depth),
            }
            return made[kind]()
        raise self.view.wrong("nil, a truth value, an integer, text, an array or a map", f"0x{tag:02x}")

    def text(self, size: int) -> str:
        data = self.view.bytes(self.at, size, "text")
        self.at += size
        return decode(self.view, data, "text")

    def array(self, size: int, depth: int) -> list[Value]:
        return [self.value(depth + 1) for _ in range(size)]

    def map(self, size: int, depth: int) -> dict[str, Value]:
        made: dict[str, Value] = {}
        for _ in range(size):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in made:
                raise self.view.wrong("keys that are text, each once", repr(key)[:40])
            made[key] = self.value(depth + 1)
        return made


_CONSTANTS: dict[int, Value] = {0xC0: None, 0xC2: False, 0xC3: True}
_INTEGERS = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
_SIZES = {
    0xD9: ("text", "B"),
    0xDA: ("text", "H"),
    0xDB: ("text", "I"),
    0xDC: ("array", "H"),
    0xDD: ("array", "I"),
    0xDE: ("map", "H"),
    0xDF: ("map", "I"),
}


class Fields:
    """A map of a note with reads that check the type."""

    def __init__(self, view: View, value: Value, what: str) -> None:
        if not isinstance(value, dict):
            raise view.wrong(f"a map for {what}", type(value).__name__)
        self._view, self._values, self._what = view, value, what

    def number(self, key: str) -> int:
        """An integer of at least 0."""
        value = self._values.get(key)
        if type(value) is not int or value < 0:
            raise self._view.wrong(f"a number {key} of {self._what}", repr(value)[:40])
        return value

    def text(self, key: str) -> str:
        """Text."""
        value = self._values.get(key)
        if not isinstance(value, str):
            raise self._view.wrong(f"a text {key} of {self._what}", repr(value)[:40])
        return value

    def maps(self, key: str) -> list[Fields]:
        """An array of maps; empty if the key is absent."""
        value = self._values.get(key, cast(Value, []))
        if not isinstance(value, list):
            raise self._view.wrong(f"an array {key} of {self._what}", repr(value)[:40])
        return [Fields(self._view, item, f"{key} of {self._what}") for item in value]
