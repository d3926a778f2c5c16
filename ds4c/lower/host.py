"""The host function of an entry point: one FFI call that runs every kernel of a step.

Its arguments are the arenas, each a byte tensor of any length; a kernel gets addresses inside them.
Kernels are C symbols of another object file, so the compiler cannot inline hundreds of copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import op, stmt

from ds4c.errors import CompileError
from ds4c.ir.kernel import Call, EntryPoint, KernelSpec

_ALIGNMENT = 64


def _check(entry: EntryPoint, call: Call, kernels: Mapping[str, KernelSpec]) -> None:
    if call.kernel not in kernels:
        raise CompileError(f"entry point {entry.name}: expected a kernel of the program, got {call.kernel}")
    expected = len(kernels[call.kernel].operands)
    if len(call.args) != expected:
        raise CompileError(
            f"entry point {entry.name}, {call.kernel}: expected {expected} arguments, got {len(call.args)}"
        )
    for arg in call.args:
        if arg.arena not in entry.arenas:
            raise CompileError(f"entry point {entry.name}: expected one of {entry.arenas}, got {arg.arena!r}")
        if arg.offset < 0 or arg.offset % _ALIGNMENT:
            raise CompileError(
                f"entry point {entry.name}, {call.kernel}: expected offsets in multiples of "
                f"{_ALIGNMENT} bytes, got {arg.offset}"
            )


def host_function(entry: EntryPoint, kernels: Mapping[str, KernelSpec]) -> Any:
    """TIR function `entry.name(arena, ...)` that calls the kernels in order.

    Raises:
        CompileError: a call names an unknown kernel or arena, has a wrong number of arguments, or an
            offset is not a multiple of 64 bytes.
    """
    arenas = {
        name: tirx.decl_buffer((tirx.Var(f"{name}_bytes", "int64"),), "uint8", name=name)
        for name in entry.arenas
    }
    body: list[Any] = []
    for call in entry.calls:
        _check(entry, call, kernels)
        addresses = [
            op.address_of(tirx.BufferLoad(arenas[arg.arena], [tirx.IntImm("int64", arg.offset)]))
            for arg in call.args
        ]
        body.append(stmt.Evaluate(op.call_extern("int32", call.kernel, *addresses)))
    if not body:
        body.append(stmt.Evaluate(tirx.IntImm("int32", 0)))
    attrs = tvm.ir.make_node("ir.DictAttrs", global_symbol=entry.name)
    return tirx.PrimFunc(list(arenas.values()), stmt.SeqStmt(body) if len(body) > 1 else body[0], attrs=attrs)
