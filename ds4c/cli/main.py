"""The `ds4c` command: one group whose commands live in files of their own and are imported only when called.

How to add a command NAME: write `ds4c/cli/NAME.py` with

    def register(app: typer.Typer) -> None:
        app.command("NAME")(run)          # or app.add_typer(group, name="NAME") for sub-commands

and add NAME with its one-line help to `COMMANDS` below. A command

- imports what is heavy (numpy, tvm, xdsl, grpc, the runtime) inside its function;
- puts nothing but its result on stdout (`common.print_result`, `common.print_json`), the rest on stderr;
- returns None or an exit code, and raises `Ds4cError`, `RuntimeFailure` or `common.CommandFailure` to fail;
- carries an example in its docstring, which is its `--help`; a paragraph that begins with "Example" keeps
  its lines.

Every option of a command can also be set by an environment variable DS4C_COMMAND_PARAMETER (`--grpc-listen`
of `ds4c serve` is DS4C_SERVE_GRPC_LISTEN), `--json` of every command by DS4C_JSON. Tests call `main([...])`,
which returns the exit code.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ds4c.cli.common import ExitCode, describe_failure, package_version, print_failure, signals_as_exceptions

COMMANDS: dict[str, str] = {
    "build": "Compile a checkpoint into an artifact.",
    "inspect": "Show what an artifact or a checkpoint holds.",
    "run": "Generate text from a prompt.",
    "chat": "Talk to the model; rewind and branch the conversation.",
    "serve": "Serve an artifact over gRPC.",
    "client": "Call a server: generate, rewind, fork, plan, sessions, snapshots.",
    "verify": "Check the files of an artifact and prove its rewinds.",
    "logits": "Write the logits of every position of a token file.",
    "opt": "Run passes over an IR file.",
    "bench": "Measure prefill, decode, rewinds and load.",
    "doctor": "Show what this machine can build and run.",
}

# Base of all command line errors, by way of a public subclass: where it lives differs between typer releases.
_LineError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


class LazyGroup(TyperGroup):
    """A group that lists its commands from `COMMANDS` and imports one only when it runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give the loaded command, or before it is loaded a stand-in that knows its name and help."""
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is about to run or to complete its options."""
        if args and args[0] in COMMANDS and args[0] not in self.commands:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """Import `ds4c.cli.NAME` and give its command, ready to run.

    Raises:
        ModuleNotFoundError: the file does not exist or needs an extra that is not installed.
    """
    module = importlib.import_module(f"ds4c.cli.{name}")
    app = typer.Typer(rich_markup_mode=None)
    module.register(app)
    command = typer.main.get_group(app).commands[name]
    command.context_settings.setdefault("auto_envvar_prefix", f"DS4C_{name.upper()}")
    _keep_example_lines(command)
    return command


def _keep_example_lines(command: Any) -> None:
    """Mark the example paragraphs of the help, and of sub-commands, so that they are not wrapped."""
    paragraphs = (command.help or "").split("\n\n")
    marked = ["\b\n" + part if part.lstrip().startswith("Example") else part for part in paragraphs]
    command.help = "\n\n".join(marked)
    for child in getattr(command, "commands", {}).values():
        _keep_example_lines(child)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"ds4c {package_version()} (proto ds4c.v1, Python {sys.version.split()[0]})")
        raise typer.Exit


def build_app() -> typer.Typer:
    """Make the application; commands are not imported by this."""
    app = typer.Typer(
        cls=LazyGroup,
        name="ds4c",
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions, exit."),
        ] = False,
    ) -> None:
        """Compiler, runtime and gRPC server for DeepSeek-V4 with rewind as a first-class operation.

        Example: ds4c build CHECKPOINT -o out/m --target cpu
        """

    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; expected failures become one line on stderr."""
    command = typer.main.get_command(build_app())
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with signals_as_exceptions():
            result = command.main(args=given, prog_name="ds4c", standalone_mode=False)
    except _LineError as error:
        return _report_line_error(error)
    except (typer.Abort, KeyboardInterrupt):
        return _report_signal("an interrupt", ExitCode.INTERRUPTED)
    except SystemExit as leaving:
        if leaving.code != ExitCode.TERMINATED:
            raise
        return _report_signal("SIGTERM", ExitCode.TERMINATED)
    except Exception as error:
        described = describe_failure(error)
        if described is None:
            raise
        print_failure(described[0])
        return described[1]
    if result == ExitCode.INTERRUPTED:  # some releases of typer give this instead of raising
        return _report_signal("an interrupt", ExitCode.INTERRUPTED)
    return int(result) if isinstance(result, int) else ExitCode.OK


def _report_signal(name: str, code: ExitCode) -> ExitCode:
    """Say that the command was ended from outside."""
    print_failure(f"command ended: expected to run to its end, got {name}; start it again")
    return code


def _report_line_error(error: Exception) -> int:
    """Print an error of the command line itself, with a pointer to the help of the command that refused."""
    message = str(getattr(error, "format_message", lambda: error)())
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "ds4c")
    print_failure(f"{message.rstrip('.')}; see {path} --help")
    return int(getattr(error, "exit_code", ExitCode.USAGE))


if __name__ == "__main__":
    sys.exit(main())
