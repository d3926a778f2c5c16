"""`ds4c doctor`: what this machine can build and run; reads only, and works without any extra."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from ds4c.cli.common import JsonOption, format_bytes, package_version, print_json, print_result
from ds4c.cli.doctor_tools import MODULES, has_module, target_statuses

_PACKAGES = (
    "ds4c",
    "numpy",
    "apache-tvm-ffi",
    "apache-tvm",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "ziglang",
    "hip-python",
    "pyobjc-framework-Metal",
    "xdsl",
    "safetensors",
    "tokenizers",
    "grpcio",
    "protobuf",
    "torch",
    "transformers",
)
CPU_GENERIC = tuple("abm avx avx2 bmi1 bmi2 f16c fma movbe".split())
"""What code for cpu:generic needs; the target says so itself, but is not part of the base install."""
_CPU_FEATURES = (
    *CPU_GENERIC,
    *"avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 amx_int8 asimd sve".split(),
)


def register(app: typer.Typer) -> None:
    """Add `doctor`."""
    app.command("doctor")(doctor)


def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine can run and build: processor, memory, devices, targets, package versions.

    A device that is not usable and a target that cannot be built say what is missing.

    Example: ds4c doctor --json
    """
    report = collect()
    if as_json:
        print_json(report)
        return
    for line in describe(report):
        print_result(line)


def collect() -> dict[str, Any]:
    """Gather the report; every value is plain JSON."""
    features = cpu_features()
    return {
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": platform.platform(),
        "cpu": {
            "architecture": platform.machine(),
            "model": _cpu_field("model name") or platform.processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "features": features,
            "runs_cpu_generic": all(name in features for name in CPU_GENERIC),
        },
        "memory": memory_bytes(),
        "devices": devices(),
        "compiler": compiler(),
        "targets": targets(),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "can_build": all(has_module(name) for name in MODULES),
        "proto": "ds4c.v1",
    }


def cpu_features() -> list[str]:
    """The instruction sets ds4c asks about that this processor has; empty where the system does not tell."""
    flags = set((_cpu_field("flags") or _cpu_field("Features") or "").split())
    return [name for name in _CPU_FEATURES if name in flags]


def _cpu_field(key: str) -> str:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return ""
    for line in path.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def memory_bytes() -> dict[str, int | None]:
    """Physical and available memory, bytes; None where the system does not tell."""
    path = Path("/proc/meminfo")
    found: dict[str, int] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) * 1024
    return {"total": found.get("MemTotal"), "available": found.get("MemAvailable")}


def devices() -> dict[str, dict[str, Any]]:
    """Whether each device can be used here, and what it is, or what is missing."""
    from ds4c_runtime.devices import probe_devices

    return {s.name: {"usable": s.is_usable, "detail": s.detail} for s in probe_devices()}


def targets() -> dict[str, dict[str, Any]]:
    """Whether each target can be built here, and with what, or what is missing."""
    path = compiler()["path"]
    return {s.name: {"can_build": s.can_build, "detail": s.detail} for s in target_statuses(path)}


def compiler() -> dict[str, str | None]:
    """The C++ compiler that `ds4c build` links with, and its first line of `--version`."""
    path = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if path is None:
        return {"path": None, "version": None}
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return {"path": path, "version": done.stdout.splitlines()[0] if done.stdout else None}


def _installed(name: str) -> str | None:
    version = package_version(name)
    return None if version == "0+source" and name != "ds4c" else version


def describe(report: Mapping[str, Any]) -> list[str]:
    """The report as lines for people."""
    cpu, memory, build = report["cpu"], report["memory"], report["compiler"]
    total, free = (
        "unknown" if memory[key] is None else format_bytes(memory[key]) for key in ("total", "available")
    )
    can_build = "available" if report["can_build"] else "not available: pip install 'ds4c[build]'"
    lines = [
        f"python     {report['python']['version']}  {report['python']['executable']}",
        f"system     {report['system']}",
        f"cpu        {cpu['model']} ({cpu['architecture']}), {cpu['cores']} cores",
        f"features   {' '.join(cpu['features']) or 'none known'}",
        f"memory     {total}, {free} available",
        *(_line("device", name, "usable", d["usable"], d) for name, d in report["devices"].items()),
        f"compiler   {build['version'] or 'none found: install g++'}",
        f"build      {can_build}",
        *(_line("target", name, "can be built", t["can_build"], t) for name, t in report["targets"].items()),
    ]
    packages = report["packages"].items()
    return lines + [f"package    {name} {version or 'not installed'}" for name, version in packages]


def _line(what: str, name: str, verdict: str, holds: bool, status: Mapping[str, Any]) -> str:
    found = verdict if holds else f"not {verdict}".replace("not can", "cannot")
    return f"{what:<10} {name:<9} {found}: {status['detail']}"
