"""What the tests of emulated models share: targets and how their artifacts are opened."""

from __future__ import annotations

from artifacts import Build, Built

from ds4c_runtime.local import LocalModel, open_local

CUDA, METAL = "cuda:sm_90", "metal"
TARGETS = (CUDA, METAL)
EMULATOR = "emulator"


def emulated(built: Build, name: str, target: str, **options: object) -> tuple[Built, LocalModel]:
    made = built(name, target=target)
    return made, open_local(made.artifact, device=EMULATOR, **options)  # pyright: ignore[reportArgumentType]
