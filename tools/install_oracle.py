"""Installs the `oracle` extra (torch, transformers) where pip would take a CPU build of torch.

On many Linux machines the default torch is a CUDA build of several gigabytes. That is never pulled in
silence: pip is asked first, without downloading, which file it would take. Runs inside `.venv`.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
ASK_SECONDS = 120
"""How long pip may take to say which file it would choose."""

GPU_REQUIREMENTS = ("nvidia", "cuda", "triton", "pytorch-triton")
"""Name prefixes of what only GPU builds of torch require."""


def oracle_requirements() -> list[str]:
    """The requirements of the extra, as pyproject.toml pins them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["oracle"])


def is_installed() -> bool:
    """Whether both packages can be imported already; imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def torch_is_cpu_build(requirement: str) -> bool:
    """Ask pip which torch it would install, and whether that one brings GPU libraries.

    Raises:
        RuntimeError: pip found none, or took longer than `ASK_SECONDS`.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
        command += ["--no-deps", "--only-binary", ":all:", "--report", report.name, requirement]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{requirement}: pip gave no answer within {ASK_SECONDS} s") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"{requirement}: {reason}")
        chosen = json.loads(Path(report.name).read_text())["install"][0]
    needs = [Requirement(line) for line in chosen["metadata"].get("requires_dist", [])]
    here = [need.name.lower() for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return not any(name.startswith(GPU_REQUIREMENTS) for name in here)


def main() -> int:
    """Install, or say in one line why not. Returns the exit status."""
    if is_installed():
        print("oracle: torch and transformers are already in this environment")
        return 0
    requirements = oracle_requirements()
    torch = next(line for line in requirements if line.startswith("torch"))
    try:
        cpu = torch_is_cpu_build(torch)
    except RuntimeError as error:
        print(f"oracle: not installed: {error}", file=sys.stderr)
        return 1
    if not cpu:
        print(
            f"oracle: expected a CPU build of {torch}, got a CUDA build of several GB; install a CPU build "
            "into .venv yourself, then run make oracle again",
            file=sys.stderr,
        )
        return 1
    print(f"oracle: installing {', '.join(requirements)} (CPU build)")
    return subprocess.run([sys.executable, "-m", "pip", "install", "-q", *requirements]).returncode


if __name__ == "__main__":
    sys.exit(main())
