"""Ours: one artifact, a session per line."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.own import ROOT
from benchmarks.peers_rewind.grid import AnsweredNoError, Line, Logits
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.session import Session
from ds4c_runtime.store.session_store import SessionStore, Storage


class OwnLine:
    """A session."""

    def __init__(self, side: OwnSide, session: Session) -> None:
        self._side = side
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
        """Go through a session folder, into the memory of another model.

        Raises:
            AnsweredNoError: no state was written, or none was found.
        """
        model = self._side.model
        store = SessionStore(model.manifest, Storage(folder))
        if not store.save(store.create(store.header(self.session), self.session), self.session):
            raise AnsweredNoError("no state was written")
        store.close()
        other = self._side.other_model()
        store = SessionStore(other.manifest, Storage(folder))
        (log,) = store.scan()
        loaded = self._side.keep(store.load(log, other.stepper, other.store))
        store.close()
        if not loaded.state_valid or loaded.position != self.session.position:
            raise AnsweredNoError("no state was found")
        return OwnLine(self._side, loaded)


class OwnSide:
    """A loaded artifact."""

    def __init__(self, artifact: Path) -> None:
        self.model = open_local(artifact, sessions=1)
        self.version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        self.vocab_size = self.model.manifest.model.vocab_size
        self._artifact = artifact
        self._other: LocalModel | None = None
        self._open: list[Session] = []

    def line(self, prompt: Sequence[int]) -> Line:
        """A new session in the place of the last one."""
        session = self._fresh()
        session.prefill(prompt)
        return OwnLine(self, session)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits of a prompt, in steps as large as the artifact allows."""
        session = self._fresh()
        most = self.model.manifest.limits.max_logit_rows
        parts = range(0, len(tokens), most)
        return np.concatenate([session.step(tokens[i : i + most], all_logits=True).copy() for i in parts])

    def other_model(self) -> LocalModel:
        """The same artifact opened once more, where sessions of earlier cells have left their rows."""
        if self._other is None:
            self._other = open_local(self._artifact, sessions=1)
        return self._other

    def keep(self, session: Session) -> Session:
        """Close a session when the next line begins."""
        self._open.append(session)
        return session

    def _fresh(self) -> Session:
        while self._open:
            self._open.pop().close()
        return self.keep(self.model.session())
