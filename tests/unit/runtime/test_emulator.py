"""Kernel text on the emulator: results, orders, and what each mode says of faults."""

import numpy as np
import pytest
from emulator_texts import TOTAL, TOTALS

from ds4c_runtime.device.emulator.calls import EmulatorFault
from ds4c_runtime.device.emulator.program import CHECKED, FAST, Mode, Uninitialised, compile_text
from ds4c_runtime.errors import ArtifactError

KINDS = ("cuda", "metal")
MODES = (FAST, Mode("shuffled", 1), Mode("shuffled", 2), CHECKED)


def launch_total(text: str, kind: str, mode: Mode, blocks: int = 3, grid: int = 3) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal(256 * blocks).astype(np.float32)
    y = np.zeros(blocks, np.float32)
    compile_text(text, kind, [TOTAL], mode).launch("total", [x, Uninitialised(y)], (grid, 1, 1))
    return y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_shared_reduction(kind: str, mode: Mode) -> None:
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    got = launch_total(TOTALS[kind], kind, mode)
    np.testing.assert_allclose(got, x.sum(1), rtol=1e-5)
    assert got.tobytes() == launch_total(TOTALS["cuda"], "cuda", FAST).tobytes()


BARRIER = {"cuda": "__syncthreads();", "metal": "threadgroup_barrier(mem_flags::mem_threadgroup);"}
AFTER_X = "bytes after the end of x"
FAULTS = [
    ("barrier", "", {"checked": r"line \d+: uninitialised read of red at byte 4 by block .* thread 0"}),
    (
        "* 256) +",
        "* 256) + 1 +",
        {"fast": f"guard page: access 0 {AFTER_X}", "checked": f"read .* {AFTER_X}"},
    ),
    ("red[i]", "red[i + 1]", {"checked": "out of bounds: read of 4 bytes, 0 bytes after the end of red"}),
    ("    s = (", "    if (d < 16 || threadIdx < 3) s = (", {"fast": "divergence", "checked": "divergence"}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("old", "new", "expected"), FAULTS, ids=[f[0] for f in FAULTS])
def test_fault(kind: str, old: str, new: str, expected: dict[str, str]) -> None:
    new = new.replace("threadIdx", "threadIdx.x") if kind == "cuda" else new
    text = TOTALS[kind].replace(BARRIER[kind] if old == "barrier" else old, new)
    for name, message in expected.items():
        with pytest.raises(EmulatorFault, match=message):
            launch_total(text, kind, Mode(name))


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_does_not_compile_is_one_line(kind: str) -> None:
    with pytest.raises(ArtifactError, match=r"does not compile: kernels.* line \d+, total: 'flot'") as caught:
        launch_total(TOTALS[kind].replace("float t", "flot t"), kind, FAST)
    assert "\n" not in str(caught.value)
