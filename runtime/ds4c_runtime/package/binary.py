"""What a binary says of its kernels, in the same words for every vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelCode:
    """A kernel of a binary.

    Attributes:
        name: symbol.
        params: size of each parameter in bytes, in call order.
        param_bytes: bytes of the parameters as they are passed, padding included.
        threads: most threads of a block; `None` where the file does not say.
        wave: threads that execute in lockstep.
        registers: 32-bit vector registers of a thread.
        shared_bytes: static shared memory of a block.
        local_bytes: memory of a thread for arrays and spilled registers.
        spilled: registers that were spilled, where the file says so; else 0, see `local_bytes`.
    """

    name: str
    params: tuple[int, ...]
    param_bytes: int
    threads: int | None
    wave: int
    registers: int
    shared_bytes: int
    local_bytes: int
    spilled: int


@dataclass(frozen=True)
class Binary:
    """A binary that was read: file name, architecture (`sm_90`, `gfx1100`) and kernels in order of name."""

    file: str
    architecture: str
    kernels: tuple[KernelCode, ...]

    @property
    def by_name(self) -> Mapping[str, KernelCode]:
        """Kernels by name."""
        return {k.name: k for k in self.kernels}
