"""A small artifact for each GPU target, written by hand: everything of it agrees until a test changes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import elf_writer
from elf_writer import kernel
from fake_executable import small_manifest

from ds4c_runtime.launches import (
    FORMAT,
    LAUNCHES_NAME,
    ONE,
    VERSION,
    Address,
    Dim,
    Entry,
    Function,
    Launch,
    LaunchPlan,
    Limits,
    Param,
)
from ds4c_runtime.manifest import FileEntry, Manifest, TargetInfo

SCALE = Function("scale_rows", "scale_0", (Param("x", "float32"), Param("count", "int32")), 256, 64)
NOTHING = Function("nothing", "copy_0", (Param("y", "uint8"),), 64, 0)
FUNCTIONS = (SCALE, NOTHING)

VARIANTS = {"cuda": ("sm_80", "sm_90"), "rocm": ("gfx942", "gfx1100"), "metal": ("apple-m1",)}

CUDA_TEXT = """typedef unsigned char uchar;
extern "C" __global__ void __launch_bounds__(256) scale_rows(float* __restrict__ x, int* __restrict__ count);
extern "C" __global__ void __launch_bounds__(256) scale_rows(float* __restrict__ x, int* __restrict__ count) {
  __shared__ float shared1[16];
}
extern "C" __global__ void __launch_bounds__(64) nothing(unsigned char* __restrict__ y) {
}
"""
PTX_TEXT = """.version 9.0
.target sm_90
.visible .entry scale_rows(.param .u64 scale_rows_0, .param .u64 scale_rows_1) .maxntid 256, 1, 1 { ret; }
.visible .entry nothing(.param .u64 nothing_0) { ret; }
"""
METAL_TEXT = """// Function: scale_rows
#include <metal_stdlib>
using namespace metal;
kernel void scale_rows(device float* x [[ buffer(0) ]], device int* count [[ buffer(1) ]],
  uint3 threadIdx [[thread_position_in_threadgroup]]) {
  threadgroup float shared1[16];
  shared1[((int)threadIdx.x) % 16] = x[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Function: nothing
kernel void nothing(device uchar* y [[ buffer(0) ]]) {
}
"""


@dataclass(frozen=True)
class Package:
    """What an artifact is made of; `files` besides the launch plan."""

    manifest: Manifest
    plan: LaunchPlan
    files: Mapping[str, bytes]

    def write(self, folder: Path) -> Manifest:
        """Write the artifact; its hashes and its id are right."""
        folder.mkdir(parents=True)
        files = {**self.files, LAUNCHES_NAME: self.plan.to_json().encode()}
        for name, data in files.items():
            (folder / name).write_bytes(data)
        entries = [FileEntry(n, hashlib.sha256(d).hexdigest(), len(d)) for n, d in sorted(files.items())]
        manifest = replace(self.manifest, files=tuple(entries)).with_id()
        (folder / "manifest.json").write_text(manifest.to_json())
        return manifest


def package(target: str) -> Package:
    """The artifact of a target."""
    variants = VARIANTS[target]
    plan = LaunchPlan(
        FORMAT, VERSION, target, FUNCTIONS, entries(), tuple(limits(v) for v in variants), "a compiler"  # type: ignore[arg-type]
    )  # fmt: skip
    manifest = small_manifest()
    arenas = replace(manifest.arenas, workspace=4096)
    info = TargetInfo(target, "+".join(variants), variants)
    files = {f"kernels.{v}.{suffix}": data for v in variants for suffix, data in binary(target, v).items()}
    texts = {
        "cuda": {"kernels.cu": CUDA_TEXT, "kernels.ptx": PTX_TEXT},
        "metal": {"kernels.metal": METAL_TEXT},
    }
    files |= {name: text.encode() for name, text in texts.get(target, {}).items()}
    return Package(replace(manifest, target=info, arenas=arenas), plan, files)


def limits(variant: str) -> Limits:
    """Limits of a device of a variant."""
    wave = 64 if variant == "gfx942" else 32
    registers = None if variant.startswith("apple") else 255
    return Limits(variant, 256, wave, 32768, registers, 65536 if variant.startswith("sm_") else None)


def entries() -> tuple[Entry, ...]:
    """Every entry point launches one function."""
    scale = Launch("scale_rows", (Address("workspace", 256), Address("io", 0)), (Dim(8, "rows"), ONE, ONE))
    copy = Launch("nothing", (Address("states", 0),), (Dim(4), ONE, ONE))
    return (
        Entry("step", (scale, scale)),
        *(Entry(name, (copy,)) for name in ("snapshot", "restore", "fork")),
    )


def binary(target: str, variant: str, **changes: object) -> dict[str, bytes]:
    """Binary of a variant by its suffix; `changes` are those of `scale_rows`."""
    wave = 64 if variant == "gfx942" else 32
    kernels = [
        kernel(**{"name": "scale_rows", "params": 2, "wave": wave, "shared_bytes": 64} | changes),  # type: ignore[arg-type]
        kernel("nothing", 1, wave=wave, shared_bytes=0, threads=256),
    ]
    if target == "cuda":
        return {"cubin": elf_writer.cubin(kernels, int(variant.removeprefix("sm_")))}
    return {"co": elf_writer.code_object(kernels, variant)} if target == "rocm" else {}
