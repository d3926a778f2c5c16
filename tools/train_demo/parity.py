"""Checks that the training network and transformers give the same logits: random weights, then a checkpoint.

python tools/train_demo/parity.py [FOLDER]
"""

import sys
from pathlib import Path

import torch

from hf import hf_model, load_folder
from layers import NetworkConfig
from network import IndexerUse, Network

TOLERANCE = 2e-5
"""Largest difference of a logit, at a root mean square of about 1, in float32."""


def randomise(network: Network) -> None:
    """Give every parameter that starts at a constant a random value: a swapped name must show."""
    c = network.c
    with torch.no_grad():
        for block in network.blocks():
            if block.mlp.by_hash:
                table = [torch.randperm(c.experts)[: c.experts_per_token] for _ in range(c.vocab_size)]
                block.mlp.gate.tid2eid.copy_(torch.stack(table))
            else:
                block.mlp.gate.e_score_correction_bias.normal_(0, 0.2)
            block.self_attn.sinks.normal_()
            for site in (block.attn_hc, block.ffn_hc):
                site.fn.mul_(2)
                site.base.add_(0.3 * torch.randn_like(site.base))


@torch.no_grad()
def largest_difference(network: Network, tokens: int = 512) -> float:
    """Largest absolute difference of the logits of two random sequences."""
    ids = torch.randint(0, network.c.vocab_size, (2, tokens))
    theirs = hf_model(network)(input_ids=ids, use_cache=False).logits
    ours = network(ids, IndexerUse.SELECT).logits
    return (ours - theirs).abs().max().item() / theirs.square().mean().sqrt().item()


def main() -> int:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    c = NetworkConfig()
    network = Network(c)
    randomise(network)
    checks = {"random weights": network}
    if len(sys.argv) > 1:
        checks[sys.argv[1]] = load_folder(Path(sys.argv[1]), c)
    worst = 0.0
    for name, candidate in checks.items():
        difference = largest_difference(candidate)
        worst = max(worst, difference)
        size = sum(parameter.numel() for parameter in candidate.parameters())
        print(f"{name}: {size:,} parameters, largest difference {difference:.1e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
