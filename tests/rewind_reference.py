"""Never-rewound runs as the oracle of every rewind, and what must be equal, said without the runtime's maps.

Which rows are live follows here from the model's configuration alone (`live_rows`), not from the plan in
the manifest that the runtime uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from port import Holder, Session, append_rows, open_session, ring_rows
from port import poison_free_snapshots as poison_free_snapshots

from ds4c.models.architecture import Config
from ds4c.models.config import ModelConfig
from ds4c.models.gated_delta_config import GatedDeltaConfig


def live_rows(config: Config, position: int) -> Iterator[tuple[str, range | int]]:
    """Name of each state and its live rows at a position: positions of a ring, a count of an append state."""
    if isinstance(config, GatedDeltaConfig):
        return _live_rows_delta(config, position)
    assert isinstance(config, ModelConfig)
    return _live_rows_v4(config, position)


def _live_rows_delta(config: GatedDeltaConfig, position: int) -> Iterator[tuple[str, range]]:
    for layer in range(config.num_hidden_layers):
        yield f"l{layer}.conv", range(max(0, position - config.linear_conv_kernel_dim + 1), position)
        yield f"l{layer}.delta", range(max(0, position - 1), position)


def _live_rows_v4(config: ModelConfig, position: int) -> Iterator[tuple[str, range | int]]:
    for layer in range(config.num_hidden_layers):
        raw = range(max(0, position - config.sliding_window + 1), position)
        yield f"l{layer}.raw", raw
        ratio = config.ratio(layer)
        if ratio == 0:
            continue
        overlap = ratio if config.lanes(layer) == 2 else 0
        rolling = range(max(0, position // ratio * ratio - overlap), position)
        for prefix in ("", "index_") if config.has_indexer(layer) else ("",):
            yield f"l{layer}.{prefix}kv", rolling
            yield f"l{layer}.{prefix}score", rolling
            yield f"l{layer}.{prefix}rows", position // ratio


def state_bytes(model: Holder, config: Config, session: Session) -> dict[str, bytes]:
    """Bytes of every live row of a session."""
    out: dict[str, bytes] = {}
    for name, live in live_rows(config, session.position):
        if isinstance(live, range):
            out[name] = ring_rows(model, session, name, live).tobytes()
        else:
            out[name] = append_rows(model, session, name, live).tobytes()
    return out


@dataclass
class Memo:
    """Logits and live rows by token prefix, filled by sessions that never rewound.

    A prefix is run one token at a time in a fresh session; all its prefixes are remembered.
    """

    model: Holder
    config: Config
    logits: dict[tuple[int, ...], NDArray[np.float32]] = field(default_factory=dict)
    states: dict[tuple[int, ...], dict[str, bytes]] = field(default_factory=dict)

    def fill(self, tokens: Sequence[int]) -> tuple[int, ...]:
        key = tuple(tokens)
        if key and key not in self.logits:
            session = open_session(self.model, "fresh")
            try:
                for i, token in enumerate(key, 1):
                    row = session.step([token])[0].copy()
                    if key[:i] not in self.logits:
                        self.logits[key[:i]] = row
                        self.states[key[:i]] = state_bytes(self.model, self.config, session)
            finally:
                session.close()
        return key

    def check(self, session: Session) -> None:
        """The session equals a fresh one of its history: logits and every live row, bit for bit."""
        key = self.fill(session.history)
        if not key:
            assert session.logits() is None
            return
        row = session.logits()
        assert row is not None
        assert row.tobytes() == self.logits[key].tobytes(), f"logits differ at position {len(key)}"
        got, want = state_bytes(self.model, self.config, session), self.states[key]
        wrong = [name for name in want if got[name] != want[name]]
        assert not wrong, f"live rows differ at position {len(key)}: {wrong}"
