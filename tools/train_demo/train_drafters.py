"""Trains MTP and DSpark on a frozen main model, both at once (about 6 minutes for 700 steps on two cores).

python tools/train_demo/train_drafters.py --books BOOKS --main main.pt --steps 700 -o drafters.pt
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from corpus import Books, Corpus
from drafters import BLOCK, CAPTURED_LAYERS, DSpark, Mtp
from layers import NetworkConfig, Rope
from network import IndexerUse, Network
from optimizer import Muon, ScaledAdam, is_large_matrix
from tasks import MARKERS
from tokens import Encoder, pack
from train import balance

BATCH = (4, 256)
DEPTH_TWO_PLACES, DSPARK_PLACES = 128, 160
"""Random places of a batch at which the dearer losses are taken."""

SLOT_DECAY = 0.8
"""Weight of each DSpark slot against the one before it: a slot counts only if those before are right."""

REPORT_EVERY = 20


class Batch:
    """Tokens, weights, and what the frozen main model says about them."""

    def __init__(self, main: Network, ids: Tensor, weights: Tensor) -> None:
        self.ids, self.weights = ids, weights
        self.written = weights == 1
        with torch.no_grad():
            out = main(ids, IndexerUse.SELECT, capture=CAPTURED_LAYERS)
        self.streams, self.captured = out.streams, out.captured
        self.target = torch.softmax(out.logits, -1)

    def shifted(self, x: Tensor) -> Tensor:
        """`x[:, t + 1]` at t; the last column is meaningless and has weight 0."""
        return torch.cat((x[:, 1:], x[:, :1]), 1)

    def places(self, first: int, last: int, ahead: int, count: int) -> tuple[Tensor, Tensor]:
        """Random (sequence, position) with `first <= position < T - last` that precede a written token."""
        T = self.ids.shape[1]
        usable = torch.zeros_like(self.written)
        usable[:, first : T - last] = self.written[:, first + ahead : T - last + ahead]
        sequence, position = usable.nonzero().unbind(1)
        chosen = torch.randperm(len(sequence))[:count]
        return sequence[chosen], position[chosen]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Against the distribution of the main model, per place."""
    return -(target * torch.log_softmax(logits, -1)).sum(-1)


def mtp_losses(mtp: Mtp, main: Network, batch: Batch, rope: Rope) -> tuple[Tensor, list[float]]:
    """Loss at depth 1 over all positions plus half of that at depth 2; and the losses and hits."""
    embedding, head = main.model.embed_tokens.weight, main.lm_head.weight
    entered, left = mtp.depth_one(batch.streams, batch.shifted(batch.ids), embedding, rope)
    w = torch.zeros_like(batch.weights)
    w[:, :-2] = batch.weights[:, 2:]
    logits, target = mtp.logits(left, head), batch.shifted(batch.target)
    one = (cross_entropy(logits, target) * w).sum() / w.sum()
    hits_one = (logits.argmax(-1) == target.argmax(-1))[w == 1].float().mean()
    sequence, t = batch.places(0, 4, 3, DEPTH_TWO_PLACES)
    rows = mtp.window_rows(entered, rope)
    tokens = batch.ids[sequence, t + 2]
    _, deeper = mtp.deeper(left[sequence, t], rows, sequence, t, tokens, embedding, rope)
    logits, target = mtp.logits(deeper, head), batch.target[sequence, t + 2]
    two = cross_entropy(logits, target).mean()
    hits_two = (logits.argmax(-1) == target.argmax(-1)).float().mean()
    return one + 0.5 * two, [one.item(), two.item(), hits_one.item(), hits_two.item()]


def dspark_losses(
    dspark: DSpark, main: Network, batch: Batch, noise: int, rope: Rope
) -> tuple[Tensor, list[float]]:
    """Loss of the five slots plus a fifth of the confidence loss; and the loss and the hits of each slot."""
    embedding, head = main.model.embed_tokens.weight, main.lm_head.weight
    sequence, anchor = batch.places(8, 7, 1, DSPARK_PLACES)
    rows = dspark.context_rows(batch.captured, rope)
    known = batch.ids[sequence, anchor]
    features = dspark.features(rows, sequence, anchor, known, noise, embedding, rope)
    slots = anchor.unsqueeze(1) + torch.arange(BLOCK)
    places = sequence.unsqueeze(1), slots
    before = dspark.markov(batch.ids[places])
    logits, target = dspark.logits(features, before, head), batch.target[places]
    w = batch.weights[sequence.unsqueeze(1), slots + 1] * SLOT_DECAY ** torch.arange(BLOCK)
    loss = (cross_entropy(logits, target) * w).sum() / w.sum()
    hits = (logits.argmax(-1) == target.argmax(-1)).float()
    confidence = dspark.confidence_logit(features.detach(), before.detach())
    confidence_loss = F.binary_cross_entropy_with_logits(confidence, hits)
    return loss + 0.2 * confidence_loss, [loss.item(), *hits.mean(0).tolist()]


def optimizers(mtp: Mtp, dspark: DSpark) -> tuple[Muon, ScaledAdam]:
    """Muon for the large matrices, Adam for everything else, the Markov tables included."""
    named = [*mtp.named_parameters(), *dspark.named_parameters()]
    large = [p for name, p in named if is_large_matrix(p) and not name.startswith("markov")]
    taken = {id(p) for p in large}
    return Muon(large), ScaledAdam([([p for _, p in named if id(p) not in taken], 3e-3)])


def run(arguments: argparse.Namespace) -> None:
    """All steps; a line every `REPORT_EVERY`."""
    encoder, c = Encoder(), NetworkConfig()
    corpus = Corpus(arguments.seed, Books.read(arguments.books))
    main = Network(c).eval().requires_grad_(False)
    main.load_state_dict(torch.load(arguments.main))
    mtp, dspark = Mtp(c), DSpark(c)
    for drafter in (mtp, dspark):
        drafter.start_from(main)
    if arguments.resume is not None:
        saved = torch.load(arguments.resume)
        mtp.load_state_dict(saved["mtp"])
        dspark.load_state_dict(saved["dspark"])
    muon, adam = optimizers(mtp, dspark)
    noise, rope = encoder.encode(MARKERS[-1])[0], main.ropes(BATCH[1])[0]
    history: list[list[float]] = []
    for step in range(arguments.steps):
        ids, weights = pack(corpus, encoder, *BATCH)
        batch = Batch(main, torch.from_numpy(ids), torch.from_numpy(weights))
        mtp_loss, mtp_report = mtp_losses(mtp, main, batch, rope)
        dspark_loss, dspark_report = dspark_losses(dspark, main, batch, noise, rope)
        (mtp_loss + dspark_loss).backward()
        scale = min(1.0, (step + 1) / 10) * (arguments.peak * (1 - step / arguments.steps) + 0.02)
        adam.step(scale)
        muon.step(scale)
        balance([mtp.block, dspark.block], scale)
        for drafter in (mtp, dspark):
            drafter.zero_grad(set_to_none=True)
        history.append([*mtp_report, *dspark_report])
        if (step + 1) % REPORT_EVERY == 0:
            mean = np.round(np.mean(history[-REPORT_EVERY:], 0), 3)
            print(
                f"{step + 1} mtp loss, loss, hits, hits {mean[:4]} dspark loss, hits of 5 {mean[4:]}",
                flush=True,
            )
    torch.save({"mtp": mtp.state_dict(), "dspark": dspark.state_dict()}, arguments.output)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--books", type=Path, required=True, help="folder with devil.dict.dz and kjv.txt")
    parser.add_argument("--main", type=Path, required=True, help="weights of the main model (train.py)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="1,024 tokens each")
    parser.add_argument("--resume", type=Path, help="drafters to start from")
    parser.add_argument("--peak", type=float, default=1.0, help="highest scale of the learning rates")
    parser.add_argument("--seed", type=int, default=2001)
    torch.set_num_threads(2)
    torch.manual_seed(1)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
