"""The package check of a GPU artifact: binaries, text, launches and limits all say the same.

Everything is read from the files of the artifact, without a GPU, a driver or a tool of a vendor. What it
cannot see is whether a kernel computes the right thing, or a grid is large enough: that is for execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import LAUNCHES_NAME, Function, LaunchPlan, Limits
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.package.amdgpu import read_code_object
from ds4c_runtime.package.binary import Binary, KernelCode
from ds4c_runtime.package.check_launches import check_launches
from ds4c_runtime.package.cubin import read_cubin
from ds4c_runtime.package.msl_lint import lint
from ds4c_runtime.package.ptx import read_ptx
from ds4c_runtime.package.texts import cuda_heads

TARGETS = ("cuda", "rocm", "metal")
POINTER_BYTES = 8
SHARED_PADDING = 256
"""Bytes that a compiler may add to the shared arrays of a function, to align them."""
REGISTER_STEP = 8
"""Registers are handed out to the threads of a warp in this step."""


@dataclass(frozen=True)
class KernelRow:
    """What a function needs in one binary; `None` where the device's compiler decides.

    Attributes:
        variant: of the binary.
        function: its name.
        kernel: symbol of the program's kernel that it is a part of.
        threads: of a block.
        registers: 32-bit registers of a thread.
        shared_bytes: static shared memory of a block.
        local_bytes: memory of a thread for arrays and spilled registers.
        spilled: registers that were spilled, where the binary says so.
        launches: how often entry points launch it.
    """

    variant: str
    function: str
    kernel: str
    threads: int
    registers: int | None
    shared_bytes: int
    local_bytes: int | None
    spilled: int | None
    launches: int


def is_gpu(manifest: Manifest) -> bool:
    """Whether the artifact is for a GPU, so that there is a package to check."""
    return manifest.target.name in TARGETS


def check_package(folder: Path, manifest: Manifest) -> tuple[KernelRow, ...]:
    """Check the files of a GPU artifact against each other; their hashes are checked elsewhere.

    Returns:
        A row for each function and binary, in the order of variants and functions.

    Raises:
        ArtifactError: the first contradiction: file, function, what was expected and what is there.
    """
    plan = LaunchPlan.read(folder)
    _check_files(plan, manifest)
    check_launches(plan, manifest)
    counts = _launch_counts(plan)
    if plan.kind == "metal":
        _check_metal_text(folder / "kernels.metal", plan)
    if plan.kind == "cuda":
        _check_cuda_text(folder / "kernels.cu", plan)
        _check_ptx(folder / "kernels.ptx", plan)
    rows: list[KernelRow] = []
    for limits in plan.limits:
        codes = _codes(folder, plan, limits)
        for function in plan.functions:
            _check_limits(function, limits)
            rows.append(_row(function, limits.variant, codes.get(function.name), counts))
    return tuple(rows)


def files_of(kind: str, variants: Iterable[str]) -> tuple[str, ...]:
    """Names of the files with kernels that an artifact for some variants has."""
    if kind == "metal":
        return ("kernels.metal",)
    if kind == "rocm":
        return tuple(f"kernels.{v}.co" for v in variants)
    return ("kernels.cu", "kernels.ptx", *(f"kernels.{v}.cubin" for v in variants))


def _check_files(plan: LaunchPlan, manifest: Manifest) -> None:
    target = manifest.target
    _expect(plan.kind == target.name, LAUNCHES_NAME, f"the target {target.name}", plan.kind)
    variants = "+".join(limits.variant for limits in plan.limits)
    _expect(variants == target.variant, LAUNCHES_NAME, f"limits of {target.variant}", variants or "none")
    wanted = {LAUNCHES_NAME, *files_of(plan.kind, target.variant.split("+"))}
    found = {f.name for f in manifest.files if f.name.startswith("kernels.") or f.name == LAUNCHES_NAME}
    _expect(not wanted - found, "artifact", f"a file {min(wanted - found, default='')}", "none")
    extra = min(found - wanted, default="")
    _expect(not extra, "artifact", f"kernels for {target.variant} only", extra)


def _codes(folder: Path, plan: LaunchPlan, limits: Limits) -> dict[str, KernelCode]:
    """Checked kernels of the binary of a variant, by name; empty for text that a device compiles."""
    if plan.kind == "metal":
        return {}
    suffix, read = _READERS[plan.kind]
    name = f"kernels.{limits.variant}.{suffix}"
    binary = read(name, _read(folder / name))
    _expect(binary.architecture == limits.variant, name, f"code for {limits.variant}", binary.architecture)
    _same_names(name, plan.functions, [k.name for k in binary.kernels])
    codes = dict(binary.by_name)
    for function in plan.functions:
        _check_code(name, function, codes[function.name], limits)
    return codes


_READERS: dict[str, tuple[str, Callable[[str, bytes], Binary]]] = {
    "cuda": ("cubin", read_cubin),
    "rocm": ("co", read_code_object),
}


def _check_code(file: str, function: Function, code: KernelCode, limits: Limits) -> None:
    """A kernel of a binary is what the plan launches, and within the limits of the device."""
    where = f"{file}, {function.name}"
    count = len(function.params)
    _expect(code.params == (POINTER_BYTES,) * count, where, f"{count} pointers", _sizes(code.params))
    _expect(
        code.param_bytes == POINTER_BYTES * count,
        where,
        f"{POINTER_BYTES * count} bytes of arguments",
        code.param_bytes,
    )
    _expect(code.wave == limits.wave, where, f"waves of {limits.wave} threads", code.wave)
    if code.threads is not None:
        _expect(function.threads <= code.threads, where, f"{function.threads} threads or more", code.threads)
    low, high = function.shared_bytes, function.shared_bytes + SHARED_PADDING
    _expect(
        low <= code.shared_bytes <= high, where, f"{low} bytes of shared memory", f"{code.shared_bytes} bytes"
    )
    _at_most(where, "bytes of shared memory", code.shared_bytes, limits.shared_bytes)
    _at_most(where, "registers of a thread", code.registers, limits.registers)
    used = -(-code.registers // REGISTER_STEP) * REGISTER_STEP * function.threads
    _at_most(where, "registers of a block", used, limits.block_registers)


def _check_limits(function: Function, limits: Limits) -> None:
    """What the plan says of a function is within the limits of a device.

    Blocks are whole warps of 32 threads; on waves of 64, the last one may be half empty.
    """
    where = f"{function.name} on {limits.variant}"
    _at_most(where, "threads", function.threads, limits.threads)
    _at_most(where, "bytes of shared memory", function.shared_bytes, limits.shared_bytes)


def _check_cuda_text(path: Path, plan: LaunchPlan) -> None:
    heads = {head.name: head for head in cuda_heads(path.name, _text(path))}
    _same_names(path.name, plan.functions, list(heads))
    for function in plan.functions:
        head, where = heads[function.name], f"{path.name}, {function.name}"
        wanted = tuple(p.dtype for p in function.params)
        _expect(head.dtypes == wanted, where, f"pointers to {_words(wanted)}", _words(head.dtypes))
        _expect(
            head.threads is not None and function.threads <= head.threads,
            where,
            f"a launch bound of {function.threads} threads or more",
            head.threads,
        )


def _check_ptx(path: Path, plan: LaunchPlan) -> None:
    ptx = read_ptx(path.name, _text(path))
    _same_names(path.name, plan.functions, [e.name for e in ptx.entries])
    entries = {e.name: e for e in ptx.entries}
    for function in plan.functions:
        params, where = entries[function.name].params, f"{path.name}, {function.name}"
        _expect(params == ("u64",) * len(function.params), where, f"{len(function.params)} pointers", params)


def _check_metal_text(path: Path, plan: LaunchPlan) -> None:
    least = min((limits.shared_bytes for limits in plan.limits), default=0)
    faults = lint(_text(path), plan.functions, least)
    if faults:
        fault = faults[0]
        raise ArtifactError(
            f"{path.name} rejected: {fault.function}: expected {fault.expected}, got {fault.got}; build again"
        )


def _row(function: Function, variant: str, code: KernelCode | None, counts: dict[str, int]) -> KernelRow:
    return KernelRow(
        variant=variant,
        function=function.name,
        kernel=function.kernel,
        threads=function.threads,
        registers=code.registers if code else None,
        shared_bytes=code.shared_bytes if code else function.shared_bytes,
        local_bytes=code.local_bytes if code else None,
        spilled=code.spilled if code else None,
        launches=counts.get(function.name, 0),
    )


def _launch_counts(plan: LaunchPlan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in plan.entries:
        for launch in entry.launches:
            counts[launch.function] = counts.get(launch.function, 0) + 1
    return counts


def _same_names(file: str, functions: Sequence[Function], found: Sequence[str]) -> None:
    wanted = {f.name for f in functions}
    lacking, extra = min(wanted - set(found), default=""), min(set(found) - wanted, default="")
    _expect(not lacking, file, f"a kernel {lacking}", f"{extra} instead" if extra else "none")
    _expect(not extra, file, "the kernels of the plan only", extra)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{path.name} rejected: expected a readable file, got {error.strerror}; copy the artifact again"
        ) from error


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"{path.name} rejected: expected UTF-8, got byte 0x{error.object[error.start]:02x}; "
            "copy the artifact again"
        ) from error


def _at_most(where: str, what: str, value: int, limit: int | None) -> None:
    _expect(limit is None or value <= limit, where, f"at most {limit} {what}", value)


def _expect(holds: bool, where: str, expected: str, got: object) -> None:
    if not holds:
        raise ArtifactError(f"{where} rejected: expected {expected}, got {got}; build again")


def _sizes(params: tuple[int, ...]) -> str:
    return f"{len(params)} of {_words([str(size) for size in sorted(set(params))])} bytes"


def _words(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "nothing"
