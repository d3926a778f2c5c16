"""The proof of `ds4c verify --rewind`: what a manifest says about its rings, executed without any kernel.

The proof needs no compiler: the read set of a ring follows from its entry in the manifest. With the compiler
at hand the manifest is compared with the plan of the IR text of the artifact too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4c.cli.common import CommandFailure, ExitCode
from ds4c.passes.windows import ReadSet, prove

if TYPE_CHECKING:
    from ds4c_runtime.manifest import Manifest, RingState


IR_NAME = "module.mlir"


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
                f"@{ring.name}",
                f"live rows that begin at a multiple of {ring.every} tokens",
                f"{ring.live.align}",
            )
        bad = prove(read_set_of(ring), ring.capacity, horizon + 1)
        if bad is not None:
            raise plan_failure(
                f"@{ring.name}", f"{ring.capacity} rows to serve every rewind of {horizon} tokens", str(bad)
            )
        proved.add(contract)
    return Proof(len(manifest.rings), len(proved), horizon)


def plan_failure(where: str, expected: str, got: str) -> CommandFailure:
    """The failure of a plan that cannot be right at a state or an entry."""
    return CommandFailure(
        f"verify --rewind failed at {where}: expected {expected}, got {got}; build the artifact again",
        ExitCode.CHECK_FAILED,
    )


def compare_with_ir(folder: Path, manifest: Manifest) -> bool:
    """Make the manifest again from the IR text of the artifact, and compare.

    Returns:
        Whether it was compared; `False` without the extra `build`.

    Raises:
        CommandFailure: an entry that follows from the plan differs, or there is no such text (exit code 3).
    """
    try:
        from xdsl.utils.exceptions import DiagnosticException, ParseError

        from ds4c.artifact import make_manifest
        from ds4c.ir.dialect import parse_module
        from ds4c.passes.planned import planned_of
    except ModuleNotFoundError:
        return False
    if manifest.file(IR_NAME) is None:
        raise plan_failure(IR_NAME, "a file of the artifact", "none")
    try:
        planned = planned_of(parse_module((folder / IR_NAME).read_text(encoding="utf-8"), IR_NAME))
    except (ParseError, DiagnosticException, UnicodeDecodeError) as error:
        raise plan_failure(IR_NAME, "a planned module", type(error).__name__) from None
    sizes = {weight.name: weight.bytes for weight in manifest.weights}
    again = make_manifest(
        planned,
        manifest.target,
        manifest.versions,
        manifest.model,
        manifest.files,
        packed=lambda weight: sizes.get(weight.name, 0),
    )
    _expect_equal("manifest", asdict(again), asdict(manifest))
    return True


def _expect_equal(where: str, expected: Any, got: Any) -> None:
    """Fail at the first entry that differs."""
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        for key, value in expected.items():
            if key != "artifact_id":
                _expect_equal(f"{where}.{key}", value, got[key])
    elif isinstance(expected, tuple) and isinstance(got, tuple) and len(expected) == len(got):
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            _expect_equal(f"{where}[{index}]", one, other)
    elif expected != got:
        raise plan_failure(where, f"{expected} (plan of {IR_NAME})", f"{got}")
