"""Our engine as a side of a measurement, and the files that all sides read."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.gguf_writer import write_gguf
from benchmarks.pairs import Timed
from ds4c.importers.safetensors import open_checkpoint
from ds4c.models.config import ModelConfig, load_config
from ds4c.models.generate import WeightDtype, write_checkpoint
from ds4c.models.presets import PRESETS
from ds4c_runtime.local import LocalModel, open_local

DTYPES: dict[str, WeightDtype] = {"f32": "float32", "bf16": "bfloat16"}
SEED = 0
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Files:
    """One set of weights in all its forms.

    Attributes:
        weights: `f32` or `bf16`.
        checkpoint: safetensors folder. artifact: made of it by `ds4c build`. gguf: the same arrays.
        builds: how long each build of it took, process start to exit.
    """

    weights: str
    checkpoint: Path
    artifact: Path
    gguf: Path
    builds: tuple[Timed, ...] = ()

    @property
    def config(self) -> ModelConfig:
        """The model."""
        return load_config(self.checkpoint / "config.json")


def paths(cache: Path, preset: str, weights: str) -> Files:
    """Where the files of a preset stand."""
    folder = cache / f"{preset}-{weights}"
    return Files(weights, folder / "checkpoint", folder / "artifact", folder / "model.gguf")


def make_checkpoint(files: Files, preset: str) -> None:
    """Write checkpoint and GGUF unless they are there; they depend on the preset and the seed only."""
    if not files.checkpoint.exists():
        write_checkpoint(PRESETS[preset], files.checkpoint, SEED, DTYPES[files.weights])
    if not files.gguf.exists():
        write_gguf(open_checkpoint(files.checkpoint), files.gguf)


def environment() -> dict[str, str]:
    """Environment of a process that imports this checkout, installed or not."""
    folders = [ROOT, ROOT / "runtime", ROOT / "serve", ROOT / "targets"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "TVM_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    """`ds4c ARGUMENTS` of this checkout."""
    return [sys.executable, "-m", "ds4c.cli.main", *arguments]


def build(files: Files) -> Timed:
    """Build the artifact as a user does, replacing an older one; times of the process and its children.

    Raises:
        subprocess.CalledProcessError: the build failed; its own line is on stderr.
    """
    if files.artifact.exists() and not (files.artifact / "manifest.json").exists():
        shutil.rmtree(files.artifact)
    arguments = ("build", str(files.checkpoint), "-o", str(files.artifact), "--force", "--quiet")
    before, start = _children_seconds(), time.perf_counter()
    subprocess.run(command(*arguments), env=environment(), stdout=subprocess.DEVNULL, check=True)
    return Timed(time.perf_counter() - start, _children_seconds() - before)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tokens_of(config: ModelConfig, count: int, seed: int = 1) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, count).tolist()


class OwnModel:
    """One session of an artifact, called without engine or server."""

    def __init__(self, artifact: Path) -> None:
        self.model: LocalModel = open_local(artifact, sessions=1, threads=1)
        self.session = self.model.session("bench")

    @property
    def position(self) -> int:
        """Tokens so far."""
        return self.session.position

    def clear(self) -> None:
        """Forget all tokens."""
        self.session.rewind(0)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append tokens; logits of the last one only."""
        self.session.prefill(tokens)

    def step(self, tokens: Sequence[int], *, all_logits: bool = False) -> np.ndarray:
        """Append tokens; logits `[1, V]` or `[len(tokens), V]`."""
        return self.session.step(tokens, all_logits=all_logits)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits `[T, V]` of all tokens, in steps as large as the artifact allows."""
        most = self.model.manifest.limits.max_logit_rows
        parts = range(0, len(tokens), most)
        return np.concatenate([self.step(tokens[i : i + most], all_logits=True) for i in parts])
