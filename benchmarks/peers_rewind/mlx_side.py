"""mlx-vlm on the CPU build of mlx; runs in its own environment and imports nothing of ds4c."""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers_rewind.grid import AnsweredNoError, Line, Logits


def mx() -> Any:
    """`mlx.core`, which the environment of ds4c lacks."""
    return importlib.import_module("mlx.core")


def cache_state() -> Any:
    """Functions of mlx-vlm for speculative decoding."""
    return importlib.import_module("mlx_vlm.speculative.cache_state")


def leaves(caches: Sequence[Any]) -> list[Any]:
    """The caches without their containers."""
    return list(cache_state().iter_leaf_caches(caches))


def mapped(value: Any, change: Any) -> Any:
    """A snapshot with every array changed."""
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, change) for item in value)
    return change(value) if isinstance(value, mx().array | np.ndarray) else value


class MlxLine:
    """The caches of one sequence; `way` is a name of `ways.WAYS`."""

    def __init__(self, side: MlxSide, prompt: Sequence[int]) -> None:
        self._side = side
        self._caches: list[Any] = side.model.make_cache()
        self._transaction: Any = None
        self._began = 0
        self._kept: list[Any] = []
        self.position = 0
        self.decode(prompt, one_batch=True)

    def before_draft(self, count: int) -> None:
        """Copy the caches, or open a transaction over `count` tokens."""
        if self._side.way == "copy":
            self._kept = [mapped(c.prefix_cache_snapshot(), mx().array) for c in leaves(self._caches)]
            self._began = self.position
        elif self._side.way != "trim":
            self._transaction = cache_state().start_speculative_cache(self._caches, count)
            self._began = self.position

    def decode(self, tokens: Sequence[int], *, one_batch: bool) -> Logits:
        """Append tokens."""
        parts = [list(tokens)] if one_batch else [[token] for token in tokens]
        rows = [self._side.evaluate(part, self._caches) for part in parts]
        self.position += len(tokens)
        return np.concatenate(rows)

    def rewind(self, to: int) -> None:
        """Trim, commit a part of the transaction, or put the copy back.

        Raises:
            AnsweredNoError: a cache cannot be trimmed, or there is no transaction.
        """
        if self._side.way == "copy":
            self._put_back(self._kept)
        elif self._side.way == "trim":
            fixed = {type(c).__name__ for c in leaves(self._caches) if not c.is_trimmable()}
            if fixed:
                raise AnsweredNoError(f"is_trimmable() is False for {', '.join(sorted(fixed))}")
            for cache in self._caches:
                cache.trim(self.position - to)
        elif self._transaction is None:
            raise AnsweredNoError("a transaction is not part of what is saved")
        else:
            self._transaction.commit(to - self._began)
        self.position = to

    def reloaded(self, folder: Path) -> Line:
        """Go through a file: mlx-vlm offers snapshots of caches; the file is ours."""
        snapshots = [mapped(c.prefix_cache_snapshot(), np.array) for c in leaves(self._caches)]
        file = folder / "caches.pickle"
        file.write_bytes(pickle.dumps(snapshots))
        self._put_back(mapped(pickle.loads(file.read_bytes()), mx().array))
        self._transaction = None
        return self

    def _put_back(self, snapshots: Sequence[Any]) -> None:
        self._caches = self._side.model.make_cache()
        for cache, snapshot in zip(leaves(self._caches), snapshots, strict=True):
            cache.prefix_cache_restore(snapshot)


class MlxSide:
    """A loaded checkpoint."""

    def __init__(self, checkpoint: Path, way: str) -> None:
        core = mx()
        core.set_default_device(core.cpu)
        package = "mlx_vlm.models.deepseek_v4"
        config = json.loads((checkpoint / "config.json").read_text())
        loaded = importlib.import_module(f"{package}.config").ModelConfig.from_dict(config)
        self.model: Any = importlib.import_module(f"{package}.language").LanguageModel(loaded)
        weights: dict[str, Any] = {}
        for file in sorted(checkpoint.glob("*.safetensors")):
            weights.update(core.load(str(file)))
        self.model.load_weights(list(self.model.sanitize(weights).items()), strict=True)
        self.way = way
        self.version = f"{metadata.version('mlx-vlm')}, mlx {metadata.version('mlx')}"
        self.vocab_size = int(config["vocab_size"])

    def evaluate(self, tokens: Sequence[int], caches: Sequence[Any]) -> Logits:
        """One call of the model; logits `[len(tokens), V]`."""
        core = mx()
        logits = self.model(core.array(list(tokens))[None], cache=caches).logits
        core.eval(logits)
        return np.array(logits[0].astype(core.float32))

    def line(self, prompt: Sequence[int]) -> Line:
        """Prefill new caches in one call."""
        return MlxLine(self, prompt)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits of a prompt in one call."""
        return self.evaluate(tokens, self.model.make_cache())
