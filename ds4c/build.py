"""`ds4c build` as a function: checkpoint in, artifact folder out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException

from ds4c import artifact
from ds4c.errors import CompileError, MalformedInputError, TargetError, UsageError
from ds4c.importers.safetensors import Checkpoint, open_checkpoint
from ds4c.ir.dialect import print_module
from ds4c.models.architecture import Config
from ds4c.models.ir_weights import IrWeight, ir_weights, load_ir_weight
from ds4c.passes.pipeline import PipelineOptions, pipeline, run_pipeline
from ds4c.passes.planned import planned_of
from ds4c.passes.program import program_of
from ds4c.passes.target import Target, get_target
from ds4c_runtime import manifest as schema
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.tokenizer import Tokenizer

DEFAULT_CONTEXT = 65536
"""Largest context without `--context`; page tables and scratch grow with it."""

DEFAULT_ROWS = 512
"""Rows of a step without `--rows`: a prefill reads every weight once a chunk, the workspace grows with it."""
MAX_SEGMENTS = 4096
"""Most sessions of a step; the io arena grows with them."""
MAX_NAME = 200
"""Longest model name, in characters."""


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build; 0 or None take the default that the message at the end names.

    Attributes:
        target: `name` or `name:variant`.
        horizon: rewinds of up to that many tokens move no data. context: tokens of a session.
        rows, segments, logit_rows: largest step (rows, sessions, rows with logits).
        dump_ir: folder for the IR text after each pass. replace: overwrite an existing artifact.
    """

    target: str = "cpu"
    horizon: int = 64
    context: int = 0
    rows: int = 0
    segments: int = 8
    logit_rows: int = 0
    name: str = ""
    dump_ir: Path | None = None
    replace: bool = False


@dataclass(frozen=True)
class Stage:
    """Progress of a build: a stage begins (`done` 0) or went on to `done` of `total` bytes."""

    name: str
    detail: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class BuildReport:
    """What was built; sizes in bytes, times in seconds."""

    folder: Path
    manifest: schema.Manifest
    kernels: int
    seconds: float


Report = Callable[[Stage], None]


def build(
    source: Path,
    folder: Path,
    options: BuildOptions,
    report: Report = lambda stage: None,
    cache: str = "",
) -> BuildReport:
    """Compile a checkpoint folder into an artifact folder.

    Nothing is left behind when it fails; the folder appears when it is complete. `cache` is a folder of what
    was compiled before, empty for none; the artifact is the same with and without it.

    Raises:
        Ds4cError: bad checkpoint, option, target or output folder; each message is one line.
    """
    start = time.monotonic()
    target, variant = _target(options.target)
    name = _model_name(options.name or source.absolute().name)
    with artifact.new_folder(folder, options.replace) as work:
        report(Stage("open", str(source)))
        checkpoint = open_checkpoint(source)
        chosen = resolve_options(checkpoint.config, options)  # refused before all data is read
        _check(checkpoint, report)
        compiled = _compile(checkpoint, target, chosen, options.dump_ir, report)
        program = program_of(compiled.module)
        report(Stage("kernels", f"{len(program.kernels)} kernels for {target.name}:{variant}"))
        target.build_kernels(program, variant, work, lambda line: report(Stage("kernels", line)), cache)
        _write_weights(work, checkpoint, target, compiled, report)
        _write_side_files(work, checkpoint, compiled.module, target)
        report(Stage("manifest"))
        manifest = _manifest(work, checkpoint, target, variant, compiled, name)
        artifact.write_text(work / schema.MANIFEST_NAME, manifest.to_json())
    return BuildReport(folder, manifest, len(program.kernels), time.monotonic() - start)


@dataclass(frozen=True)
class Compiled:
    """A fully lowered module with what is needed to load its weights."""

    module: ModuleOp
    config: Config
    context: int
    weights: dict[str, IrWeight]


def _target(text: str) -> tuple[Target, str]:
    name, _, variant = text.partition(":")
    target = get_target(name)
    return target, target.resolve_variant(variant)


def _model_name(name: str) -> str:
    """The name for the manifest; clients see it, so it must be text that can be sent and shown."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise UsageError(
            f"--name: expected 1 to {MAX_NAME} printable characters, got {name[:40]!r}; give another name"
        )
    return name


def _check(checkpoint: Checkpoint, report: Report) -> None:
    done = 0
    _check_tokenizer(checkpoint)

    def progress(name: str, size: int) -> None:
        nonlocal done
        done += size
        report(Stage("check", name, done, checkpoint.total_bytes))

    checkpoint.check(progress)


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    """Refuse a tokenizer that the runtime would refuse, before an artifact is made of it.

    Raises:
        MalformedInputError: it cannot be read, or has tokens that the model lacks.
    """
    if checkpoint.tokenizer_path is None:
        return
    most = checkpoint.config.vocab_size
    try:
        tokenizer = Tokenizer.from_file(checkpoint.tokenizer_path)
    except ArtifactError as error:
        raise MalformedInputError(f"{checkpoint.tokenizer_path}: {error}") from error
    if tokenizer.vocab_size > most:
        raise MalformedInputError(
            f"{checkpoint.tokenizer_path}: expected at most {most} tokens (vocab_size of config.json), got "
            f"{tokenizer.vocab_size}; copy both from the same model"
        )


def resolve_options(config: Config, options: BuildOptions) -> PipelineOptions:
    """Fill in defaults and refuse what the model cannot do.

    Raises:
        UsageError: naming the option.
    """
    most = config.max_position_embeddings
    context = options.context or min(most, DEFAULT_CONTEXT)
    if not 1 <= context <= most:
        raise UsageError(
            f"--context: expected 1 to {most} (max_position_embeddings), got {context}; choose another"
        )
    for name in ("horizon", "rows", "segments", "logit_rows"):
        value = getattr(options, name)
        low = 1 if name == "segments" else 0
        if value < low:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected at least {low}, got {value}; choose another"
            )
    if options.horizon > context:
        raise UsageError(
            f"--horizon: expected at most the context of {context} tokens, got {options.horizon}; "
            "choose another"
        )
    if options.segments > MAX_SEGMENTS:
        raise UsageError(
            f"--segments: expected at most {MAX_SEGMENTS}, got {options.segments}; choose another"
        )
    rows = options.rows or min(DEFAULT_ROWS, context)
    if rows > context:
        raise UsageError(
            f"--rows: expected at most the context of {context} tokens, got {rows}; choose another"
        )
    logit_rows = options.logit_rows or min(64, rows)
    if logit_rows > rows:
        raise UsageError(f"--logit-rows: expected at most --rows {rows}, got {logit_rows}; choose another")
    target = options.target.partition(":")[0]
    return PipelineOptions(target, options.horizon, context, rows, options.segments, logit_rows)


def _compile(
    checkpoint: Checkpoint, target: Target, chosen: PipelineOptions, dump_ir: Path | None, report: Report
) -> Compiled:
    config = checkpoint.config
    weights = ir_weights(config, chosen.context, lambda name: checkpoint.load(name).dtype.name)
    module = checkpoint.architecture.build_module(config, weights)
    try:
        passes = pipeline(chosen)
        run_pipeline(module, passes, dump_ir, lambda name: report(Stage("passes", name)))
    except TargetError:
        raise
    except DiagnosticException as error:
        raise CompileError(" ".join(str(error).split())) from error
    return Compiled(module, config, chosen.context, weights)


def _write_weights(
    work: Path, checkpoint: Checkpoint, target: Target, compiled: Compiled, report: Report
) -> None:
    planned = planned_of(compiled.module)
    total = sum(target.packed_bytes(w.layout, w.dtype, w.shape) for w in planned.weights)
    done = 0

    def progress(name: str, size: int) -> None:
        nonlocal done
        done += size
        report(Stage("weights", name, done, total))

    def load(name: str) -> NDArray[Any]:
        return load_ir_weight(compiled.weights[name], checkpoint.load)

    size = planned.plan.weights_bytes
    artifact.write_weights(work / "weights.bin", planned.weights, target, load, size, progress)


def _write_side_files(work: Path, checkpoint: Checkpoint, module: ModuleOp, target: Target) -> None:
    artifact.write_text(work / "module.mlir", print_module(module))
    if checkpoint.tokenizer_path is not None:
        artifact.copy_file(checkpoint.tokenizer_path, work / "tokenizer.json")
    for name, path in target.runtime_files():
        artifact.copy_file(path, work / name)


def _manifest(
    work: Path, checkpoint: Checkpoint, target: Target, variant: str, compiled: Compiled, name: str
) -> schema.Manifest:
    config = compiled.config
    return artifact.make_manifest(
        planned_of(compiled.module),
        schema.TargetInfo(target.name, variant, target.variant_features(variant)),
        schema.Versions(
            ds4c=_version("ds4c"),
            tvm=_version("apache-tvm"),
            tvm_ffi=_version("apache-tvm-ffi"),
            xdsl=_version("xdsl"),
        ),
        schema.ModelInfo(
            architecture=checkpoint.architecture.model_type,
            name=name,
            vocab_size=config.vocab_size,
            context=compiled.context,
            layers=config.num_hidden_layers,
            bos_token_id=config.bos_token_id,
            eos_token_ids=config.eos_token_ids,
            parameters=checkpoint.architecture.num_parameters(config),
            checkpoint_sha256=checkpoint.source_sha256(),
        ),
        artifact.file_entries(work),
        lambda w: target.packed_bytes(w.layout, w.dtype, w.shape),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a bare checkout is not installed
        return "0+source"
