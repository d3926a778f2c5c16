"""`python -m benchmarks`: ours and each peer on the same weights, in turns, in one run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import machine as machines
from benchmarks import report
from benchmarks.agreement import Agreement, compare
from benchmarks.bench import Bench, Peer
from benchmarks.figures.build import build as build_row
from benchmarks.figures.decode import decode
from benchmarks.figures.grpc_loop import grpc_loop
from benchmarks.figures.load import all_cpus, load
from benchmarks.figures.long_context import long_context
from benchmarks.figures.memory import memory
from benchmarks.figures.prefill import prefill
from benchmarks.figures.rewind import rewind
from benchmarks.figures.rows6 import rows6
from benchmarks.figures.snapshots import snapshots
from benchmarks.figures.stream import stream
from benchmarks.llama_peer import LlamaModel, PeerUnavailableError, fetch
from benchmarks.own import DTYPES, ROOT, Files, OwnModel, build, make_checkpoint, paths
from benchmarks.pairs import Row
from benchmarks.transformers_peer import TransformersModel

PEERS = ("llama.cpp", "transformers")
AGAINST_PEERS = {"decode": decode, "prefill": prefill, "rows6": rows6}
ALONE: dict[str, Callable[[Bench], Row | list[Row]]] = {
    "stream": stream,
    "rewind": rewind,
    "snapshots": snapshots,
    "memory": memory,
    "decode_8k": long_context,
    "grpc": grpc_loop,
    "load": load,
}
FIGURES = (*AGAINST_PEERS, *ALONE, "build")
CONTEXT = 4096
"""Context of the peers; more costs them memory only."""


@dataclass
class Results:
    """What has been measured so far."""

    rows: list[Row] = field(default_factory=list[Row])
    agreements: list[Agreement] = field(default_factory=list[Agreement])
    absent: list[str] = field(default_factory=list[str])

    def add(self, found: Row | list[Row]) -> None:
        """Take in figures and show them."""
        new = found if isinstance(found, list) else [found]
        self.rows += new
        print(report.table(new).split("\n", 1)[1], flush=True)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--preset", default="bench-72m", help="preset of ds4c.models.presets")
    parser.add_argument("--weights", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="FIGURE")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), metavar="PEER")
    parser.add_argument("--pairs", type=int, default=11, help="pairs of a comparison; below 7 none counts")
    parser.add_argument("--builds", type=int, default=3, help="times that `ds4c build` is timed")
    parser.add_argument("--cpu", type=int, help="processor to stay on; default: the idlest")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "out" / "bench", help="checkpoints, artifacts, peers"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "latest.json")
    chosen = parser.parse_args(given)
    if chosen.pairs < 1 or chosen.builds < 1:
        parser.error("--pairs, --builds: expected at least 1")
    return chosen


def prepare(options: argparse.Namespace, weights: str) -> Files:
    """Checkpoint, GGUF and a fresh artifact; the builds are timed on all processors."""
    files = paths(options.cache, options.preset, weights)
    make_checkpoint(files, options.preset)
    builds = options.builds if "build" in options.figures else 1
    return replace(files, builds=tuple(build(files) for _ in range(builds)))


def make_peer(name: str, files: Files, cache: Path) -> Peer:
    """Load a peer.

    Raises:
        PeerUnavailableError: it cannot run here.
    """
    if name == "transformers":
        return TransformersModel(files.checkpoint)
    return LlamaModel(fetch(cache), files.gguf, files.config.vocab_size, CONTEXT)


def measure(options: argparse.Namespace, files: Files, cpu: int, results: Results) -> None:
    """All figures of one weight type."""
    own = OwnModel(files.artifact)
    peers: dict[str, Peer] = {}
    for name in options.peers:
        try:
            peer = make_peer(name, files, options.cache)
        except PeerUnavailableError as error:
            results.absent.append(str(error))
            print(f"absent: {error}", flush=True)
            continue
        found = compare(files.config, files.weights, own, name, peer)
        results.agreements.append(found)
        print(found, flush=True)
        if found.agrees:
            peers[name] = peer
    bench = Bench(files, own, peers, options.pairs, options.cache, cpu)
    for figure in options.figures:
        if figure in AGAINST_PEERS:
            for name, peer in peers.items():
                results.add(AGAINST_PEERS[figure](bench, name, peer))
        elif figure == "build":
            results.add(build_row(files))
        else:
            results.add(ALONE[figure](bench))


def main(given: Sequence[str]) -> int:
    """Entry; 1 if an engine did not compute the same model."""
    options = arguments(given)
    os.environ["TVM_NUM_THREADS"] = "1"
    begun = time.monotonic()
    before = machines.machine()
    print(before, flush=True)
    results = Results()
    for weights in options.weights:
        os.sched_setaffinity(0, all_cpus())
        files = prepare(options, weights)
        cpu = machines.idlest_cpu() if options.cpu is None else options.cpu
        machines.pin(cpu)
        measure(options, files, cpu, results)
    after = machines.machine()
    print(f"\n{after}\n{report.table(results.rows)}")
    settings = {"preset": options.preset, "pairs": options.pairs, "threads": 1}
    data = report.document(results.rows, results.agreements, results.absent, (before, after), settings)
    report.write_json(options.output, data)
    print(f"{options.output}, {time.monotonic() - begun:.0f} s")
    print(report.plot(options.output.with_suffix(".png"), results.rows, after))
    return int(any(not a.agrees for a in results.agreements))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
