"""What `ds4c doctor` says about building: the tools of each target, looked for as its build does.

Without importing a target, whose packages are no part of the base install.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4c.cli.common import package_version

MODULES = ("tvm", "xdsl", "safetensors", "ml_dtypes")
"""What every build imports, the extra `build`."""


@dataclass(frozen=True)
class TargetStatus:
    """Whether artifacts of a target can be built here, and with what, or what is missing."""

    name: str
    can_build: bool
    detail: str


def target_statuses(compiler: str | None) -> list[TargetStatus]:
    """Of each target; `compiler` is the path of the C++ compiler, if there is one."""
    finders: dict[str, Callable[[], str | None]] = {
        "cpu": lambda: compiler,
        "cuda": cuda_compiler,
        "rocm": linker,
        "metal": lambda: "text" if apple_tools() is None else f"text, {apple_tools()}",
    }
    missing = {
        "cpu": "no C++ compiler: install g++",
        "cuda": "no NVRTC and no nvcc: pip install 'ds4c[cuda-build]' or install the CUDA toolkit",
        "rocm": "no ziglang and no ld.lld: pip install 'ds4c[rocm-build]' or install lld",
        "metal": "",
    }
    lacking = [name for name in MODULES if not has_module(name)]
    if lacking:
        advice = f"no module {lacking[0]}: pip install 'ds4c[build]'"
        return [TargetStatus(name, False, advice) for name in finders]
    found = {name: find() for name, find in finders.items()}
    tvm = f"apache-tvm {package_version('apache-tvm')}"
    return [
        TargetStatus(name, tool is not None, missing[name] if tool is None else f"{tvm}, {tool}")
        for name, tool in found.items()
    ]


def has_module(name: str) -> bool:
    """Whether a module can be found; its packages may be imported, it is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a package above it is missing or no package
        return False


def cuda_compiler() -> str | None:
    """NVRTC of the wheels, else the nvcc of a toolkit."""
    if has_module("cuda.bindings.nvrtc") and package_version("nvidia-cuda-nvrtc") != "0+source":
        return f"NVRTC {package_version('nvidia-cuda-nvrtc')}"
    return shutil.which("nvcc")


def linker() -> str | None:
    """LLD of the wheel, else of the system, as `ld.lld` or `ld.lld-NN`."""
    if has_module("ziglang"):
        return f"LLD of ziglang {package_version('ziglang')}"
    return shutil.which("ld.lld") or first_program("ld.lld-", os.get_exec_path())


def first_program(prefix: str, folders: Sequence[str]) -> str | None:
    """Path of the program whose name is the prefix and the largest number, in the first folder with any."""
    for folder in folders:
        found = {
            int(number): str(path)
            for path in Path(folder).glob(f"{prefix}*")
            if (number := path.name.removeprefix(prefix)).isdigit() and os.access(path, os.X_OK)
        }
        if found:
            return found[max(found)]
    return None


def apple_tools() -> str | None:
    """Path of Apple's `xcrun`; without it Metal text is compiled on the device at its first load."""
    return shutil.which("xcrun") if sys.platform == "darwin" else None
