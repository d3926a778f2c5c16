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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import UsageError
from ds4c.ir.kernel import ROWS_OFFSET, BlockLayout
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
    """Write the packed weights file of `total` bytes; see `decisions` on its layout in the manifest."""
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
        UsageError: `path` exists and `replace` is False, or its parent is no folder.
    """
    parent = path.absolute().parent
    if path.exists() and not replace:
        raise UsageError(f"output {path}: expected a name that is free, got an existing one; use --force")
    if path.exists() and not (path / schema.MANIFEST_NAME).is_file():
        raise UsageError(
            f"output {path}: expected an artifact to replace, got something else; remove it yourself"
        )
    parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    try:
        os.chmod(work, 0o755)
        yield work
        _publish(work, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, path: Path) -> None:
    _sync_folder(work)
    old = None
    if path.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=work.parent)) / path.name
        os.rename(path, old)
    os.rename(work, path)
    _sync_folder(path.absolute().parent)
    if old is not None:
        shutil.rmtree(old.parent, ignore_errors=True)


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
        ),
        arenas=schema.Arenas(
            plan.io_bytes, plan.workspace_bytes, plan.slot_bytes, plan.page_bytes, plan.weights_bytes
        ),
        io=_io(plan, model.vocab_size),
        entry_points=tuple(
            schema.EntryPointInfo(name, cast(tuple[Any, ...], arenas)) for name, arenas in ARENAS.items()
        ),
        states=tuple(_state(s) for s in planned.states),
        weights=tuple(
            schema.WeightEntry(w.name, cast(Any, w.dtype), w.shape, w.layout, w.offset, packed(w))
            for w in planned.weights
        ),
        capabilities=schema.Capabilities(
            rewind_kinds=("in_place", "rebuild"),
            fork=True,
            pin_snapshots=False,
            max_draft_tokens=0,
            deterministic_replay=True,
            rewind_to_block_start=True,
            features=(),
        ),
    ).with_id()


def _io(plan: Plan, vocab_size: int) -> schema.Io:
    def ints(offset: int, *dims: int) -> schema.IoField:
        return schema.IoField(offset, "int32", dims)

    return schema.Io(
        tokens=ints(plan.io_tokens, plan.max_rows),
        block=ints(plan.io_block, BlockLayout(plan.max_rows, plan.max_segments).size),
        page_tables=ints(plan.io_page_tables, plan.max_segments, plan.pages_per_session),
        logit_rows=ints(plan.io_logit_rows, ROWS_OFFSET + plan.max_logit_rows),
        fork_args=ints(plan.io_fork_args, 16),
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
        state.name, "ring", dtype, state.rows, state.width, state.every, state.offset, live
    )
