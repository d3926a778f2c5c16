"""The process of one engine and one way: reads a job on stdin, prints a line of JSON per cell.

`{"version": ...}` once, `{"begin": CELL}` before a cell and `{"result": RESULT}` after it; a cell that
begins and has no result is one in which the process ended. Engines print what they like on stdout: it goes
to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.peers_rewind.grid import FOLLOW, Cell, Measurement, Side, Tokens, to_json
from benchmarks.peers_rewind.ways import Variant, way_of

PROMPT = 300
"""Tokens whose logits the engines are compared by."""


def own_stdout() -> TextIO:
    """The stdout of the process, kept from anything else that writes there."""
    kept = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return kept


def open_side(engine: str, way: str, files: dict[str, str]) -> Side:
    """Load an engine; imports that one only."""
    if engine == "ds4c":
        from benchmarks.peers_rewind.own_side import OwnSide

        return OwnSide(Path(files["horizon-2" if way == "horizon-2" else "horizon-8"]))
    if engine == "transformers":
        from benchmarks.peers_rewind.transformers_side import TransformersSide

        return TransformersSide(Path(files["checkpoint"]), way)
    if engine == "llama":
        from benchmarks.peers_rewind.llama_side import LlamaSide

        vocab_size = json.loads((Path(files["checkpoint"]) / "config.json").read_text())["vocab_size"]
        return LlamaSide(Path(files["binaries"]), Path(files["gguf"]), vocab_size, way)
    from benchmarks.peers_rewind.mlx_side import MlxSide

    return MlxSide(Path(files["checkpoint"]), way)


def main() -> int:
    """Entry."""
    out = own_stdout()
    job: dict[str, Any] = json.loads(sys.stdin.read())

    def tell(**fields: Any) -> None:
        out.write(json.dumps(fields) + "\n")

    side = open_side(job["engine"], job["way"], job["files"])
    tell(version=side.version)
    wanted = [Cell(Variant(v), p, n) for v, p, n in job["cells"]]
    most = max([PROMPT, *(cell.position + FOLLOW for cell in wanted)])
    tokens = Tokens.of(side.vocab_size, most)
    if job["prompt"]:
        np.save(job["prompt"], side.prompt_logits(tokens.right[:PROMPT]))
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(side, way_of(job["engine"], job["way"]), tokens, Path(folder))
        for cell in wanted:
            tell(begin=[cell.variant, cell.position, cell.drafted])
            tell(result=to_json(measurement.measure(cell)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
