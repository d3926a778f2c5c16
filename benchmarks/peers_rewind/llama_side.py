"""llama.cpp: one sequence of one context, a new context for every line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import llama_abi
from benchmarks.llama_peer import PACKAGE, LlamaModel
from benchmarks.peers_rewind.grid import AnsweredNoError, Line, Logits

CONTEXT = 512
PLANES = 8
"""`n_rs_seq` where it is not 0."""


class LlamaLine:
    """The sequence of a context; `way` is a name of `ways.WAYS`."""

    def __init__(self, model: LlamaModel, way: str) -> None:
        self._model = model
        self._way = way
        self._kept: tuple[bytes, int] = (b"", 0)

    def before_draft(self, count: int) -> None:
        """Copy the state where that is the way."""
        if self._way == "copy":
            self._kept = (self._model.state(), self._model.position)

    def decode(self, tokens: Sequence[int], *, one_batch: bool) -> Logits:
        """Append tokens."""
        if one_batch:
            return self._model.step(tokens, all_logits=True)
        return np.concatenate([self._model.step([token]) for token in tokens])

    def rewind(self, to: int) -> None:
        """Remove the tokens from `to` on, or put the copy back.

        Raises:
            AnsweredNoError: llama.cpp does not.
        """
        if self._way == "copy":
            self._model.reopen()
            self._model.restore(*self._kept)
        elif not self._model.remove(to):
            raise AnsweredNoError("llama_memory_seq_rm returned false")

    def reloaded(self, folder: Path) -> Line:
        """Go through a file and a new context."""
        file, position = folder / "state", self._model.position
        file.write_bytes(self._model.state())
        self._model.reopen()
        self._model.restore(file.read_bytes(), position)
        return self


class LlamaSide:
    """A loaded GGUF."""

    version = f"{llama_abi.VERSION} ({PACKAGE})"

    def __init__(self, binaries: Path, gguf: Path, vocab_size: int, way: str) -> None:
        rollback = PLANES if way in ("planes-8", "one-batch") else 0
        self._model = LlamaModel(binaries, gguf, vocab_size, CONTEXT, rollback=rollback)
        self._way = way
        self.vocab_size = vocab_size

    def line(self, prompt: Sequence[int]) -> Line:
        """Prefill a new context."""
        self._model.reopen()
        self._model.step(prompt)
        return LlamaLine(self._model, self._way)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits of a prompt in one batch."""
        self._model.reopen()
        return self._model.step(tokens, all_logits=True)
