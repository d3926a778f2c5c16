"""`ds4c opt`: run passes over an IR file and print the text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ds4c.cli.common import CommandFailure, ExitCode, one_line, print_result, read_text

if TYPE_CHECKING:
    from xdsl.passes import ModulePass


def list_passes(value: bool) -> None:
    """Print the names of the passes and end the command, if asked to."""
    if value:
        from ds4c.passes.pipeline import PASSES

        print_result("\n".join(PASSES))
        raise typer.Exit


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="IR text; `-` reads stdin.")],
    passes: Annotated[
        str, typer.Option("--passes", "-p", help="Pipeline, `a,b{option=1}`; empty: none.")
    ] = "",
    names: Annotated[
        bool,
        typer.Option("--list", callback=list_passes, is_eager=True, help="List the passes and exit."),
    ] = False,
) -> None:
    """Parse and verify an IR file, run passes (verifying between them), print the result.

    Example: ds4c opt file.mlir -p 'plan-state{horizon=32},insert-snapshots'
    """
    from xdsl.utils.exceptions import DiagnosticException, ParseError

    from ds4c.ir.dialect import parse_module, print_module
    from ds4c.passes.pipeline import run_pipeline

    text = read_text(file, "IR text")
    chosen = parse_passes(passes)
    try:
        module = parse_module(text, str(file))
        run_pipeline(module, chosen)
    except ParseError as error:
        where, *rest = [line.strip(" ^") for line in str(error).splitlines() if line.strip(" ^")]
        raise CommandFailure(
            f"{where} not parsed: expected IR text of the ds4 dialect, got an error "
            f"({(rest or ['none'])[-1]}); correct it",
            ExitCode.MALFORMED,
        ) from None
    except RecursionError:
        raise CommandFailure(
            f"{file} not parsed: expected IR text of the ds4 dialect, got too deep nesting; correct it",
            ExitCode.MALFORMED,
        ) from None
    except DiagnosticException as error:
        raise CommandFailure(_message(error), ExitCode.FAILED) from None
    sys.stdout.write(print_module(module))


def parse_passes(text: str) -> list[ModulePass]:
    """Passes of a pipeline string.

    Raises:
        CommandFailure: unknown pass or option, or a malformed string (exit code 2).
    """
    from xdsl.utils.arg_spec import parse_pipeline
    from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException

    from ds4c.passes.pipeline import PASSES

    out: list[ModulePass] = []
    try:
        for spec in parse_pipeline(text) if text.strip() else ():
            if spec.name not in PASSES:
                raise CommandFailure(
                    f"passes: expected one of {', '.join(PASSES)}, got {spec.name}", ExitCode.USAGE
                )
            out.append(PASSES[spec.name].from_pass_spec(spec))
    except CommandFailure:
        raise
    except (DiagnosticException, ValueError, ArgSpecParseError) as error:
        raise CommandFailure(
            f"passes: expected a pipeline such as 'a,b{{option=1}}', got {text!r} ({_message(error)})",
            ExitCode.USAGE,
        ) from None
    return out


def _message(error: BaseException) -> str:
    """The line of the error that says what is wrong, without the module around it."""
    lines = [line.strip().lstrip("^- ").strip() for line in str(error).splitlines()]
    told = [line for line in lines if ": expected" in line or "needs" in line or "has capacity" in line]
    return told[0] if told else one_line(str(error))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("opt")(run)
