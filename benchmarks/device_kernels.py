"""Single kernels on a device: a small program of them as an artifact, timed through the `Device` protocol."""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.ir.kernel import Arg, BlockLayout, Call, EntryPoint, KernelSpec, Operand, Program
from ds4c.passes.target import Target
from ds4c_runtime import manifest as schema
from ds4c_runtime.device.base import Arena, Device
from ds4c_runtime.launches import Extent, LaunchPlan, bucket

ARENAS: tuple[str, ...] = ("io", "weights", "workspace", "states", "pages")
_ARENA_OF = {
    "weight": "weights",
    "block": "io",
    "rows": "io",
    "count": "io",
    "pages": "io",
    "ring": "states",
    "append": "pages",
}
_BYTES = {"float64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "int8": 1}
_PATTERN_BYTES = 1 << 20
WARM = 2


@dataclass(frozen=True)
class Case:
    """A kernel to be timed.

    Attributes:
        name: of the case; with `_twice` appended that of an entry point with twice as many calls.
        spec: the kernel.
        calls: in one entry point, each with weights of its own, so that caches do not hold them.
        extents: sizes of steps that it is timed for.
        values: contents of integer operands; floats are random.
        copies: of states, by operand: slots of a ring, pages of an append state.
    """

    name: str
    spec: KernelSpec
    calls: int
    extents: tuple[Extent, ...]
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    copies: Mapping[str, int] = field(default_factory=dict[str, int])


def make_spec(target: Target, op: str, operands: Sequence[Operand], **attrs: Any) -> KernelSpec:
    """A spec with the target's layouts of weights and its scratch."""
    laid = tuple(
        dataclasses.replace(o, layout=target.weight_layout(op, o.name, o.dtype, o.shape))
        if o.role == "weight"
        else o
        for o in operands
    )
    made = KernelSpec(op, tuple(sorted(attrs.items())), laid)
    size = target.scratch_bytes(made)
    scratch = (Operand("scratch", "scratch", "uint8", (size,)),) if size else ()
    return KernelSpec(op, made.attrs, (*laid, *scratch))


class Bench:
    """A device that has loaded the kernels of some cases."""

    def __init__(
        self, target: Target, variant: str, device: Device, cases: Sequence[Case], max_rows: int, context: int
    ) -> None:
        self._sizes = dict.fromkeys(ARENAS, 64)
        self._fills: list[tuple[str, int, int, NDArray[Any] | str]] = []
        self._rows, self._context = max_rows, context
        entries = [entry for case in cases for entry in self._entries(case)]
        program = Program({c.spec.symbol: c.spec for c in cases}, tuple(entries))
        with tempfile.TemporaryDirectory(prefix="ds4c-bench-") as folder:
            work = Path(folder)
            target.build_kernels(program, variant, work)
            self._write_weights(work / "weights.bin")
            self.plan = LaunchPlan.read(work)
            manifest = self._manifest(target.name, entries, work)
            device.load(work, manifest, 1)
        self.device = device
        made: dict[str, Arena] = {
            n: device.allocate(self._sizes[n]) for n in ("workspace", "states", "pages")
        }
        self._io = device.allocate_io(manifest)
        self._arenas: list[Arena] = [
            self._io,
            device.weights,
            made["workspace"],
            made["states"],
            made["pages"],
        ]
        for arena, offset, size, value in self._fills:
            if arena != "weights":
                self._fill(ARENAS.index(arena), offset, size, value)

    def seconds(self, case: Case, extent: Extent, repeats: int) -> float:
        """Seconds of one call of a case: what twice as many calls take longer."""
        once = self._median(case.name, extent, repeats)
        twice = self._median(f"{case.name}_twice", extent, repeats)
        return max(twice - once, 1e-9) / case.calls

    def blocks(self, case: Case, extent: Extent) -> int:
        """Blocks that one call launches."""
        launches = self.plan.entry(case.name).launches
        size = bucket(extent, self._rows, self._context)
        return sum(math.prod(d.blocks(size) for d in each.grid) for each in launches) // case.calls

    def set_rows(self, case: Case, name: str, count: int) -> None:
        """Number of rows in a `count` operand."""
        self._io[self._at[case.name, name] :][:4].view(np.int32)[0] = count

    def _median(self, entry: str, extent: Extent, repeats: int) -> float:
        times: list[float] = []
        for index in range(repeats + WARM):
            started = time.perf_counter()
            self.device.call(entry, self._arenas, extent)
            if index >= WARM:
                times.append(time.perf_counter() - started)
        return statistics.median(times)

    def _entries(self, case: Case) -> list[EntryPoint]:
        calls: list[Call] = []
        shared: dict[str, Arg] = {}
        for _ in range(case.calls):
            args: list[Arg] = []
            for operand in case.spec.operands:
                if operand.name not in shared or operand.role == "weight":
                    shared[operand.name] = self._place(case, operand)
                args.append(shared[operand.name])
            calls.append(Call(case.spec.symbol, tuple(args)))
        return [
            EntryPoint(case.name, ARENAS, tuple(calls)),
            EntryPoint(f"{case.name}_twice", ARENAS, tuple(calls + calls)),
        ]

    @property
    def _at(self) -> dict[tuple[str, str], int]:
        return self.__dict__.setdefault("offsets of operands in the io arena", {})

    def _place(self, case: Case, operand: Operand) -> Arg:
        arena = _ARENA_OF.get(operand.role, "workspace")
        offset = self._sizes[arena]
        if operand.role in ("ring", "append"):
            size = operand.stride_bytes * case.copies.get(operand.name, 1)
        elif operand.role == "block":
            size = 4 * BlockLayout(*operand.shape).size
        elif operand.role == "count":
            size = 64
        else:
            size = math.prod(operand.shape) * _BYTES[operand.dtype]
        self._sizes[arena] += -(-size // 256) * 256
        if arena == "io":
            self._at[case.name, operand.name] = offset
        if operand.name in case.values:
            self._fills.append((arena, offset, size, case.values[operand.name]))
        elif operand.role in ("weight", "in", "ring", "append"):
            self._fills.append((arena, offset, size, operand.dtype))
        return Arg(arena, offset)

    def _write_weights(self, path: Path) -> None:
        """Before the artifact is loaded: a device need not let anybody write to its weights."""
        with path.open("wb") as file:
            file.truncate(self._sizes["weights"])
            for arena, offset, size, dtype in self._fills:
                if arena == "weights" and isinstance(dtype, str):
                    pattern = _random_bytes(dtype)
                    file.seek(offset)
                    for start in range(0, size, len(pattern)):
                        file.write(pattern[: size - start].data)

    def _fill(self, arena: int, offset: int, size: int, value: NDArray[Any] | str) -> None:
        if not isinstance(value, str):
            content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            if arena == 0:
                self._io[offset : offset + len(content)] = content
            else:
                self.device.write(self._arenas[arena], offset, content)
            return
        pattern = _random_bytes(value)
        for start in range(0, size, len(pattern)):
            count = min(len(pattern), size - start)
            self.device.write(self._arenas[arena], offset + start, pattern[:count])

    def _manifest(self, target: str, entries: Sequence[EntryPoint], folder: Path) -> schema.Manifest:
        """As much of a manifest as a device looks at."""
        empty = schema.IoField(0, "int32", (0,))
        files = tuple(schema.FileEntry(f.name, "", f.stat().st_size) for f in folder.iterdir())
        arenas: tuple[Any, ...] = ARENAS
        return schema.Manifest(
            schema.FORMAT,
            schema.VERSION,
            "",
            schema.TargetInfo(target, "", ()),
            schema.Versions("", "", "", ""),
            schema.ModelInfo("", "", 1, self._context, 1, None, (), 0, ""),
            files,
            schema.Limits(self._rows, self._rows, 1, 0, self._context, 1, 1),
            schema.Arenas(self._sizes["io"], self._sizes["workspace"], 64, 64, self._sizes["weights"]),
            schema.Io(empty, empty, empty, empty, empty, empty, schema.IoField(0, "float32", (0, 1))),
            tuple(schema.EntryPointInfo(e.name, arenas) for e in entries),
            (),
            (),
            schema.Capabilities((), False, False, 0, True, True, ()),
        )


def _random_bytes(dtype: str) -> NDArray[np.uint8]:
    """Finite numbers of a type."""
    values = np.random.default_rng(7).standard_normal(_PATTERN_BYTES // 4).astype(np.float32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint8)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)


def copy_ceiling(device: Device, size: int, repeats: int) -> float:
    """Bytes read and written per second by copies of `size` bytes inside the device's memory."""
    arena = device.allocate(2 * size)

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            device.copy(arena, 0, size, size)
        device.read(arena, 0, 1)
        return time.perf_counter() - started

    run(1)
    times = [run(2 * repeats) - run(repeats) for _ in range(3)]
    return 2 * size * repeats / max(statistics.median(times), 1e-9)


def median_of(call: Callable[[], object], repeats: int) -> float:
    """Seconds of a call, median after warming up."""
    times: list[float] = []
    for index in range(repeats + WARM):
        started = time.perf_counter()
        call()
        if index >= WARM:
            times.append(time.perf_counter() - started)
    return statistics.median(times)
