"""Objects of a kernel for every AMD architecture, linked and read back; failures in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ds4c.errors import CompileError, TargetError
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.package.amdgpu import read_code_object
from ds4c_targets.rocm import TARGET, binaries
from ds4c_targets.rocm.binaries import find_linker, link_code_objects, system_linkers

pytestmark = pytest.mark.slow

WAVES = {v.name: v.wave for v in TARGET.description.variants}


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """A relocatable object of a row norm for each architecture."""
    from unit.targets.gpu_lab import act, spec, weight

    from ds4c.ir.kernel import Operand
    from ds4c_targets.gpu.emit import emit_kernel
    from ds4c_targets.gpu.text import rocm_object

    gain = weight("rms_norm", "gain", 300)
    count = Operand("count", "count", "int32", (1,))
    made = spec("rms_norm", [act("x", "in", 4, 300), gain, act("y", "out", 4, 300), count], eps=1e-6)
    functions = [part.function for part in emit_kernel(made, TARGET.description.tuning)]
    return {name: rocm_object(functions, name, wave) for name, wave in WAVES.items()}


Write = Callable[..., Path]


@pytest.fixture
def write(objects: dict[str, bytes], tmp_path: Path) -> Write:
    """Write the objects, some of them changed, into a folder."""

    def make(**changed: bytes) -> Path:
        for name, data in {**objects, **changed}.items():
            (tmp_path / f"kernels.{name}.o").write_bytes(data)
        return tmp_path

    return make


def test_code_objects_hold_the_kernel(write: Write, rocm_linker: str) -> None:
    folder = write()
    assert link_code_objects(folder, list(WAVES)) == rocm_linker
    for name, wave in WAVES.items():
        found = read_code_object(name, (folder / f"kernels.{name}.co").read_bytes())
        assert found.architecture == name
        (code,) = found.kernels
        assert (code.params, code.param_bytes, code.threads) == ((8,) * 4, 32, 256)
        assert (code.wave, code.shared_bytes, code.local_bytes, code.spilled) == (wave, 32, 0, 0)
        assert 0 < code.registers <= 64


def test_an_object_is_no_code_object(objects: dict[str, bytes]) -> None:
    with pytest.raises(ArtifactError, match="expected a descriptor of rms_norm_"):
        read_code_object("k.o", objects["gfx1100"])


def test_a_cut_code_object_is_refused(write: Write, rocm_linker: str) -> None:
    folder = write()
    link_code_objects(folder, ["gfx1201"])
    data = (folder / "kernels.gfx1201.co").read_bytes()
    for at in range(0, len(data), 97):
        with pytest.raises(ArtifactError):
            read_code_object("k", data[:at])


@pytest.mark.parametrize("data", [b"", b"text", None])
def test_a_damaged_object_is_one_line(write: Write, rocm_linker: str, data: bytes | None) -> None:
    folder = write(gfx942=b"" if data is None else data)
    if data is None:
        (folder / "kernels.gfx942.o").unlink()
    with pytest.raises(CompileError) as caught:
        link_code_objects(folder, ["gfx942"])
    assert "for gfx942: expected exit code 0, got 1 (" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / "kernels.gfx942.co").exists()


def test_linkers_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ld.lld-9", "ld.lld-22", "ld.lld-x"):
        (tmp_path / name).write_text('#!/bin/sh\necho "Debian LLD 22.1.8 (compatible with GNU linkers)"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [os.path.basename(p) for p in system_linkers()] == ["ld.lld-22", "ld.lld-9"]
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    tool = find_linker("lld")
    assert tool.version == "LLD 22.1.8"


def test_no_linker_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError) as caught:
        find_linker()
    assert str(caught.value) == (
        "rocm linker: expected ld.lld or the package ziglang, got neither; pip install 'ds4c[rocm-build]'"
    )
