"""`ds4c inspect`: what an artifact or a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ds4c.cli.common import (
    JsonOption,
    format_bytes,
    print_json,
    print_note,
    print_result,
    print_table,
    usage_error,
)

if TYPE_CHECKING:
    from ds4c_runtime.manifest import Manifest
    from ds4c_runtime.package.check import KernelRow


def run(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Artifact or checkpoint folder.")],
    states: Annotated[bool, typer.Option("--states", help="List every state.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every weight.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="List what every kernel for a GPU needs.")
    ] = False,
    ir: Annotated[bool, typer.Option("--ir", help="Print the final IR text of an artifact.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what an artifact or a checkpoint holds.

    Example: ds4c inspect out/m --json
    """
    if (path / "manifest.json").exists():
        _artifact(path, _Lists(states, tensors, kernels), ir, as_json)
    elif (path / "config.json").exists():
        _checkpoint(path, tensors, as_json)
    else:
        usage_error(
            f"{path}: expected a folder with manifest.json or config.json, got neither; check the path"
        )


@dataclass(frozen=True)
class _Lists:
    """Which lists to print."""

    states: bool
    tensors: bool
    kernels: bool


def _artifact(path: Path, lists: _Lists, ir: bool, as_json: bool) -> None:
    import dataclasses

    from ds4c_runtime.manifest import Manifest
    from ds4c_runtime.manifest_checks import verify_file, verify_sizes

    manifest = Manifest.read(path)
    if ir:
        verify_sizes(path, manifest)
        verify_file(path, manifest, "module.mlir")
        print_result((path / "module.mlir").read_text(encoding="utf-8").rstrip("\n"))
        return
    kernels = _kernels(path, manifest) if lists.kernels else ()
    if as_json:
        more = {"kernels": [dataclasses.asdict(row) for row in kernels]} if lists.kernels else {}
        print_json(dataclasses.asdict(manifest) | more)
        return
    _print_artifact(manifest)
    if lists.states:
        _print_states(manifest)
    if lists.tensors:
        _print_weights(manifest)
    if kernels:
        _print_kernels(kernels)
    elif lists.kernels:
        print_note("no kernels for a GPU: those of this artifact are one library")


def _print_artifact(m: Manifest) -> None:
    kinds: dict[str, int] = {}
    for state in m.states:
        kinds[state.kind] = kinds.get(state.kind, 0) + 1
    held = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    print_result(f"artifact   {m.model.name} ({m.artifact_id[:12]}), format {m.version}")
    print_result(
        f"model      {m.model.architecture}, {m.model.layers} layers, {m.model.parameters:,} parameters"
    )
    print_result(f"context    {m.model.context} tokens, vocabulary {m.model.vocab_size}")
    print_result(f"target     {m.target.name}:{m.target.variant}, needs {' '.join(m.target.features)}")
    print_result(f"files      {len(m.files)}, {format_bytes(sum(f.bytes for f in m.files))}")
    print_result(f"states     {held}; {format_bytes(m.arenas.state_slot)} of rings a session")
    print_result(f"pages      {format_bytes(m.arenas.page)} for {m.limits.page_tokens} tokens")
    print_result(
        f"step       up to {m.limits.max_rows} rows of {m.limits.max_segments} sessions, "
        f"{m.limits.max_logit_rows} with logits"
    )
    print_result(
        f"rewind     in place up to {m.limits.horizon} tokens, then {m.capabilities.rewind_kinds[-1]}"
    )
    print_result(f"versions   ds4c {m.versions.ds4c}, tvm {m.versions.tvm}, tvm-ffi {m.versions.tvm_ffi}")


def _print_states(m: Manifest) -> None:
    rows: list[list[Any]] = []
    for s in m.rings:
        live = f"c // {s.live.align} * {s.live.align} - {s.live.back} .. c"
        rows.append([s.name, s.kind, f"{s.capacity} x {s.width}", s.dtype, s.every, live])
    for s in m.appends:
        rows.append(
            [s.name, s.kind, f"{s.rows_per_page} x {s.width} a page", s.dtype, s.every, "all below c"]
        )
    print_table(["state", "kind", "rows", "dtype", "tokens a row", "live rows at position c"], rows)


def _print_weights(m: Manifest) -> None:
    rows = [[w.name, list(w.shape), w.dtype, w.layout, w.offset, w.bytes] for w in m.weights]
    print_table(["weight", "shape", "dtype", "layout", "offset", "bytes"], rows)


def _kernels(path: Path, manifest: Manifest) -> Sequence[KernelRow]:
    """Kernels of an artifact for a GPU, of the files that were built."""
    from ds4c.cli.verify import check_kernels
    from ds4c_runtime.manifest_checks import verify_file, verify_sizes

    verify_sizes(path, manifest)
    for entry in manifest.files:
        if entry.name.startswith("kernels.") or entry.name == "launches.json":
            verify_file(path, manifest, entry.name)
    return check_kernels(path, manifest)


def _print_kernels(kernels: Sequence[KernelRow]) -> None:
    columns = ["variant", "function", "threads", "registers", "shared", "local", "spilled", "launches"]
    rows: list[list[object]] = []
    for r in kernels:
        needs = [_known(n) for n in (r.registers, r.shared_bytes, r.local_bytes, r.spilled)]
        rows.append([r.variant, r.function, r.threads, *needs, r.launches])
    print_table(columns, rows)


def _known(number: int | None) -> str:
    """A number, or a dash where the device's compiler decides."""
    return "-" if number is None else str(number)


def _checkpoint(path: Path, tensors: bool, as_json: bool) -> None:
    import dataclasses

    from ds4c.importers.safetensors import open_checkpoint

    checkpoint = open_checkpoint(path)
    config, architecture = checkpoint.config, checkpoint.architecture
    parameters = architecture.num_parameters(config)
    infos = [checkpoint.info(name) for name in checkpoint.names()]
    if as_json:
        listed = [{"name": i.name, "dtype": i.dtype, "shape": list(i.shape)} for i in infos]
        print_json(
            {
                "config": dataclasses.asdict(cast(Any, config)),
                "parameters": parameters,
                "bytes": checkpoint.total_bytes,
                "tensors": listed,
            }
        )
        return
    dtypes = sorted({i.dtype for i in infos})
    print_result(f"checkpoint {path}, {architecture.model_type}, {parameters:,} parameters")
    print_result(f"layers     {config.num_hidden_layers}, {architecture.layers(config)}")
    print_result(f"tensors    {len(infos)}, {', '.join(dtypes)}, {format_bytes(checkpoint.total_bytes)}")
    print_result(f"context    {config.max_position_embeddings} tokens, vocabulary {config.vocab_size}")
    if tensors:
        print_table(["tensor", "dtype", "shape"], [[i.name, i.dtype, list(i.shape)] for i in infos])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(run)
