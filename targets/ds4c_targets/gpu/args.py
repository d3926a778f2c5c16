"""One launch of a kernel under construction: its parameters, its grid, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.views import Operands
from ds4c_targets.gpu.layout import memory_dtype
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import Tuning


@dataclass(frozen=True)
class Binding:
    """What a parameter points to: an operand of the kernel, some bytes further on."""

    operand: str
    offset: int
    dtype: str


@dataclass(frozen=True)
class Part:
    """One finished launch of a kernel.

    Attributes:
        name: symbol of the function.
        function: TIR device function.
        bindings: what each parameter points to, in order.
        grid: blocks along x, y, z.
        threads: threads of a block.
        shared_bytes: static shared memory of a block.
    """

    name: str
    function: Any
    bindings: tuple[Binding, ...]
    grid: tuple[Dim, Dim, Dim]
    threads: int
    shared_bytes: int


class Args(Operands):
    """One launch: operands become parameters when they are first asked for.

    Attributes:
        spec: the kernel.
        tuning: sizes of blocks and tiles.
        grid: blocks along x, y, z; set by the author.
    """

    def __init__(self, spec: KernelSpec, tuning: Tuning, name: str = "", threads: int = 0) -> None:
        """`name` tells the launches of one kernel apart; `threads` of 0 are those of the tuning."""
        super().__init__(spec)
        self.tuning = tuning
        self.grid: tuple[Dim, Dim, Dim] = (ONE, ONE, ONE)
        self._name = f"{spec.symbol}_{name}" if name else spec.symbol
        self._b = GpuKernel(threads or tuning.threads)
        self._bufs: dict[Binding, Buf] = {}

    @property
    def b(self) -> GpuKernel:
        """The builder."""
        return self._b

    def __getitem__(self, name: str) -> Buf:
        """Buffer of an operand, of its own element type."""
        operand = self.spec.operand(name)
        return self.view(name, memory_dtype(operand.dtype))

    def view(self, name: str, dtype: str, offset: int = 0) -> Buf:
        """Buffer of an operand from a byte offset on, as another type.

        Views of one operand must be used for disjoint bytes if one of them is written.
        """
        binding = Binding(name, offset, dtype)
        if binding not in self._bufs:
            suffix = "" if (offset, dtype) == (0, self._own(name)) else f"_{dtype}_{offset}"
            self._bufs[binding] = self.b.param(f"{name}{suffix}", dtype)
        return self._bufs[binding]

    def _own(self, name: str) -> str:
        return memory_dtype(self.spec.operand(name).dtype)

    def matrix_rows(self, name: str) -> int:
        """Rows of all matrices of an operand `[..., N, K]`."""
        return prod(self.shape(name)[:-1])

    def rows(self, name: str, per: int = 1) -> Dim:
        """Blocks of `per` rows each of an operand `[rows, ...]`; no space has more rows than the step."""
        most = self.shape(name)[0]
        return Dim(-(-most // per), "rows", per=per)

    def finish(self) -> Part:
        """The finished launch."""
        function = self.b.finish(self._name)
        return Part(self._name, function, tuple(self._bufs), self.grid, self.b.threads, self.b.shared_bytes)
