"""Readers of binaries: what was written is read back; cut, flipped and false files are refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import elf_writer
import pytest
from elf_writer import Part, kernel, pack, write_elf

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.package.amdgpu import read_code_object
from ds4c_runtime.package.binary import Binary
from ds4c_runtime.package.cubin import read_cubin
from ds4c_runtime.package.elf import View, read_elf
from ds4c_runtime.package.msgpack import MAX_DEPTH, unpack
from ds4c_runtime.package.ptx import read_ptx

Read = Callable[[str, bytes], Binary]
KERNELS = (kernel("add_rows", 3), kernel("merge", 5, registers=255, shared_bytes=0, local_bytes=8))
MADE: list[tuple[str, Read, bytes]] = [
    ("cubin", read_cubin, elf_writer.cubin(KERNELS)),
    ("code object", read_code_object, elf_writer.code_object([replace(k, spilled=2) for k in KERNELS])),
]
cases = pytest.mark.parametrize(("read", "data"), [m[1:] for m in MADE], ids=[m[0] for m in MADE])


def test_a_cubin_is_read_back() -> None:
    for number in (80, 90, 120):
        found = read_cubin("k.cubin", elf_writer.cubin(KERNELS, number))
        assert found == Binary("k.cubin", f"sm_{number}", KERNELS)


def test_the_names_of_sections_are_in_one_of_them() -> None:
    """`e_shnum` and `e_shstrndx` are the last two numbers of the header."""
    data = bytearray(elf_writer.cubin(KERNELS))
    count, names = struct.unpack_from("<HH", data, 60)
    assert names == count - 1
    for wrong in (count, count + 1):
        struct.pack_into("<H", data, 62, wrong)
        with pytest.raises(ArtifactError, match=f"sections with names, got {count} of 64 bytes"):
            read_cubin("k.cubin", bytes(data))


@pytest.mark.parametrize("index", [3, 4, 2**31])
def test_registers_of_no_symbol_are_refused(index: int) -> None:
    """There are three symbols: none and the two kernels."""
    data = elf_writer.cubin(KERNELS)
    true = struct.pack("<BBHII", 4, 0x2F, 8, 2, 255)
    assert data.count(true) == 1
    with pytest.raises(ArtifactError, match=f"expected one of 3 symbols, got {index}"):
        read_cubin("k.cubin", data.replace(true, struct.pack("<BBHII", 4, 0x2F, 8, index, 255)))


@pytest.mark.parametrize("gfx", elf_writer.PROCESSORS)
def test_a_code_object_is_read_back(gfx: str) -> None:
    found = read_code_object("k.co", elf_writer.code_object(KERNELS, gfx))
    assert found == Binary("k.co", gfx, KERNELS)


def read_or_refuse(read: Read, data: bytes) -> bool:
    """Whether it was read; anything but a value or a one-line `ArtifactError` fails the test."""
    try:
        read("k", data)
    except ArtifactError as error:
        message = str(error)
    else:
        return True
    assert "\n" not in message
    assert len(message) < 400
    return False


@cases
def test_every_cut_file_is_refused(read: Read, data: bytes) -> None:
    assert [n for n in range(len(data)) if read_or_refuse(read, data[:n])] == []


@pytest.mark.slow
@cases
def test_flipped_bits_give_a_value_or_a_refusal(read: Read, data: bytes) -> None:
    refused = 0
    for at in range(len(data)):
        for bit in range(8):
            refused += not read_or_refuse(read, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
    assert refused > len(data) // 2


@cases
def test_random_damage_gives_a_value_or_a_refusal(read: Read, data: bytes) -> None:
    rng = random.Random(5)
    for _ in range(2000):
        made = bytearray(data)
        for _ in range(rng.choice((1, 2, 4, 40))):
            made[rng.randrange(len(made))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        start = rng.randrange(len(made))
        if rng.random() < 0.2:
            del made[start : start + rng.randrange(1, 64)]
        read_or_refuse(read, bytes(made))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".symbol": "other.kd"}, "expected the descriptor add_rows.kd, got other.kd"),
        ({".name": "other", ".symbol": "other.kd"}, "expected a descriptor of other, got none"),
        ({".vgpr_count": -1}, "expected a number .vgpr_count of amdhsa.kernels of the note, got -1"),
        ({".vgpr_count": True}, "got True"),
        ({".name": 5}, "expected a text .name"),
        ({".args": {}}, "expected an array .args"),
        ({".args": [{".offset": 8, ".size": 8}, {".offset": 0, ".size": 8}]}, "one after the other"),
        ({".args": [{".offset": 0, ".size": 8}, {".offset": 7, ".size": 8}]}, "8 bytes at 7"),
    ],
)
def test_notes_that_contradict_are_refused(
    change: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = elf_writer.metadata
    monkeypatch.setattr(elf_writer, "metadata", lambda each: true(each) | change)
    with pytest.raises(ArtifactError) as caught:
        read_code_object("k.co", elf_writer.code_object(KERNELS[:1]))
    assert message in str(caught.value)


def test_a_descriptor_without_metadata_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = pack({"amdhsa.kernels": []})
    monkeypatch.setattr(elf_writer, "pack", lambda _: empty)
    with pytest.raises(ArtifactError, match="expected metadata of add_rows, got none"):
        read_code_object("k.co", elf_writer.code_object(KERNELS[:1]))


def test_other_files_are_refused() -> None:
    for data, message in (
        (b"", "an ELF file of 64 bits"),
        (b"\x7fELF\x01\x01\x01" + bytes(64), "an ELF file of 64 bits"),
        (write_elf(62, 0, []), "expected code for machine 190, got 62"),
    ):
        with pytest.raises(ArtifactError, match=message):
            read_cubin("k.cubin", data)


def test_a_section_without_content_may_be_larger_than_the_file() -> None:
    elf = read_elf("k", write_elf(190, 0, [Part(".room", 8, room=1 << 40)]), 190)
    assert elf.by_name[".room"].size == 1 << 40


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 1 << 32, -1, -32, -33, -1 << 40, "", "x" * 31,
     "x" * 200, [], [1, [2, "a"]], list(range(20)), {}, {"a": {"b": [None]}}, {str(i): i for i in range(20)}],
)  # fmt: skip
def test_messagepack_is_read_back(value: object) -> None:
    assert unpack(View("m", pack(value))) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xc4\x01a", "got 0xc4"),
        (b"\xcb" + bytes(8), "got 0xcb"),
        (b"\xc1", "got 0xc1"),
        (b"\x01\x02", "1 bytes after it"),
        (b"\x82\xa1a\x01\xa1a\x02", "each once"),
        (b"\x81\x01\x02", "keys that are text"),
        (b"\x91" * (MAX_DEPTH + 2) + b"\x01", "at most 16 levels"),
        (b"\xa1\xff", "in ASCII"),
        (b"\xdd\xff\xff\xff\xff", "within 5 bytes"),
        (b"\xdb\xff\xff\xff\xff", "within 5 bytes"),
    ],
)
def test_other_messagepack_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        unpack(View("m", data))
    assert message in str(caught.value)


PTX = """
// .entry hidden(
.version 9.0
.target sm_120
.visible .entry add_rows(
\t.param .u64 add_rows_param_0,
\t.param .u64 .ptr .align 1 add_rows_param_1 /* .param .u32 no */
)
.maxntid 128, 2
{
\tret;
}
.func helper(.param .u64 x) { ret; }
\t.visible .entry nothing()
{ ret; }
"""


def test_ptx() -> None:
    found = read_ptx("k.ptx", PTX)
    assert found.architecture == "sm_120"
    assert [(e.name, e.params, e.threads) for e in found.entries] == [
        ("add_rows", ("u64", "u64"), 256),
        ("nothing", (), None),
    ]
    for text, message in ((PTX * 2, "add_rows again"), ("", "expected PTX with a .target")):
        with pytest.raises(ArtifactError, match=message):
            read_ptx("k.ptx", text)
