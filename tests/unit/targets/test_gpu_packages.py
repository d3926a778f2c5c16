"""Every kernel of the labs as binaries: what ships is what is launched, within all limits.

Of a variant that no whole model of the tests is built for, and of every variant in `make test-more`.

Nothing runs here. Symbols, arguments, shared memory, registers and spills are read from the cubins and code
objects, and the Metal text is linted, as `ds4c verify` does it.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_package
import pytest
import shared_cache
from sizes import more
from unit.targets.gpu_lab import Lab, described, on_gpu

from ds4c_runtime.launches import Entry, LaunchPlan
from ds4c_runtime.manifest import Manifest, TargetInfo
from ds4c_runtime.package.check import KernelRow, check_package
from ds4c_targets.gpu.target import GpuTarget

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MODULES = [path.stem.replace("_gpu", "") for path in sorted(HERE.glob("test_gpu_*_kernels.py"))]
ENTRIES = ("step", "snapshot", "restore", "fork")
LOCAL_BYTES = 16
"""Stack of a thread that is let pass: attention gets 8 or 16 bytes, with registers to spare."""

globals().update({f"{module}_lab": on_gpu(module)["lab"] for module in MODULES})


@pytest.fixture(scope="module", params=MODULES)
def lab(request: pytest.FixtureRequest) -> Lab:
    """The kernels of a module of tests."""
    return request.getfixturevalue(f"{request.param}_lab")


Make = Callable[[str, str], tuple[KernelRow, ...]]


@pytest.fixture(scope="module")
def rows_of(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Checked rows of the artifact of a target and its variants with the kernels of the lab."""

    def make(name: str, variants: str) -> tuple[KernelRow, ...]:
        target: GpuTarget = importlib.import_module(f"ds4c_targets.{name}").TARGET

        def write(path: Path) -> None:
            parts = {p.name: p for several in lab.emitted().values() for p in several}
            folder = tmp_path_factory.mktemp(name) / "a"
            write_artifact(target, variants, list(parts.values()), folder)
            shutil.move(folder, path)

        own = [
            Path(file).read_text()
            for file in (__file__, gpu_package.__file__, str(gpu_package.elf_writer.__file__))
        ]
        kept = shared_cache.entry("packages", shared_cache.digest(name, variants, lab.specs, *own), write)
        return check_package(kept, Manifest.read(kept))

    return make


def write_artifact(target: GpuTarget, variants: str, parts: list[Any], folder: Path) -> Manifest:
    """An artifact with kernels and no launches."""
    from ds4c_targets.gpu import text

    chosen = target.description.select(variants)
    names = [v.name for v in chosen]
    made = gpu_package.package(target.name)
    plan = replace(
        made.plan,
        functions=tuple(described(p) for p in parts),
        entries=tuple(Entry(e, ()) for e in ENTRIES),
        limits=tuple(v.limits for v in chosen),
    )
    work = folder.with_name("work")
    work.mkdir()
    (work / "launches.json").write_text(plan.to_json())
    functions = [p.function for p in parts]
    if target.name == "rocm":
        for v in chosen:
            (work / f"kernels.{v.name}.o").write_bytes(text.rocm_object(functions, v.name, v.wave))
    elif target.name == "cuda":
        (work / "kernels.cu").write_text(text.cuda_text(functions))
    else:
        (work / "kernels.metal").write_text(text.metal_text(functions))
    shipped = target.finish(work, names, lambda line: None)
    files = {name: (work / name).read_bytes() for name in shipped}
    info = TargetInfo(target.name, "+".join(names), ())
    package = replace(
        made, plan=LaunchPlan.read(work), files=files, manifest=replace(made.manifest, target=info)
    )
    return package.write(folder)


CUDA = ("sm_80", "sm_90", "sm_120")
ROCM = ("gfx942", "gfx1100", "gfx1151", "gfx1201")
"""The first has waves of 64, the others of 32."""


@pytest.mark.parametrize("variants", [CUDA[:1], more(CUDA)], ids="+".join)
def test_cuda(rows_of: Make, cuda_compiler: str, variants: tuple[str, ...]) -> None:
    rows = rows_of("cuda", "+".join(variants))
    assert {r.variant for r in rows} == set(variants)
    spilled = [(r.variant, r.function, r.local_bytes) for r in rows if (r.local_bytes or 0) > LOCAL_BYTES]
    assert spilled == []


@pytest.mark.parametrize("variants", [ROCM[:1], more(ROCM)], ids="+".join)
def test_rocm(rows_of: Make, rocm_linker: str, variants: tuple[str, ...]) -> None:
    rows = rows_of("rocm", "+".join(variants))
    assert {r.variant for r in rows} == set(variants)
    spilled = [(r.variant, r.function, r.spilled) for r in rows if r.spilled or r.local_bytes]
    assert spilled == []


def test_every_variant_is_here() -> None:
    """A new one belongs above."""
    for name, variants in (("cuda", CUDA), ("rocm", ROCM)):
        target: GpuTarget = importlib.import_module(f"ds4c_targets.{name}").TARGET
        assert sorted(v.name for v in target.description.variants) == sorted(variants)


def test_metal(rows_of: Make) -> None:
    assert {r.variant for r in rows_of("metal", "all")} == {f"apple-m{n}" for n in range(1, 6)}
