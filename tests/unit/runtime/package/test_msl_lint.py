"""Lints of Metal text: nothing in clean text, every injected fault is found."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ds4c_runtime.launches import Function, Param
from ds4c_runtime.package.msl_lint import lint

LIMIT = 32768
NAME = "scale_rows"
SECTION = """// Function: scale_rows
#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

kernel void scale_rows(  device float* x [[ buffer(0) ]],
  device half* gain [[ buffer(1) ]],
  constant int* count [[ buffer(2) ]],
  device uchar* y [[ buffer(3) ]],
  uint3 blockIdx [[threadgroup_position_in_grid]],
  uint3 threadIdx [[thread_position_in_threadgroup]]
) {
  threadgroup float shared1[8];
  threadgroup int shared2[4];
  int v1 = (((int)threadIdx.x) % 32);
  if (((int)blockIdx.x) < count[(long)0]) {
    thread float local4[1];
    local4[0] = 0.000000e+00f;
    for (int i5 = 0; i5 < 2; ++i5) {
      int v6 = ((i5 * 256) + ((int)threadIdx.x));
      if (v6 < 300 && !(v6 == 7)) {
        float4 v7 = *(device float4*)(x + (v6 * 4));
        local4[0] = fma(v7.x, v7.y, local4[0]);  // a comment with a misspelt barier
      }
    }
    device const float* rows = x + 1;
    float v9 = simd_shuffle(local4[0], (v1 ^ 16));
    shared1[v1] = (v9 * rows[0]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float v28 = (1.000000e+00f / sqrt(fma((as_type<float>((uint)995783694)), shared1[0], 0x1p-3f)));
    *(device half4*)((device half*)gain + 4) = half4(float4(v28, v28, v9, 1.0f));
    y[count[0]] = ((uchar)(v28 > INFINITY ? 1 : 0));
    while (v1 > 40) { break; }
  }
}
"""
PLAIN = """// Function: nothing
kernel void nothing(device int* y [[buffer(0)]], uint blockIdx [[threadgroup_position_in_grid]]) {
  y[blockIdx] = 3;
  return;
}
"""
FUNCTION = Function(
    NAME,
    "k",
    (Param("x", "float32"), Param("g", "float16"), Param("c", "int32"), Param("y", "uint8")),
    256,
    48,
)
NOTHING = Function("nothing", "k", (Param("y", "int32"),), 32, 0)
TEXT = SECTION + "\n" + PLAIN


def test_clean_text_has_no_faults() -> None:
    assert lint(TEXT, [FUNCTION, NOTHING], LIMIT) == ()


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


def pattern(old: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(old, new, text, count=1)


FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    # the signature
    "renamed": (swap("void scale_rows", "void scale_row"), "`scale_rows`"),
    "no kernel": (swap("kernel void", "void"), "`kernel`"),
    "returns a value": (swap("kernel void", "kernel int"), "`void`"),
    "index twice": (swap("buffer(1)", "buffer(0)"), "[[buffer(0)]] again"),
    "index gap": (swap("buffer(3)", "buffer(7)"), "[[buffer(3)]]"),
    "indices exchanged": (
        pattern(r"(?s)buffer\(0\)(.*?)buffer\(1\)", r"buffer(1)\1buffer(0)"),
        "[[buffer(0)]]",
    ),
    "attribute missing": (swap(" [[ buffer(1) ]]", ""), "one attribute"),
    "attribute twice": (swap("[[ buffer(1) ]]", "[[ buffer(1) ]] [[ buffer(1) ]]"), "one attribute"),
    "attribute not closed": (swap("[[ buffer(1) ]]", "[[ buffer(1) ]"), "brackets"),
    "space missing": (swap("device half* gain", "half* gain"), "before a pointer"),
    "threadgroup buffer": (swap("device half* gain", "threadgroup half* gain"), "before a pointer"),
    "buffer by value": (swap("device half* gain", "device half gain"), "a pointer to a known type"),
    "pointer to pointer": (swap("device half* gain", "device half** gain"), "a pointer to a known type"),
    "other type": (swap("device half* gain", "device float* gain"), "pointers to float32, float16"),
    "other builtin": (swap("threadgroup_position_in_grid", "thread_position_in_grid"), "known attribute"),
    "builtin twice": (swap("thread_position_in_threadgroup", "threadgroup_position_in_grid"), "once"),
    "builtin of another type": (swap("uint3 blockIdx", "int3 blockIdx"), "uint3 [[threadgroup"),
    "positions of two types": (swap("uint3 blockIdx", "uint2 blockIdx"), "positions of one type"),
    "parameter twice": (swap("half* gain", "half* x"), "each parameter once"),
    "parameter dropped": (pattern(r"\n  device uchar\* y.*,", ""), "pointers to"),
    # the body
    "misspelt barrier": (swap("threadgroup_barrier", "threadgroup_barier"), "`threadgroup_barier`"),
    "barrier of another name": (swap("threadgroup_barrier", "__syncthreads"), "`__syncthreads`"),
    "no barrier": (pattern(r" *threadgroup_barrier.*\n", ""), "a barrier"),
    "barrier without a flag": (swap("mem_flags::mem_threadgroup", ""), "arguments of threadgroup_barrier"),
    "misspelt flag": (swap("::mem_threadgroup", "::mem_threadgroups"), "mem_flags"),
    "misspelt shuffle": (swap("simd_shuffle(", "simd_shufle("), "`simd_shufle`"),
    "shuffle of CUDA": (swap("simd_shuffle(", "__shfl_sync("), "`__shfl_sync`"),
    "too few arguments": (swap("simd_shuffle(local4[0], (v1 ^ 16))", "simd_shuffle(local4[0])"), "2 arg"),
    "function of CUDA": (swap(" fma(v7", " fmaf(v7"), "`fmaf`"),
    "double": (swap("thread float local4", "thread double local4"), "a known type"),
    "double cast": (swap("(uchar)(v28", "(double)(v28"), "`double`"),
    "atomic": (swap("y[count[0]] =", "atomic_fetch_add_explicit(y, 1);\n y[count[0]] ="), "`atomic_"),
    "unsigned char": (swap("(uchar)(v28", "(unsigned char)(v28"), "`unsigned`"),
    "index of CUDA": (swap("(int)threadIdx.x", "(int)threadIdx_x"), "`threadIdx_x`"),
    "unknown name": (swap("v1 > 40", "v2 > 40"), "`v2`"),
    "name of an inner block": (swap("rows[0]", "v7"), "`v7`"),
    "name of a loop": (swap("rows[0]", "i5"), "`i5`"),
    "name twice": (swap("float v28 =", "float v9 = 1.0f; float v28 ="), "each name once"),
    "name of a function": (swap("float v28 =", "float clamp = 1.0f; float v28 ="), "a name for a variable"),
    "member": (swap("v7.x", "v7.size"), "a component"),
    "arrow": (swap("v7.x", "x->x"), "none of"),
    "33 KiB": (swap("shared1[8]", "shared1[8448]"), "48 bytes of threadgroup memory"),
    "threadgroup in a block": (
        swap("thread float local4[1]", "threadgroup float local4[1]"), "threadgroup arrays outside of blocks",
    ),
    "threadgroup with a value": (swap("shared2[4];", "shared2[4] = {0};"), "no first value"),
    "array of another size": (swap("shared2[4]", "shared2[v1]"), "a number of elements"),
    "cast to threadgroup": (swap("(device float4*)(x", "(threadgroup float4*)(x"), "in threadgroup"),
    "cast to device": (swap("(device float4*)(x", "(device float4*)(shared1"), "a pointer in device"),
    "cast to thread": (swap("(device float4*)(x", "(device float4*)(&local4[0]"), "a pointer in device"),
    "inner cast": (swap("(device half*)gain", "(threadgroup half*)gain"), "a pointer in device"),
    "cast without a space": (swap("(device float4*)", "(float4*)"), "one address space"),
    "pointer without a space": (swap("device const float* rows", "const float* rows"), "one address space"),
    "pointer to another space": (swap("rows = x + 1", "rows = shared1 + 1"), "a pointer in device"),
    "pointer without a value": (swap("rows = x + 1", "rows"), "`=`"),
    "device value": (swap("int v6 =", "device int v6 ="), "a pointer in device"),
    "write to constant": (swap("y[count[0]] =", "count[y[0]] ="), "constant pointer"),
    "increment of constant": (swap("y[count[0]] =", "count[0]++; y[0] ="), "constant pointer"),
    "unbalanced": (swap("if (((int)blockIdx.x)", "if (((int)blockIdx.x"), "brackets"),
    "brace missing": (pattern(r"\}\n\Z", ""), "brackets"),
    "brace too many": (pattern(r"\}\n\Z", "}}\n"), "brackets"),
    "goto": (swap("break;", "goto end;"), "`goto`"),
    "new": (swap("y[count[0]] =", "x = new float; y[0] ="), "`new`"),
    "reinterpret_cast": (swap("(uchar)(v28", "reinterpret_cast<uchar>(v28"), "`reinterpret_cast`"),
    "string": (swap("y[count[0]] =", '"a"; y[0] ='), "text of tokens"),
    "pointer cast of as_type": (swap("as_type<float>", "as_type<device>"), "a known type"),
    # around it
    "define": (swap("using namespace", "#define x y\nusing namespace"), "the only directive"),
    "other include": (swap("<metal_stdlib>", "<cuda_fp16.h>"), "the only directive"),
    "helper": (swap("kernel void", "inline float f() { return 1; }\nkernel void"), "`kernel`"),
    "two kernels": (lambda s: s + "kernel void more() {}\n", "nothing after the kernel"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(name: str) -> None:
    change, message = FAULTS[name]
    changed = change(SECTION)
    assert changed != SECTION, "the fault does not apply"
    faults = lint(changed + "\n" + PLAIN, [FUNCTION, NOTHING], LIMIT)
    assert len(faults) == 1
    assert faults[0].function == NAME
    assert message in f"expected {faults[0].expected}, got {faults[0].got}"


def test_sections_are_those_of_the_plan() -> None:
    def found(text: str) -> list[tuple[str, str]]:
        return [(f.function, f.expected) for f in lint(text, [FUNCTION, NOTHING], LIMIT)]

    assert found(SECTION) == [("nothing", "its section in the text")]
    assert found(TEXT + PLAIN) == [("nothing", "a function of the plan, once")]
    assert found(TEXT.replace("Function: nothing", "Function: other")) == [
        ("other", "a function of the plan, once"),
        ("nothing", "its section in the text"),
    ]
    assert found("int x;\n" + TEXT) == [("text", "a line `// Function: NAME` first")]
    assert found("") == [(NAME, "its section in the text"), ("nothing", "its section in the text")]


def test_memory_of_a_device() -> None:
    (fault,) = lint(TEXT, [FUNCTION, NOTHING], 47)
    assert (fault.function, fault.expected, fault.got) == (
        NAME,
        "at most 47 bytes of threadgroup memory",
        "48",
    )


def test_cut_text_gives_faults_and_no_exception() -> None:
    for at in range(0, len(SECTION) - 2):
        assert lint(SECTION[:at], [FUNCTION], LIMIT), at
