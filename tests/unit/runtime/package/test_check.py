"""The package check: an artifact whose parts agree gives a table, any contradiction one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_package import NOTHING, SCALE, VARIANTS, Package, binary, package

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import ONE, Address, Dim, LaunchPlan, Param
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.package.check import check_package, is_gpu

Change = Callable[[Package], Package]


@pytest.mark.parametrize("target", VARIANTS)
def test_an_artifact_that_agrees_gives_a_row_for_each_function_and_binary(
    target: str, tmp_path: Path
) -> None:
    manifest = package(target).write(tmp_path / "a")
    assert Manifest.read(tmp_path / "a") == manifest
    assert is_gpu(manifest)
    rows = check_package(tmp_path / "a", manifest)
    assert [(r.variant, r.function) for r in rows] == [
        (v, f) for v in VARIANTS[target] for f in ("scale_rows", "nothing")
    ]
    first = rows[0]
    assert (first.kernel, first.threads, first.shared_bytes, first.launches) == ("scale_0", 256, 64, 2)
    expected = (None, None) if target == "metal" else (40, 0)
    assert (first.registers, first.local_bytes) == expected


def refused(changed: Package, folder: Path) -> str:
    """The line that the check refuses an artifact with."""
    manifest = changed.write(folder)
    with pytest.raises(ArtifactError) as caught:
        check_package(folder, manifest)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_file(name: str, change: Callable[[bytes], bytes] | bytes | None) -> Change:
    def edit(made: Package) -> Package:
        files = dict(made.files)
        data = change(files[name]) if callable(change) else change
        if data is None:
            del files[name]
        else:
            assert files.get(name) != data, "the fault does not apply"
            files[name] = data
        return replace(made, files=files)

    return edit


def swap(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old.encode(), new.encode())


def drop(pattern: str) -> Callable[[bytes], bytes]:
    return lambda data: re.sub(pattern.encode(), b"", data)


def with_code(target: str, variant: str, **changes: object) -> Change:
    ((suffix, data),) = binary(target, variant, **changes).items()
    return with_file(f"kernels.{variant}.{suffix}", data)


def with_plan(**changes: Any) -> Change:
    return lambda made: replace(made, plan=replace(made.plan, **changes))


def with_scale(**changes: Any) -> Change:
    return with_plan(functions=(replace(SCALE, **changes), NOTHING))


def with_limits(**changes: Any) -> Change:
    return lambda made: with_plan(limits=tuple(replace(each, **changes) for each in made.plan.limits))(made)


def with_launch(**changes: Any) -> Change:
    def edit(made: Package) -> Package:
        step, *others = made.plan.entries
        launches = (replace(step.launches[0], **changes), *step.launches[1:])
        return with_plan(entries=(replace(step, launches=launches), *others))(made)

    return edit


CODE_FAULTS: dict[str, tuple[dict[str, object], str]] = {
    "renamed": ({"name": "scale_row"}, "expected a kernel scale_rows, got scale_row instead"),
    "argument dropped": ({"params": 1}, "expected 2 pointers, got 1 of 8 bytes"),
    "argument added": ({"params": 3}, "expected 2 pointers, got 3 of 8 bytes"),
    "fewer threads": ({"threads": 128}, "expected 256 threads or more, got 128"),
    "more registers": ({"registers": 300}, "expected at most 255 registers of a thread, got 300"),
    "one register more": ({"registers": 256}, "expected at most 255 registers of a thread, got 256"),
    "less shared memory": ({"shared_bytes": 32}, "expected 64 bytes of shared memory, got 32 bytes"),
    "more shared memory": ({"shared_bytes": 512}, "expected 64 bytes of shared memory, got 512 bytes"),
}


@pytest.mark.parametrize("name", CODE_FAULTS)
@pytest.mark.parametrize(("target", "variant"), [("cuda", "sm_90"), ("rocm", "gfx942")])
def test_code_that_is_not_what_the_plan_launches(
    name: str, target: str, variant: str, tmp_path: Path
) -> None:
    changes, message = CODE_FAULTS[name]
    line = refused(with_code(target, variant, **changes)(package(target)), tmp_path / "a")
    assert line.startswith(f"kernels.{variant}.")
    assert message in line


@pytest.mark.parametrize(("target", "variant"), [("cuda", "sm_90"), ("rocm", "gfx942")])
def test_a_compiler_may_align_shared_memory_by_256_bytes(target: str, variant: str, tmp_path: Path) -> None:
    """The plan says 64 bytes: 64 to 320 are right, one byte more is another kernel."""
    manifest = with_code(target, variant, shared_bytes=320)(package(target)).write(tmp_path / "most")
    assert 320 in {row.shared_bytes for row in check_package(tmp_path / "most", manifest)}
    line = refused(with_code(target, variant, shared_bytes=321)(package(target)), tmp_path / "a")
    assert "expected 64 bytes of shared memory, got 321 bytes" in line


def test_registers_are_handed_out_in_steps_of_8(tmp_path: Path) -> None:
    """41 registers of 256 threads take 48 * 256 = 12,288."""
    made = with_code("cuda", "sm_90", registers=41)(package("cuda"))
    manifest = with_limits(block_registers=12_288)(made).write(tmp_path / "fits")
    assert check_package(tmp_path / "fits", manifest)
    line = refused(with_limits(block_registers=12_287)(made), tmp_path / "a")
    assert "at most 12287 registers of a block, got 12288" in line


FAULTS: dict[str, tuple[str, Change, str]] = {
    # files
    "cubin missing": ("cuda", with_file("kernels.sm_90.cubin", None), "a file kernels.sm_90.cubin, got none"),
    "text missing": ("metal", with_file("kernels.metal", None), "a file kernels.metal, got none"),
    "ptx missing": ("cuda", with_file("kernels.ptx", None), "a file kernels.ptx, got none"),
    "cubin of no variant": ("cuda", with_file("kernels.sm_120.cubin", b"x"), "got kernels.sm_120.cubin"),
    "library of the CPU": ("rocm", with_file("kernels.so", b"x"), "only, got kernels.so"),
    "not a cubin": ("cuda", with_file("kernels.sm_80.cubin", b"text"), "an ELF file"),
    "cubin of another variant": ("cuda", with_file("kernels.sm_80.cubin", binary("cuda", "sm_90")["cubin"]),
                                 "code for sm_80, got sm_90"),
    "object of another gfx": ("rocm", with_file("kernels.gfx942.co", binary("rocm", "gfx1100")["co"]),
                              "code for gfx942, got gfx1100"),
    "cubin for a code object": ("rocm", with_file("kernels.gfx942.co", binary("cuda", "sm_80")["cubin"]),
                                "code for machine 224, got 190"),
    "plan of another target": ("cuda", with_plan(kind="rocm"), "the target cuda, got rocm"),
    "limits of fewer variants": ("cuda", lambda p: with_plan(limits=p.plan.limits[:1])(p),
                                 "limits of sm_80+sm_90, got sm_80"),
    "no limits": ("metal", with_plan(limits=()), "limits of apple-m1, got none"),
    # functions
    "function more": ("cuda", with_plan(functions=(SCALE, NOTHING, replace(NOTHING, name="third"))),
                      "a kernel third, got none"),
    "other wave": ("rocm", with_limits(wave=16), "waves of 16 threads, got 64"),
    "threads over the limit": ("metal", with_limits(threads=128), "at most 128 threads, got 256"),
    "shared over the limit": ("metal", with_limits(shared_bytes=32), "at most 32 bytes of threadgroup"),
    "registers of a block": ("cuda", with_limits(block_registers=8192), "at most 8192 registers of a block"),
    # texts
    "renamed in the text": ("cuda", with_file("kernels.cu", swap("scale_rows", "scale_row")),
                            "a kernel scale_rows, got scale_row instead"),
    "argument dropped in the text": ("cuda", with_file("kernels.cu", swap(", int* __restrict__ count", "")),
                                     "pointers to float32, int32, got float32"),
    "argument of another type": ("cuda", with_file("kernels.cu", swap("int* __", "half* __")),
                                 "pointers to float32, int32, got float32, float16"),
    "launch bound": ("cuda", with_file("kernels.cu", swap("bounds__(256)", "bounds__(128)")),
                     "a launch bound of 256 threads or more, got 128"),
    "no launch bound": ("cuda", with_file("kernels.cu", swap("__launch_bounds__(256)", "")), "got None"),
    "text twice": ("cuda", with_file("kernels.cu", lambda data: data * 2), "scale_rows again"),
    "text of bytes": ("cuda", with_file("kernels.cu", b"\xff"), "expected UTF-8, got byte 0xff"),
    "renamed in the PTX": ("cuda", with_file("kernels.ptx", swap("entry nothing", "entry anything")),
                           "a kernel nothing, got anything instead"),
    "argument dropped in the PTX": ("cuda", with_file("kernels.ptx", swap(", .param .u64 scale_rows_1", "")),
                                    "2 pointers"),
    "renamed in Metal": ("metal", with_file("kernels.metal", swap("void nothing", "void anything")),
                         "nothing: expected `nothing`"),
    "argument dropped in Metal": ("metal", with_file("kernels.metal", drop(r"device int\* count.*,")),
                                  "pointers to"),
    "barrier removed in Metal": ("metal", with_file("kernels.metal",
        swap("  threadgroup_barrier(mem_flags::mem_threadgroup);\n", "")), "expected a barrier"),
    # launches
    "parameter more": ("cuda", with_scale(params=(*SCALE.params, Param("z", "int8"))), "addresses"),
    "entry point missing": ("cuda", lambda p: with_plan(entries=p.plan.entries[:3])(p), "entry points"),
    "address outside": ("cuda", with_launch(args=(Address("workspace", 4096), Address("io", 0))),
                        "an offset within 4096 bytes of workspace, got 4096"),
    "address across the end": ("cuda", with_launch(args=(Address("workspace", 4094), Address("io", 0))),
                               "a multiple of 4 bytes, got 4094"),
    "arena of another entry": ("rocm", lambda p: with_plan(entries=(*p.plan.entries[:3], replace(
        p.plan.entries[3], launches=p.plan.entries[0].launches)))(p), "in io, states, got workspace"),
    "grid too large": ("metal", with_launch(grid=(ONE, Dim(65536), ONE)), "65535 blocks along y, got 65536"),
    "grid that shrinks": ("metal", with_launch(grid=(Dim(8, "rows", 0, -1), ONE, ONE)), "grows with rows"),
    "empty grid": ("metal", with_launch(grid=(Dim(0), ONE, ONE)), "grids of at least one block"),
    "address dropped": ("metal", with_launch(args=(Address("workspace", 0),)), "expected 2 addresses, got 1"),
    "negative shared memory": ("metal", with_scale(shared_bytes=-1), "shared bytes of at least 0, got -1"),
    "half a warp": ("metal", with_scale(threads=48), "scale_rows: expected whole warps of threads, got 48"),
    "unknown function": ("metal", with_launch(function="other"), "a known function, got other"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_contradictions(name: str, tmp_path: Path) -> None:
    target, change, message = FAULTS[name]
    assert message in refused(change(package(target)), tmp_path / "a")


SIZES = {
    "int8": 1, "uint8": 1, "float16": 2, "uint16": 2, "float32": 4, "int32": 4, "uint32": 4, "int64": 8,
}  # fmt: skip


@pytest.mark.parametrize("dtype", SIZES)
def test_addresses_are_whole_elements_inside_their_arena(dtype: Any, tmp_path: Path) -> None:
    size = SIZES[dtype]
    made = with_scale(params=(Param("x", dtype), SCALE.params[1]))(package("cuda"))

    def line(offset: int) -> str:
        args = (Address("workspace", offset), Address("io", 0))
        return refused(with_launch(args=args)(made), tmp_path / str(offset))

    if size > 1:
        assert f"a multiple of {size} bytes, got {size // 2}" in line(size // 2)
    assert "an offset within 4096 bytes of workspace, got 4096" in line(4096)
    if dtype != "float32":  # that of the text: nothing is wrong with the address
        assert line(4096 - size).startswith("kernels.cu, scale_rows rejected")


def test_a_function_that_nothing_launches_is_in_the_table(tmp_path: Path) -> None:
    made = package("metal")
    step, *others = made.plan.entries
    entries = (step, *(replace(each, launches=()) for each in others))
    manifest = with_plan(entries=entries)(made).write(tmp_path / "a")
    assert [(r.function, r.launches) for r in check_package(tmp_path / "a", manifest)] == [
        ("scale_rows", len(step.launches)), ("nothing", 0),
    ]  # fmt: skip


def test_an_artifact_without_a_plan(tmp_path: Path) -> None:
    manifest = package("cuda").write(tmp_path / "a")
    (tmp_path / "a" / "launches.json").unlink()
    with pytest.raises(ArtifactError, match=r"launches.json rejected: expected a readable file"):
        check_package(tmp_path / "a", manifest)


def test_the_plan_round_trips() -> None:
    for target in VARIANTS:
        plan = package(target).plan
        assert LaunchPlan.parse(plan.to_json()) == plan
