"""The compiling child of the GPU targets: `python -m ds4c_targets.gpu.compile REQUEST.json`.

Writes the text of all kernels (`kernels.cu` or `kernels.metal`) or an object for each AMD architecture
(`kernels.GFX.o`), and `launches.json`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ds4c.ir.kernel import Call, EntryPoint, Program
from ds4c.lower.child import answer
from ds4c.lower.program_json import program_from_json
from ds4c_runtime import launches as schema
from ds4c_targets.gpu.args import Binding, Part
from ds4c_targets.gpu.emit import emit_kernel
from ds4c_targets.gpu.text import cuda_text, metal_text, rocm_object
from ds4c_targets.gpu.tuning import Tuning

TEXT_NAMES = {"cuda": "kernels.cu", "metal": "kernels.metal"}


def object_name(gfx: str) -> str:
    """Name of the object of an AMD architecture, an input of the linker."""
    return f"kernels.{gfx}.o"


def run(request: dict[str, Any]) -> None:
    """Compile the program of a request into `request["folder"]`."""
    program = program_from_json(request["program"])
    folder, kind = Path(request["folder"]), request["kind"]
    tuning = Tuning(**request["tuning"])
    if kind == "rocm":
        # Processes of this one's group, so that they end with it.
        with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
            for written in [pool.submit(write_object, request, *each) for each in request["architectures"]]:
                written.result()
    parts = program_parts(program, tuning)
    functions = [part.function for several in parts.values() for part in several]
    if kind != "rocm":
        text = cuda_text(functions) if kind == "cuda" else metal_text(functions)
        (folder / TEXT_NAMES[kind]).write_text(text)
    limits = tuple(schema.Limits(**each) for each in request["limits"])
    plan = launch_plan(kind, program, parts, limits)
    (folder / schema.LAUNCHES_NAME).write_text(plan.to_json())


def write_object(request: dict[str, Any], gfx: str, wave: int) -> None:
    """Compile all kernels of a request for one AMD architecture."""
    parts = program_parts(program_from_json(request["program"]), Tuning(**request["tuning"]))
    functions = [part.function for several in parts.values() for part in several]
    (Path(request["folder"]) / object_name(gfx)).write_bytes(rocm_object(functions, gfx, wave))


def program_parts(program: Program, tuning: Tuning) -> dict[str, list[Part]]:
    """Launches of every kernel that an entry point calls, by symbol, sorted."""
    used = sorted({call.kernel for entry in program.entry_points for call in entry.calls})
    return {symbol: emit_kernel(program.kernels[symbol], tuning) for symbol in used}


def launch_plan(
    kind: Any, program: Program, parts: Mapping[str, Sequence[Part]], limits: tuple[schema.Limits, ...]
) -> schema.LaunchPlan:
    """What `launches.json` says of a program."""
    functions = [
        schema.Function(
            part.name,
            symbol,
            tuple(_param(v.name, b) for v, b in zip(part.function.params, part.bindings, strict=True)),
            part.threads,
            part.shared_bytes,
        )
        for symbol, several in parts.items()
        for part in several
    ]
    entries = tuple(_entry(entry, program, parts) for entry in program.entry_points)
    plan = schema.LaunchPlan(schema.FORMAT, schema.VERSION, kind, tuple(functions), entries, limits)
    plan.check()
    return plan


def _param(name: str, binding: Binding) -> schema.Param:
    dtype: Any = binding.dtype
    return schema.Param(name, dtype)


def _entry(entry: EntryPoint, program: Program, parts: Mapping[str, Sequence[Part]]) -> schema.Entry:
    found = [launch for call in entry.calls for launch in _launches(call, program, parts[call.kernel])]
    return schema.Entry(entry.name, tuple(found))


def _launches(call: Call, program: Program, parts: Sequence[Part]) -> list[schema.Launch]:
    operands = [o.name for o in program.kernels[call.kernel].operands]
    given = dict(zip(operands, call.args, strict=True))
    return [
        schema.Launch(
            part.name,
            tuple(_address(given[b.operand], b.offset) for b in part.bindings),
            part.grid,
        )
        for part in parts
    ]


def _address(arg: Any, offset: int) -> schema.Address:
    return schema.Address(arg.arena, arg.offset + offset)


def main(arguments: list[str]) -> int:
    """Entry of the child process; 0 on success."""
    return answer(arguments, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
