"""What each package loads, how long its import takes, and that the import rules of pyproject.toml hold."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = [str(ROOT / folder) for folder in (".", "runtime", "serve", "targets")]
COMPILER_ONLY = {"tvm", "xdsl", "torch", "transformers", "safetensors", "ds4c_targets"}

IMPORT_SECONDS = 0.5
"""What the import of the runtime may take on an idle machine (overview: 'imports in under 0.5 s')."""

SLACK = 3
"""Test machines are small and shared."""

LOAD_EVERYTHING = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCE_ROOTS)}


def run_python(*arguments: str) -> str:
    """Standard output of a new interpreter that sees the four source roots."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_packages(statement: str) -> set[str]:
    """Top-level packages in `sys.modules` after one statement in a new interpreter."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(run_python("-c", code).split())


@pytest.mark.parametrize("package", ["ds4c_runtime", "ds4c_serve"])
def test_no_module_of_the_package_loads_the_compiler(package: str) -> None:
    loaded = set(run_python("-c", LOAD_EVERYTHING, package).split())
    assert package in loaded
    assert loaded & (COMPILER_ONLY | {"ds4c"}) == set()


def test_the_runtime_loads_no_server() -> None:
    loaded = set(run_python("-c", LOAD_EVERYTHING, "ds4c_runtime").split())
    assert loaded & {"grpc", "google", "prometheus_client", "ds4c_serve"} == set()


@pytest.mark.parametrize(
    ("statement", "banned"),
    [
        ("import ds4c", COMPILER_ONLY | {"numpy", "grpc"}),
        ("import ds4c_runtime", COMPILER_ONLY | {"ds4c", "grpc", "tvm_ffi"}),
        ("import ds4c_targets", {"tvm", "torch"}),
        ("import ds4c.models, ds4c.importers", {"tvm", "torch", "grpc", "ds4c_serve"}),
        ("import ds4c.passes, ds4c.ir", {"tvm", "torch", "grpc", "ds4c_serve"}),
        ("import ds4c.cli.main", COMPILER_ONLY | {"grpc", "tvm_ffi"}),
    ],
)
def test_import_loads_no_more_than_it_needs(statement: str, banned: set[str]) -> None:
    assert loaded_packages(statement) & banned == set()


def import_seconds(module: str) -> float:
    """Wall time of one import, less the time in which a bare interpreter starts; best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        run_python("-c", "pass")
        bare = time.perf_counter() - start
        start = time.perf_counter()
        run_python("-c", f"import {module}")
        best = min(best, time.perf_counter() - start - bare)
    return best


@pytest.mark.serial
@pytest.mark.parametrize("module", ["ds4c_runtime", "ds4c_runtime.engine", "ds4c.cli.main"])
def test_import_is_quick(module: str) -> None:
    seconds = import_seconds(module)
    assert seconds < IMPORT_SECONDS * SLACK, (
        f"import {module}: expected < {IMPORT_SECONDS} s, got {seconds:.2f} s"
    )


def test_import_rules() -> None:
    """The contracts of pyproject.toml, as `make lint` checks them."""
    beside = Path(sys.executable).parent / "lint-imports"
    tool = str(beside) if beside.is_file() else shutil.which("lint-imports")
    if tool is None:
        pytest.skip("lint-imports is not installed; install the extra `test`")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
