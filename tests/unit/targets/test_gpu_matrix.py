"""Matrix units: the maps of lanes against products in NumPy, and the kernel of the one that is text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.targets.gpu_lab import COUNT, TARGET, act, close, count_buffer, described, nans, spec, weight

from ds4c.errors import TargetError
from ds4c_runtime.device.emulator.mode import CHECKED, FAST, Mode
from ds4c_runtime.device.emulator.program import ProgramCall, compile_text
from ds4c_targets.gpu.matrix import FORMS, LaneMap, MatrixForm

T, N, K = 40, 37, 80
RUNS = [1, 2, 6, 8, 9, 32, 40]


def fragments(matrix: np.ndarray, form: MatrixForm, of: LaneMap, held: int) -> np.ndarray:
    """`[lane, element]` of a tile as a kernel loads it."""
    return np.array([[matrix[of(lane, i)] for i in range(held)] for lane in range(form.lanes)])


def hardware(form: MatrixForm, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`[lane, element]` of D from fragments, by the register tables of the manuals."""
    rows, columns = np.zeros((form.rows, 16)), np.zeros((form.columns, 16))
    d = np.zeros((form.lanes, form.held[2]))
    if form.name == "mma":
        quads = a.reshape(8, 4, 4, 2)  # group, thread in group, register, half
        rows[:8] = quads[:, :, [0, 2]].transpose(0, 2, 1, 3).reshape(8, 16)
        rows[8:] = quads[:, :, [1, 3]].transpose(0, 2, 1, 3).reshape(8, 16)
        columns[:] = b.reshape(8, 4, 2, 2).transpose(0, 2, 1, 3).reshape(8, 16)
        return (rows @ columns.T).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)
    if form.name == "wmma-gfx11":  # both halves of the wave hold the same rows
        assert np.array_equal(a[:16], a[16:])
        product = a[:16] @ b[:16].T
        d[:16], d[16:] = product[0::2].T, product[1::2].T
        return d
    parts = form.lanes // 16
    rows = np.concatenate(np.split(a, parts), axis=1)
    columns = np.concatenate(np.split(b, parts), axis=1)
    return np.concatenate(np.split((rows @ columns.T).T, parts, axis=1))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_lane_maps_are_those_of_the_hardware(form: MatrixForm) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 8, (form.rows, form.depth)).astype(np.float64)
    b = rng.integers(-8, 8, (form.columns, form.depth)).astype(np.float64)
    got = hardware(form, fragments(a, form, form.a, form.held[0]), fragments(b, form, form.b, form.held[1]))
    assert np.array_equal(got, fragments(a @ b.T, form, form.d, form.held[2]))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_run_of_elements_is_a_run_of_channels(form: MatrixForm) -> None:
    for of, held in ((form.a, form.held[0]), (form.b, form.held[1])):
        for lane in range(form.lanes):
            for i in range(held):
                row, channel = of(lane, i - i % form.run)
                assert of(lane, i) == (row, channel + i % form.run)
    cells = {form.d(lane, i) for lane in range(form.lanes) for i in range(form.held[2])}
    assert len(cells) == form.rows * form.columns == form.lanes * form.held[2]


def parts(name: str, dtype: str = "float16") -> list[Any]:
    from ds4c_targets.gpu.emit import emit_kernel

    w = weight("linear", "w", N, K, dtype=dtype)
    made = spec("linear", [act("x", "in", T, K), w, act("y", "out", T, N), COUNT])
    return emit_kernel(made, replace(TARGET.description.tuning, matrix=name))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FAST, CHECKED], ids=["fast", "checked"])
def test_linear_by_mma(mode: Mode) -> None:
    from ds4c_targets.gpu.text import cuda_text

    (part,) = parts("mma")
    program = compile_text(cuda_text([part.function]), "cuda", [described(part)], mode)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((T, K), dtype=np.float32)
    w = rng.standard_normal((N, K)).astype(np.float16)
    w.flags.writeable = False

    def run(rows: np.ndarray) -> np.ndarray:
        y, given = nans(T, N), nans(T, K)
        given[: len(rows)] = rows
        arrays = {"x": given, "w": w, "y": y, "count": count_buffer(len(rows))}
        buffers = [arrays[b.operand] for b in part.bindings]
        x_blocks, y_blocks, z_blocks = (dim.most for dim in part.grid)
        program.run([ProgramCall(part.name, buffers, (x_blocks, y_blocks, z_blocks))])
        assert np.isnan(y[len(rows) :]).all()
        return y[: len(rows)]

    whole = run(x)
    close(whole, x.astype(np.float16).astype(np.float64) @ w.astype(np.float64).T)
    for count in RUNS:
        assert np.array_equal(run(x[:count]), whole[:count])
    assert np.array_equal(run(x[39:]), whole[39:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gfx", "wave"),
    [("wmma-gfx11", "gfx1100", 32), ("wmma-gfx12", "gfx1201", 32), ("mfma-gfx942", "gfx942", 64)],
)
def test_amd_forms_compile(tmp_path: Path, name: str, gfx: str, wave: int) -> None:
    from ds4c_targets.gpu.text import rocm_object

    (part,) = parts(name)
    assert rocm_object([part.function], gfx, wave).startswith(b"\x7fELF")


def test_only_float16_goes_through_matrix_units() -> None:
    assert parts("mma")[0].grid != parts("")[0].grid
    assert parts("mma", "bfloat16")[0].grid == parts("", "bfloat16")[0].grid
    with pytest.raises(TargetError, match=r"expected matrix of mma, .* got wgmma"):
        parts("wgmma")
