"""Kernels of a cubin: registers, stack, shared memory and parameters.

Source: attributes of the sections `.nv.info*` as `ptxas -v` and `cuobjdump` of CUDA 13 show them; the values
of registers, stack and shared memory are compared with `ptxas -v` by the tests.
"""

from __future__ import annotations

from collections.abc import Iterator

from ds4c_runtime.package.binary import Binary, KernelCode
from ds4c_runtime.package.elf import Elf, Section, View, read_elf

MACHINE = 190
WARP = 32
RESERVED_SECTION = ".nv.shared.reserved.0"
RESERVED_BYTES = 1024
"""From sm_90 on, the sections of shared memory count what the system keeps for itself."""

_MAX_THREADS, _STACK, _PARAMETER, _REGISTERS = 0x05, 0x11, 0x17, 0x2F
_SIZED = 4
"""Format of an attribute whose 16-bit value is the size of the data that follow."""


def read_cubin(file: str, data: bytes) -> Binary:
    """Read a cubin.

    Args:
        file: name for messages.
        data: content.

    Raises:
        ArtifactError: not a cubin, or a damaged one.
    """
    elf = read_elf(file, data, MACHINE)
    names = [s.name.removeprefix(".text.") for s in elf.sections if s.name.startswith(".text.")]
    registers, stacks = _per_function(elf)
    kernels: list[KernelCode] = []
    for name in sorted(names):
        info = elf.by_name.get(f".nv.info.{name}")
        if info is None:
            continue  # a device function that was not inlined is no kernel
        if name not in registers or name not in stacks:
            raise View(file, data).wrong(f"registers and stack of {name}", "none")
        kernels.append(_kernel(elf, name, info, registers[name], stacks[name]))
    return Binary(file, f"sm_{elf.flags >> 8 & 0xFF}", tuple(kernels))


def _kernel(elf: Elf, name: str, info: Section, registers: int, stack: int) -> KernelCode:
    view = elf.view(info)
    spans: dict[int, tuple[int, int]] = {}
    threads: int | None = None
    for code, value in _attributes(view):
        if code == _PARAMETER:
            _, ordinal, offset, packed = value.unpack("IHHI", 0, "a parameter")
            if ordinal in spans:
                raise view.wrong("each parameter once", f"number {ordinal} again")
            spans[ordinal] = (offset, packed >> 18 & 0x3FFF)
        elif code == _MAX_THREADS:
            x, y, z = value.unpack("III", 0, "a number of threads")
            threads = x * y * z
    if sorted(spans) != list(range(len(spans))):
        raise view.wrong(f"{len(spans)} parameters in order", sorted(spans))
    ends = [offset + size for offset, size in spans.values()]
    return KernelCode(
        name=name,
        params=tuple(spans[i][1] for i in range(len(spans))),
        param_bytes=max(ends, default=0),
        threads=threads,
        wave=WARP,
        registers=registers,
        shared_bytes=_shared_bytes(elf, name),
        local_bytes=stack,
        spilled=0,
    )


def _shared_bytes(elf: Elf, name: str) -> int:
    section = elf.by_name.get(f".nv.shared.{name}")
    if section is None:
        return 0
    reserved = RESERVED_BYTES if RESERVED_SECTION in elf.by_name else 0
    if section.size < reserved:
        raise elf.view(section).wrong(f"at least {reserved} bytes", section.size)
    return section.size - reserved


def _per_function(elf: Elf) -> tuple[dict[str, int], dict[str, int]]:
    """Registers and bytes of stack by name of the function."""
    section = elf.by_name.get(".nv.info")
    if section is None:
        return {}, {}
    symbols, view = elf.symbols(".symtab"), elf.view(section)
    found: dict[int, dict[str, int]] = {_REGISTERS: {}, _STACK: {}}
    for code, value in _attributes(view):
        if code in found:
            index, number = value.unpack("II", 0, "an attribute")
            if index >= len(symbols):
                raise view.wrong(f"one of {len(symbols)} symbols", index)
            found[code][symbols[index].name] = number
    return found[_REGISTERS], found[_STACK]


def _attributes(view: View) -> Iterator[tuple[int, View]]:
    """Code and data of each attribute; the data of a short one are its 16-bit value."""
    at = 0
    while at < len(view.data):
        form, code, size = view.unpack("BBH", at, "an attribute")
        start = at + 4 if form == _SIZED else at + 2
        length = size if form == _SIZED else 2
        yield code, View(view.file, view.bytes(start, length, "an attribute"))
        at = start + length
