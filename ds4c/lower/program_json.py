"""Text form of a program: what the parent process hands to the compiling child."""

from __future__ import annotations

import hashlib
import json

from ds4c.ir.kernel import Arg, Call, EntryPoint, KernelSpec, Program


def program_to_json(program: Program) -> str:
    """Canonical text; equal programs give equal text."""
    entry_points = [
        {
            "name": entry.name,
            "arenas": list(entry.arenas),
            "calls": [[c.kernel, [[a.arena, a.offset] for a in c.args]] for c in entry.calls],
        }
        for entry in program.entry_points
    ]
    kernels = {symbol: program.kernels[symbol].to_json() for symbol in sorted(program.kernels)}
    return json.dumps({"kernels": kernels, "entry_points": entry_points}, separators=(",", ":"))


def program_from_json(text: str) -> Program:
    """Inverse of `program_to_json`."""
    data = json.loads(text)
    kernels = {symbol: KernelSpec.from_json(spec) for symbol, spec in data["kernels"].items()}
    entries = tuple(
        EntryPoint(
            entry["name"],
            tuple(entry["arenas"]),
            tuple(Call(k, tuple(Arg(arena, at) for arena, at in args)) for k, args in entry["calls"]),
        )
        for entry in data["entry_points"]
    )
    return Program(kernels, entries)


def digest(*parts: str) -> str:
    """sha256 of some texts, in hex."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part.encode())
    return found.hexdigest()
