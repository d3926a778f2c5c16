"""Time of every kernel of a step, from the artifact alone.

The artifact's library has one entry point per step. A second library of the same kernels, made from the
artifact's `module.mlir` in a temporary folder, has one per kernel call; a step then is those calls in
the same order on the same memory, with a clock between them. The artifact is not changed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds4c.cli.bench_traffic import StepShape, kernel_bytes
from ds4c.ir.dialect import parse_module
from ds4c.ir.kernel import Call, EntryPoint, KernelSpec, Program
from ds4c.passes.program import program_of
from ds4c.passes.target import get_target
from ds4c_runtime.device.base import Arena
from ds4c_runtime.device.cpu import CpuDevice
from ds4c_runtime.device.host_memory import host_bytes
from ds4c_runtime.launches import Extent
from ds4c_runtime.local import LocalModel
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.manifest_checks import check_horizon, verify_files
from ds4c_runtime.session import Session
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper

STEP = "step"
EMPTY = "nothing"
"""Entry point without calls; its time is what a call costs besides the kernel."""
RESOLUTION = 0.2
"""Microseconds; the time of a call besides its kernel varies by about as much."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a step, all its calls together.

    Attributes:
        kernel: symbol. op: its op. shape: of its weights, or of its largest activation row.
        calls: a step. microseconds, num_bytes: of all those calls; bytes as `kernel_bytes` counts them.
        share: of the time of all kernels.
    """

    kernel: str
    op: str
    shape: str
    calls: int
    microseconds: float
    num_bytes: int
    share: float

    @property
    def gigabytes_per_s(self) -> float | None:
        """Bytes by time; None where a call is too short for the clock between calls."""
        if self.microseconds < RESOLUTION * self.calls:
            return None
        return self.num_bytes / self.microseconds / 1e3


@dataclass(frozen=True)
class Profile:
    """Kernels of a step by time, largest first; a step of one row is one token.

    Attributes:
        rows: tokens of the step. position: of its first.
        step_microseconds: median time of the whole step by its one entry point.
        kernel_microseconds: sum of all kernels.
    """

    rows: int
    position: int
    step_microseconds: float
    kernel_microseconds: float
    kernels: tuple[KernelTime, ...]


def profile_program(program: Program) -> Program:
    """One entry point per call of the step, and an empty one."""
    (step,) = (entry for entry in program.entry_points if entry.name == STEP)
    single = [EntryPoint(_name(i), step.arenas, (call,)) for i, call in enumerate(step.calls)]
    return Program(program.kernels, (*single, EntryPoint(EMPTY, step.arenas, ())))


def _name(index: int) -> str:
    return f"call_{index}"


class TimedDevice(CpuDevice):
    """A CPU whose steps can run call by call; `times` then has a list of nanoseconds for each."""

    def __init__(self, calls: Sequence[Call], kernels: dict[str, KernelSpec], library: Path) -> None:
        super().__init__()
        self.is_timing = False
        self.calls, self.kernels = calls, kernels
        self.times: list[list[int]] = [[] for _ in calls]
        self.empty: list[int] = []
        self.experts: list[int] = [0] * len(calls)
        self._library = library
        self._singles: list[Callable[..., object]] = []

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """As the base, and the library of single calls."""
        import tvm_ffi

        super().load(folder, manifest, threads)
        module = tvm_ffi.load_module(str(self._library))
        self._singles = [module[name] for name in (*map(_name, range(len(self.calls))), EMPTY)]

    def reset(self) -> None:
        """Forget all times."""
        self.times = [[] for _ in self.calls]
        self.empty = []

    def call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        """Run an entry point; a step call by call while `is_timing`."""
        if entry != STEP or not self.is_timing:
            super().call(entry, arenas, extent)
            return
        tensors = [self._tensor(arena) for arena in arenas]
        clock = time.perf_counter_ns
        *singles, empty = self._singles
        for index, function in enumerate(singles):
            start = clock()
            function(*tensors)
            self.times[index].append(clock() - start)
            if self.calls[index].kernel.startswith("moe_experts_"):
                self.experts[index] = self._count_experts(index, arenas)
        start = clock()
        empty(*tensors)
        self.empty.append(clock() - start)

    def _count_experts(self, index: int, arenas: Sequence[Arena]) -> int:
        """Different experts that a call used."""
        from ds4c.passes.program import ARENAS

        call = self.calls[index]
        spec = self.kernels[call.kernel]
        names = [operand.name for operand in spec.operands]
        width = spec.operand("experts").shape[1]
        count = self._ints(call, names.index("count"), arenas, ARENAS[STEP], 1)[0]
        return len(np.unique(self._ints(call, names.index("experts"), arenas, ARENAS[STEP], count * width)))

    @staticmethod
    def _ints(call: Call, operand: int, arenas: Sequence[Arena], names: Sequence[str], count: int) -> Any:
        arg = call.args[operand]
        arena = arenas[names.index(arg.arena)]
        return host_bytes(arena)[arg.offset : arg.offset + 4 * count].view(np.int32)


def profile(folder: Path, rows: int, position: int, repeats: int, threads: int = 1) -> Profile:
    """Measure the kernels of a step.

    Args:
        folder: artifact; it must hold `module.mlir`.
        rows: tokens of the step, with all their logits as far as the artifact allows.
        position: of its first token.
        repeats: steps; medians are reported.
        threads: threads of the kernels.

    Raises:
        ArtifactError, DeviceError: as loading does. CompileError: the kernels could not be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="ds4c-profile-") as work:
        model, device = open_timed(folder, Path(work), threads)
        vocabulary = model.manifest.model.vocab_size
        tokens = np.random.default_rng(0).integers(0, vocabulary, position + rows).tolist()
        session = model.session("profile")
        session.prefill(tokens[:position])
        wanted = rows if rows <= model.manifest.limits.max_logit_rows else 1
        block = tokens[position:]
        whole = statistics.median(_steps(session, block, wanted, repeats + 1)[1:])
        device.is_timing = True
        _steps(session, block, wanted, 1)
        device.reset()
        _steps(session, block, wanted, repeats)
    limits = model.manifest.limits
    step = StepShape(rows, wanted, position, limits.max_rows, limits.max_logit_rows)
    kernels = _summary(device, step)
    return Profile(rows, position, whole, sum(k.microseconds for k in kernels), kernels)


def open_timed(folder: Path, work: Path, threads: int) -> tuple[LocalModel, TimedDevice]:
    """Load an artifact on a timed device, whose library of single calls is compiled into `work`."""
    manifest = Manifest.read(folder)
    check_horizon(manifest)
    verify_files(folder, manifest)
    program = program_of(parse_module((folder / "module.mlir").read_text(), "module.mlir"))
    target = get_target(manifest.target.name)
    target.build_kernels(profile_program(program), manifest.target.variant, work)
    (step,) = (entry for entry in program.entry_points if entry.name == STEP)
    device = TimedDevice(step.calls, dict(program.kernels), work / "kernels.so")
    device.load(folder, manifest, threads)
    store = StateStore(manifest, device, 1, manifest.limits.pages_per_session, snapshot_bytes=0)
    return LocalModel(manifest, device, store, Stepper(manifest, device, store)), device


def _steps(session: Session, tokens: Sequence[int], wanted: int, repeats: int) -> list[float]:
    """Microseconds of some equal steps, each undone."""
    start = session.position
    times: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        session.step(tokens, all_logits=wanted > 1)
        times.append((time.perf_counter() - begun) * 1e6)
        session.rewind(start)
    return times


def _summary(device: TimedDevice, step: StepShape) -> tuple[KernelTime, ...]:
    overhead = min(device.empty)
    time_of: dict[str, float] = defaultdict(float)
    bytes_of: dict[str, int] = defaultdict(int)
    calls_of: dict[str, int] = defaultdict(int)
    for index, call in enumerate(device.calls):
        time_of[call.kernel] += max(0.0, statistics.median(device.times[index]) - overhead) / 1e3
        bytes_of[call.kernel] += kernel_bytes(device.kernels[call.kernel], step, device.experts[index])
        calls_of[call.kernel] += 1
    total = sum(time_of.values()) or 1.0
    found = [
        KernelTime(k, device.kernels[k].op, _shape(device.kernels[k]), calls_of[k], t, bytes_of[k], t / total)
        for k, t in time_of.items()
    ]
    return tuple(sorted(found, key=lambda k: -k.microseconds))


def _shape(spec: KernelSpec) -> str:
    """Shapes of the matrices, else of a row of the first output."""
    matrices = [o for o in spec.operands if o.role == "weight" and o.layout != "row"]
    if matrices:
        parts = ["x".join(map(str, o.shape)) for o in matrices]
        return f"{'+'.join(dict.fromkeys(parts))} {matrices[0].dtype}"
    outputs = [o for o in spec.operands if o.role in ("out", "ring", "append")]
    return "x".join(map(str, outputs[0].shape[1:])) if outputs else ""
