"""Kernel text on the emulator gives what a GPU would, in every mode and order."""

import threading
from pathlib import Path

import numpy as np
import pytest
from emulator_texts import KINDS, SCAN, SCAN_BODY, Kind, function, render, scan_expected, whole_text

from ds4c_runtime.device.emulator import calls, compiler
from ds4c_runtime.device.emulator.program import (
    CHECKED,
    FAST,
    EmulatedProgram,
    Mode,
    ProgramCall,
    Uninitialised,
    compile_text,
)
from ds4c_runtime.launches import Function

pytestmark = pytest.mark.slow  # g++ compiles each text

MODES = (FAST, Mode("shuffled", 1), Mode("shuffled", 2), CHECKED)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(params=MODES, ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


def program(kind: Kind, mode: Mode, kernel: Function, body: str) -> EmulatedProgram:
    return compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], mode)


def launch(
    kind: Kind, mode: Mode, body: str, inputs: dict[str, np.ndarray], out: np.ndarray, blocks: int = 1
) -> np.ndarray:
    """Launch a kernel `f(inputs..., y)` and return what it wrote to `y`."""
    dtypes = {name: str(a.dtype) for name, a in inputs.items()}
    kernel = function("f", 256, **dtypes, y=str(out.dtype))
    program(kind, mode, kernel, body).launch("f", [*inputs.values(), Uninitialised(out)], (blocks, 1, 1))
    return out


def test_shuffles_and_shared_arrays(kind: Kind, mode: Mode) -> None:
    x = np.random.default_rng(1).integers(0, 100, 3 * 256).astype(np.float32)
    y, top = np.zeros(3 * 256, np.float32), np.zeros(3, np.float32)
    buffers = [x, Uninitialised(y), Uninitialised(top)]
    program(kind, mode, SCAN, SCAN_BODY).launch("scan", buffers, (3, 1, 1))
    expected_y, expected_top = scan_expected(x)
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_array_equal(top, expected_top)


def test_less_optimised_code_gives_the_same(kind: Kind, mode: Mode) -> None:
    x = np.random.default_rng(2).standard_normal(256).astype(np.float32)
    text = whole_text(kind, render(kind, SCAN, SCAN_BODY))
    found: list[bytes] = []
    for quick in (False, True):
        y, top = np.zeros(256, np.float32), np.zeros(1, np.float32)
        buffers = [x, Uninitialised(y), Uninitialised(top)]
        compile_text(text, kind, [SCAN], mode, quick=quick).launch("scan", buffers, (1, 1, 1))
        found.append(y.tobytes() + top.tobytes())
    assert found[0] == found[1]


def test_vectors(kind: Kind, mode: Mode) -> None:
    device = "device " if kind == "metal" else ""
    x = np.arange(4 * 256, dtype=np.float32)
    body = f"""  float4 v = *({device}float4*)(x + (THREAD * 4));
  uint2 bits = *({device}uint2*)(x + (THREAD * 4));
  v.x = (v.y * v.z);
  v.w = (v.w + ((bits.x == (uint)0) ? 1.0f : 0.0f));
  *({device}float4*)(y + (THREAD * 4)) = v;
"""
    got = launch(kind, mode, body, {"x": x}, np.zeros(1024, np.float32)).reshape(-1, 4)
    want = x.reshape(-1, 4).copy()
    want[:, 0] = want[:, 1] * want[:, 2]
    want[0, 3] += 1
    np.testing.assert_array_equal(got, want)


def test_halves_round_to_nearest(kind: Kind, mode: Mode) -> None:
    x = np.random.default_rng(2).standard_normal(256).astype(np.float16)
    body = "  y[THREAD] = ((half)(((float)x[THREAD]) * 3.0000005e-01f));\n"
    got = launch(kind, mode, body, {"x": x}, np.zeros(256, np.float16))
    np.testing.assert_array_equal(got, (x.astype(np.float32) * np.float32(3.0000005e-01)).astype(np.float16))


def test_fma_rounds_once_and_products_are_not_contracted(kind: Kind, mode: Mode) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(256).astype(np.float32) for _ in range(3))
    fma = "fmaf" if kind == "cuda" else "fma"
    inputs = {"a": a, "b": b, "c": c}
    fused = launch(
        kind, mode, f"  y[THREAD] = {fma}(a[THREAD], b[THREAD], c[THREAD]);\n", inputs, np.zeros_like(a)
    )
    exact = a.astype(np.longdouble) * b + c
    np.testing.assert_array_equal(fused, exact.astype(np.float32))
    plain = launch(
        kind, mode, "  y[THREAD] = ((a[THREAD] * b[THREAD]) + c[THREAD]);\n", inputs, np.zeros_like(a)
    )
    np.testing.assert_array_equal(plain, a * b + c)


def test_scalar_functions(kind: Kind, mode: Mode) -> None:
    x = np.concatenate([np.linspace(-3, 3, 250), [0.5, 1.5, 2.5, -0.5, -0.0, 7]]).astype(np.float32)
    names = ("sqrtf", "fabsf", "floorf", "rintf") if kind == "cuda" else ("sqrt", "fabs", "floor", "rint")
    bits = ("__float_as_uint", "__uint_as_float") if kind == "cuda" else ("as_type<uint>", "as_type<float>")
    sqrt, absolute, floor, rint = names
    body = f"""  float v = x[THREAD];
  float r = ({floor}(v) + {sqrt}({absolute}(v)));
  r = (r + min({rint}(v), max(v, -1.0f)));
  y[THREAD] = (r + {bits[1]}(({bits[0]}(v) & (uint)2147483647)));
"""
    got = launch(kind, mode, body, {"x": x}, np.zeros_like(x))
    want = (
        np.floor(x) + np.sqrt(np.abs(x)) + np.minimum(np.rint(x), np.maximum(x, np.float32(-1))) + np.abs(x)
    )
    np.testing.assert_array_equal(got, want)


def test_offsets_of_64_bits(kind: Kind, mode: Mode) -> None:
    wide = "int64_t" if kind == "cuda" else "long"
    ids = np.arange(256, dtype=np.int32)[::-1].copy()
    body = f"  y[THREAD] = (int)(((({wide})ids[THREAD]) * ({wide})4294967296) >> 31);\n"
    np.testing.assert_array_equal(launch(kind, mode, body, {"ids": ids}, np.zeros(256, np.int32)), ids * 2)


def test_grids_of_three_dimensions(kind: Kind, mode: Mode) -> None:
    at = "(((blockIdx.z * 3 + blockIdx.y) * 2 + blockIdx.x) * 32 + THREAD)"
    body = f"  y[{at}] = (int)(blockIdx.z * 100 + THREAD);\n"
    kernel = function("f", 32, y="int32")
    text = whole_text(kind, render(kind, kernel, body).replace("uint blockIdx", "uint3 blockIdx"))
    y = np.zeros((2, 3, 2, 32), np.int32)
    compile_text(text, kind, [kernel], mode).launch("f", [Uninitialised(y)], (2, 3, 2))
    want = np.broadcast_to(100 * np.arange(2)[:, None, None, None] + np.arange(32), y.shape)
    np.testing.assert_array_equal(y, want)


def test_calls_in_order_share_arrays(kind: Kind, mode: Mode) -> None:
    first, second = (
        function("first", 32, x="float32", t="float32"),
        function("second", 32, t="float32", y="float32"),
    )
    text = whole_text(
        kind,
        render(kind, first, "  t[THREAD] = (x[THREAD] + 1.0f);\n"),
        render(kind, second, "  y[THREAD] = t[(31 - THREAD)];\n"),
    )
    x, t, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32), np.zeros(32, np.float32)
    compile_text(text, kind, [first, second], mode).run(
        [
            ProgramCall("first", [x, Uninitialised(t)], (1, 1, 1)),
            ProgramCall("second", [t, Uninitialised(y)], (1, 1, 1)),
        ]
    )
    np.testing.assert_array_equal(y, x[::-1] + 1)


def test_each_of_several_compiled_together_is_found_again(
    kind: Kind, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another text takes its function from the cache, without a compiler, though it was one of nine."""
    calls.core()  # goes where the cache was before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    several = [function(f"add_{i}", 32, y="int32") for i in range(9)]
    bodies = [render(kind, f, f"  y[THREAD] = (y[THREAD] + {i});\n") for i, f in enumerate(several)]
    compile_text(whole_text(kind, *bodies), kind, several, mode)
    found = list((tmp_path / "ds4c" / "emulator").iterdir())
    assert len(found) == 9, "nothing is left of the runs of the compiler"
    monkeypatch.setattr(compiler.subprocess, "Popen", None)
    for i in (7, 0, 3):
        y = np.arange(32, dtype=np.int32)
        text = whole_text(kind, bodies[i], bodies[8])
        compile_text(text, kind, [several[i]], mode).launch(f"add_{i}", [y], (1, 1, 1))
        np.testing.assert_array_equal(y, np.arange(32) + i)


def test_constants_may_be_read_from_tables(kind: Kind, mode: Mode) -> None:
    body = "  const float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};\n  y[THREAD] = table[(x[THREAD] & 3)];\n"
    x = np.arange(256, dtype=np.int32)
    got = launch(kind, mode, body, {"x": x}, np.zeros(256, np.float32))
    np.testing.assert_array_equal(got, 2.0 ** (x & 3))


def test_two_threads_of_the_host_take_turns(kind: Kind) -> None:
    failures: list[BaseException] = []

    def work(mode: Mode, seed: int) -> None:
        try:
            scan = program(kind, mode, SCAN, SCAN_BODY)
            for repeat in range(20):
                x = np.random.default_rng(seed + repeat).integers(0, 100, 512).astype(np.float32)
                y, top = np.zeros(512, np.float32), np.zeros(2, np.float32)
                scan.launch("scan", [x, Uninitialised(y), Uninitialised(top)], (2, 1, 1))
                np.testing.assert_array_equal(y, scan_expected(x)[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(m, 100 * i)) for i, m in enumerate((FAST, CHECKED))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
