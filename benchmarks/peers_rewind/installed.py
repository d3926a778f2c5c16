"""Where the engines are: nothing here loads one or asks a network."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from benchmarks.llama_peer import is_fetched
from benchmarks.own import ROOT

CACHE = ROOT / "out" / "bench"
"""Binaries of llama.cpp (shared with `make bench`) and the environment of mlx-vlm."""

MLX_PACKAGES = (
    "mlx[cpu]==0.32.4",
    "transformers==5.24.0",
    *("numpy", "jinja2", "pillow", "requests", "sentencepiece"),
)
"""What the text model of mlx-vlm imports; the rest of its requirements is for video, speech and servers."""

MLX_VLM = "mlx-vlm==0.7.10"

HOW = "run make peers"


def mlx_python(cache: Path = CACHE) -> Path:
    """Interpreter of the environment of mlx-vlm; the file after it says that the environment is complete."""
    return cache / "mlx-vlm" / "bin" / "python"


def mlx_stamp(cache: Path = CACHE) -> Path:
    """Written when the environment is complete; holds what is in it."""
    return cache / "mlx-vlm" / "installed"


def python_of(engine: str, cache: Path = CACHE) -> Path:
    """Interpreter that runs the worker of an engine."""
    return mlx_python(cache) if engine == "mlx" else Path(sys.executable)


def missing(engine: str, cache: Path = CACHE) -> str | None:
    """One line that says what an engine lacks here and how to get it, or None."""
    if engine == "transformers":
        lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
        return f"transformers: {' and '.join(lacking)} not installed; {HOW}" if lacking else None
    if engine == "llama":
        if importlib.util.find_spec("gguf") is None:
            return f"llama.cpp: the package gguf is not installed; {HOW}"
        return None if is_fetched(cache) else f"llama.cpp: its binaries are not fetched; {HOW}"
    if engine == "mlx":
        stamp = mlx_stamp(cache)
        complete = stamp.exists() and stamp.read_text() == mlx_contents()
        return None if complete else f"mlx-vlm: its environment is not installed; {HOW}"
    return None


def mlx_contents() -> str:
    """What the stamp must say."""
    return "\n".join((*MLX_PACKAGES, MLX_VLM))
