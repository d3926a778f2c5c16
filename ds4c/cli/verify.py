"""`ds4c verify`: whether an artifact is what was built, and whether its rewinds are exact."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.common import (
    ArtifactArgument,
    DeviceOption,
    JsonOption,
    ThreadsOption,
    format_bytes,
    print_json,
    print_note,
    print_result,
)

if TYPE_CHECKING:
    from ds4c_runtime.manifest import Manifest
    from ds4c_runtime.package.check import KernelRow


def run(
    artifact: ArtifactArgument,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Also prove the plan and run rewinds on the kernels.")
    ] = False,
    threads: ThreadsOption = 1,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check manifest, hashes and kernels; with --rewind, that every kind of rewind is exact.

    The kernels of an artifact for a GPU are read from its binaries and texts, without a GPU, and compared
    with the launches: names, arguments, shared memory, registers, addresses.

    With --rewind, the capacity of every ring is proved from the manifest alone, the manifest is compared with
    the plan of the IR text, and then sessions are rewound on the kernels and compared with sessions that
    never were: logits and live rows, bit for bit. The first difference ends the command with exit code 3, a
    damaged artifact with 4.

    Example: ds4c verify out/m --rewind
    """
    started = time.perf_counter()
    manifest = check_files(artifact)
    size = sum(f.bytes for f in manifest.files)
    document: dict[str, Any] = {
        "artifact_id": manifest.artifact_id,
        "files": len(manifest.files),
        "bytes": size,
    }
    if not as_json:
        print_result(f"files      {len(manifest.files)}, {format_bytes(size)}: all as the manifest says")
    kernels = check_kernels(artifact, manifest)
    if kernels:
        document["kernels"] = len(kernels)
        if not as_json:
            print_result(f"kernels    {describe_kernels(kernels)}: all as the launches say")
    if rewind:
        document["rewind"] = check_rewind(artifact, manifest, threads, device, quiet=as_json)
    document["seconds"] = round(time.perf_counter() - started, 2)
    if as_json:
        print_json(document)


def check_files(folder: Path) -> Manifest:
    """Manifest of a folder whose files all have the size and the content it lists.

    Raises:
        ArtifactError: they have not.
    """
    from ds4c_runtime.manifest import Manifest
    from ds4c_runtime.manifest_checks import verify_files

    manifest = Manifest.read(folder)
    verify_files(folder, manifest)
    return manifest


def check_kernels(folder: Path, manifest: Manifest) -> Sequence[KernelRow]:
    """Kernels of an artifact for a GPU, in each of its binaries; none of one for the CPU.

    Raises:
        ArtifactError: binaries, texts, launches and limits contradict each other.
    """
    from ds4c_runtime.package.check import check_package, is_gpu

    return check_package(folder, manifest) if is_gpu(manifest) else ()


def describe_kernels(rows: Sequence[KernelRow]) -> str:
    """What the kernels of an artifact need at most, in a line."""
    variants = list(dict.fromkeys(row.variant for row in rows))
    parts = [f"{len(rows) // max(1, len(variants))} for {', '.join(variants)}"]
    registers = [row.registers for row in rows if row.registers is not None]
    parts += [f"up to {max(registers)} registers"] if registers else []
    parts.append(f"up to {max((row.shared_bytes for row in rows), default=0)} bytes of shared memory")
    local = [row.function for row in rows if row.local_bytes or row.spilled]
    parts += [f"{len(set(local))} with memory of threads"] if local else []
    return "; ".join(parts)


def check_rewind(
    folder: Path, manifest: Manifest, threads: int, device: str | None, *, quiet: bool
) -> dict[str, Any]:
    """Proof and sweep; prints their counts unless `quiet`, and gives them.

    Raises:
        CommandFailure: the plan is wrong, or a rewind was not exact (exit code 3).
        DeviceError: the kernels do not run here.
    """
    import dataclasses

    from ds4c.cli.verify_plan import compare_with_ir, prove_manifest
    from ds4c.cli.verify_sweep import sweep

    proof = prove_manifest(manifest)
    if not quiet:
        print_result(
            f"proved     {proof.rings} rings ({proof.kinds} kinds): every rewind of up to {proof.horizon} "
            "tokens finds its rows"
        )
    is_compared = compare_with_ir(folder, manifest)
    if not is_compared:
        print_note("plan not compared with module.mlir: that needs the extra `build`")
    elif not quiet:
        print_result("plan       that of module.mlir")
    counts = sweep(folder, threads, device, progress=lambda part: print_note(f"running {part}"))
    if not quiet:
        print_result(
            f"rewinds    {counts.in_place} in place ({counts.drafts} of drafts), {counts.snapshots} to "
            f"snapshots, {counts.replays} with a replay, {counts.forwards} forwards, {counts.forks} forks"
        )
        print_result(
            f"compared   {counts.compared} times with a session of {counts.tokens} tokens that never "
            "rewound: all equal, bit for bit"
        )
    return {
        "plan_compared": is_compared,
        "proof": dataclasses.asdict(proof),
        "sweep": dataclasses.asdict(counts),
    }


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(run)
