"""Trains the demo model.

Two runs give the shipped weights (about 25 minutes on two cores together):

    python tools/train_demo/train.py --books BOOKS --steps 913 --index-from 0.55 -o first.pt
    python tools/train_demo/train.py --books BOOKS --steps 200 --resume first.pt --peak 0.6 --warm-up 15 \
        --index-from 0 --seed 1002 -o main.pt

The shipped weights came from the same code driven by a wall clock; steps make a run repeatable.
"""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

# Spinning OpenMP threads beside one other busy process made this four times slower. Set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from corpus import Books, Corpus
from layers import NetworkConfig
from network import EAGER, Block, IndexerUse, Network, compiled
from optimizer import Muon, ScaledAdam, is_large_matrix
from tokens import Encoder, pack

SHORT, LONG = (4, 512), (2, 1024)
"""(sequences, tokens) of a batch in the two phases."""

LONG_HEADER_SHARE = 0.6
"""Dialogues of the second phase that start with the tools header (673 tokens with all five tools)."""

INDEX_LOSS = 0.1
BIAS_STEP = 0.002
REPORT_EVERY = 25
SAVE_EVERY = 200


@dataclass(frozen=True)
class Plan:
    """What the command line decides."""

    books: Path
    output: Path
    steps: int
    resume: Path | None
    peak: float
    warm_up: int
    index_from: float
    long_share: float
    seed: int
    compile: bool

    def scale(self, step: int) -> float:
        """Scale of all learning rates: a linear rise, then a linear fall to 3 %."""
        return min(1.0, (step + 1) / self.warm_up) * max(0.03, self.peak * (1 - step / self.steps))

    def is_long(self, step: int) -> bool:
        """Whether the step belongs to the second phase."""
        return step / self.steps > 1 - self.long_share

    def indexer(self, step: int) -> IndexerUse:
        """The indexer starts late (there is nothing to imitate yet) and selects in the second phase."""
        if self.is_long(step):
            return IndexerUse.SELECT
        return IndexerUse.LEARN if step / self.steps >= self.index_from else IndexerUse.OFF


def fill_hash_tables(network: Network, token_counts: np.ndarray) -> None:
    """Give each token its two experts, the most frequent tokens first, always the least loaded experts."""
    c = network.c
    counts = token_counts + 0.5
    for layer, block in enumerate(network.blocks()):
        if not block.mlp.by_hash:
            continue
        load, random = np.zeros(c.experts), np.random.default_rng(layer)
        for token in np.argsort(-counts):
            chosen = np.argsort(load + 1e-3 * counts.max() * random.random(c.experts))[: c.experts_per_token]
            load[chosen] += counts[token]
            block.mlp.gate.tid2eid[token] = torch.tensor(chosen)


def balance(blocks: list[Block], scale: float) -> None:
    """Move the router biases a step towards equal loads."""
    for block in blocks:
        if not block.mlp.by_hash:
            load = block.mlp.load.float()
            block.mlp.gate.e_score_correction_bias += BIAS_STEP * scale * torch.sign(load.mean() - load)


def token_losses(logits: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean loss in nats, and the plain mean over the tokens that the model writes."""
    vocabulary = logits.shape[-1]
    losses = F.cross_entropy(logits[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1), reduction="none")
    w = weights[:, 1:].reshape(-1)
    written = w == 1
    return (losses * w).sum() / w.sum(), (losses * written).sum() / written.sum()


def optimizers(network: Network) -> tuple[Muon, ScaledAdam]:
    """Muon for the large matrices of the layers; Adam for embedding and head, and for all else."""
    large: list[torch.nn.Parameter] = []
    ends: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in network.named_parameters():
        if ".layers." in name and is_large_matrix(parameter):
            large.append(parameter)
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            ends.append(parameter)
        else:
            rest.append(parameter)
    return Muon(large, lr=0.02, weight_decay=0.02), ScaledAdam([(ends, 4e-3), (rest, 3e-3)])


class Trainer:
    """The loop."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.encoder, self.books = Encoder(), Books.read(plan.books)
        self.network = Network(NetworkConfig())
        counted, _ = pack(Corpus(55, self.books), self.encoder, 300, SHORT[1])
        fill_hash_tables(self.network, np.bincount(counted.ravel(), minlength=self.network.c.vocab_size))
        if plan.resume is not None:
            self.network.load_state_dict(torch.load(plan.resume))
        self.muon, self.adam = optimizers(self.network)
        self.corpus = Corpus(plan.seed, self.books)
        held = pack(Corpus(9, self.books, held_out=True), self.encoder, *SHORT)
        self.held_out = torch.from_numpy(held[0]), torch.from_numpy(held[1])

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Token ids and loss weights of a step."""
        long = self.plan.is_long(step)
        shape, header_share = (LONG, LONG_HEADER_SHARE) if long else (SHORT, 0.0)
        ids, weights = pack(self.corpus, self.encoder, *shape, header_share)
        return torch.from_numpy(ids), torch.from_numpy(weights)

    def step(self, step: int) -> float:
        """One update; gives the loss of the tokens that the model writes."""
        ids, weights = self.batch(step)
        out = self.network(ids, self.plan.indexer(step))
        loss, written = token_losses(out.logits, ids, weights)
        if out.index_losses:
            loss = loss + INDEX_LOSS * torch.stack(out.index_losses).sum()
        loss.backward()
        scale = self.plan.scale(step)
        self.adam.step(scale)
        self.muon.step(scale)
        self.network.zero_grad(set_to_none=True)
        balance(self.network.blocks(), scale)
        return written.item()

    @torch.no_grad()
    def held_out_loss(self, use: IndexerUse) -> float:
        """Loss on documents of other seeds, other phrasings and the end of the books; never compiled."""
        parts, self.network.parts = self.network.parts, dict(EAGER)
        loss = token_losses(self.network(self.held_out[0], use).logits, *self.held_out)[1].item()
        self.network.parts = parts
        return loss

    def run(self) -> None:
        """All steps, with a line every `REPORT_EVERY` and a file every `SAVE_EVERY`."""
        if self.plan.compile:
            self.network.parts = compiled()
        start, losses = time.time(), list[float]()
        for step in range(self.plan.steps):
            if self.plan.is_long(step):
                self.network.parts = dict(EAGER)  # another shape: compiling again would cost minutes
            losses.append(self.step(step))
            if (step + 1) % REPORT_EVERY == 0:
                use = IndexerUse.SELECT if self.plan.is_long(step) else IndexerUse.OFF
                held, recent = self.held_out_loss(use), float(np.mean(losses[-50:]))
                print(
                    f"{step + 1} {time.time() - start:.0f} s train {recent:.3f} held out {held:.3f}",
                    flush=True,
                )
            if (step + 1) % SAVE_EVERY == 0:
                self.save(self.plan.output.with_suffix(".part.pt"))
        self.save(self.plan.output)

    def save(self, path: Path) -> None:
        """Write the weights under a temporary name, then rename."""
        pending = path.with_suffix(".tmp")
        torch.save(self.network.state_dict(), pending)
        pending.rename(path)


def parse_plan() -> Plan:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--books", type=Path, required=True, help="folder with devil.dict.dz and kjv.txt")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="2,048 tokens each")
    parser.add_argument("--resume", type=Path, help="weights to start from")
    parser.add_argument("--peak", type=float, default=1.0, help="highest scale of the learning rates")
    parser.add_argument("--warm-up", type=int, default=60, help="steps")
    parser.add_argument("--index-from", type=float, default=0.55, help="share of the run without the indexer")
    parser.add_argument("--long-share", type=float, default=0.17, help="share of the run with 1,024 tokens")
    parser.add_argument("--seed", type=int, default=1001)
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="slower, starts at once")
    return Plan(**vars(parser.parse_args()))


def main() -> None:
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("medium")
    torch.manual_seed(0)
    Trainer(parse_plan()).run()


if __name__ == "__main__":
    main()
