"""`ds4c build`: compile a checkpoint into an artifact; progress on stderr, the result on stdout."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ds4c.cli.common import JsonOption, error_console, format_bytes, print_json, print_result, print_table

if TYPE_CHECKING:
    from ds4c.build import BuildReport, Stage

PLAIN_SECONDS = 5.0
"""Where stderr is no terminal, a stage prints a line at its start and then at most this often."""


EVERY = "all"
"""Name for every target."""


class StageLog:
    """Prints the stages of a build on stderr with bytes and rate."""

    def __init__(self, quiet: bool) -> None:
        self._console = error_console()
        self._quiet = quiet
        self._stage = ""
        self._began = self._printed = 0.0

    def __call__(self, stage: Stage) -> None:
        """Report one step."""
        if self._quiet:
            return
        now = time.monotonic()
        fresh = stage.name != self._stage
        if fresh:
            self._stage, self._began, self._printed = stage.name, now, 0.0
        complete = stage.total > 0 and stage.done >= stage.total
        if not (fresh or complete or now - self._printed >= PLAIN_SECONDS):
            return
        self._printed = now
        self._console.print(self._line(stage, now), soft_wrap=True)

    def _line(self, stage: Stage, now: float) -> str:
        text = f"{stage.name:<9}"
        if stage.total:
            text += f" {format_bytes(stage.done)} of {format_bytes(stage.total)}"
            seconds = now - self._began
            if seconds > 0.05:
                text += f", {format_bytes(int(stage.done / seconds))}/s"
            return text
        return f"{text} {stage.detail}".rstrip()


def list_targets(value: str) -> str:
    """Print the targets and end the command where the value is `list`; any other value is given back."""
    if value != "list":
        return value
    from ds4c.passes.target import get_target, target_names

    targets = [get_target(name) for name in target_names()]
    rows = [[f"{t.name}:{v}", " ".join(t.variant_features(v))] for t in targets for v in t.variants()]
    print_table(["target", "what a device must have"], rows)
    raise typer.Exit


def run(
    source: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Hugging Face checkpoint folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Artifact folder to write.")],
    target: Annotated[
        str,
        typer.Option(
            help="Target, target:variant or target:variant+variant; `all`: each into a folder of its name in "
            "the output; `list` lists them.",
            callback=list_targets,
            is_eager=True,
        ),
    ] = "cpu",
    horizon: Annotated[int, typer.Option(help="Rewinds of up to this many tokens move no data.")] = 64,
    context: Annotated[int, typer.Option(help="Tokens of a session; 0: the model's, up to 65536.")] = 0,
    rows: Annotated[
        int, typer.Option(help="Rows of a step (prefill chunk); 0: 512, at most the context.")
    ] = 0,
    segments: Annotated[int, typer.Option(help="Sessions of a step.")] = 8,
    logit_rows: Annotated[int, typer.Option(help="Rows of a step with logits; 0: 64.")] = 0,
    name: Annotated[str, typer.Option(help="Model name in the manifest; default: the folder's.")] = "",
    dump_ir: Annotated[Path | None, typer.Option(help="Folder for the IR text after each pass.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile a checkpoint into an artifact.

    Example: ds4c build CHECKPOINT -o out/m --target cpu --horizon 64
    """
    from ds4c.build import BuildOptions, build
    from ds4c.passes.target import target_names

    options = BuildOptions(target, horizon, context, rows, segments, logit_rows, name, dump_ir, replace=force)
    if target != EVERY:
        report = build(source, output, options, StageLog(quiet))
        if as_json:
            print_json(summary(report))
        else:
            _print_summary(report)
        return
    wanted = [replace(options, target=each, name=name or source.absolute().name) for each in target_names()]
    reports = [build(source, output / each.target, each, StageLog(quiet)) for each in wanted]
    if as_json:
        print_json([summary(report) for report in reports])
    for report in reports if not as_json else []:
        _print_summary(report)


def summary(report: BuildReport) -> dict[str, Any]:
    """The result of a build for `--json`; sizes in bytes."""
    m = report.manifest
    return {
        "artifact": str(report.folder),
        "artifact_id": m.artifact_id,
        "target": f"{m.target.name}:{m.target.variant}",
        "kernels": report.kernels,
        "bytes": sum(f.bytes for f in m.files),
        "weights_bytes": m.arenas.weights,
        "state_bytes_per_session": m.arenas.state_slot,
        "state_bytes_per_token": round(m.arenas.page / m.limits.page_tokens, 1),
        "workspace_bytes": m.arenas.workspace,
        "horizon": m.limits.horizon,
        "context": m.model.context,
        "rewind_kinds": list(m.capabilities.rewind_kinds),
        "seconds": round(report.seconds, 2),
    }


def _print_summary(report: BuildReport) -> None:
    s = summary(report)
    print_result(f"artifact   {s['artifact']} ({s['artifact_id'][:12]})")
    print_result(f"target     {s['target']}, {s['kernels']} kernels")
    print_result(f"size       {format_bytes(s['bytes'])}, weights {format_bytes(s['weights_bytes'])}")
    print_result(
        f"session    {format_bytes(s['state_bytes_per_session'])} of rings, "
        f"{s['state_bytes_per_token']} bytes a token, context {s['context']}"
    )
    print_result(f"rewind     in place up to {s['horizon']} tokens, beyond that a rebuild")
    print_result(f"built in   {s['seconds']} s")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("build")(run)
