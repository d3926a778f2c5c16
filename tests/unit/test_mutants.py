"""The tool that plants mutants, and its catalogue: every entry fits the sources as they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutants.__main__ import random_mutants
from tools.mutants.catalogue import Accepted, CatalogueError, chosen, read_catalogue
from tools.mutants.edits import choose, edits_of

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = read_catalogue(ROOT / "tests" / "mutants.toml")

SMALL = '''
"""A module."""

LIMIT = 3


def first(values: list[int], most: int = LIMIT) -> list[int]:
    """The first values."""
    if not values:
        return []
    return values[:most]


def is_small(value: int) -> bool:
    return value < LIMIT and value != 0


class Box:
    def __init__(self) -> None:
        self.content = 0

    def __repr__(self) -> str:
        return "Box" if self.content > 5 else ""

    def put(self, value: int) -> None:
        assert value > 7
        if value < 0:
            raise ValueError(f"expected at least {0 + 8}, got {value}")
        self.content = max(value, 2)
        self.tell(True)

    def tell(self, aloud: bool) -> int:
        return self.content + 1 if aloud else 0
'''


def test_the_catalogue_fits_the_sources() -> None:
    """Every old text is in its file once, and what comes out is a module of Python."""
    assert len(CATALOGUE.mutants) >= 80
    sources = {file: (ROOT / file).read_text() for file in {m.file for m in CATALOGUE.mutants}}
    for mutant in CATALOGUE.mutants:
        assert ast.parse(mutant.applied(sources[mutant.file])), mutant.id


def test_every_file_of_the_catalogue_is_there() -> None:
    tests = {test.partition("::")[0] for tests in CATALOGUE.tests.values() for test in tests}
    files = {module.file for module in CATALOGUE.modules} | {each.file for each in CATALOGUE.accepted}
    assert [name for name in sorted(tests | files) if not (ROOT / name).is_file()] == []


def test_equivalents_have_a_reason_and_old_lines_that_exist() -> None:
    for each in CATALOGUE.accepted:
        lines = {line.strip() for line in (ROOT / each.file).read_text().splitlines()}
        assert len(each.reason) > 20
        assert set(each.old.splitlines()) <= lines, each
        name = each.scope.rpartition(".")[2]
        assert not name or any(
            line.startswith((f"def {name}(", f"async def {name}(", f"class {name}")) for line in lines
        ), each


def test_the_mutants_of_the_trial_are_there() -> None:
    """39 numbers, M01 to M40 without M12."""
    numbers = {m.id for m in CATALOGUE.mutants if m.id.startswith("M")}
    assert numbers == {f"M{n:02}" for n in range(1, 41) if n != 12}


def test_an_old_text_that_is_not_there_once_is_refused() -> None:
    mutant = replace(CATALOGUE.mutants[0], old="x = 1", new="x = 2")
    assert mutant.applied("x = 1\n") == "x = 2\n"
    assert mutant.line("y = 3\nx = 1\n") == 2
    for source in ("y = 1\n", "x = 1\nx = 1\n"):
        with pytest.raises(CatalogueError, match="once"):
            mutant.applied(source)


def test_only_some() -> None:
    assert [m.id for m in chosen(CATALOGUE.mutants, "M22,M02")] == ["M02", "M22"]
    with pytest.raises(CatalogueError, match="M99"):
        chosen(CATALOGUE.mutants, "M02,M99")


def lines_of(kind: str) -> set[str]:
    """The lines of `SMALL` that changes of a kind make."""
    before = SMALL.splitlines()
    found: set[str] = set()
    for edit in edits_of(SMALL):
        if edit.kind == kind:
            found |= {line.strip() for line in edit.applied(SMALL).splitlines() if line not in before}
    return found


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("comparison", {"return value <= LIMIT and value != 0", "return value >= LIMIT and value != 0",
                        "return value < LIMIT and value == 0", "if value <= 0:", "if value >= 0:"}),
        ("and, or", {"return value < LIMIT or value != 0"}),
        ("not", {"if (values):"}),
        ("plus, minus", {"return self.content - 1 if aloud else 0"}),
        ("min, max", {"self.content = min(value, 2)"}),
        ("slice", {"return values[:(most) - 1]"}),
        ("statement", {"pass"}),
        ("truth value", {"self.tell(False)"}),
    ],
)  # fmt: skip
def test_kinds_of_changes(kind: str, lines: set[str]) -> None:
    assert lines_of(kind) == lines


def test_small_functions_return_something_else() -> None:
    assert {"return None", "return not (value < LIMIT and value != 0)", "return 0"} == lines_of("result")


def test_what_stays_as_it_is() -> None:
    """Texts of errors, asserts, representations, docstrings and annotations, and what is left out."""
    for edit in edits_of(SMALL):
        changed = edit.applied(SMALL)
        assert ast.parse(changed)
        for kept in ('"Box" if self.content > 5', "assert value > 7", "{0 + 8}", "The first values"):
            assert kept in changed
    assert {edit.scope for edit in edits_of(SMALL)} == {
        "", "first", "is_small", "Box.__init__", "Box.put", "Box.tell",
    }  # fmt: skip
    kept = edits_of(SMALL, ["Box", "is_small"])
    assert {edit.line for edit in kept} < set(range(1, 13))
    assert {edit.line for edit in edits_of(SMALL, ["Box.tell"])} & {33, 34, 35} == set()


@pytest.mark.parametrize("name", ["extents.py", "guards.py", "stops.py"])
def test_every_change_of_a_module_gives_another_module(name: str) -> None:
    source = (ROOT / "runtime" / "ds4c_runtime" / name).read_text()
    before = ast.dump(ast.parse(source))
    found = edits_of(source)
    assert len(found) > 30
    for edit in found:
        assert ast.dump(ast.parse(edit.applied(source))) != before, edit


def test_random_changes_are_repeated_by_their_seed() -> None:
    edits = {"a.py": edits_of(SMALL), "b.py": edits_of(SMALL, ["Box"])}
    picked = choose(edits, 12, 1)
    assert picked == choose(edits, 12, 1)
    assert picked != choose(edits, 12, 2)
    lines = [(file, edit.line) for file, edit in picked]
    assert len(set(lines)) == len(lines)
    every = choose(edits, 10_000, 1)
    assert len(every) == len(set(every)) == sum(len(found) for found in edits.values())


def test_a_random_change_that_is_known_to_be_equivalent() -> None:
    module = next(m for m in CATALOGUE.modules if m.file.endswith("extents.py"))
    some = replace(CATALOGUE, modules=(module,), accepted=())
    first = random_mutants(some, ROOT, 3, 5, is_slow=False)[0]
    removed, added = (
        "\n".join(line[1:].strip() for line in first.diff.splitlines() if line[0] == sign) for sign in "-+"
    )
    ((_, edit), *_) = choose({module.file: edits_of((ROOT / module.file).read_text(), module.left_out)}, 3, 5)
    for scope, reason in ((edit.scope, "why"), ("another", "")):
        known = replace(some, accepted=(Accepted(module.file, scope, removed, added, "why"),))
        found = random_mutants(known, ROOT, 3, 5, is_slow=False)
        assert [p.mutant.equivalent for p in found] == [reason, "", ""]
    assert [p.source for p in found] == [p.source for p in random_mutants(some, ROOT, 3, 5, is_slow=False)]


PLANTED = """
[tree]
copied = ["lib", "tests"]
path = ["lib"]
preload = ["pytest", "hypothesis"]

[tests]
found = ["tests/test_half.py"]

[modules]
"lib/half.py" = { tests = "found" }

[[mutant]]
id = "A"
file = "lib/half.py"
old = "n // 2"
new = "n // 3"

[[mutant]]
id = "B"
file = "lib/half.py"
old = "n <= 0"
new = "n < 0"

[[mutant]]
id = "C"
file = "lib/half.py"
old = "def half"
new = "def whole"

[[mutant]]
id = "D"
file = "lib/half.py"
old = "n <= 0"
new = "not n > 0"
equivalent = "the same for whole numbers"
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A project with one function, a test that looks at 8 only, and four mutants."""
    for name, text in {
        "lib/half.py": "def half(n: int) -> int:\n    if n <= 0:\n        return 0\n    return n // 2\n",
        "tests/test_half.py": "from half import half\n\ndef test_half():\n    assert half(8) == 4\n",
        "tests/mutants.toml": PLANTED,
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['lib']\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run_tool(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.mutants", "--root", str(root), "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_survivor_is_reported(planted: Path) -> None:
    done = run_tool(planted)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "4 mutants: 2 killed, 1 survived, 1 equivalent; 1 broken"
    at = next(i for i, line in enumerate(lines) if line.startswith("B lib/half.py:2 SURVIVED"))
    assert lines[at + 1 : at + 3] == ["    -    if n <= 0:", "    +    if n < 0:"]
    assert any(line.startswith("A lib/half.py:4 killed") for line in lines)
    assert (planted / "lib" / "half.py").read_text().count("n // 2") == 1


@pytest.mark.slow
def test_all_found_is_success(planted: Path) -> None:
    done = run_tool(planted, "--only", "A,D")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 mutants: 1 killed, 0 survived, 1 equivalent"


@pytest.mark.slow
def test_tests_that_fail_without_a_mutant_say_nothing(planted: Path) -> None:
    (planted / "tests" / "test_half.py").write_text("def test_half():\n    assert False\n")
    done = run_tool(planted)
    assert done.returncode == 2
    assert "expected the tests 'found' to pass without a mutant" in done.stderr
