"""Artifacts damaged with right hashes: refused by `ds4c verify`, or stopped by the emulator in one line.

What only execution shows is shown on one target, on the other in `make test-more`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifacts import Build
from bad_input.helpers import fails, linked_copy, rewrite
from emulated.models import CUDA, EMULATOR, METAL, TARGETS
from sizes import more

from ds4c.cli.main import main
from ds4c_runtime.device.emulator.mode import VARIABLE
from ds4c_runtime.launches import LAUNCHES_NAME, Launch, LaunchPlan
from ds4c_runtime.local import open_local
from ds4c_runtime.manifest import MANIFEST_NAME, FileEntry, Manifest

pytestmark = pytest.mark.slow

TEXT_OF = {CUDA: "kernels.cu", METAL: "kernels.metal"}
BARRIER = {CUDA: "__syncthreads();", METAL: "threadgroup_barrier(mem_flags::mem_threadgroup);"}
ROCM = "rocm:gfx1100"

PlanEdit = Callable[[LaunchPlan], LaunchPlan]


def damaged(source: Path, folder: Path, **files: bytes | str) -> Path:
    """A copy of an artifact with some files changed, and a manifest that says their new hashes."""
    linked_copy(source, folder)
    manifest = Manifest.read(source)
    entries = {entry.name: entry for entry in manifest.files}
    for name, content in files.items():
        rewrite(folder / name, content)
        data = (folder / name).read_bytes()
        entries[name] = FileEntry(name, hashlib.sha256(data).hexdigest(), len(data))
    changed = replace(manifest, files=tuple(entries[entry.name] for entry in manifest.files)).with_id()
    rewrite(folder / MANIFEST_NAME, changed.to_json())
    return folder


def with_plan(source: Path, folder: Path, edit: PlanEdit) -> Path:
    return damaged(source, folder, **{LAUNCHES_NAME: edit(LaunchPlan.read(source)).to_json()})


def with_text(source: Path, folder: Path, target: str, edit: Callable[[str], str]) -> Path:
    name = TEXT_OF[target]
    before = (source / name).read_text()
    after = edit(before)
    assert after != before
    return damaged(source, folder, **{name: after})


def function_of(plan: LaunchPlan, op: str) -> str:
    """Name of the first function of an op that a step launches."""
    return next(each.function for each in plan.entry("step").launches if each.function.startswith(op))


def edit_launch(plan: LaunchPlan, name: str, edit: Callable[[Launch], Launch]) -> LaunchPlan:
    """Edit the first launch of a function in a step."""
    step = plan.entry("step")
    at = next(i for i, each in enumerate(step.launches) if each.function == name)
    launches = (*step.launches[:at], edit(step.launches[at]), *step.launches[at + 1 :])
    entries = tuple(replace(e, launches=launches) if e.name == "step" else e for e in plan.entries)
    return replace(plan, entries=entries)


def without_barrier(text: str, name: str, target: str) -> str:
    """Remove the first barrier of a kernel."""
    body = next(m.start() for m in re.finditer(rf"\b{name}\([^;{{]*\{{", text))
    at = text.index(BARRIER[target], body)
    return text[:at] + text[at + len(BARRIER[target]) :]


def logits_fail(artifact: Path, folder: Path, *parts: str) -> str:
    """Line of `ds4c logits` on the emulator."""
    np.save(folder / "ids.npy", np.array([3, 5]))
    command = ["logits", artifact, "--tokens", folder / "ids.npy", "-o", folder / "l.npy"]
    return fails([*command, "--device", EMULATOR], 1, *parts)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_renamed_in_the_text(built: Build, target: str, tmp_path: Path) -> None:
    source = built("tiny-8", target=target).artifact
    name = function_of(LaunchPlan.read(source), "rms_norm")
    folder = with_text(source, tmp_path / "a", target, lambda text: text.replace(name, f"{name}x"))
    fails(["verify", "--json", folder], 4, TEXT_OF[target], name)


@pytest.mark.parametrize("target", TARGETS)
def test_an_argument_dropped_from_a_launch(built: Build, target: str, tmp_path: Path) -> None:
    source = built("tiny-8", target=target).artifact
    name = function_of(LaunchPlan.read(source), "rms_norm")
    folder = with_plan(
        source, tmp_path / "a", lambda p: edit_launch(p, name, lambda x: replace(x, args=x.args[:-1]))
    )
    fails(["verify", "--json", folder], 4, LAUNCHES_NAME, name)


@pytest.mark.parametrize("target", [*TARGETS, more(ROCM)])
def test_an_argument_dropped_from_the_plan(built: Build, target: str, tmp_path: Path) -> None:
    """From the function and all its launches: the plan agrees with itself, not with the kernel."""
    source = built("tiny-8", target=target).artifact
    name = function_of(LaunchPlan.read(source), "rms_norm")

    def edit(plan: LaunchPlan) -> LaunchPlan:
        functions = [replace(f, params=f.params[:-1]) if f.name == name else f for f in plan.functions]
        entries = [
            replace(
                e,
                launches=tuple(replace(x, args=x.args[:-1]) if x.function == name else x for x in e.launches),
            )
            for e in plan.entries
        ]
        return replace(plan, functions=tuple(functions), entries=tuple(entries))

    fails(["verify", "--json", with_plan(source, tmp_path / "a", edit)], 4, name)


@pytest.mark.parametrize("target", TARGETS)
def test_an_argument_dropped_from_the_text(built: Build, target: str, tmp_path: Path) -> None:
    source = built("tiny-8", target=target).artifact
    name = function_of(LaunchPlan.read(source), "rms_norm")

    def edit(text: str) -> str:
        if target == METAL:
            at = text.index(f"{name}(")
            parameter = r"  device float\* \w+ \[\[ buffer\(\d\) \]\],\n"
            return text[:at] + re.sub(parameter, "", text[at:], count=1)
        return re.sub(rf"({name}\([^)]*), int\* __restrict__ count\)", r"\1)", text)

    fails(["verify", "--json", with_text(source, tmp_path / "a", target, edit)], 4, TEXT_OF[target], name)


@pytest.mark.parametrize("target", [CUDA, more(METAL)])
@pytest.mark.parametrize("damage", ["grid", "threads"])
def test_a_wrong_launch_dimension_shows_in_the_logits(
    built: Build, target: str, damage: str, tmp_path: Path
) -> None:
    """No check of files can tell how large a grid or block must be: execution does."""
    source = built("tiny-8", target=target).artifact

    def edit(plan: LaunchPlan) -> LaunchPlan:
        if damage == "threads":
            name = function_of(plan, "rms_norm")
            functions = [replace(f, threads=32) if f.name == name else f for f in plan.functions]
            return replace(plan, functions=tuple(functions))
        name = function_of(plan, "linear")
        return edit_launch(plan, name, lambda x: replace(x, grid=(replace(x.grid[0], most=1), *x.grid[1:])))

    def logits(artifact: Path) -> bytes:
        return open_local(artifact, device=EMULATOR).session().step([3, 5], all_logits=True).tobytes()

    folder = with_plan(source, tmp_path / "a", edit)
    assert logits(folder) != logits(source)


@pytest.mark.parametrize("target", [more(CUDA), METAL])
def test_a_grid_too_small_for_the_checks(
    built: Build, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no block wrote is not initialised."""
    monkeypatch.setenv(VARIABLE, "checked")
    source = built("tiny-8", target=target).artifact
    name = function_of(LaunchPlan.read(source), "linear")
    folder = with_plan(
        source,
        tmp_path / "a",
        lambda p: edit_launch(p, name, lambda x: replace(x, grid=(replace(x.grid[0], most=1), *x.grid[1:]))),
    )
    logits_fail(folder, tmp_path, "uninitialised read of workspace")


@pytest.mark.parametrize("target", [more(CUDA), METAL])
def test_a_barrier_removed(
    built: Build, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "checked")
    source = built("tiny-8", target=target).artifact
    name = function_of(LaunchPlan.read(source), "rms_norm")
    folder = with_text(source, tmp_path / "a", target, lambda text: without_barrier(text, name, target))
    assert main(["verify", str(folder)]) == 0, "a barrier is no matter of the package check"
    line = logits_fail(folder, tmp_path, name)
    assert re.search("race on|uninitialised read of", line)


def test_a_truncated_cubin(built: Build, tmp_path: Path) -> None:
    source = built("tiny-8", target=CUDA).artifact
    name = "kernels.sm_90.cubin"
    data = (source / name).read_bytes()
    for count, size in enumerate((0, 40, len(data) // 2, len(data) - 64)):
        folder = damaged(source, tmp_path / str(count), **{name: data[:size]})
        fails(["verify", "--json", folder], 4, name)


@pytest.mark.parametrize(("target", "name"), [(CUDA, "kernels.sm_90.cubin"), (ROCM, "kernels.gfx1100.co")])
def test_a_binary_lacks_a_kernel(built: Build, target: str, name: str, tmp_path: Path) -> None:
    """The kernel's name is another one wherever the binary says it."""
    source = built("tiny-8", target=target).artifact
    kernel = function_of(LaunchPlan.read(source), "rms_norm")
    data = (source / name).read_bytes()
    other = kernel[:-1] + ("0" if kernel[-1] != "0" else "1")
    folder = damaged(source, tmp_path / "a", **{name: data.replace(kernel.encode(), other.encode())})
    fails(["verify", "--json", folder], 4, name, kernel)


def test_a_code_object_of_another_gfx(built: Build, tmp_path: Path) -> None:
    source = built("tiny-8", target=ROCM).artifact
    name = "kernels.gfx1100.co"
    data = bytearray((source / name).read_bytes())
    assert data[48] == 0x41, "EF_AMDGPU_MACH of gfx1100"
    data[48] = 0x4C  # gfx942
    fails(["verify", "--json", damaged(source, tmp_path / "a", **{name: bytes(data)})], 4, name, "gfx1100")
