"""Writes the checkpoint folder: the main model by transformers, both drafters, the tokenizer.

    python tools/train_demo/export.py --main main.pt --drafters drafters.pt --tokenizer TOKENIZER -o FOLDER

Matrices are rounded to bfloat16; vectors, tables and the control of the streams stay float32.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from drafters import BLOCK, CAPTURED_LAYERS, MARKOV_RANK, DSpark, Mtp, native_names
from hf import hf_model
from layers import NetworkConfig
from network import Network
from tasks import MARKERS
from tokens import Encoder


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with every `*.weight` matrix in bfloat16."""
    return {
        name: value.bfloat16() if name.endswith(".weight") and value.dim() == 2 else value
        for name, value in tensors.items()
    }


def write(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a file under a temporary name, then rename."""
    pending = path.with_suffix(".tmp")
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    save_file(contiguous, pending, metadata={"format": "pt", **metadata})
    pending.rename(path)


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--main", type=Path, required=True)
    parser.add_argument("--drafters", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    c = NetworkConfig()
    network, mtp, dspark = Network(c), Mtp(c), DSpark(c)
    network.load_state_dict(torch.load(arguments.main))
    saved = torch.load(arguments.drafters)
    mtp.load_state_dict(saved["mtp"])
    dspark.load_state_dict(saved["dspark"])
    hf_model(network).save_pretrained(arguments.output)
    weights = arguments.output / "model.safetensors"
    write(rounded(read(weights)), weights, {})
    noise = Encoder(arguments.tokenizer).encode(MARKERS[-1])[0]
    about = {
        "target_layer_ids": json.dumps(CAPTURED_LAYERS),
        "block_size": str(BLOCK),
        "noise_token_id": str(noise),
        "markov_rank": str(MARKOV_RANK),
    }
    write(rounded(native_names(mtp)), arguments.output / "mtp.safetensors", {})
    write(rounded(native_names(dspark)), arguments.output / "dspark.safetensors", about)
    shutil.copy(arguments.tokenizer, arguments.output / "tokenizer.json")
    for file in sorted(arguments.output.iterdir()):
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
