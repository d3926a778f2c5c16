"""Small cubins and AMDGPU code objects written by hand, for tests that need no compiler."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ds4c_runtime.package.binary import KernelCode

CUDA, AMDGPU = 190, 224
"""`e_machine` of the two: `EM_CUDA` and `EM_AMDGPU` of LLVM."""
METADATA = 32
"""`NT_AMDGPU_METADATA` of LLVM."""
RESERVED_SECTION, RESERVED_BYTES = ".nv.shared.reserved.0", 1024
"""What `ptxas` of CUDA 13 keeps for the system from sm_90 on."""

PROCESSORS = {
    "gfx90a": 0x3F, "gfx942": 0x4C, "gfx1100": 0x41, "gfx1101": 0x46, "gfx1102": 0x47, "gfx1103": 0x44,
    "gfx1150": 0x43, "gfx1151": 0x4A, "gfx1152": 0x55, "gfx1200": 0x48, "gfx1201": 0x4E,
}  # fmt: skip
"""`EF_AMDGPU_MACH` of LLVM's "User Guide for AMDGPU Backend"."""


@dataclass(frozen=True)
class Part:
    """A section; `room` is its size where the file holds nothing of it."""

    name: str
    kind: int
    data: bytes = b""
    link: int = 0
    room: int = 0


def kernel(name: str, params: int = 2, **changes: object) -> KernelCode:
    """A kernel of pointers that is within every limit."""
    values: dict[str, object] = {
        "params": (8,) * params, "param_bytes": 8 * params, "threads": 256, "wave": 32, "registers": 40,
        "shared_bytes": 1024, "local_bytes": 0, "spilled": 0,
    }  # fmt: skip
    return KernelCode(name, **(values | changes))  # type: ignore[arg-type]


def write_elf(machine: int, flags: int, parts: Sequence[Part]) -> bytes:
    """An ELF file: header, contents of the sections, their names, their table."""
    names = b"\0"
    body, heads = b"", [bytes(64)]
    for part in [*parts, Part(".shstrtab", 3)]:
        offset, at = 64 + len(body), len(names)
        names += part.name.encode() + b"\0"
        data = names if part.name == ".shstrtab" else part.data
        size = part.room or len(data)
        heads.append(struct.pack("<IIQQQQIIQQ", at, part.kind, 0, 0, offset, size, part.link, 0, 4, 0))
        body += data + bytes(-len(data) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(heads), len(heads) - 1
    )
    return ident + head + body + b"".join(heads)


def cubin(kernels: Sequence[KernelCode], number: int = 90) -> bytes:
    """A cubin with kernels and no code."""
    strings, symbols, common = b"\0", bytes(24), b""
    parts: list[Part] = []
    reserved = RESERVED_BYTES if number >= 90 else 0
    for index, each in enumerate(kernels, 1):
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, index, 0, 8)
        strings += each.name.encode() + b"\0"
        common += struct.pack("<BBHII", 4, 0x2F, 8, index, each.registers)
        common += struct.pack("<BBHII", 4, 0x11, 8, index, each.local_bytes)
        parts.append(Part(f".text.{each.name}", 1, bytes(8)))
        parts.append(Part(f".nv.info.{each.name}", 0x70000000, _cubin_info(each)))
        if each.shared_bytes:
            room = each.shared_bytes + reserved
            parts.append(Part(f".nv.shared.{each.name}", 8, room=room))
    if reserved:
        parts.append(Part(RESERVED_SECTION, 8, room=RESERVED_BYTES))
    parts += [Part(".nv.info", 0x70000000, common), Part(".strtab", 3, strings)]
    parts.append(Part(".symtab", 2, symbols, link=len(parts)))
    return write_elf(CUDA, number << 8 | 4, parts)


def _cubin_info(each: KernelCode) -> bytes:
    data = struct.pack("<BBH", 3, 0x1B, 255)
    offset = 0
    for ordinal, size in enumerate(each.params):
        data += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)
        offset += size
    if each.threads is not None:
        data += struct.pack("<BBHIII", 4, 0x05, 12, each.threads, 1, 1)
    return data


def code_object(kernels: Sequence[KernelCode], gfx: str = "gfx1100") -> bytes:
    """A code object with descriptors and notes and no code."""
    strings, symbols = b"\0", bytes(24)
    for each in kernels:
        for name, kind, size in ((each.name, 2, 256), (f"{each.name}.kd", 1, 64)):
            symbols += struct.pack("<IBBHQQ", len(strings), 0x10 | kind, 0, 1, 0, size)
            strings += name.encode() + b"\0"
    data = pack({"amdhsa.kernels": [metadata(k) for k in kernels], "amdhsa.version": [1, 2]})
    note = struct.pack("<III", 7, len(data), METADATA) + b"AMDGPU\0\0" + data + bytes(-len(data) % 4)
    parts = [Part(".note", 7, note), Part(".dynstr", 3, strings), Part(".dynsym", 11, symbols, link=2)]
    return write_elf(AMDGPU, PROCESSORS[gfx], parts)


def metadata(each: KernelCode) -> dict[str, object]:
    """What the note says of a kernel."""
    starts = [sum(each.params[:i]) for i in range(len(each.params))]
    return {
        ".args": [{".offset": o, ".size": s} for o, s in zip(starts, each.params, strict=True)],
        ".group_segment_fixed_size": each.shared_bytes,
        ".kernarg_segment_size": each.param_bytes,
        ".max_flat_workgroup_size": each.threads,
        ".name": each.name,
        ".private_segment_fixed_size": each.local_bytes,
        ".sgpr_spill_count": 0,
        ".symbol": f"{each.name}.kd",
        ".uses_dynamic_stack": False,
        ".vgpr_count": each.registers,
        ".vgpr_spill_count": each.spilled,
        ".wavefront_size": each.wave,
    }


def pack(value: object) -> bytes:
    """MessagePack of a value, in the shortest form."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack("b" if value < 0 else "B", value)
        for limit, tag, form in ((1 << 8, 0xCC, ">BB"), (1 << 16, 0xCD, ">BH"), (1 << 32, 0xCE, ">BI")):
            if 0 <= value < limit:
                return struct.pack(form, tag, value)
        return struct.pack(">Bq", 0xD3, value)
    if isinstance(value, str):
        text = value.encode()
        return (bytes([0xA0 + len(text)]) if len(text) < 32 else struct.pack(">BB", 0xD9, len(text))) + text
    items = list(value.items() if isinstance(value, dict) else value)  # type: ignore[call-overload, union-attr]
    base, wide = (0x80, 0xDE) if isinstance(value, dict) else (0x90, 0xDC)
    head = bytes([base + len(items)]) if len(items) < 16 else struct.pack(">BH", wide, len(items))
    flat = [part for item in items for part in item] if isinstance(value, dict) else items
    return head + b"".join(pack(part) for part in flat)
