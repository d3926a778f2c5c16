"""The list of mutants, `tests/mutants.toml`: what is changed where, and which tests have to see it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CatalogueError(Exception):
    """The catalogue says what cannot be; the message is one line."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        id: name in the report.
        file: path from the root.
        old: text that occurs in the file exactly once.
        new: text in its place.
        tests: name of the set of tests that has to fail.
        equivalent: why no test can fail; empty for all others.
        is_slow: the set needs tests that compile kernels; run with `--slow` only.
    """

    id: str
    file: str
    old: str
    new: str
    tests: str
    equivalent: str = ""
    is_slow: bool = False

    def applied(self, source: str) -> str:
        """The source with the change.

        Raises:
            CatalogueError: the old text is not there exactly once, or the new one is the same.
        """
        count = source.count(self.old)
        if count != 1 or self.old == self.new:
            raise CatalogueError(
                f"mutant {self.id}: expected a change of text that occurs once in {self.file}, got {count} "
                "places; mend the catalogue"
            )
        return source.replace(self.old, self.new)

    def line(self, source: str) -> int:
        """Number of the first line that differs."""
        start = source.index(self.old)
        same = next((i for i, (a, b) in enumerate(zip(self.old, self.new, strict=False)) if a != b), 0)
        return source.count("\n", 0, start + same) + 1


@dataclass(frozen=True)
class Module:
    """A file that random mutants are made of: its set of tests, and the functions that no fast test sees."""

    file: str
    tests: str
    left_out: frozenset[str]
    is_slow: bool


@dataclass(frozen=True)
class Accepted:
    """A change of lines of a function that no test can see, found by a random mutant.

    `scope` is the function (`Class.name`), empty at the top of the file; lines are without indentation.
    """

    file: str
    scope: str
    old: str
    new: str
    reason: str


@dataclass(frozen=True)
class Catalogue:
    """All of the file.

    Attributes:
        copied: folders that a mutant has a copy of its own of; all else of the root is linked.
        path: entries of the import path, from the root.
        preload: modules of others that are imported once for all mutants.
        tests: sets of tests by name: files, or ids of tests, the most direct one first.
        mutants: by hand.
        modules: for random ones.
        accepted: random ones that are known to be equivalent.
    """

    copied: tuple[str, ...]
    path: tuple[str, ...]
    preload: tuple[str, ...]
    tests: Mapping[str, tuple[str, ...]]
    mutants: tuple[Mutant, ...]
    modules: tuple[Module, ...]
    accepted: tuple[Accepted, ...]


def read_catalogue(path: Path) -> Catalogue:
    """Read and check a catalogue, but not whether its texts are in the sources.

    Raises:
        CatalogueError: an unknown or missing key, a set that is not there, or an id twice.
    """
    with path.open("rb") as file:
        given = tomllib.load(file)
    try:
        catalogue = _catalogue(given)
    except (TypeError, KeyError) as error:
        raise CatalogueError(f"{path.name} rejected: expected the keys of its schema, got {error}") from error
    ids = [m.id for m in catalogue.mutants]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    unknown = {m.tests for m in (*catalogue.mutants, *catalogue.modules)} - set(catalogue.tests)
    if twice or unknown:
        raise CatalogueError(
            f"{path.name} rejected: expected each id once and sets of tests that are listed, got "
            f"{', '.join([*twice, *sorted(unknown)])}"
        )
    return catalogue


def _catalogue(given: Mapping[str, Any]) -> Catalogue:
    modules = tuple(
        Module(file, m["tests"], frozenset(m.get("left_out", ())), m.get("slow", False))
        for file, m in given["modules"].items()
    )
    of_file = {m.file: m for m in modules}
    return Catalogue(
        copied=tuple(given["tree"]["copied"]),
        path=tuple(given["tree"]["path"]),
        preload=tuple(given["tree"]["preload"]),
        tests={name: tuple(files) for name, files in given["tests"].items()},
        mutants=tuple(_mutant(m, of_file) for m in given["mutant"]),
        modules=modules,
        accepted=tuple(Accepted(**a) for a in given.get("accepted", ())),
    )


def _mutant(given: Mapping[str, Any], modules: Mapping[str, Module]) -> Mutant:
    """One entry; the set of tests is by default that of its module."""
    module = modules.get(given["file"])
    known = {"id", "file", "old", "new", "tests", "equivalent", "slow", "what"}
    if set(given) - known:
        raise KeyError(f"{given['id']}: {', '.join(sorted(set(given) - known))}")
    tests = given["tests"] if "tests" in given or module is None else module.tests
    is_slow = given.get("slow", "tests" not in given and module is not None and module.is_slow)
    return Mutant(
        given["id"], given["file"], given["old"], given["new"], tests, given.get("equivalent", ""), is_slow
    )


def chosen(mutants: Sequence[Mutant], only: str) -> list[Mutant]:
    """The mutants of a list of ids, separated by commas; all where the list is empty.

    Raises:
        CatalogueError: an id that is not there.
    """
    wanted = [name for name in only.split(",") if name]
    unknown = sorted(set(wanted) - {m.id for m in mutants})
    if unknown:
        raise CatalogueError(f"mutants not run: expected ids of the catalogue, got {', '.join(unknown)}")
    return [m for m in mutants if not wanted or m.id in wanted]
