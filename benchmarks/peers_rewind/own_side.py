"""Ours: one artifact, a session per line."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.own import ROOT
from benchmarks.peers_rewind.grid import Line, Logits
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.session import Session


class OwnLine:
    """A session."""

    def __init__(self, model: LocalModel, session: Session) -> None:
        self._model = model
        self.session = session

    def before_draft(self, count: int) -> None:
        """Nothing: a rewind needs no announcement."""

    def decode(self, tokens: Sequence[int], *, one_batch: bool) -> Logits:
        """Append tokens."""
        if one_batch:
            return self.session.step(tokens, all_logits=True).copy()
        return np.concatenate([self.session.step([token]).copy() for token in tokens])

    def rewind(self, to: int) -> None:
        """Be at a position again."""
        self.session.rewind(to)

    def reloaded(self, folder: Path) -> Line:
        """Not there yet, and not in the ways of this engine."""
        raise NotImplementedError("sessions cannot be saved")


class OwnSide:
    """A loaded artifact."""

    def __init__(self, artifact: Path) -> None:
        self._model = open_local(artifact, sessions=1)
        self.version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        self.vocab_size = self._model.manifest.model.vocab_size
        self._session: Session | None = None

    def line(self, prompt: Sequence[int]) -> Line:
        """A new session in the place of the last one."""
        if self._session is not None:
            self._session.close()
        self._session = self._model.session()
        self._session.prefill(prompt)
        return OwnLine(self._model, self._session)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits of a prompt, in steps as large as the artifact allows."""
        if self._session is not None:
            self._session.close()
        self._session = self._model.session()
        most = self._model.manifest.limits.max_logit_rows
        parts = range(0, len(tokens), most)
        return np.concatenate(
            [self._session.step(tokens[i : i + most], all_logits=True).copy() for i in parts]
        )
