"""Writes an artifact folder: packed weights, kernels, IR text, tokenizer, TVM runtime and the manifest.

The schema of the manifest belongs to its reader, `ds4c_runtime.manifest`. Files are written to a folder
with a temporary name that is renamed when it is complete; equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import Ds4cError, UsageError
from ds4c.ir.kernel import ROWS_OFFSET, BlockLayout, MarksLayout
from ds4c.passes.plan import Plan
from ds4c.passes.planned import Planned, PlannedState, PlannedWeight
from ds4c.passes.program import ARENAS
from ds4c.passes.target import Target
from ds4c_runtime import manifest as schema

WEIGHTS_MAGIC = b"DS4CWTS1"
Load = Callable[[str], NDArray[Any]]
Progress = Callable[[str, int], None]
"""Called with the name of a weight and its packed bytes."""


def write_weights(
    path: Path, weights: Sequence[PlannedWeight], target: Target, load: Load, total: int, progress: Progress
) -> None:
    """Write the packed weights file of `total` bytes: a mark, then each weight at its planned offset."""
    with path.open("wb") as out:
        out.write(WEIGHTS_MAGIC)
        for weight in weights:
            out.write(b"\0" * (weight.offset - out.tell()))
            data = np.ascontiguousarray(target.pack(load(weight.name), weight.layout))
            expected = target.packed_bytes(weight.layout, weight.dtype, weight.shape)
            assert data.nbytes == expected, (weight, data.nbytes, expected)
            out.write(data.reshape(-1).view(np.uint8).data)
            progress(weight.name, data.nbytes)
        out.write(b"\0" * (total - out.tell()))
        out.flush()
        os.fsync(out.fileno())


@contextmanager
def new_folder(path: Path, replace: bool) -> Generator[Path]:
    """A temporary folder beside `path` that takes its name on success and vanishes on failure.

    Raises:
        UsageError: `path` exists and `replace` is False, or no folder can be made beside it.
        Ds4cError: a file could not be written, for want of room for example.
    """
    parent = path.absolute().parent
    made: list[Path] = []
    work = None
    try:
        try:
            _check_free(path, replace)
            _make_folders(parent, made)
            work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
            os.chmod(work, 0o755)
        except OSError as error:
            raise UsageError(
                f"output {path}: expected a new folder in one that can be written, got {error.strerror}; "
                "choose another"
            ) from error
        try:
            yield work
            _publish(work, path, replace)
        except OSError as error:
            if error.filename is not None and not _is_below(Path(os.fsdecode(error.filename)), parent):
                raise
            raise Ds4cError(
                f"output {path}: expected room and rights to write it, got {error.strerror}; free space or "
                "choose another"
            ) from error
        made.clear()
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        for folder in reversed(made):
            with suppress(OSError):  # somebody else put something there
                folder.rmdir()


def _check_free(path: Path, replace: bool) -> None:
    """Refuse a name that is taken by something else than an artifact to replace."""
    if not (path.exists() or path.is_symlink()):
        return
    if not replace:
        raise UsageError(f"output {path}: expected a name that is free, got an existing one; use --force")
    if not path.absolute().name or path.is_symlink() or not (path / schema.MANIFEST_NAME).is_file():
        raise UsageError(
            f"output {path}: expected an artifact to replace, got something else; remove it yourself"
        )


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make a folder and what is missing above it, outermost first; `made` gets what was not there."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        made.append(each)


def _is_below(path: Path, folder: Path) -> bool:
    return path.absolute().is_relative_to(folder)


def _publish(work: Path, path: Path, replace: bool) -> None:
    """Give the complete folder its name; on failure an artifact that was there is there again."""
    _sync_folder(work)
    _check_free(path, replace)  # again: another build may have taken the name meanwhile
    if not path.exists():
        os.rename(work, path)
        _sync_folder(path.absolute().parent)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=work.parent))
    try:
        os.rename(path, aside / "old")
        os.rename(work, path)
        _sync_folder(path.absolute().parent)
    except BaseException:
        if (aside / "old").exists() and not path.exists():
            os.rename(aside / "old", path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_file(source: Path, target: Path) -> None:
    """Copy and sync."""
    with source.open("rb") as data, target.open("wb") as out:
        shutil.copyfileobj(data, out)
        out.flush()
        os.fsync(out.fileno())


def write_text(path: Path, text: str) -> None:
    """Write and sync."""
    with path.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def file_entries(folder: Path) -> tuple[schema.FileEntry, ...]:
    """Name, hash and size of every file, sorted by name."""
    entries: list[schema.FileEntry] = []
    for file in sorted(folder.iterdir()):
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        entries.append(schema.FileEntry(file.name, digest, file.stat().st_size))
    return tuple(entries)


def make_manifest(
    planned: Planned,
    target: schema.TargetInfo,
    versions: schema.Versions,
    model: schema.ModelInfo,
    files: tuple[schema.FileEntry, ...],
    packed: Callable[[PlannedWeight], int],
) -> schema.Manifest:
    """The manifest of a planned module."""
    plan = planned.plan
    return schema.Manifest(
        format=schema.FORMAT,
        version=schema.VERSION,
        artifact_id="",
        target=target,
        versions=versions,
        model=model,
        files=files,
        limits=schema.Limits(
            plan.max_rows,
            plan.max_segments,
            plan.max_logit_rows,
            plan.horizon,
            plan.page_tokens,
            plan.pages_per_session,
            plan.max_marks,
        ),
        arenas=schema.Arenas(
            plan.io_bytes, plan.workspace_bytes, plan.slot_bytes, plan.page_bytes, plan.weights_bytes
        ),
        io=_io(plan, model.vocab_size, sum(s.live is not None for s in planned.states)),
        entry_points=tuple(
            schema.EntryPointInfo(name, cast(tuple[Any, ...], arenas)) for name, arenas in ARENAS.items()
        ),
        states=tuple(_state(s) for s in planned.states),
        weights=tuple(
            schema.WeightEntry(w.name, cast(Any, w.dtype), w.shape, w.layout, w.offset, packed(w))
            for w in planned.weights
        ),
        capabilities=schema.Capabilities(
            rewind_kinds=("in_place", "snapshot", "snapshot_replay", "rebuild"),
            fork=True,
            pin_snapshots=True,
            max_draft_tokens=0,
            deterministic_replay=True,
            rewind_to_block_start=True,
            features=(),
        ),
    ).with_id()


def _io(plan: Plan, vocab_size: int, rings: int) -> schema.Io:
    def ints(offset: int, *dims: int) -> schema.IoField:
        return schema.IoField(offset, "int32", dims)

    return schema.Io(
        tokens=ints(plan.io_tokens, plan.max_rows),
        block=ints(plan.io_block, BlockLayout(plan.max_rows, plan.max_segments).size),
        page_tables=ints(plan.io_page_tables, plan.max_segments, plan.pages_per_session),
        logit_rows=ints(plan.io_logit_rows, ROWS_OFFSET + plan.max_logit_rows),
        fork_args=ints(plan.io_fork_args, 16),
        marks=ints(plan.io_marks, MarksLayout(plan.max_marks, rings).size),
        logits=schema.IoField(plan.io_logits, "float32", (plan.max_logit_rows, vocab_size)),
    )


def _state(state: PlannedState) -> schema.RingState | schema.AppendState | schema.HostState:
    dtype = cast(Literal["float32"], state.dtype)
    if state.kind == "host":
        return schema.HostState(state.name, "host", state.dtype)
    if state.kind == "append":
        return schema.AppendState(
            state.name, "append", dtype, state.rows, state.width, state.every, state.offset
        )
    assert state.live is not None
    live = schema.Live(*state.live)
    return schema.RingState(
        state.name, state.kind, dtype, state.rows, state.width, state.every, state.offset, live
    )
