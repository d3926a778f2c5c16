"""Kernels of an AMDGPU code object: registers, scratch, LDS and arguments, from its notes and symbols.

Source: "User Guide for AMDGPU Backend" of LLVM: e_flags, code object metadata, kernel descriptors.
"""

from __future__ import annotations

from ds4c_runtime.package.binary import Binary, KernelCode
from ds4c_runtime.package.elf import OBJECT, Elf, View, read_elf
from ds4c_runtime.package.msgpack import Fields, unpack

MACHINE = 224
METADATA = 32
"""Kind of the note with the metadata."""
DESCRIPTOR_BYTES = 64

_MACHINES = {
    0x3F: "gfx90a",
    0x41: "gfx1100",
    0x43: "gfx1150",
    0x44: "gfx1103",
    0x46: "gfx1101",
    0x47: "gfx1102",
    0x48: "gfx1200",
    0x4A: "gfx1151",
    0x4C: "gfx942",
    0x4E: "gfx1201",
    0x55: "gfx1152",
}
"""Low byte of e_flags: the processor."""


def read_code_object(file: str, data: bytes) -> Binary:
    """Read a code object.

    Args:
        file: name for messages.
        data: content.

    Raises:
        ArtifactError: not a code object, a damaged one, or kernels whose notes and symbols disagree.
    """
    elf = read_elf(file, data, MACHINE)
    notes = [n for n in elf.notes() if n.owner == "AMDGPU" and n.kind == METADATA]
    view = View(file, data)
    if len(notes) != 1:
        raise view.wrong("one note with metadata", len(notes))
    kernels = _kernels(View(f"{file} metadata", notes[0].data))
    described = _descriptors(elf)
    for kernel in kernels:
        if kernel.name not in described:
            raise view.wrong(f"a descriptor of {kernel.name}", "none")
    for name in described - {k.name for k in kernels}:
        raise view.wrong(f"metadata of {name}", "none")
    code = elf.flags & 0xFF
    architecture = _MACHINES.get(code, f"processor 0x{code:02x}")
    return Binary(file, architecture, tuple(sorted(kernels, key=lambda k: k.name)))


def _descriptors(elf: Elf) -> set[str]:
    """Names of the kernels that a loader finds."""
    found: set[str] = set()
    symbols = elf.symbols(".dynsym")
    defined = {s.name for s in symbols if s.section}
    for symbol in symbols:
        if symbol.kind != OBJECT or not symbol.name.endswith(".kd") or not symbol.section:
            continue
        name = symbol.name.removesuffix(".kd")
        if symbol.size != DESCRIPTOR_BYTES or name not in defined:
            raise View(elf.file, b"").wrong(
                f"code and a descriptor of {DESCRIPTOR_BYTES} bytes of {name}", f"{symbol.size} bytes"
            )
        found.add(name)
    return found


def _kernels(view: View) -> list[KernelCode]:
    found = [
        _kernel(view, fields) for fields in Fields(view, unpack(view), "the note").maps("amdhsa.kernels")
    ]
    if len({k.name for k in found}) != len(found):
        raise view.wrong("each kernel once", "one twice")
    return found


def _kernel(view: View, fields: Fields) -> KernelCode:
    name = fields.text(".name")
    if fields.text(".symbol") != f"{name}.kd":
        raise view.wrong(f"the descriptor {name}.kd", fields.text(".symbol"))
    spans = [(a.number(".offset"), a.number(".size")) for a in fields.maps(".args")]
    ends = [0, *(offset + size for offset, size in spans)]
    for (offset, size), before in zip(spans, ends, strict=False):
        if offset < before:
            raise view.wrong(f"arguments of {name} one after the other", f"{size} bytes at {offset}")
    return KernelCode(
        name=name,
        params=tuple(size for _, size in spans),
        param_bytes=fields.number(".kernarg_segment_size"),
        threads=fields.number(".max_flat_workgroup_size"),
        wave=fields.number(".wavefront_size"),
        registers=fields.number(".vgpr_count"),
        shared_bytes=fields.number(".group_segment_fixed_size"),
        local_bytes=fields.number(".private_segment_fixed_size"),
        spilled=fields.number(".vgpr_spill_count") + fields.number(".sgpr_spill_count"),
    )
