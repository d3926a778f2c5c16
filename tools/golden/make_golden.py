"""Write the golden vectors `tests/golden/*.npz`: logits of transformers in float32, and of float64 NumPy.

Run by `make golden` where torch and transformers are installed. Tests read the vectors without them;
weights are not stored, they come from the seed by `ds4c.models.generate` (or are the bundled demo's).

Keys of each file (T tokens, V vocabulary):
    preset, seed, weights_sha256: what the weights are; the preset `demo` is the folder `demo/model`.
    tokens [T] int32, positions [P] int32, logits [P, V] float32 at these positions, argmax [T] int32.
    short<n>_tokens [n] int32 and short<n>_logits [n, V] float32 for prompts of n = 1..5 tokens.
    positions64 [Q] int32, logits64 [Q, V] float64: tiny DeepSeek-V4 models only, from `reference64.py`.

The gated delta net has no reference of its own here: its vectors are compared with the module as built, run
by the interpreter in float64.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from golden_vectors import DELTA_NAME, DEMO_FOLDER, TOLERANCE, weights_sha256  # noqa: E402

from ds4c.importers.safetensors import Checkpoint, open_checkpoint  # noqa: E402
from ds4c.ir.block import Block  # noqa: E402
from ds4c.ir.interp import Machine  # noqa: E402
from ds4c.models.config import ModelConfig  # noqa: E402
from ds4c.models.generate import write_checkpoint  # noqa: E402
from ds4c.models.ir_weights import IrWeightMap  # noqa: E402
from ds4c.models.presets import preset as preset_config  # noqa: E402
from tools.golden.reference64 import Reference64  # noqa: E402

MIN_MARGIN = 1e-5
"""Smallest accepted gap between chosen and left-out experts or rows: closer calls may flip in float32."""

NUM_TOKENS = 320
"""Tokens of each file: more than two windows of ratio 128, and every top-k truncates."""

MAX_POSITIONS = 100
"""Positions stored where not all are: logits of the demo, float64 logits of the tiny models."""

MAX_FILE_BYTES = 500_000

SEEDS = {"tiny-128": (0, 1000), "tiny-8": (1, 1002), "demo": (0, 1000), DELTA_NAME: (3, 1000)}
"""Model -> seed of its weights, of its tokens; chosen so that no decision is closer than `MIN_MARGIN`."""

DEMO_TEXT = (
    "<｜begin▁of▁sentence｜><｜User｜>What is 12 + 30?<｜Assistant｜></think>Let me work it out: "
    "12 + 30 is 42.<｜end▁of▁sentence｜><｜User｜>What is a session, and what does a rewind do with it?"
    "<｜Assistant｜></think>A session is one timeline of tokens with its state. A rewind moves it to an "
    "earlier position; what was said after that position is forgotten, and the next word is the one it "
    "would have been anyway.<｜User｜>Hello!"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "tests" / "golden", help="folder of the .npz files"
    )
    parser.add_argument("--only", choices=sorted(SEEDS), help="write the vectors of one model")
    arguments = parser.parse_args()
    out: Path = arguments.out
    import oracle_hf

    if not oracle_hf.have_oracle():
        print("golden: expected torch and transformers, got neither; run `make oracle`", file=sys.stderr)
        return 2
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for preset, (seed, token_seed) in SEEDS.items():
            if arguments.only not in (None, preset):
                continue
            folder = DEMO_FOLDER
            if preset != "demo":
                folder = Path(scratch) / preset
                write_checkpoint(preset_config(preset), folder, seed)
            _write(out / f"{preset}.npz", _vectors(preset, seed, token_seed, folder))
    return 0


def golden_tokens(preset: str, token_seed: int, vocab_size: int) -> list[int]:
    """Choose the tokens: random ids, after a chat in the demo model's own words where there is one."""
    rng = np.random.default_rng(token_seed)
    head: list[int] = []
    if preset == "demo":
        from tokenizers import Tokenizer

        head = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")).encode(DEMO_TEXT).ids
    return [*head, *rng.integers(2, vocab_size, NUM_TOKENS).tolist()][:NUM_TOKENS]


def _vectors(preset: str, seed: int, token_seed: int, folder: Path) -> dict[str, Any]:
    import oracle_hf

    checkpoint = open_checkpoint(folder)
    weights = {name: checkpoint.load(name) for name in checkpoint.names()}
    tokens = golden_tokens(preset, token_seed, checkpoint.config.vocab_size)
    logits = oracle_hf.hf_logits(folder, tokens)
    logits64, margin = _float64(checkpoint, weights, tokens)
    _check(preset, margin, logits, logits64)
    positions = np.arange(NUM_TOKENS) if preset in ("tiny-128", "tiny-8") else _positions()
    vectors: dict[str, Any] = {
        "preset": preset,
        "seed": seed,
        "weights_sha256": weights_sha256(weights),
        "tokens": np.array(tokens, dtype=np.int32),
        "positions": positions.astype(np.int32),
        "logits": logits[positions],
        "argmax": logits.argmax(axis=1).astype(np.int32),
    }
    for length in range(1, 6):
        short = tokens[10 * length : 11 * length]
        vectors[f"short{length}_tokens"] = np.array(short, dtype=np.int32)
        vectors[f"short{length}_logits"] = oracle_hf.hf_logits(folder, short)
    if preset in ("tiny-128", "tiny-8"):
        positions64 = _positions()
        vectors["positions64"] = positions64.astype(np.int32)
        vectors["logits64"] = logits64[positions64]
    return vectors


def _float64(
    checkpoint: Checkpoint, weights: dict[str, NDArray[Any]], tokens: list[int]
) -> tuple[NDArray[np.float64], float]:
    """Logits `[T, V]`, and the smallest gap of a discrete decision (infinite where there is none)."""
    if isinstance(checkpoint.config, ModelConfig):
        reference = Reference64(checkpoint.config, weights)
        logits = reference.run(tokens)
        return logits, min(reference.expert_margin, reference.index_margin)
    table = IrWeightMap.of_arrays(checkpoint.config, NUM_TOKENS, weights)
    module = checkpoint.architecture.build_module(checkpoint.config, table.table)
    machine = Machine(module, table, np.float64, context=NUM_TOKENS)
    ids, rows = np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)
    return machine.call("step", ids, Block.of((0, 0, len(tokens))), rows)[0], float("inf")


def _positions() -> NDArray[np.int64]:
    """Choose positions to store: borders of windows and of every top-k first, the rest spread evenly."""
    edges = [*range(5), *range(7, 10), *range(15, 20), *range(33, 37), *range(62, 66)]
    edges += [*range(125, 131), *range(253, 262), NUM_TOKENS - 1]
    chosen = set(edges)
    step = NUM_TOKENS // (MAX_POSITIONS - len(chosen))
    for position in [*range(step // 2, NUM_TOKENS, step), *range(NUM_TOKENS)]:
        if len(chosen) == MAX_POSITIONS:
            break
        chosen.add(position)
    return np.array(sorted(chosen))


def _check(preset: str, margin: float, logits: NDArray[Any], logits64: NDArray[Any]) -> None:
    """Refuse vectors on which the two sources differ, or which hang on a close call."""
    rms = float(np.sqrt(np.mean(logits64**2)))
    difference = float(np.abs(logits - logits64).max())
    print(f"{preset}: logit rms {rms:.3f}, largest difference {difference:.2e}, smallest margin {margin:.2e}")
    if difference > TOLERANCE * max(1.0, rms):
        raise SystemExit(f"{preset}: expected a difference of at most {TOLERANCE * max(1.0, rms):.1e}")
    if margin < MIN_MARGIN:
        raise SystemExit(f"{preset}: expected a margin of at least {MIN_MARGIN}; choose another seed")


def _write(path: Path, vectors: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp.npz")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **vectors)
        file.flush()
        os.fsync(file.fileno())
    size = temporary.stat().st_size
    if size > MAX_FILE_BYTES:
        temporary.unlink()
        raise SystemExit(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got {size}")
    temporary.rename(path)
    print(f"{path}: {size} bytes")


if __name__ == "__main__":
    sys.exit(main())
