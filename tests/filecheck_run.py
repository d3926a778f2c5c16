"""Runs the before/after cases of a `.mlir` file in this process and matches them with FileCheck.

A file holds cases parted by lines `// -----`. The first line of a case is its title; then come
`// RUN: ds4c-opt -p '<passes>'` (a case without one takes that of the file's first case) and CHECK lines for
the text after the passes. `// RUN: not ds4c-opt ...` matches the one-line message of the refusal instead,
and `// UNCHANGED` demands that the passes leave the text as it was.
"""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException

from ds4c.cli.opt import parse_passes
from ds4c.errors import Ds4cError
from ds4c.ir.dialect import parse_module, print_module
from ds4c.passes.pipeline import run_pipeline

SEPARATOR = "// -----\n"
RUN = re.compile(r"^// RUN: (not )?ds4c-opt -p '([^']*)'$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One input with what must become of it.

    Attributes:
        title: what the case shows. passes: the pipeline.
        is_refused: whether the passes must refuse the input. is_unchanged: whether they must change nothing.
    """

    file: str
    title: str
    passes: str
    is_refused: bool
    is_unchanged: bool
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.title}"


def cases_of(path: Path) -> Iterator[Case]:
    """Cases of one file, in order."""
    default: tuple[bool, str] | None = None
    for text in path.read_text(encoding="utf-8").split(SEPARATOR):
        found = RUN.search(text)
        run = (bool(found[1]), found[2]) if found else default
        assert run is not None, f"{path.name}: expected a RUN line in the first case, got none"
        default = default or run
        title = text.lstrip().splitlines()[0].removeprefix("// ")
        yield Case(path.stem, title, run[1], run[0], "\n// UNCHANGED\n" in text, text)


def run_case(case: Case) -> None:
    """Run the passes and match the outcome; `AssertionError` says what did not fit, with the text."""
    module = parse_module(case.text, case.file)
    before = print_module(module)
    error = _error_of(module, case.passes)
    if case.is_refused:
        assert error is not None, f"expected a refusal, got\n{print_module(module)}"
        match(case.text, refusal(error))
        return
    assert error is None, f"expected the passes to accept the input, got: {error}"
    after = print_module(module)
    if case.is_unchanged:
        assert after == before
    else:
        assert after != before, "the passes changed nothing; say so with // UNCHANGED"
        match(case.text, after)


def _error_of(module: ModuleOp, passes: str) -> Exception | None:
    try:
        run_pipeline(module, parse_passes(passes))
    except (DiagnosticException, Ds4cError) as error:
        return error
    return None


def refusal(error: Exception) -> str:
    """The line of an error that says what was expected, without the module that xDSL prints around it."""
    lines = [line.strip().lstrip("^- ") for line in str(error).splitlines()]
    told = [line for line in lines if ": expected" in line or "needs" in line]
    assert len(told) == 1, f"expected one line of the form `what: expected .., got ..`, got {error}"
    return told[0] + "\n"


def match(checks: str, output: str) -> None:
    """Match an output against the CHECK lines of a text."""
    options = Options("checks", input_file="output")
    complaint = io.StringIO()
    with redirect_stderr(complaint):
        parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
        code = Matcher(options, FInput("output", output), parser).run()
    assert code == 0, f"{complaint.getvalue()}\n{output}"
