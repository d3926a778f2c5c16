"""What an artifact says about itself: the schema of `manifest.json`, its reader and its checks.

The schema belongs to its reader: the compiler builds a `Manifest` and writes `to_json()`. How
kernels use the offsets is not repeated here; see `StateStore` and `StepIo`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np

from ds4c_runtime import strict
from ds4c_runtime.errors import ArtifactError

FORMAT = "ds4c-artifact"
VERSION = 2
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
"""A manifest lists tensors, it does not hold them; anything larger is refused before it is parsed."""

StateType = Literal["float32", "bfloat16", "float16", "int32", "int8"]
ITEM_BYTES = {"float64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}


@dataclass(frozen=True)
class TargetInfo:
    """What the kernels were compiled for; `features` are CPU features they use."""

    name: str
    variant: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Versions:
    """Versions of the tools that built the artifact."""

    ds4c: str
    tvm: str
    tvm_ffi: str
    xdsl: str


@dataclass(frozen=True)
class ModelInfo:
    """The model: `context` in tokens, `parameters` a count."""

    architecture: str
    name: str
    vocab_size: int
    context: int
    layers: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    parameters: int
    checkpoint_sha256: str


@dataclass(frozen=True)
class FileEntry:
    """A file of the artifact."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Limits:
    """Largest step and session: rows and segments of one step, tokens per page, pages per session.

    `max_marks` is how many snapshots one step, or one call of `snapshot` or `restore`, can serve.
    """

    max_rows: int
    max_segments: int
    max_logit_rows: int
    horizon: int
    page_tokens: int
    pages_per_session: int
    max_marks: int


@dataclass(frozen=True)
class Arenas:
    """Sizes in bytes: `state_slot` per session, `page` per page, `weights` the whole of `weights.bin`."""

    io: int
    workspace: int
    state_slot: int
    page: int
    weights: int


@dataclass(frozen=True)
class IoField:
    """A buffer inside the io arena."""

    offset: int
    dtype: Literal["int32", "float32"]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return product(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Io:
    """The buffers a step is told with and answers in."""

    tokens: IoField
    block: IoField
    page_tables: IoField
    logit_rows: IoField
    fork_args: IoField
    marks: IoField
    logits: IoField


@dataclass(frozen=True)
class EntryPointInfo:
    """A function of `kernels.so`; its arguments are arenas, in this order."""

    name: str
    arenas: tuple[Literal["io", "weights", "workspace", "states", "pages", "snapshots"], ...]


@dataclass(frozen=True)
class Live:
    """Which ring rows a session at position `c` may still read: `[first(c), c)`."""

    align: int
    back: int

    def first(self, position: int) -> int:
        """First live row at a position; may be below 0."""
        return position // self.align * self.align - self.back

    @property
    def span(self) -> int:
        """Most rows that are live at any position."""
        return self.align - 1 + self.back


@dataclass(frozen=True)
class RingState:
    """Rows addressed by position modulo `capacity`, one slot per session.

    A row of an opaque state is its whole value after that position (a plane).
    """

    name: str
    kind: Literal["ring", "opaque"]
    dtype: StateType
    capacity: int
    width: int
    every: int
    offset: int
    live: Live

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class AppendState:
    """Rows that never change, one per `every` tokens, in reference-counted pages."""

    name: str
    kind: Literal["append"]
    dtype: StateType
    rows_per_page: int
    width: int
    every: int
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class HostState:
    """State that lives in the session object, such as the token history."""

    name: str
    kind: Literal["host"]
    dtype: str


@dataclass(frozen=True)
class WeightEntry:
    """A tensor in `weights.bin`; `offset` counts from the start of the file."""

    name: str
    dtype: Literal["float32", "bfloat16", "int32", "float64", "float16", "int8", "uint8"]
    shape: tuple[int, ...]
    layout: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Capabilities:
    """What the artifact can do, in the words of the server's `GetCapabilities`."""

    rewind_kinds: tuple[Literal["in_place", "snapshot", "snapshot_replay", "rebuild"], ...]
    fork: bool
    pin_snapshots: bool
    max_draft_tokens: int
    deterministic_replay: bool
    rewind_to_block_start: bool
    features: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything the runtime knows about an artifact. Offsets and sizes in bytes."""

    format: str
    version: int
    artifact_id: str
    target: TargetInfo
    versions: Versions
    model: ModelInfo
    files: tuple[FileEntry, ...]
    limits: Limits
    arenas: Arenas
    io: Io
    entry_points: tuple[EntryPointInfo, ...]
    states: tuple[RingState | AppendState | HostState, ...]
    weights: tuple[WeightEntry, ...]
    capabilities: Capabilities

    @property
    def rings(self) -> tuple[RingState, ...]:
        """The ring and opaque states, in order."""
        return tuple(s for s in self.states if isinstance(s, RingState))

    @property
    def appends(self) -> tuple[AppendState, ...]:
        """The append states, in order."""
        return tuple(s for s in self.states if isinstance(s, AppendState))

    def file(self, name: str) -> FileEntry | None:
        """Entry of a file, `None` if the artifact has none of that name."""
        return next((f for f in self.files if f.name == name), None)

    def compute_id(self) -> str:
        """Hex sha256 over everything but `artifact_id`, as canonical JSON."""
        content = dataclasses.asdict(self)
        del content["artifact_id"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def with_id(self) -> Manifest:
        """Copy whose `artifact_id` is `compute_id()`."""
        return dataclasses.replace(self, artifact_id=self.compute_id())

    def to_json(self) -> str:
        """Text of `manifest.json`; `parse` of it gives an equal manifest."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def parse(text: str) -> Manifest:
        """Read the text of a manifest, strictly.

        Raises:
            ArtifactError: not JSON, unknown / missing / wrong-typed keys, another format or version,
                numbers that contradict each other, or an `artifact_id` that is not that of the content.
        """
        try:
            raw = cast(object, json.loads(text, object_pairs_hook=_unique_keys))
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{MANIFEST_NAME} rejected: expected JSON, got {error}") from error
        _check_version(raw)
        manifest = strict.parse(Manifest, raw, "manifest")
        from ds4c_runtime.manifest_checks import check_manifest

        check_manifest(manifest)
        return manifest

    @staticmethod
    def read(folder: Path | str) -> Manifest:
        """Read and check `manifest.json` of an artifact folder; does not look at other files.

        Raises:
            ArtifactError: no such folder or file, a symbolic link, or a rejected manifest.
        """
        path = Path(folder) / MANIFEST_NAME
        if path.is_symlink() or not path.is_file():
            raise ArtifactError(
                f"artifact rejected: expected a file {path}, got none; "
                "name the folder that `ds4c build -o` wrote"
            )
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ArtifactError(
                f"{MANIFEST_NAME} rejected: expected at most {MAX_MANIFEST_BYTES} bytes, "
                f"got {path.stat().st_size}"
            )
        try:
            return Manifest.parse(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{MANIFEST_NAME} rejected: expected UTF-8, got {error}") from error


def product(shape: Sequence[int]) -> int:
    """Product of dimensions in Python integers, which do not overflow."""
    result = 1
    for size in shape:
        result *= size
    return result


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """NumPy type that holds the bits of a state; 2-byte floats other than float16 are read as uint16."""
    return np.dtype("uint16" if name == "bfloat16" else name)


def _check_version(raw: object) -> None:
    given = cast(dict[str, object], raw) if isinstance(raw, dict) else {}
    found = (given.get("format"), given.get("version"))
    if found != (FORMAT, VERSION) or isinstance(found[1], bool):
        raise ArtifactError(
            f"{MANIFEST_NAME} rejected: expected format {FORMAT!r} version {VERSION}, got {found[0]!r} "
            f"version {found[1]!r}; build the artifact again with this version"
        )


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [k for k, _ in pairs]
        raise ValueError(f"the key {next(k for k in names if names.count(k) > 1)!r} twice")
    return result
