"""The checkpoint in the forms that the engines read."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.gguf_writer import write_gguf
from benchmarks.llama_peer import folder_of
from benchmarks.own import SEED
from benchmarks.peers_rewind.installed import CACHE
from ds4c.build import BuildOptions, build
from ds4c.importers.safetensors import open_checkpoint
from ds4c.models.generate import write_checkpoint
from ds4c.models.presets import PRESETS

PRESET = "tiny-peers"
HORIZONS = (8, 2)


def make_own(folder: Path) -> dict[str, str]:
    """Write the checkpoint and build it for each horizon; returns the folders by name."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(PRESETS[PRESET], checkpoint, SEED, "float32")
    files = {"checkpoint": str(checkpoint)}
    for horizon in HORIZONS:
        artifact = folder / f"horizon-{horizon}"
        shutil.rmtree(artifact, ignore_errors=True)
        options = BuildOptions(horizon=horizon, context=512, rows=64, logit_rows=64, segments=2)
        build(checkpoint, artifact, options)
        files[artifact.name] = str(artifact)
    return files


def add_llama(folder: Path, files: dict[str, str], cache: Path = CACHE) -> dict[str, str]:
    """The same with the GGUF and the binaries of llama.cpp."""
    gguf = folder / "model.gguf"
    if not gguf.exists():
        write_gguf(open_checkpoint(Path(files["checkpoint"])), gguf)
    return {**files, "gguf": str(gguf), "binaries": str(folder_of(cache))}
