"""Plants each mutant, runs the related tests, and says which ones were not found.

    python -m tools.mutants                        the catalogue, tests/mutants.toml
    python -m tools.mutants --only M01,M22         some of it
    python -m tools.mutants --random 200 --seed 1  changes of random lines of the modules listed there

Exit code 0: all are found or known to be equivalent; 1: one is not; 2: nothing could be said.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.catalogue import (
    Accepted,
    Catalogue,
    CatalogueError,
    Mutant,
    chosen,
    read_catalogue,
)
from tools.mutants.edits import choose, edits_of
from tools.mutants.forks import Job, Limits, Outcome, Tree, preload, run_jobs

BASELINE_SECONDS = 1200.0
"""Most time for a set of tests without a mutant."""
FOUND = ("killed", "stopped", "broken")
"""Verdicts of mutants that tests have seen: one failed, it did not end, or nothing could be imported."""


@dataclass(frozen=True)
class Planted:
    """A mutant with its source.

    Attributes:
        mutant: what was changed.
        line: number of the first line that differs.
        source: with the change.
        diff: of the lines, without context.
    """

    mutant: Mutant
    line: int
    source: str
    diff: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    root = Path(options.root).resolve()
    try:
        catalogue = read_catalogue(Path(options.catalogue or root / "tests" / "mutants.toml"))
        if options.random:
            planted = random_mutants(catalogue, root, options.random, options.seed, is_slow=options.slow)
        else:
            planted = by_hand(catalogue, root, options.only)
        left_out = [p for p in planted if p.mutant.is_slow and not options.slow]
        counts = _run(catalogue, root, [p for p in planted if p not in left_out], options)
    except CatalogueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    killed = sum(counts[verdict] for verdict in FOUND)
    print(
        f"{counts.total()} mutants: {killed} killed, {counts['SURVIVED']} survived, "
        f"{counts['equivalent']} equivalent"
        + "".join(f"; {counts[v]} {v}" for v in FOUND[1:] if counts[v])
        + (f"; {len(left_out)} left out (SLOW=1)" if left_out else "")
    )
    return int(counts["SURVIVED"] > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="ids, separated by commas")
    parser.add_argument("--random", type=int, default=0, help="number of random changes instead of the list")
    parser.add_argument("--seed", type=int, default=0, help="of the random choice")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--slow", action="store_true", help="those too that need tests which compile kernels")
    parser.add_argument("--root", default=".", help="of the project")
    parser.add_argument("--catalogue", default="", help="instead of tests/mutants.toml")
    return parser


def by_hand(catalogue: Catalogue, root: Path, only: str = "") -> list[Planted]:
    """Mutants of the catalogue with their sources.

    Raises:
        CatalogueError: one does not fit the sources.
    """
    found: list[Planted] = []
    for mutant in chosen(catalogue.mutants, only):
        try:
            source = (root / mutant.file).read_text()
        except OSError as error:
            raise CatalogueError(f"mutant {mutant.id}: expected a file {mutant.file}, got none") from error
        found.append(_planted(mutant, source, mutant.applied(source), mutant.line(source)))
    return found


def random_mutants(
    catalogue: Catalogue, root: Path, count: int, seed: int, *, is_slow: bool
) -> list[Planted]:
    """Changes of random lines of the modules of a catalogue; those that are accepted have their reason."""
    modules = {m.file: m for m in catalogue.modules if is_slow or not m.is_slow}
    sources = {file: (root / file).read_text() for file in modules}
    edits = {file: edits_of(sources[file], modules[file].left_out) for file in modules}
    found: list[Planted] = []
    for number, (file, edit) in enumerate(choose(edits, count, seed), start=1):
        source = edit.applied(sources[file])
        tests, slow = modules[file].tests, modules[file].is_slow
        mutant = Mutant(f"R{number:03}", file, "", "", tests, is_slow=slow)
        planted = _planted(mutant, sources[file], source, edit.line)
        reason = _accepted(catalogue.accepted, planted, edit.scope)
        if reason:
            mutant = Mutant(mutant.id, file, "", "", tests, reason, slow)
            planted = Planted(mutant, planted.line, source, planted.diff)
        found.append(planted)
    return found


def _planted(mutant: Mutant, before: str, after: str, line: int) -> Planted:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    diff = "\n".join(text for text in lines if text[:3] not in ("---", "+++") and text[:2] != "@@")
    return Planted(mutant, line, after, diff)


def _accepted(accepted: Iterable[Accepted], planted: Planted, scope: str) -> str:
    """Why a random mutant is equivalent, if it is one of those that are known."""
    lines = planted.diff.splitlines()
    old, new = ("\n".join(x[1:].strip() for x in lines if x[0] == sign) for sign in "-+")
    for each in accepted:
        if (each.file, each.scope, each.old, each.new) == (planted.mutant.file, scope, old, new):
            return each.reason
    return ""


def _run(
    catalogue: Catalogue, root: Path, planted: Sequence[Planted], options: argparse.Namespace
) -> Counter[str]:
    """Run all and print what became of each; returns numbers by verdict."""
    counts: Counter[str] = Counter()
    for each in planted:
        if each.mutant.equivalent:
            counts["equivalent"] += 1
            print(f"{_place(each)} equivalent: {each.mutant.equivalent}")
    left = [p for p in planted if not p.mutant.equivalent]
    with tempfile.TemporaryDirectory(prefix="ds4c-mutants-") as folder:
        preload(catalogue.preload)
        trees = [Tree(Path(folder) / str(i), root, catalogue) for i in range(max(1, options.jobs))]
        limits = _baselines(catalogue, left, trees)
        jobs = [
            Job(p.mutant.id, catalogue.tests[p.mutant.tests], limits[p.mutant.tests], p.mutant.file,
                p.source, _marks(p.mutant))
            for p in left
        ]  # fmt: skip
        by_id = {p.mutant.id: p for p in left}
        for outcome in run_jobs(jobs, trees):
            verdict = _verdict(outcome)
            counts[verdict] += 1
            _report(by_id[outcome.job.key], outcome, verdict)
    return counts


def _marks(mutant: Mutant) -> tuple[str, ...]:
    return ("-m", "not full and not more") if mutant.is_slow else ()


def _baselines(catalogue: Catalogue, planted: Sequence[Planted], trees: Sequence[Tree]) -> dict[str, Limits]:
    """Run each set of tests without a mutant; what a mutant of it may take.

    Raises:
        CatalogueError: a set fails as it is.
    """
    wanted = {p.mutant.tests: _marks(p.mutant) for p in planted}
    most = Limits(BASELINE_SECONDS, BASELINE_SECONDS)
    jobs = [Job(name, catalogue.tests[name], most, options=marks) for name, marks in sorted(wanted.items())]
    limits: dict[str, Limits] = {}
    started = time.monotonic()
    for outcome in run_jobs(jobs, trees):
        if outcome.code != 0:
            raise CatalogueError(
                f"mutants not run: expected the tests {outcome.job.key!r} to pass without a mutant, got exit "
                f"code {outcome.code} ({outcome.first_failure or outcome.output[-300:].strip()!r}); mend them"
            )
        limits[outcome.job.key] = Limits.of(outcome.cpu, outcome.wall)
        print(f"tests {outcome.job.key}: pass in {outcome.cpu:.1f} CPU s, {outcome.wall:.1f} s", flush=True)
    print(f"{len(limits)} sets of tests pass in {time.monotonic() - started:.0f} s", flush=True)
    return limits


def _verdict(outcome: Outcome) -> str:
    if outcome.code == 0:
        return "SURVIVED"
    if outcome.code == 1 and "::" in outcome.first_failure:
        return "killed"
    return "stopped" if outcome.code is None else "broken"


def _report(planted: Planted, outcome: Outcome, verdict: str) -> None:
    seen = outcome.first_failure if verdict == "killed" else ""
    print(f"{_place(planted)} {verdict} in {outcome.wall:.1f} s {seen}".rstrip(), flush=True)
    if verdict in ("SURVIVED", "broken"):
        print("\n".join(f"    {line}" for line in planted.diff.splitlines()), flush=True)
    if verdict == "broken":
        print(f"    exit code {outcome.code}: {outcome.output[-300:].strip()}", flush=True)


def _place(planted: Planted) -> str:
    return f"{planted.mutant.id} {planted.mutant.file}:{planted.line}"


if __name__ == "__main__":
    sys.exit(main())
