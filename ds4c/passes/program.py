"""Reads the program off a module after `plan-buffers`: kernels by symbol, and the calls of each function."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.attention_ops import CallKernelOp
from ds4c.ir.kernel import Arg, Call, EntryPoint, KernelSpec, Program

ARENAS = {
    "step": ("io", "weights", "workspace", "states", "pages", "snapshots"),
    "snapshot": ("io", "states", "snapshots"),
    "restore": ("io", "states", "snapshots"),
    "fork": ("io", "states"),
}
"""Arenas that each entry point takes, in call order."""


def program_of(module: ModuleOp) -> Program:
    """The program of a fully lowered module.

    Raises:
        PassFailedException: a call has no addresses yet.
    """
    kernels: dict[str, KernelSpec] = {}
    entries: list[EntryPoint] = []
    for function in module.body.block.ops:
        if not isinstance(function, func.FuncOp) or function.sym_name.data not in ARENAS:
            continue
        calls: list[Call] = []
        for op in function.body.block.ops:
            if isinstance(op, CallKernelOp):
                if op.offsets is None:
                    raise PassFailedException(
                        "program: expected planned calls, got none; run plan-buffers first"
                    )
                kernels[op.kernel.data] = op.kernel_spec
                calls.append(Call(op.kernel.data, tuple(_arg(a.data) for a in op.offsets)))
        name = function.sym_name.data
        entries.append(EntryPoint(name, ARENAS[name], tuple(calls)))
    return Program(kernels, tuple(entries))


def _arg(text: str) -> Arg:
    arena, offset = text.split(":")
    return Arg(arena, int(offset))
