"""Prints what pip has to install for the device script: `requirements.py DEVICE`, one requirement a line."""

import sys
import tomllib
from pathlib import Path

TESTS = ("pytest", "pytest-timeout", "hypothesis")


def requirements(device: str) -> list[str]:
    """Of the base install, of a build for the device's target, of the tests and of the device."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    target = "cuda" if device == "emulator" else device
    chosen = [r for name in ("build", f"{target}-build", device) for r in extras.get(name, [])]
    tests = [r for r in extras["test"] if r.split(">")[0].split("=")[0] in TESTS]
    return [*project["dependencies"], *chosen, *tests]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
