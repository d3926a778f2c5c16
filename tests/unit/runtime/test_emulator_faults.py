"""Faults in kernel text and in launches, and which mode of the emulator notices each.

The same faults as a programmer makes: a barrier forgotten, an index off, a branch around a rendezvous.
"""

import dataclasses
import re

import numpy as np
import pytest
from emulator_texts import (
    KINDS,
    SCAN,
    SCAN_BODY,
    Kind,
    function,
    render,
    scan_expected,
    translate,
    whole_text,
)

from ds4c_runtime.device.emulator.calls import EmulatorFault
from ds4c_runtime.device.emulator.program import CHECKED, FAST, Mode, Uninitialised, compile_text
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import Function, Param

pytestmark = pytest.mark.slow  # g++ compiles each text

MODES = (FAST, Mode("shuffled", 5), CHECKED)
BLOCKS = 3
BARRIERS = [m[0] for m in re.finditer("  BARRIER; .*\n", SCAN_BODY)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def outcome(kind: Kind, mode: Mode, body: str, kernel: Function = SCAN, blocks: int = BLOCKS) -> str:
    """Message of the fault, or `right`, or `wrong`."""
    x = np.random.default_rng(7).integers(1, 100, BLOCKS * 256).astype(np.float32)
    y, top = np.zeros_like(x), np.zeros(BLOCKS, np.float32)
    scan = compile_text(whole_text(kind, render(kind, SCAN, body)), kind, [kernel], mode)
    try:
        scan.launch("scan", [x, Uninitialised(y), Uninitialised(top)], (blocks, 1, 1))
    except EmulatorFault as error:
        return str(error)
    expected_y, expected_top = scan_expected(x)
    return "right" if np.array_equal(y, expected_y) and np.array_equal(top, expected_top) else "wrong"


def changed(old: str, new: str, body: str = SCAN_BODY) -> str:
    assert body.count(old) >= 1
    return body.replace(old, new, 1)


LANES_OF_SHUFFLE = "thread 0 waits at a shuffle for lanes of its warp"
TEXT_FAULTS = {
    "no barrier before a shared read": (
        changed(BARRIERS[0], ""),
        "wrong",
        "wrong",
        r"(uninitialised read of|race on) part at byte \d+",
    ),
    "no barrier before shared memory is written again": (
        changed(BARRIERS[1], ""),
        "wrong|right",
        "wrong|right",
        r"race on part at byte \d+: (read|write) by block \(0, 0, 0\) thread \d+, (read|written) by",
    ),
    "no barrier before a second shared read": (
        changed(BARRIERS[2], ""),
        "wrong",
        "wrong",
        r"race on part at byte \d+: (read|write) by block .* thread \d+, (read|written) by thread \d+",
    ),
    "no barriers at all": (
        changed(BARRIERS[0], "", changed(BARRIERS[1], "", changed(BARRIERS[2], ""))),
        "wrong",
        "wrong",
        "uninitialised read of part|race on part",
    ),
    "barrier in a branch": (
        changed(BARRIERS[1], "  if (THREAD < 32) {\n  BARRIER;\n  }\n"),
        r"line \d+: thread \d+ at a barrier while others of its block are at the barrier of line \d+",
        r"line \d+: thread \d+ at a barrier while others of its block are at the barrier of line \d+",
        "race on part|at a barrier while others",
    ),
    "shuffle in a divergent branch": (
        changed("    float other = SHUFFLE(m, ((THREAD & 31) ^ d));\n    m = max(m, other);\n",
                "    if ((THREAD & 31) < 16) {\n    float other = SHUFFLE(m, ((THREAD & 31) ^ d));\n"
                "    m = max(m, other);\n    }\n"),
        LANES_OF_SHUFFLE, LANES_OF_SHUFFLE.replace("thread 0", r"thread \d+"), LANES_OF_SHUFFLE,
    ),
    "global read 64 elements further": (
        changed("x[(", "x[(64 + "),
        r"line \d+: guard page: access \d+ bytes after the end of x \(3072 bytes\), by block \(2, 0, 0\)",
        r"guard page: access \d+ bytes after the end of x \(3072 bytes\), by block \(2, 0, 0\) thread",
        r"line \d+: out of bounds: read of 4 bytes, 0 bytes after the end of x .* thread 192$",
    ),
    "global write one element further": (
        changed("y[(", "y[(1 + "),
        r"guard page: access 0 bytes after the end of y \(3072 bytes\), by block \(2, 0, 0\) thread 255",
        r"guard page: access 0 bytes after the end of y \(3072 bytes\), by block \(2, 0, 0\) thread 255",
        r"out of bounds: write of 4 bytes, 0 bytes after the end of y .* thread 255|race on y",
    ),
    "shared index 16 elements further": (
        changed("part[(THREAD >> 5)] = s", "part[16 + (THREAD >> 5)] = s"),
        "guard page|wrong", "guard page|wrong",
        r"out of bounds: write of 4 bytes, \d+ bytes after the end of part \(32 bytes\), by .* thread \d+",
    ),
    "shared store dropped": (
        changed("    part[(THREAD >> 5)] = s;\n", ""),
        "wrong", "wrong", "uninitialised read of part at byte 0",
    ),
    "all blocks write one word": (
        changed("top[BLOCK]", "top[0]"),
        "wrong", "wrong",
        r"race on top at byte 0: write by block \(1, 0, 0\) thread 0, written by thread 0 of another block",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_text_fault(kind: Kind, fault: str) -> None:
    body, *expected = TEXT_FAULTS[fault]
    for mode, pattern in zip(MODES, expected, strict=True):
        assert re.search(pattern, outcome(kind, mode, body)), (mode, outcome(kind, mode, body))


def test_clean_text_passes_in_every_mode(kind: Kind) -> None:
    assert [outcome(kind, mode, SCAN_BODY) for mode in MODES] == ["right"] * 3


def test_fewer_threads_than_the_text_needs(kind: Kind) -> None:
    kernel = dataclasses.replace(SCAN, threads=128)
    assert outcome(kind, FAST, SCAN_BODY, kernel) == "wrong"
    assert "uninitialised read of part at byte 16" in outcome(kind, CHECKED, SCAN_BODY, kernel)


def test_one_block_too_many(kind: Kind) -> None:
    message = outcome(kind, FAST, SCAN_BODY, blocks=BLOCKS + 1)
    assert re.search(r"guard page: access \d+ bytes after the end of x", message)
    message = outcome(kind, CHECKED, SCAN_BODY, blocks=BLOCKS + 1)
    assert re.search(r"out of bounds: read of 4 bytes, \d+ bytes after the end of x", message)
    assert "block (3, 0, 0)" in message


def test_argument_dropped(kind: Kind) -> None:
    kernel = dataclasses.replace(SCAN, params=SCAN.params[:-1])
    with pytest.raises(ArtifactError, match="kernel text does not compile: kernels") as caught:
        outcome(kind, FAST, SCAN_BODY, kernel)
    assert "\n" not in str(caught.value)


def test_argument_of_another_type(kind: Kind) -> None:
    kernel = dataclasses.replace(SCAN, params=(Param("x", "float16"), *SCAN.params[1:]))
    with pytest.raises(ArtifactError, match="kernel text does not compile"):
        outcome(kind, FAST, SCAN_BODY, kernel)


def test_function_renamed(kind: Kind) -> None:
    with pytest.raises(ArtifactError, match="expected a function scam, got none of that name"):
        outcome(kind, FAST, SCAN_BODY, dataclasses.replace(SCAN, name="scam"))


def test_text_that_does_not_compile_names_its_line(kind: Kind) -> None:
    """Whatever is compiled together with it."""
    other = function("other", 32, x="float32")
    good = render(kind, other, "  x[THREAD] = 1.0f;\n")
    text = whole_text(kind, good, render(kind, SCAN, changed("float m", "flot m")))
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "flot" in t)
    with pytest.raises(
        ArtifactError, match=rf"kernels\.\w+ line {line}, scan: 'flot' was not declared"
    ) as caught:
        compile_text(text, kind, [other, SCAN])
    assert "\n" not in str(caught.value)


def test_unknown_name_is_an_error_of_the_compiler(kind: Kind) -> None:
    with pytest.raises(ArtifactError, match="'__dp5a' was not declared"):
        outcome(kind, FAST, changed("float m = s", "float m = __dp5a(s)"))


@pytest.mark.parametrize("declaration", ["SHARED(float, part, 8)".replace("8", "n"), "LEFT float part[8][2]"])
def test_shared_array_that_is_not_understood(kind: Kind, declaration: str) -> None:
    word = "__shared__" if kind == "cuda" else "threadgroup"
    declaration = declaration.replace("LEFT", word).replace("SHARED(float, part, n)", f"{word} float part[n]")
    with pytest.raises(ArtifactError, match=r"kernels\.\w+ rejected: line \d+, scan: expected shared arrays"):
        outcome(kind, FAST, changed("SHARED(float, part, 8)", declaration))


def test_exited_lanes_do_not_answer_shuffles(kind: Kind) -> None:
    body = changed("  float m = s;\n", "  float m = s;\n  if (THREAD == 5) {\n    return;\n  }\n")
    for mode in MODES:
        assert "waits at a shuffle for lanes of its warp: 1 have exited" in outcome(kind, mode, body)


def test_exited_threads_do_not_come_to_barriers(kind: Kind) -> None:
    body = changed(BARRIERS[0], "  if (THREAD >= 224) {\n    return;\n  }\n" + BARRIERS[0])
    for mode in MODES:
        found = outcome(kind, mode, body)
        assert re.search(r"line \d+: divergence: 224 of 256 threads at a barrier, 32 have exited", found)


def test_lines_are_those_of_the_whole_text(kind: Kind) -> None:
    other = render(kind, function("other", 32, x="float32"), "  x[THREAD] = 1.0f;\n")
    text = whole_text(kind, other, render(kind, SCAN, changed("y[(", "y[(1 + ")))
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "y[(1 + " in t)
    x, y, top = (np.zeros(n, np.float32) for n in (256, 256, 1))
    for mode in (FAST, CHECKED):
        with pytest.raises(EmulatorFault, match=rf"^scan: line {line}: "):
            compile_text(text, kind, [SCAN], mode).launch("scan", [x, y, top], (1, 1, 1))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("  y[THREAD] = x[(THREAD + BLOCK)];\n  x[THREAD] = 1.0f;\n", "race on x"),
        ("  x[0] = 1.0f;\n  y[THREAD] = 0.0f;\n", "race on x at byte 0: write .* 1, written by thread 0"),
        ("  y[THREAD] = (y[THREAD] + 1.0f);\n", "uninitialised read of y at byte 0"),
        ("  x[(THREAD * 2)] = x[((THREAD * 2) + 2)];\n  y[THREAD] = 0.0f;\n", "race on x"),
    ],
)  # fmt: skip
def test_checked_mode_sees(kind: Kind, body: str, message: str) -> None:
    kernel = function("f", 32, x="float32", y="float32")
    checked = compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], CHECKED)
    x, y = np.zeros(256, np.float32), np.zeros(256, np.float32)
    with pytest.raises(EmulatorFault, match=message):
        checked.launch("f", [x, Uninitialised(y)], (2, 1, 1))


def test_write_after_reads_of_others(kind: Kind) -> None:
    body = "  y[THREAD] = x[0];\n  if (THREAD == 31) {\n    x[0] = 1.0f;\n  }\n"
    kernel = function("f", 32, x="float32", y="float32")
    checked = compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], CHECKED)
    expected = r"write by .* thread 31, read by several threads of the same block"
    with pytest.raises(EmulatorFault, match=expected):
        checked.launch("f", [np.zeros(32, np.float32), np.zeros(32, np.float32)], (1, 1, 1))


def test_a_barrier_does_not_order_other_blocks(kind: Kind) -> None:
    body = (
        "  y[((BLOCK * 32) + THREAD)] = x[0];\n  BARRIER;\n"
        "  if (BLOCK == 1 && THREAD == 31) {\n    x[0] = 1.0f;\n  }\n"
    )
    kernel = function("f", 32, x="float32", y="float32")
    checked = compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], CHECKED)
    with pytest.raises(
        EmulatorFault, match=r"write by block \(1, 0, 0\) .*, read by threads of several blocks"
    ):
        checked.launch("f", [np.zeros(32, np.float32), np.zeros(64, np.float32)], (2, 1, 1))


def test_shared_memory_starts_as_nan(kind: Kind) -> None:
    body = (
        "  SHARED(float, part, 32);\n  if (x[BLOCK] == 0.0f) {\n    part[THREAD] = 1.0f;\n  }\n"
        "  y[((BLOCK * 32) + THREAD)] = part[THREAD];\n"
    )
    kernel = function("f", 32, x="float32", y="float32")
    text = whole_text(kind, render(kind, kernel, body))
    x, y = np.arange(2, dtype=np.float32), np.zeros((2, 32), np.float32)
    compile_text(text, kind, [kernel]).launch("f", [x, y], (2, 1, 1))
    assert (y[0] == 1).all()
    assert np.isnan(y[1]).all()


def test_checked_mode_lets_one_thread_keep_its_own(kind: Kind) -> None:
    body = "  for (int i = 0; i < 4; ++i) {\n    x[THREAD] = (x[THREAD] + 1.0f);\n  }\n"
    kernel = function("f", 32, x="float32")
    x = np.zeros(32, np.float32)
    compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], CHECKED).launch(
        "f", [x], (1, 1, 1)
    )
    assert (x == 4).all()


def test_misaligned_vector_is_reported(kind: Kind) -> None:
    device = "device " if kind == "metal" else ""
    body = f"  float4 v = *({device}float4*)(x + THREAD);\n  y[THREAD] = (v.x + v.y);\n"
    kernel = function("f", 32, x="float32", y="float32")
    checked = compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], CHECKED)
    with pytest.raises(EmulatorFault, match=r"line \d+: misaligned access: expected a multiple of 16 bytes"):
        checked.launch("f", [np.zeros(64, np.float32), np.zeros(32, np.float32)], (1, 1, 1))


def test_index_beyond_an_array_of_a_thread(kind: Kind) -> None:
    body = (
        "  float a[4];\n  for (int i = 0; i < 5; ++i) {\n    a[i] = x[i];\n  }\n  x[0] = a[(THREAD & 3)];\n"
    )
    kernel = function("f", 32, x="float32")
    checked = compile_text(whole_text(kind, render(kind, kernel, body)), kind, [kernel], CHECKED)
    with pytest.raises(EmulatorFault, match=r"line \d+: index 4 beyond an array .*float.* by block"):
        checked.launch("f", [np.zeros(64, np.float32)], (1, 1, 1))


def test_shift_by_the_width(kind: Kind) -> None:
    kernel = function("f", 32, x="uint32")
    text = whole_text(kind, render(kind, kernel, "  x[THREAD] = ((uint)1 << (uint)(THREAD + 1));\n"))
    with pytest.raises(EmulatorFault, match=r"line \d+: shift of a number by 32 bits by block"):
        compile_text(text, kind, [kernel], CHECKED).launch("f", [np.zeros(32, np.uint32)], (1, 1, 1))


def test_write_to_constant(kind: Kind) -> None:
    kernel = function("f", 32, x="float32")
    text = whole_text(kind, render(kind, kernel, "  x[THREAD] = 1.0f;\n"))
    x = np.zeros(32, np.float32)
    x.flags.writeable = False
    with pytest.raises(EmulatorFault, match="write to constant x at byte 0"):
        compile_text(text, kind, [kernel], CHECKED).launch("f", [x], (1, 1, 1))


def test_faults_leave_the_emulator_usable(kind: Kind) -> None:
    for _ in range(3):
        assert "guard page" in outcome(kind, FAST, TEXT_FAULTS["global write one element further"][0])
        assert outcome(kind, FAST, SCAN_BODY) == "right"


def test_stack_overflow(kind: Kind) -> None:
    body = "  float a[30000];\n  for (int i = 0; i < 30000; ++i) {\n    a[i] = x[(i & 31)];\n  }\n"
    kernel = function("f", 32, x="float32", y="int32")
    text = whole_text(kind, render(kind, kernel, body + "  x[THREAD] = a[y[THREAD]];\n"))
    with pytest.raises(EmulatorFault, match="stack overflow: more than 65536 bytes"):
        compile_text(text, kind, [kernel]).launch(
            "f", [np.zeros(32, np.float32), np.zeros(32, np.int32)], (1, 1, 1)
        )


def test_translate_keeps_lines() -> None:
    assert translate("cuda", SCAN_BODY).count("\n") == SCAN_BODY.count("\n")
