"""How each engine can be asked for a rewind, and which parts of the grid make sense for that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Variant(StrEnum):
    """What happens between the wrong tokens and the right ones.

    PLAIN: a rewind to P. STACKED: a rewind to P + n//2, then to P. SAVED: the state after the wrong tokens
    is saved and loaded, then a rewind to P.
    """

    PLAIN = "plain"
    STACKED = "stacked"
    SAVED = "saved"


EVERY = tuple(Variant)
ONCE = (Variant.PLAIN,)


@dataclass(frozen=True)
class Way:
    """One way of taking tokens back.

    Attributes:
        engine: key of `LABELS`.
        name: short, unique within the engine.
        call: what is called, for the reader of the table.
        one_batch: the wrong tokens come in one batch instead of one by one.
        variants: what is measured of it.
    """

    engine: str
    name: str
    call: str
    one_batch: bool = False
    variants: tuple[Variant, ...] = EVERY


LABELS = {
    "ds4c": "ds4c",
    "transformers": "transformers",
    "llama": "llama.cpp",
    "mlx": "mlx-vlm",
}
"""Name of an engine by its key; the first is ours."""

WAYS = (
    Way("ds4c", "horizon-8", "`Session.rewind(P)`, built with `--horizon 8`"),
    Way("ds4c", "horizon-2", "`Session.rewind(P)`, built with `--horizon 2`"),
    Way(
        "ds4c",
        "one-batch",
        "`Session.rewind(P)` after one block of n tokens, built with `--horizon 8`",
        one_batch=True,
        variants=ONCE,
    ),
    Way("transformers", "crop", "`cache.crop(-n)`"),
    Way("transformers", "recorded", "`cache.activate_past_recording()` at P, then `cache.crop(-n)`"),
    Way("transformers", "copy", "`copy.deepcopy(cache)` at P, put back", variants=ONCE),
    Way("llama", "default", "`llama_memory_seq_rm(P, -1)`, `n_rs_seq = 0`"),
    Way("llama", "planes-8", "`llama_memory_seq_rm(P, -1)`, `n_rs_seq = 8`"),
    Way(
        "llama",
        "one-batch",
        "`llama_memory_seq_rm(P, -1)` after one batch of n tokens, `n_rs_seq = 8`",
        one_batch=True,
        variants=ONCE,
    ),
    Way("llama", "copy", "`llama_state_seq_get_data` at P, `llama_state_seq_set_data`", variants=ONCE),
    Way("mlx", "trim", "`cache.trim(n)` where `is_trimmable()`"),
    Way("mlx", "transaction", "`start_speculative_cache(n)` at P, then `commit(0)`"),
    Way(
        "mlx",
        "one-batch",
        "`start_speculative_cache(n)` at P, one batch of n tokens, `commit(0)`",
        one_batch=True,
        variants=ONCE,
    ),
    Way("mlx", "copy", "`prefix_cache_snapshot()` at P, copied, `prefix_cache_restore`", variants=ONCE),
)


def way_of(engine: str, name: str) -> Way:
    """Find a way.

    Raises:
        KeyError: there is none of that name.
    """
    return {(way.engine, way.name): way for way in WAYS}[engine, name]
