"""What the builds of binaries of all GPU targets share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ds4c_runtime.launches import LAUNCHES_NAME, LaunchPlan


def record_compiler(folder: Path, version: str) -> None:
    """Write the name and version of the compiler into the launch plan of a folder of temporary files."""
    plan = dataclasses.replace(LaunchPlan.read(folder), compiler=version)
    (folder / LAUNCHES_NAME).write_text(plan.to_json(), encoding="utf-8")
