"""The tokenizer of the demo model: how it is trained, and how documents become training batches.

python tools/train_demo/tokens.py --books BOOKS -o tokenizer.json
"""

import argparse
import json
import re
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from corpus import Books, Corpus, Segment
from tasks import MARKERS, TOOLS, tools_header

VOCABULARY = 1024
SHIPPED = Path(__file__).resolve().parents[2] / "demo" / "model" / "tokenizer.json"
READ_WEIGHT = 0.05
"""Loss weight of what the model only reads: it is random and cannot be learned, but frames the rest."""


def split_patterns() -> list[str]:
    """The three expressions by which DeepSeek-V4 cuts text into words, as the shipped tokenizer has them."""
    stages = json.loads(SHIPPED.read_text())["pre_tokenizer"]["pretokenizers"]
    return [stage["pattern"]["Regex"] for stage in stages[:3]]


def plain_pieces(text: str) -> list[str]:
    """The text between the markers."""
    return [piece for piece in re.split("|".join(map(re.escape, MARKERS)), text) if piece]


def training_text(books: Books, documents: int = 9000) -> list[str]:
    """What the merges are learned from: many documents, and the tools header often enough to be cheap."""
    corpus, pieces = Corpus(7, books), list[str]()
    for _ in range(documents):
        for segment in corpus.document():
            pieces += plain_pieces(segment.text)
    return pieces + plain_pieces(tools_header(Random(0), list(TOOLS))) * 60


def train_tokenizer(books: Books, path: Path) -> None:
    """Train byte-level BPE and write it.

    Digits are trained one by one and written with V4's expression for one to three digits: no merge of digits
    exists, so both cut alike, and one pre-tokenizer in a runtime fits both models.
    """
    patterns = split_patterns()
    trained = [r"\p{N}", *patterns[1:]]
    tokenizer = Tokenizer(models.BPE())
    stages: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in trained]
    stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - (len(MARKERS) - 3),
        special_tokens=list(MARKERS[:3]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=3,
    )
    tokenizer.train_from_iterator(training_text(books), trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKERS[3:]])
    content = json.loads(tokenizer.to_str())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": patterns[0]}
    path.write_text(json.dumps(content, ensure_ascii=False, indent=0))


class Encoder:
    """Text to token ids and back."""

    def __init__(self, path: Path = SHIPPED) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        """Token ids; markers in the text become their ids."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text, markers included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def document(self, segments: list[Segment]) -> tuple[list[int], list[float]]:
        """Token ids of a document and the loss weight of each."""
        ids: list[int] = []
        weights: list[float] = []
        for segment in segments:
            piece = self.encode(segment.text)
            ids += piece
            weights += [1.0 if segment.learn else READ_WEIGHT] * len(piece)
        return ids, weights


def pack(
    corpus: Corpus, encoder: Encoder, sequences: int, length: int, header_share: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Fill sequences `[sequences, length]` with documents, one after the other, the last one cut.

    Returns:
        Token ids and weights; `weights[:, t]` weighs the prediction of token t, so column 0 is zero.
    """
    ids = np.zeros((sequences, length), np.int64)
    weights = np.zeros((sequences, length), np.float32)
    for row in range(sequences):
        at = 0
        while at < length:
            document, loss_weights = encoder.document(corpus.document(header_share))
            n = min(length - at, len(document))
            ids[row, at : at + n] = document[:n]
            weights[row, at : at + n] = loss_weights[:n]
            at += n
        weights[row, 0] = 0
    return ids, weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, required=True, help="folder with devil.dict.dz and kjv.txt")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    train_tokenizer(Books.read(arguments.books), arguments.output)


if __name__ == "__main__":
    main()
