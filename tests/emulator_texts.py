"""Small kernels in CUDA and Metal text, for tests of the emulator, written once for both languages.

A body says `THREAD`, `BLOCK`, `BARRIER;`, `SHUFFLE(value, lane);` and `SHARED(type, name, extent);` for what
the languages spell differently. What comes out has the form that the code generators print.
"""

import re
from typing import Literal

import numpy as np

from ds4c_runtime.launches import Function, Param

Kind = Literal["cuda", "metal"]
KINDS: tuple[Kind, ...] = ("cuda", "metal")
CUDA_PRELUDE = """#include <cuda_fp16.h>
typedef unsigned int uint; typedef unsigned char uchar; typedef unsigned short ushort;
typedef signed char int8_t; typedef unsigned char uint8_t; typedef unsigned short uint16_t;
typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
"""
METAL_PRELUDE = """#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

"""
C_TYPES = {
    "float32": "float",
    "float16": "half",
    "uint8": "uchar",
    "int8": "signed char",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "int64_t",
}
_CUDA = {
    "SHARED": r"__shared__ alignas(64) \1 \2[\3]",
    "SHUFFLE": r"__shfl_sync((uint)4294967295, \1, \2, 32)",
    "BARRIER": "__syncthreads()",
    "THREAD": "((int)threadIdx.x)",
    "BLOCK": "((int)blockIdx.x)",
}
_METAL = {
    "SHARED": r"threadgroup \1 \2[\3]",
    "SHUFFLE": r"simd_shuffle(\1, \2)",
    "BARRIER": "threadgroup_barrier(mem_flags::mem_threadgroup)",
    "THREAD": "((int)threadIdx)",
    "BLOCK": "((int)blockIdx)",
}


def function(name: str, threads: int = 256, /, **params: str) -> Function:
    """A function of a test's text; parameters in order, by name with their dtype."""
    return Function(name, name, tuple(Param(n, str(np.dtype(d))) for n, d in params.items()), threads, 0)


def translate(kind: Kind, body: str) -> str:
    """A body in one of the languages."""
    words = _CUDA if kind == "cuda" else _METAL
    body = re.sub(r"SHARED\((.+?), (\w+), (\d+)\)", words["SHARED"], body)
    body = re.sub(r"SHUFFLE\((\w+), (.+?)\);", words["SHUFFLE"] + ";", body)
    for word in ("BARRIER", "THREAD", "BLOCK"):
        body = body.replace(word, words[word])
    return body


def render(kind: Kind, kernel: Function, body: str) -> str:
    """The section of one function, without what stands before all."""
    body = translate(kind, body)
    if kind == "cuda":
        params = ", ".join(f"{C_TYPES[p.dtype]}* __restrict__ {p.name}" for p in kernel.params)
        return (
            f'extern "C" __global__ void __launch_bounds__({kernel.threads}) {kernel.name}({params}) {{\n'
            f"{body}}}\n"
        )
    params = "".join(
        f"  device {C_TYPES[p.dtype]}* {p.name} [[ buffer({i}) ]],\n" for i, p in enumerate(kernel.params)
    )
    return (
        f"// Function: {kernel.name}\n{METAL_PRELUDE}kernel void {kernel.name}({params}"
        "  uint blockIdx [[threadgroup_position_in_grid]],\n"
        f"  uint threadIdx [[thread_position_in_threadgroup]]\n) {{\n{body}}}\n"
    )


def whole_text(kind: Kind, *sections: str) -> str:
    """The text of an artifact of some sections."""
    return (CUDA_PRELUDE if kind == "cuda" else "") + "\n".join(sections)


SCAN = function("scan", x="float32", y="float32", top="float32")
SCAN_BODY = """  SHARED(float, part, 8);
  float s = x[((BLOCK * 256) + THREAD)];
  float m = s;
  for (int d = 1; d < 32; d = (d * 2)) {
    float other = SHUFFLE(s, max(((THREAD & 31) - d), 0));
    if (d <= (THREAD & 31)) {
      s = (s + other);
    }
  }
  for (int d = 16; d > 0; d = (d / 2)) {
    float other = SHUFFLE(m, ((THREAD & 31) ^ d));
    m = max(m, other);
  }
  if ((THREAD & 31) == 31) {
    part[(THREAD >> 5)] = s;
  }
  BARRIER; // before the parts are read
  for (int w = 0; w < 8; ++w) {
    if (w < (THREAD >> 5)) {
      s = (s + part[w]);
    }
  }
  BARRIER; // before the parts are written again
  if ((THREAD & 31) == 0) {
    part[(THREAD >> 5)] = m;
  }
  BARRIER; // before the maxima are read
  for (int w = 0; w < 8; ++w) {
    m = max(m, part[w]);
  }
  y[((BLOCK * 256) + THREAD)] = (s + m);
  if (THREAD == 0) {
    top[BLOCK] = m;
  }
"""
"""Inclusive sums within a block of 256 plus its maximum, and all maxima: two uses of one shared array."""


def scan_expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `scan` gives for whole numbers that floats hold exactly."""
    rows = x.reshape(-1, 256)
    top = rows.max(1)
    return (rows.cumsum(1) + top[:, None]).reshape(-1).astype(np.float32), top
