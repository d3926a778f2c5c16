"""`ds4c doctor`: devices and targets, each with what was found or what is missing and how to get it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4c.cli import doctor, doctor_tools
from ds4c.cli.doctor_tools import first_program, has_module, target_statuses
from ds4c.cli.main import main
from ds4c_runtime import devices
from ds4c_runtime.device.status import DeviceStatus

TARGETS = ["cpu", "cuda", "rocm", "metal"]


def test_every_device_and_target_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["devices"]) == ["cpu", "emulator", "cuda", "rocm", "metal"]
    assert list(report["targets"]) == TARGETS
    assert report["devices"]["cpu"]["usable"] is True
    for each in (*report["devices"].values(), *report["targets"].values()):
        assert each["detail"]
        assert "\n" not in each["detail"]
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("device ") for line in lines) == 5
    assert sum(line.startswith("target ") for line in lines) == 4


def test_what_a_device_says_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [DeviceStatus("cuda", True, "a card, sm_90"), DeviceStatus("rocm", False, "no driver: install it")]
    monkeypatch.setattr(devices, "probe_devices", lambda: said)
    assert main(["doctor"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("device ")]
    assert lines == [
        "device     cuda      usable: a card, sm_90",
        "device     rocm      not usable: no driver: install it",
    ]


def test_a_device_that_breaks_does_not_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe() -> DeviceStatus:
        raise RuntimeError("driver lost\nsecond line")

    monkeypatch.setattr("ds4c_runtime.device.cpu.probe", probe)
    assert doctor.devices()["cpu"] == {"usable": False, "detail": "RuntimeError: driver lost"}
    assert "emulator" in doctor.devices()


def only(monkeypatch: pytest.MonkeyPatch, *modules: str, programs: dict[str, str] | None = None) -> None:
    """A machine with these modules and programs."""
    monkeypatch.setattr(doctor_tools, "has_module", lambda name: name in modules)
    monkeypatch.setattr(shutil, "which", (programs or {}).get)
    monkeypatch.setattr(doctor_tools, "package_version", lambda _: "1.2")
    monkeypatch.setenv("PATH", "")


def told(compiler: str | None = "/bin/g++") -> dict[str, str]:
    return {s.name: ("" if s.can_build else "no: ") + s.detail for s in target_statuses(compiler)}


def test_tools_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *doctor_tools.MODULES, "cuda.bindings.nvrtc", "ziglang")
    assert told() == {
        "cpu": "apache-tvm 1.2, /bin/g++",
        "cuda": "apache-tvm 1.2, NVRTC 1.2",
        "rocm": "apache-tvm 1.2, LLD of ziglang 1.2",
        "metal": "apache-tvm 1.2, text",
    }


def test_tools_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    only(
        monkeypatch,
        *doctor_tools.MODULES,
        programs={"nvcc": "/c/nvcc", "ld.lld": "/l/ld.lld", "xcrun": "/x/xcrun"},
    )
    monkeypatch.setattr(doctor_tools, "sys", SimpleNamespace(platform="darwin"))
    assert told()["cuda"].endswith("/c/nvcc")
    assert told()["rocm"].endswith("/l/ld.lld")
    assert told()["metal"].endswith("text, /x/xcrun")


def test_tools_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *doctor_tools.MODULES)
    found = told(compiler=None)
    assert found["cpu"] == "no: no C++ compiler: install g++"
    assert "pip install 'ds4c[cuda-build]'" in found["cuda"]
    assert "pip install 'ds4c[rocm-build]'" in found["rocm"]
    assert not found["metal"].startswith("no")
    only(monkeypatch, "tvm")
    assert set(told().values()) == {"no: no module xdsl: pip install 'ds4c[build]'"}


def test_a_linker_with_a_number(tmp_path: Path) -> None:
    for name in ("ld.lld-9", "ld.lld-22", "ld.lld-x"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "ld.lld-30").touch(mode=0o644)
    assert first_program("ld.lld-", [str(tmp_path / "none"), str(tmp_path)]) == str(tmp_path / "ld.lld-22")
    assert first_program("ld.lld-", [str(tmp_path / "none")]) is None


def test_modules_below_what_is_missing_are_missing() -> None:
    assert has_module("json.decoder")
    assert not has_module("no_such_package.module")
    assert not has_module("json.decoder.deeper")
