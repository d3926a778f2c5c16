"""Measures a trained model on what it never saw: loss, exact tool calls and answers, facts.

    python tools/train_demo/evaluate.py --books BOOKS demo/model

Teacher-forced arg-max equals greedy decoding here: the greedy output is the reference exactly if the
arg-max is right at every token of the reference.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from corpus import Books, Corpus
from hf import load_folder
from layers import NetworkConfig
from network import IndexerUse, Network
from tasks import ASSISTANT, BOS, END_THINK, EOS, TASKS, TOOLS, USER, tools_header
from texts import FACTS, HELD_OUT_QUESTIONS
from tokens import Encoder

ROW = 128
"""Sequences are padded to a multiple of this (the largest compress ratio)."""

Example = tuple[list[int], list[int]]
"""(what the model reads, what it should write)."""


def padded(rows: list[list[int]]) -> Tensor:
    """`[len(rows), T]` with zeros at the end of each row."""
    length = -(-max(map(len, rows)) // ROW) * ROW
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids


@torch.no_grad()
def exact(network: Network, examples: list[Example], batch: int = 12) -> list[bool]:
    """Whether the greedy output equals the reference, for each example."""
    results: list[bool] = []
    for start in range(0, len(examples), batch):
        part = examples[start : start + batch]
        best = network(padded([a + b for a, b in part]), IndexerUse.SELECT).logits.argmax(-1)
        for row, (read, written) in zip(best, part, strict=True):
            end = len(read) + len(written)
            results.append(row[len(read) - 1 : end - 1].tolist() == written)
    return results


@torch.no_grad()
def held_out_loss(
    network: Network, encoder: Encoder, corpus: Corpus, kind: str, count: int = 16
) -> tuple[float, float]:
    """Loss in nats and arg-max accuracy per token that the model writes."""
    rows: list[list[int]] = []
    weights: list[list[float]] = []
    for _ in range(count):
        ids, w = encoder.document(corpus.prose() if kind == "prose" else corpus.dialogue(1, kind=kind))
        rows.append(ids[:384])
        weights.append(w[:384])
    ids = padded(rows)
    written = torch.zeros(ids.shape)
    for i, w in enumerate(weights):
        written[i, : len(w)] = torch.tensor(w)
    written = (written[:, 1:] == 1).float()
    logits = network(ids, IndexerUse.SELECT).logits[:, :-1]
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none")
    hits = (logits.argmax(-1) == ids[:, 1:]).float()
    total = written.sum()
    return (losses.view(written.shape) * written).sum().item() / total.item(), (
        (hits * written).sum() / total
    ).item()


def tool_exactness(
    network: Network, encoder: Encoder, corpus: Corpus, tool: str, count: int, *, header: bool = False
) -> tuple[float, float]:
    """Share of exact calls, and of answers that are one of the right wordings, given the right call."""
    calls: list[Example] = []
    answers: list[list[Example]] = []
    for _ in range(count):
        opening = BOS + (tools_header(corpus.rng, list(TOOLS)) if header else "")
        task = corpus.task(tool)
        question, call, result, _ = corpus.tool_turns(task, think=False)
        read, written = encoder.encode(opening + question.text), encoder.encode(call.text)
        calls.append((read, written))
        before = read + written + encoder.encode(result.text)
        answers.append([(before, encoder.encode(answer + EOS)) for answer in task.answers])
    right_calls = exact(network, calls)
    right = iter(exact(network, [example for wordings in answers for example in wordings]))
    right_answers = [any([next(right) for _ in wordings]) for wordings in answers]
    return float(np.mean(right_calls)), float(np.mean(right_answers))


def fact_exactness(network: Network, encoder: Encoder) -> float:
    """Share of the facts told word for word when asked in a phrasing that was never trained."""
    phrasing = HELD_OUT_QUESTIONS[0]
    examples = [
        (
            encoder.encode(BOS + USER + phrasing.format(subject) + ASSISTANT + END_THINK),
            encoder.encode(fact + EOS),
        )
        for subject, fact in FACTS
    ]
    return float(np.mean(exact(network, examples)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--books", type=Path, required=True, help="folder with devil.dict.dz and kjv.txt")
    parser.add_argument("--count", type=int, default=24, help="questions per tool")
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    network, encoder = load_folder(arguments.folder, NetworkConfig()), Encoder()
    books = Books.read(arguments.books)
    for kind in ("tool", "fact", "echo", "count", "devil", "prose"):
        loss, accuracy = held_out_loss(network, encoder, Corpus(4242, books, held_out=True), kind)
        print(f"{kind:>8}: loss {loss:.3f} nats, arg-max right {accuracy:.1%}", flush=True)
    corpus = Corpus(77, books, held_out=True)
    for tool in TASKS:
        call, answer = tool_exactness(network, encoder, corpus, tool, arguments.count)
        print(f"{tool:>8}: call exact {call:.2f}, answer exact {answer:.2f}", flush=True)
    print(f"facts exact, phrasing never trained: {fact_exactness(network, encoder):.2f}")


if __name__ == "__main__":
    main()
