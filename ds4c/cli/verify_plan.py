"""The proof of `ds4c verify --rewind`: what a manifest says about its rings, executed without any kernel.

Needs no compiler: the read set of a ring follows from its entry in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4c.cli.common import CommandFailure, ExitCode
from ds4c.passes.windows import ReadSet, prove

if TYPE_CHECKING:
    from ds4c_runtime.manifest import Manifest, RingState


@dataclass(frozen=True)
class Proof:
    """What was proved: `rings` of `kinds` different contracts, for rewinds of up to `horizon` tokens."""

    rings: int
    kinds: int
    horizon: int


def read_set_of(ring: RingState) -> ReadSet:
    """Which rows the queries of a ring want: from the first live row on, at every `every`-th position."""
    return ReadSet(lambda position: (ring.live.first(position), position), ring.every)


def prove_manifest(manifest: Manifest) -> Proof:
    """Run `prove` for every ring, with one token more than the horizon, as `prove-rewind` does.

    Raises:
        CommandFailure: a ring is too small for its live rows and the horizon; with a counter-example
            (exit code 3).
    """
    horizon = manifest.limits.horizon
    proved: set[tuple[int, int, int, int]] = set()
    for ring in manifest.rings:
        contract = (ring.live.align, ring.live.back, ring.every, ring.capacity)
        if contract in proved:
            continue
        if ring.live.align != ring.every:
            raise plan_failure(
                ring.name, f"live rows that begin at a multiple of {ring.every} tokens", f"{ring.live.align}"
            )
        bad = prove(read_set_of(ring), ring.capacity, horizon + 1)
        if bad is not None:
            raise plan_failure(
                ring.name, f"{ring.capacity} rows to serve every rewind of {horizon} tokens", str(bad)
            )
        proved.add(contract)
    return Proof(len(manifest.rings), len(proved), horizon)


def plan_failure(state: str, expected: str, got: str) -> CommandFailure:
    """The failure of a plan that cannot be right for a state."""
    return CommandFailure(
        f"verify --rewind failed at @{state}: expected {expected}, got {got}; build the artifact again",
        ExitCode.CHECK_FAILED,
    )
