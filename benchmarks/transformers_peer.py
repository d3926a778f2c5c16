"""transformers' DeepseekV4ForCausalLM as a peer: eager, float32, one thread."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.llama_peer import PeerUnavailableError


class TransformersModel:
    """A model in float32 with its own cache, which can only grow.

    bfloat16 checkpoints are widened: its bfloat16 is slower on a CPU, so this is its better side.
    """

    def __init__(self, checkpoint: Path) -> None:
        """Load.

        Raises:
            PeerUnavailableError: torch or transformers is not installed.
        """
        if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
            raise PeerUnavailableError(
                "transformers: expected torch and transformers, got neither; run make oracle"
            )
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1)
        tests = Path(__file__).resolve().parent.parent / "tests"
        if str(tests) not in sys.path:
            sys.path.insert(0, os.fspath(tests))
        from oracle_hf import hf_model  # pyright: ignore[reportMissingImports]

        self._torch: Any = torch
        self._model: Any = hf_model(checkpoint)
        self.cache: Any = None
        """transformers' own cache object; None before the first token."""
        self.position = 0

    def clear(self) -> None:
        """Forget all tokens."""
        self.cache, self.position = None, 0

    def step(self, tokens: Sequence[int], *, all_logits: bool = False) -> NDArray[np.float32]:
        """Append tokens; logits `[1, V]` of the last one, or `[len(tokens), V]`."""
        ids = self._torch.tensor([list(tokens)])
        with self._torch.inference_mode():
            out = self._model(
                input_ids=ids,
                cache=self.cache,
                use_cache=True,
                logits_to_keep=0 if all_logits else 1,
            )
        self.cache = out.past_key_values
        self.position += len(tokens)
        return out.logits[0].float().numpy()
