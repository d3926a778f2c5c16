"""Device functions to the text of CUDA or Metal, or to an AMDGPU object, by the few TVM passes they need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import tvm
import tvm.ir
import tvm_ffi
from tvm.tirx import op, transform

Kind = Literal["cuda", "metal", "rocm"]

CUDA_PRELUDE = """#include <cuda_fp16.h>
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cstdint>
#else
typedef signed char int8_t; typedef unsigned char uint8_t; typedef unsigned short uint16_t;
typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
#endif
typedef unsigned int uint; typedef unsigned char uchar; typedef unsigned short ushort;
"""
"""Instead of TVM's, which includes headers of a toolkit that kernels do not need."""

_MATRIX_PRELUDE = """#ifndef DS4_EMU
__device__ __forceinline__ void ds4_mma_m16n8k16(float* d, const void* a_, const void* b_) {
  const uint* a = (const uint*)a_;
  const uint* b = (const uint*)b_;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
"""
"""The matrix function of `gpu/matrix.py`; the emulator has its own."""


_TARGETS: dict[str, dict[str, Any]] = {
    "cuda": {"kind": "cuda", "arch": "sm_90"},  # shapes nothing: binaries are made from the text
    "metal": {"kind": "metal", "max_threads_per_block": 256, "thread_warp_size": 32},
    "rocm": {"kind": "rocm", "max_num_threads": 256, "max_threads_per_block": 256},
}
_NAMES = {"tirx.fma": ("fmaf", "fma", "llvm.fma"), "tirx.nearbyint": ("rintf", "rint", "llvm.rint")}


@cache
def _register() -> None:
    """Teach TVM the names of exact functions; its own would be missing, or less exact, on some target."""

    def lowering(name: str) -> Any:
        def lower(call: Any) -> Any:
            make = op.call_llvm_pure_intrin if name.startswith("llvm.") else op.call_pure_extern
            return make("float32", name, *call.args)

        return lower

    for intrinsic, names in _NAMES.items():
        for kind, name in zip(("cuda", "metal", "rocm"), names, strict=True):
            tvm.ir.register_op_attr(intrinsic, f"{kind}.FLowerIntrinsic", lowering(name), 99)


def _build(functions: Sequence[Any], kind: Kind, extra: dict[str, Any]) -> Any:
    _register()
    target = tvm.target.Target(_TARGETS[kind] | extra, host="llvm")
    named = {f.attrs["global_symbol"]: f.with_attr("target", target) for f in functions}
    module = tvm.IRModule({tvm.ir.GlobalVar(name): f for name, f in named.items()})
    for each in (transform.UnrollLoop(), transform.LowerIntrin()):
        module = each(module)
    return tvm.get_global_func(f"target.build.{kind}")(module, target)


def cuda_text(functions: Sequence[Any]) -> str:
    """CUDA C++ of all functions, under our own prelude."""
    text = _build(functions, "cuda", {}).inspect_source("")
    helpers = _MATRIX_PRELUDE if "ds4_mma_m16n8k16(" in text else ""
    return CUDA_PRELUDE + helpers + text[text.index('extern "C" __global__') :]


def metal_text(functions: Sequence[Any]) -> str:
    """Metal text: a section for each function that starts with `// Function: NAME` and is compiled alone."""
    text = _build(functions, "metal", {}).inspect_source("")
    sections = re.split(r"(?m)^(?=// Function: )", text)[1:]
    return "".join(section.rstrip() + "\n" for section in sections)


def rocm_object(functions: Sequence[Any], gfx: str, wave: int) -> bytes:
    """Relocatable object for one architecture; it calls no function of a device library."""
    found: list[bytes] = []

    def link(data: Any) -> bytes:
        found.append(bytes(data))
        return b"\x7fELF"

    tvm_ffi.register_global_func("tvm_callback_rocm_bitcode_path", lambda *_: [], override=True)
    tvm_ffi.register_global_func("tvm_callback_rocm_link", link, override=True)
    _build(functions, "rocm", {"mcpu": gfx, "thread_warp_size": wave})
    (data,) = found
    return data
