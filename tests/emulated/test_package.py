"""`ds4c verify` of artifacts that were built: as they are, and with one thing changed and hashes right."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from artifacts import Build
from gpu_tools import cuda_compiler

from ds4c.cli.main import main
from ds4c_runtime.launches import LaunchPlan
from ds4c_runtime.manifest import Manifest

__all__ = ["cuda_compiler"]

pytestmark = pytest.mark.slow

Edit = Callable[[bytes], bytes]


def edited(source: Path, target: Path, name: str, edit: Edit) -> Path:
    """A copy of an artifact with one file changed; its manifest is in order."""
    target.mkdir()
    manifest = Manifest.read(source)
    data = edit((source / name).read_bytes())
    assert data != (source / name).read_bytes(), "the fault does not apply"
    for entry in manifest.files:
        if entry.name != name:
            os.link(source / entry.name, target / entry.name)
    (target / name).write_bytes(data)
    files = [
        replace(f, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)) if f.name == name else f
        for f in manifest.files
    ]
    (target / "manifest.json").write_text(replace(manifest, files=tuple(files)).with_id().to_json())
    return target


def regex(pattern: str, new: str) -> Edit:
    return lambda data: re.sub(pattern.encode(), new.encode(), data, count=1)


def with_launches(change: Callable[[LaunchPlan], LaunchPlan]) -> Edit:
    return lambda data: change(LaunchPlan.parse(data.decode())).to_json().encode()


def drop_parameter(plan: LaunchPlan) -> LaunchPlan:
    """The first function takes one pointer less, everywhere in the plan."""
    first = plan.functions[0]
    entries = tuple(
        replace(e, launches=tuple(
            replace(launch, args=launch.args[:-1]) if launch.function == first.name else launch
            for launch in e.launches
        ))
        for e in plan.entries
    )  # fmt: skip
    functions = (replace(first, params=first.params[:-1]), *plan.functions[1:])
    return replace(plan, functions=functions, entries=entries)


def rename_function(plan: LaunchPlan) -> LaunchPlan:
    """The last function gets another name, everywhere in the plan."""
    last = plan.functions[-1].name
    entries = tuple(
        replace(
            e, launches=tuple(replace(la, function="x") if la.function == last else la for la in e.launches)
        )
        for e in plan.entries
    )
    return replace(
        plan, functions=(*plan.functions[:-1], replace(plan.functions[-1], name="x")), entries=entries
    )


def far_address(plan: LaunchPlan) -> LaunchPlan:
    """The first address of the first launch is behind the end of its arena."""
    step, *others = plan.entries
    launch = step.launches[0]
    far = replace(launch.args[0], offset=1 << 40)
    changed = replace(launch, args=(far, *launch.args[1:]))
    return replace(plan, entries=(replace(step, launches=(changed, *step.launches[1:])), *others))


FAULTS: dict[str, tuple[str, str, Edit, str]] = {
    "kernel renamed in Metal": ("metal", "kernels.metal", regex(r"kernel void ", "kernel void x_"), "x_"),
    "argument dropped in Metal": ("metal", "kernels.metal", regex(r"(?s)  device [^,]*,", ""), "[[buffer"),
    "kernel renamed in CUDA": (
        "cuda:sm_90", "kernels.cu", lambda data: re.sub(rb"(__global__ void \S+ )", rb"\1x_", data), "x_",
    ),
    "kernel renamed in the cubin": (
        "cuda:sm_90", "kernels.sm_90.cubin",
        lambda data: re.sub(rb"rms_norm_(\w)", rb"rms_norn_\1", data), "expected a kernel rms_norm_",
    ),
    "argument dropped in the plan": ("cuda:sm_90", "launches.json", with_launches(drop_parameter), "pointer"),
    "function renamed in the plan": ("metal", "launches.json", with_launches(rename_function), "once"),
    "address outside": ("metal", "launches.json", with_launches(far_address), "an offset within"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_changed_artifact_is_refused(
    name: str,
    built: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    target, file, edit, message = FAULTS[name]
    if target.startswith("cuda"):
        request.getfixturevalue("cuda_compiler")
    artifact = built("tiny-8", target=target).artifact
    assert main(["verify", str(artifact)]) == 0
    capsys.readouterr()
    assert main(["verify", str(edited(artifact, tmp_path / "a", file, edit))]) == 4
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
