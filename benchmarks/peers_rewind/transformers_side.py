"""transformers: the cache object that its model returns, and what that object offers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers_rewind.grid import Line, Logits
from benchmarks.transformers_peer import TransformersModel
from ds4c.models.config import load_config


class TransformersLine:
    """A model and its cache; `way` is a name of `ways.WAYS`."""

    def __init__(self, model: TransformersModel, way: str) -> None:
        self._model = model
        self._way = way
        self._kept: tuple[int, Any] = (0, None)

    def before_draft(self, count: int) -> None:
        """Copy the cache, or have it record what it would forget."""
        if self._way == "copy":
            self._kept = (self._model.position, copy.deepcopy(self._model.cache))
        elif self._way == "recorded":
            self._model.cache.activate_past_recording()

    def decode(self, tokens: Sequence[int], *, one_batch: bool) -> Logits:
        """Append tokens."""
        if one_batch:
            return self._model.step(tokens, all_logits=True)
        return np.concatenate([self._model.step([token]) for token in tokens])

    def rewind(self, to: int) -> None:
        """Crop, or put the copy back."""
        if self._way == "copy":
            self._model.position, self._model.cache = self._kept
        else:
            self._model.cache.crop(to - self._model.position)
            self._model.position = to

    def reloaded(self, folder: Path) -> Line:
        """Go through `torch.save` and `torch.load`: transformers has no format for its caches."""
        import torch  # pyright: ignore[reportMissingImports]

        file = folder / "cache.pt"
        save: Any = torch.save
        load: Any = torch.load
        save(self._model.cache, file)
        self._model.cache = load(file, weights_only=False)
        return self


class TransformersSide:
    """A loaded model."""

    def __init__(self, checkpoint: Path, way: str) -> None:
        self._model = TransformersModel(checkpoint)
        self._way = way
        self.version = f"{metadata.version('transformers')}, torch {metadata.version('torch')}"
        self.vocab_size = load_config(checkpoint / "config.json").vocab_size

    def line(self, prompt: Sequence[int]) -> Line:
        """Start again with an empty cache."""
        self._model.clear()
        self._model.step(prompt)
        return TransformersLine(self._model, self._way)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits of a prompt in one call."""
        self._model.clear()
        return self._model.step(tokens, all_logits=True)
