"""The kernels whose instructions are counted, their inputs, and how callgrind counts them.

`python tests/callgrind/regenerate.py` rewrites the stored values.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from unit.targets.kernel_lab import (
    COUNT,
    act,
    bf16,
    block_buffer,
    block_operand,
    count_buffer,
    nans,
    spec,
    weight,
    with_dead_rows,
)

from ds4c.ir.block import Block
from ds4c.ir.kernel import KernelSpec, Operand
from ds4c_targets.cpu import TARGET
from ds4c_targets.cpu.target import description

HERE = Path(__file__).parent
STORED = HERE / "instructions.json"
VARIANT = "generic"
"""valgrind 3.19 knows no AVX-512."""
TOLERANCE = 0.01
START = "start"
MAX_ROWS, SEGMENTS, HIDDEN, WIDTH, EXPERTS, TOP = 16, 2, 128, 64, 8, 2
HEADS, HEAD_WIDTH, WINDOW, RING, EVERY, SELECTED, PAGE_ROWS, PAGES, CONTEXT = 4, 64, 32, 48, 4, 8, 8, 4, 128
"""Small enough for an emulated processor, large enough that loops weigh more than their ends."""


@dataclass(frozen=True)
class Case:
    """One kernel on one input; operands without an array start as NaN or are scratch.

    Attributes:
        name: name in the stored values, a C identifier.
        kernel: what to compile.
        arrays: inputs by operand, weights not packed.
    """

    name: str
    kernel: KernelSpec
    arrays: dict[str, np.ndarray]


def cases() -> list[Case]:
    """All kernels that are counted."""
    found = [_linear(rows, dtype) for dtype in ("float32", "bfloat16") for rows in (1, 6, 16)]
    found += [_experts(rows, dtype) for dtype in ("float32", "bfloat16") for rows in (1, 6)]
    found += [_attention(rows) for rows in (1, 6)]
    found += [_hc_enter(1), _rms_norm(6)]
    return found


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _weights(dtype: str, *shape: int) -> np.ndarray:
    values = _random(*shape) / np.float32(8)
    return bf16(values) if dtype == "bfloat16" else values


def _rows(rows: int, *shape: int) -> np.ndarray:
    return with_dead_rows(_random(rows, *shape), MAX_ROWS)


def _linear(rows: int, dtype: str) -> Case:
    operands = [
        act("x", "in", MAX_ROWS, HIDDEN),
        weight("linear", "w", 2 * HIDDEN, HIDDEN, dtype=dtype),
        act("y", "out", MAX_ROWS, 2 * HIDDEN),
        COUNT,
    ]
    arrays = {"x": _rows(rows, HIDDEN), "w": _weights(dtype, 2 * HIDDEN, HIDDEN), "count": count_buffer(rows)}
    return Case(f"linear_{dtype}_{rows}", spec("linear", operands), arrays)


def _experts(rows: int, dtype: str) -> Case:
    shapes = {"w1": (EXPERTS, WIDTH, HIDDEN), "w3": (EXPERTS, WIDTH, HIDDEN), "w2": (EXPERTS, HIDDEN, WIDTH)}
    operands = [
        act("x", "in", MAX_ROWS, HIDDEN),
        act("experts", "in", MAX_ROWS, TOP, dtype="int32"),
        act("weights", "in", MAX_ROWS, TOP),
        *(weight("moe_experts", name, *shape, dtype=dtype) for name, shape in shapes.items()),
        act("y", "out", MAX_ROWS, HIDDEN),
        COUNT,
    ]
    chosen = (np.arange(rows * TOP, dtype=np.int32) * 3 % EXPERTS).reshape(rows, TOP)
    arrays = {
        "x": _rows(rows, HIDDEN),
        "experts": with_dead_rows(chosen, MAX_ROWS),
        "weights": _rows(rows, TOP),
        "count": count_buffer(rows),
        **{name: _weights(dtype, *shape) for name, shape in shapes.items()},
    }
    return Case(f"moe_experts_{dtype}_{rows}", spec("moe_experts", operands, clamp=10.0), arrays)


def _attention(rows: int) -> Case:
    """Rows at position 64: a full window in the ring, all selected rows visible."""
    row_bytes = HEAD_WIDTH * 4
    operands = [
        act("q", "in", MAX_ROWS, HEADS * HEAD_WIDTH),
        weight("attention", "sink", HEADS),
        Operand("old", "ring", "float32", (RING, HEAD_WIDTH), "", RING * row_bytes, 1),
        act("own", "in", MAX_ROWS, HEAD_WIDTH),
        Operand("rows", "append", "float32", (PAGE_ROWS, HEAD_WIDTH), "", PAGE_ROWS * row_bytes, EVERY),
        act("selection", "in", MAX_ROWS, SELECTED, dtype="int32"),
        block_operand("at", MAX_ROWS, SEGMENTS),
        Operand("pages", "pages", "int32", (SEGMENTS, PAGES)),
        act("o", "out", MAX_ROWS, HEADS * HEAD_WIDTH),
    ]
    selection = np.tile(np.arange(SELECTED, dtype=np.int32), (rows, 1))
    arrays = {
        "q": _rows(rows, HEADS * HEAD_WIDTH),
        "sink": _random(HEADS),
        "old": _random(RING, HEAD_WIDTH),
        "own": _rows(rows, HEAD_WIDTH),
        "rows": _random(PAGES * PAGE_ROWS, HEAD_WIDTH),
        "selection": with_dead_rows(selection, MAX_ROWS),
        "at": block_buffer(Block.of((0, 64, rows)), MAX_ROWS, SEGMENTS),
        "pages": np.tile(np.arange(PAGES, dtype=np.int32), (SEGMENTS, 1)),
    }
    attrs = {"scale": 0.125, "window": WINDOW, "every": EVERY, "context": CONTEXT}
    return Case(f"attention_{rows}", spec("attention", operands, **attrs), arrays)


def _hc_enter(rows: int) -> Case:
    copies = 4
    mixes = copies * (copies + 2)
    operands = [
        act("x", "in", MAX_ROWS, copies, HIDDEN),
        weight("hc_enter", "fn", mixes, copies * HIDDEN),
        weight("hc_enter", "base", mixes),
        weight("hc_enter", "scale", 3),
        weight("hc_enter", "gain", HIDDEN),
        act("h", "out", MAX_ROWS, HIDDEN),
        act("post", "out", MAX_ROWS, copies),
        act("mix", "out", MAX_ROWS, copies, copies),
        COUNT,
    ]
    arrays = {
        "x": _rows(rows, copies, HIDDEN),
        "fn": _weights("float32", mixes, copies * HIDDEN),
        "base": _random(mixes),
        "scale": _random(3),
        "gain": _random(HIDDEN),
        "count": count_buffer(rows),
    }
    return Case(f"hc_enter_{rows}", spec("hc_enter", operands, eps=1e-6, iters=20, norm_eps=1e-6), arrays)


def _rms_norm(rows: int) -> Case:
    operands = [act("x", "in", MAX_ROWS, HIDDEN), weight("rms_norm", "gain", HIDDEN)]
    operands += [act("y", "out", MAX_ROWS, HIDDEN), COUNT]
    arrays = {"x": _rows(rows, HIDDEN), "gain": _random(HIDDEN), "count": count_buffer(rows)}
    return Case(f"rms_norm_{rows}", spec("rms_norm", operands, eps=1e-6), arrays)


def count_instructions(folder: Path) -> dict[str, int]:
    """Compile the kernels and a driver in a folder, run it under callgrind once; instructions by case.

    Raises:
        RuntimeError: g++ or valgrind failed, with its last line.
    """
    chosen = cases()
    _compile_kernels(chosen, folder)
    (folder / "cases.inc").write_text(_driver_cases(chosen))
    for case in chosen:
        _write_operands(case, folder)
    shutil.copy(HERE / "driver.c", folder)
    flags = ["-x", "c", "-O1", "-std=c11", "driver.c", "-x", "none", "kernels.o", "-lm", "-o", "driver"]
    _run(["g++", *flags], folder)
    # In this order: the other way round valgrind 3.19 forgets to dump.
    counting = ["--tool=callgrind", "--callgrind-out-file=out", "--dump-after=case_*", "--zero-before=case_*"]
    _run(["valgrind", *counting, "./driver"], folder)
    totals = totals_of(folder)
    return {case.name: totals[case.name] for case in chosen}


def _compile_kernels(chosen: list[Case], folder: Path) -> None:
    from ds4c.lower.codegen import compile_functions
    from ds4c_targets.cpu.emit import emit_kernel

    kernels = {case.kernel.symbol: case.kernel for case in chosen}
    functions = [emit_kernel(kernel, VARIANT) for kernel in kernels.values()]
    llvm = description()["variants"][VARIANT]["llvm"]
    compile_functions(functions, llvm).write_to_file(str(folder / "kernels.o"))


def _driver_cases(chosen: list[Case]) -> str:
    """C text: a function for each case and a `main` that calls them."""
    lines: list[str] = []
    for symbol, size in {case.kernel.symbol: len(case.kernel.operands) for case in chosen}.items():
        lines.append(f"int {symbol}({', '.join(['void *'] * size)});")
    lines.append("static volatile int status;  // what keeps a call from becoming a jump")
    for case in chosen:
        arguments = ", ".join(f"a[{i}]" for i in range(len(case.kernel.operands)))
        body = f"{{ status = {case.kernel.symbol}({arguments}); }}"
        lines.append(f"__attribute__((noinline)) void case_{case.name}(void **a) {body}")
    # The first function of the pattern is not set to zero: this one takes the start of the program with it.
    lines.append(f"__attribute__((noinline)) void case_{START}(void) {{ status = 0; }}")
    lines.append(f"int main(void) {{\n  case_{START}();")
    for case in chosen:
        files = ", ".join(f'load("{case.name}.{i}")' for i in range(len(case.kernel.operands)))
        lines.append(f"  {{ void *a[] = {{{files}}}; case_{case.name}(a); if (status) return 1; }}")
    lines.append("  return 0;\n}")
    return "\n".join(lines) + "\n"


def _write_operands(case: Case, folder: Path) -> None:
    for index, operand in enumerate(case.kernel.operands):
        array = case.arrays.get(operand.name)
        if operand.role == "scratch":
            array = np.zeros(operand.shape, np.uint8)
        elif array is None:
            array = nans(*operand.shape, dtype=np.dtype(operand.dtype))
        elif operand.role == "weight":
            array = TARGET.pack(array, operand.layout)
        (folder / f"{case.name}.{index}").write_bytes(np.ascontiguousarray(array).tobytes())


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{command[0]}: expected exit code 0, got {done.returncode}: {last}")


def totals_of(folder: Path) -> dict[str, int]:
    """Read the dumps, one a case: which function triggered it and its total."""
    found: dict[str, int] = {}
    for dump in sorted(folder.glob("out.*")):
        text = dump.read_text()
        trigger = re.search(r"^desc: Trigger: .*case_(\w+)", text, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        if trigger and total:
            found[trigger.group(1)] = int(total.group(1))
    return found


def stored() -> dict[str, int]:
    """The stored values by case."""
    return json.loads(STORED.read_text())["instructions"]
