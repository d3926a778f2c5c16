"""Programs become one library: reproducible bytes, one error line from a dead child, 64-bit addresses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sizes import more
from unit.targets.kernel_lab import (
    act,
    aligned,
    block_buffer,
    block_operand,
    count_buffer,
    load_runtime,
    spec,
)

from ds4c.errors import CompileError, TargetError
from ds4c.ir.block import Block
from ds4c.ir.kernel import Arg, Call, EntryPoint, Operand, Program
from ds4c.lower import Toolchain, build_library
from ds4c.lower.program_json import program_from_json, program_to_json
from ds4c_targets.cpu import TARGET

pytestmark = pytest.mark.slow

GIB = 1 << 30
FAR = 3 * GIB  # past any 32-bit offset
ADD = spec("add", [act(n, r, 4, 8) for n, r in (("x", "in"), ("y", "in"), ("z", "out"))] + [
    Operand("count", "count", "int32", (1,))
])  # fmt: skip
RING = Operand("state", "ring", "float32", (4, 16), "", GIB + 64)
WRITE = spec("write", [RING, act("rows", "in", 4, 16), block_operand("at", 4, 1)])


def _program() -> Program:
    add = [Call(ADD.symbol, tuple(Arg(*a) for a in args)) for args in (
        (("work", 0), ("work", 128), ("work", 256), ("args", 0)),
        (("work", 256), ("work", 256), ("far", FAR), ("args", 0)),
    )]  # fmt: skip
    write = Call(WRITE.symbol, (Arg("far", 0), Arg("work", 0), Arg("args", 64)))
    entries = (
        EntryPoint("step", ("work", "far", "args"), tuple(add)),
        EntryPoint("keep", ("far", "work", "args"), (write,)),
        EntryPoint("nothing", ("work",), ()),
    )
    return Program({s.symbol: s for s in (ADD, WRITE)}, entries)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "kernels.so"
    TARGET.build_library(_program(), "generic", str(path), cache=str(path.parent / "cache"))
    return path


def test_program_text_round_trip() -> None:
    program = _program()
    assert program_from_json(program_to_json(program)) == program


def test_entry_points_run_their_calls_in_order(library: Path) -> None:
    import tvm_ffi

    load_runtime()
    module = tvm_ffi.load_module(str(library))
    work, far = aligned((4096,), np.uint8), aligned((4 * GIB + 4096,), np.uint8)
    floats = work.view(np.float32)
    floats[:32], floats[32:64] = np.arange(32), 100
    arguments = aligned((64,), np.int32)
    arguments[0] = 3
    module["step"](*map(tvm_ffi.from_dlpack, (work, far, arguments.view(np.uint8))))
    assert floats[64:88].tolist() == (np.arange(24) + 100).tolist()
    assert floats[88:96].tolist() == [0] * 8
    assert far[FAR : FAR + 96].view(np.float32).tolist() == (2 * (np.arange(24) + 100)).tolist()

    block = block_buffer(Block.of((3, 6, 2)), 4, 1)
    arguments = aligned((16 + block.size,), np.int32)
    arguments[16:] = block
    module["keep"](*map(tvm_ffi.from_dlpack, (far, work, arguments.view(np.uint8))))
    slot = far[3 * (GIB + 64) :][: 4 * 64].view(np.float32).reshape(4, 16)
    assert slot[2:].tolist() == floats[:32].reshape(2, 16).tolist()
    module["nothing"](tvm_ffi.from_dlpack(work))


def test_the_library_exports_entry_points_only(library: Path) -> None:
    table = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in table.stdout.splitlines()}
    assert {"__tvm_ffi_step", "__tvm_ffi_keep", "__tvm_ffi_nothing"} <= names
    assert not names & {ADD.symbol, WRITE.symbol}


def test_same_program_gives_same_bytes_and_the_cache_gives_them_again(library: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    again = tmp_path / "elsewhere" / "other-name.so"
    again.parent.mkdir()
    TARGET.build_library(_program(), "generic", str(again), lines.append)
    assert again.read_bytes() == library.read_bytes()
    assert lines[0].startswith("compiling 2 kernels for generic")
    lines.clear()
    TARGET.build_library(_program(), "generic", str(again), lines.append, cache=str(library.parent / "cache"))
    assert lines[0].startswith("library from cache")
    assert again.read_bytes() == library.read_bytes()
    assert str(tmp_path).encode() not in library.read_bytes()


def test_another_program_gets_the_objects_of_kernels_that_it_shares(library: Path, tmp_path: Path) -> None:
    """And becomes the same as without them; a kernel that it does not share is compiled."""
    cache = library.parent / "cache"
    before = {path.name for path in cache.glob("*.o")}
    assert len(before) == 2
    entry = _program().entry_points[0]
    program = Program({ADD.symbol: ADD}, (EntryPoint("other", entry.arenas, entry.calls),))
    for kept in ("", str(cache)):
        TARGET.build_library(program, "generic", str(tmp_path / f"with{bool(kept)}.so"), cache=kept)
    assert (tmp_path / "withTrue.so").read_bytes() == (tmp_path / "withFalse.so").read_bytes()
    assert {path.name for path in cache.glob("*.o")} == before
    wide = spec(
        "add", [act(n, r, 4, 32) for n, r in (("x", "in"), ("y", "in"), ("z", "out"))] + [ADD.operands[-1]]
    )
    call = Call(wide.symbol, entry.calls[0].args)
    program = Program({wide.symbol: wide}, (EntryPoint("other", entry.arenas, (call,)),))
    TARGET.build_library(program, "generic", str(tmp_path / "wide.so"), cache=str(cache))
    assert len(list(cache.glob("*.o"))) == 3


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        more("kill", CompileError, "got signal SIGKILL"),  # of a build: bad_input/test_output
        ("segfault", CompileError, "got signal SIGSEGV"),
        more("exit", CompileError, "got exit code 7"),
        ("target", TargetError, "toy kernel: expected another op, got add"),
        ("other", CompileError, "kernel compiler: ValueError: no such failure other"),
    ],
)
def test_a_failing_child_gives_one_line_and_no_file(
    failure: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    toolchain = Toolchain("unit.lower.emitters", failure, {"kind": "llvm"})
    path = tmp_path / "kernels.so"
    with pytest.raises(error) as caught:
        build_library(_program(), toolchain, str(path), cache=str(tmp_path / "cache"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.rglob("*") if p.name != "cache"] == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            Call(ADD.symbol, (Arg("work", 0), Arg("work", 8), Arg("work", 0), Arg("work", 0))),
            "multiples of 64 bytes, got 8",
        ),
        (Call(ADD.symbol, (Arg("work", 0),)), "expected 4 arguments, got 1"),
        (Call(ADD.symbol, (Arg("lost", 0),) * 4), "got 'lost'"),
        (Call("add_0", ()), "expected a kernel of the program, got add_0"),
    ],
)
def test_host_function_refuses_bad_calls(call: Call, message: str) -> None:
    from ds4c.lower.host import host_function

    with pytest.raises(CompileError, match=message):
        host_function(EntryPoint("step", ("work",), (call,)), {ADD.symbol: ADD})


def test_the_target_is_imported_without_tvm() -> None:
    code = "import sys, ds4c_targets.cpu, ds4c.lower; sys.exit('tvm' in sys.modules or 'xdsl' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


def test_two_thousand_calls_stay_two_thousand_calls(tmp_path: Path) -> None:
    import time

    import tvm_ffi

    from ds4c.lower.compile import run

    args = (("work", 0), ("work", 64), ("work", 0), ("args", 0))
    call = Call(ADD.symbol, tuple(Arg(*a) for a in args))
    program = Program({ADD.symbol: ADD}, (EntryPoint("step", ("work", "args"), (call,) * 2000),))
    output = tmp_path / "kernels.so"
    request = {"program": program_to_json(program), "emitter": "ds4c_targets.cpu.emit", "variant": "generic"}
    start = time.perf_counter()
    run({**request, "llvm": {"kind": "llvm", "mcpu": "x86-64-v3"}, "output": str(output)})
    assert time.perf_counter() - start < 60
    load_runtime()
    work = aligned((1024,), np.uint8)
    work.view(np.float32)[16:] = 1
    count = count_buffer(1)
    tvm_ffi.load_module(str(output))["step"](
        tvm_ffi.from_dlpack(work), tvm_ffi.from_dlpack(count.view(np.uint8))
    )
    assert work.view(np.float32)[:9].tolist() == [2000.0] * 8 + [0.0]
