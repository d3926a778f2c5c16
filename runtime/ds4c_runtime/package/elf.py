"""A reader of 64-bit little-endian ELF files: sections, symbols and notes.

The files are untrusted: every offset is checked, and whatever is wrong is one `ArtifactError` that names the
file. What sections and notes mean is for the readers of cubins and AMDGPU code objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ds4c_runtime.errors import ArtifactError

HEADER_BYTES = 64
SECTION_BYTES = 64
SEGMENT_BYTES = 56
SYMBOL_BYTES = 24
MAX_SECTIONS = 65535

NO_BITS = 8
"""Section type of memory that the file holds no bytes of."""
NOTES = 7
"""Section type of notes."""
FUNCTION = 2
"""Symbol type of code."""
OBJECT = 1
"""Symbol type of data."""


class View:
    """Bytes of a file with reads that stay inside."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.data = data

    def wrong(self, expected: str, got: object) -> ArtifactError:
        """The error of this file, to be raised."""
        return ArtifactError(f"{self.file} rejected: expected {expected}, got {got}; copy the artifact again")

    def bytes(self, offset: int, size: int, what: str) -> bytes:
        """`size` bytes at `offset`."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise self.wrong(f"{what} within {len(self.data)} bytes", f"{size} bytes at {offset}")
        return self.data[offset : offset + size]

    def unpack(self, form: str, offset: int, what: str) -> tuple[int, ...]:
        """Integers in the notation of `struct`, little-endian."""
        return struct.unpack("<" + form, self.bytes(offset, struct.calcsize("<" + form), what))

    def text(self, offset: int, what: str) -> str:
        """Text in ASCII that ends with a zero byte."""
        end = self.data.find(b"\0", offset) if 0 <= offset < len(self.data) else -1
        if end < 0:
            raise self.wrong(f"{what} that ends with a zero byte", f"none at {offset}")
        return decode(self, self.data[offset:end], what)


def decode(view: View, data: bytes, what: str) -> str:
    """ASCII text of some bytes of a file."""
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise view.wrong(f"{what} in ASCII", repr(data[:40])) from None


@dataclass(frozen=True)
class Section:
    """A section; `data` is empty where the file holds no bytes of it."""

    name: str
    kind: int
    size: int
    link: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    """A symbol; `section` is the index of the section that defines it, 0 for none."""

    name: str
    kind: int
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Note:
    """A note: who wrote it, what kind, and its content."""

    owner: str
    kind: int
    data: bytes


@dataclass(frozen=True)
class Elf:
    """A file that was read; `flags` and `abi_version` are what its machine makes of them."""

    file: str
    machine: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]

    @cached_property
    def by_name(self) -> dict[str, Section]:
        """Sections by name."""
        return {s.name: s for s in self.sections}

    def view(self, section: Section) -> View:
        """Bytes of a section, for checked reads."""
        return View(f"{self.file} {section.name}", section.data)

    def symbols(self, table: str) -> tuple[Symbol, ...]:
        """Symbols of a table such as `.symtab`, in order; empty if there is none."""
        section = self.by_name.get(table)
        if section is None:
            return ()
        view = self.view(section)
        if not 0 <= section.link < len(self.sections):
            raise view.wrong(f"names in one of {len(self.sections)} sections", section.link)
        if section.size % SYMBOL_BYTES:
            raise view.wrong(f"whole symbols of {SYMBOL_BYTES} bytes", f"{section.size} bytes")
        names = self.view(self.sections[section.link])
        found: list[Symbol] = []
        for at in range(0, len(section.data), SYMBOL_BYTES):
            name, info, _, index, value, size = view.unpack("IBBHQQ", at, "a symbol")
            found.append(Symbol(names.text(name, "a name"), info & 15, index, value, size))
        return tuple(found)

    def notes(self) -> Iterator[Note]:
        """Notes of all sections of notes."""
        for section in self.sections:
            if section.kind != NOTES:
                continue
            view, at = self.view(section), 0
            while at < len(section.data):
                owner, size, kind = view.unpack("III", at, "a note")
                start = at + 12 + _padded(owner)
                name = decode(view, view.bytes(at + 12, owner, "an owner").rstrip(b"\0"), "an owner")
                yield Note(name, kind, view.bytes(start, size, "a note"))
                at = start + _padded(size)


def read_elf(file: str, data: bytes, machine: int) -> Elf:
    """Read a file.

    Args:
        file: name for messages.
        data: content.
        machine: number of the machine it must be for.

    Raises:
        ArtifactError: another kind of file, another machine, or one that is damaged.
    """
    view = View(file, data)
    if data[:7] != b"\x7fELF\x02\x01\x01":
        raise view.wrong("an ELF file of 64 bits", repr(data[:7]))
    _, found, _, _, segments, sections, flags = view.unpack("HHIQQQI", 16, "a header")
    part, parts, entry, count, names = view.unpack("HHHHH", 54, "a header")
    if found != machine:
        raise view.wrong(f"code for machine {machine}", found)
    if entry != SECTION_BYTES or not 0 < count <= MAX_SECTIONS or names >= count:
        raise view.wrong("a table of sections with names", f"{count} of {entry} bytes, names in {names}")
    if parts and part != SEGMENT_BYTES:
        raise view.wrong(f"segments of {SEGMENT_BYTES} bytes", part)
    for at in range(parts):  # what a loader reads; its content is that of sections
        _, _, offset, _, _, size, _, _ = view.unpack("IIQQQQQQ", segments + SEGMENT_BYTES * at, "a segment")
        view.bytes(offset, size, "a segment")
    heads = [view.unpack("IIQQQQIIQQ", sections + SECTION_BYTES * i, "a section") for i in range(count)]
    bodies = [_body(view, head) for head in heads]
    texts = View(f"{file} names", bodies[names])
    made = tuple(
        Section(texts.text(head[0], "a name"), head[1], head[5], head[6], body)
        for head, body in zip(heads, bodies, strict=True)
    )
    return Elf(file, found, data[8], flags, made)


def _body(view: View, head: tuple[int, ...]) -> bytes:
    kind, offset, size = head[1], head[4], head[5]
    return b"" if kind in (0, NO_BITS) else view.bytes(offset, size, "a section")


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4
