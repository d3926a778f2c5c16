"""Checks of a manifest beyond its types, and of the files it lists.

Two layers: `check_manifest` looks at the manifest alone (names, ranges, sums), `verify_files` at the
folder (sizes and hashes). Neither repairs anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.manifest import ITEM_BYTES, MANIFEST_NAME, IoField, Manifest, product

ALIGNMENT = 64
"""Kernels use aligned vector moves; an unaligned base address crashes."""
WEIGHTS_NAME = "weights.bin"
HASH_AT_LOAD_BYTES = 1 << 30
"""Artifacts up to this size are hashed before they are used."""
ROWS_OFFSET = 16
"""Index of the first entry of the `logit_rows` buffer; entry 0 is the count."""


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest whose numbers cannot all be true.

    Raises:
        ArtifactError: naming the entry, what was expected and what it says.
    """
    _check_files(manifest)
    _check_limits(manifest)
    _check_io(manifest)
    _check_entry_points(manifest)
    _check_states(manifest)
    _check_weights(manifest)
    if manifest.artifact_id != manifest.compute_id():
        raise ArtifactError(
            f"{MANIFEST_NAME} rejected: expected artifact_id {manifest.compute_id()} (hash of its content), "
            f"got {manifest.artifact_id[:80]!r}"
        )


def check_horizon(manifest: Manifest) -> None:
    """Refuse rings that cannot hold the rows every legal rewind may read.

    A rewind to `high_water - horizon` may also evaluate the token before its target again, so a ring
    needs its live span, the horizon and one row more.

    Raises:
        ArtifactError: naming the ring, the rows needed and its capacity.
    """
    for ring in manifest.rings:
        needed = ring.live.span + manifest.limits.horizon + 1
        if ring.capacity < needed:
            raise ArtifactError(
                f"state {ring.name!r} rejected: expected a capacity of at least {needed} rows for a horizon "
                f"of {manifest.limits.horizon} tokens, got {ring.capacity}"
            )


def verify_sizes(folder: Path | str, manifest: Manifest) -> None:
    """See that every file of an artifact is there and has its size; hashes nothing.

    Raises:
        ArtifactError: a file is missing, a symbolic link, or of another size.
    """
    for entry in manifest.files:
        path = Path(folder) / entry.name
        if path.is_symlink() or not path.is_file():
            raise ArtifactError(
                f"artifact rejected: expected a regular file {entry.name}, got none or a link"
            )
        if path.stat().st_size != entry.bytes:
            raise ArtifactError(
                f"artifact rejected: expected {entry.bytes} bytes in {entry.name}, "
                f"got {path.stat().st_size}; copy the artifact again"
            )


def verify_files(folder: Path | str, manifest: Manifest) -> None:
    """Compare size and content of every file of an artifact with its manifest.

    Raises:
        ArtifactError: a file is missing, a symbolic link, of another size or of other content.
    """
    verify_sizes(folder, manifest)
    for entry in manifest.files:
        verify_file(folder, manifest, entry.name)


@contextmanager
def verifying(folder: Path | str, manifest: Manifest) -> Generator[tuple[str, ...]]:
    """Verify files, the weights of a small artifact while the body of the `with` loads the others.

    Everything that is executed is hashed before the body runs; what goes wrong with the weights is
    raised at its end, before anybody uses them.

    Yields:
        Names of the files that are hashed neither before nor during the body, since the artifact is larger
        than 1 GiB; hash them with `verify_file` in the background.

    Raises:
        ArtifactError: as `verify_files`.
    """
    root = Path(folder)
    verify_sizes(root, manifest)
    weights = [f.name for f in manifest.files if f.name == WEIGHTS_NAME]
    for entry in manifest.files:
        if entry.name not in weights:
            verify_file(root, manifest, entry.name)
    if sum(f.bytes for f in manifest.files) > HASH_AT_LOAD_BYTES:
        yield tuple(weights)
        return
    with ThreadPoolExecutor(1, "ds4c-verify") as pool:  # hashing releases the GIL
        hashed = [pool.submit(verify_file, root, manifest, name) for name in weights]
        yield ()
        for check in hashed:
            check.result()


def verify_file(folder: Path | str, manifest: Manifest, name: str) -> None:
    """Hash one file and compare.

    Raises:
        ArtifactError: the content is not what was built.
    """
    entry = manifest.file(name)
    assert entry is not None, name
    found = file_sha256(Path(folder) / name)
    if found != entry.sha256:
        raise ArtifactError(
            f"artifact rejected: expected sha256 {entry.sha256} for {name}, got {found}; "
            "copy the artifact again"
        )


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_files(manifest: Manifest) -> None:
    seen: set[str] = set()
    for entry in manifest.files:
        name = entry.name
        if not name or name in (".", "..") or name.startswith(".") or set(name) & set("/\\:\0"):
            raise ArtifactError(f"file list rejected: expected a plain file name, got {name[:80]!r}")
        if name.lower() in seen or name.lower() == MANIFEST_NAME:
            raise ArtifactError(f"file list rejected: expected each name once, got {name!r} again")
        seen.add(name.lower())
        if len(entry.sha256) != 64 or set(entry.sha256) - set("0123456789abcdef"):
            raise ArtifactError(
                f"file {name!r} rejected: expected 64 hex digits as sha256, got {entry.sha256[:80]!r}"
            )
        if entry.bytes < 0:
            raise ArtifactError(f"file {name!r} rejected: expected a size of 0 or more, got {entry.bytes}")
    weights = manifest.file(WEIGHTS_NAME)
    if weights is not None and weights.bytes != manifest.arenas.weights:
        raise ArtifactError(
            f"arena weights rejected: expected {weights.bytes} bytes (weights.bin), "
            f"got {manifest.arenas.weights}"
        )


def _check_limits(manifest: Manifest) -> None:
    limits, model = manifest.limits, manifest.model
    at_least = {"max_rows": 1, "max_segments": 1, "max_logit_rows": 1, "horizon": 0, "page_tokens": 1}
    for name, least in {**at_least, "pages_per_session": 1, "max_marks": 1}.items():
        _expect_between(f"limits.{name}", getattr(limits, name), least, 1 << 31)
    for name in ("vocab_size", "context", "layers"):
        _expect_between(f"model.{name}", getattr(model, name), 1, 1 << 31)
    room = limits.pages_per_session * limits.page_tokens
    if room < model.context:
        raise ArtifactError(
            f"limits rejected: expected pages for {model.context} tokens of context, got {room} tokens"
        )
    for token in (*model.eos_token_ids, *([] if model.bos_token_id is None else [model.bos_token_id])):
        _expect_between("model token id", token, 0, model.vocab_size - 1)
    for name in ("state_slot", "page"):
        _expect_aligned(f"arenas.{name}", getattr(manifest.arenas, name))
    for name in ("io", "workspace", "state_slot", "page", "weights"):
        _expect_between(f"arenas.{name}", getattr(manifest.arenas, name), 0, 1 << 48)


def _check_io(manifest: Manifest) -> None:
    limits, io = manifest.limits, manifest.io
    expected = {
        "tokens": ("int32", (limits.max_rows,)),
        "block": ("int32", (block_layout(limits.max_rows, limits.max_segments).size,)),
        "page_tables": ("int32", (limits.max_segments, limits.pages_per_session)),
        "logit_rows": ("int32", (ROWS_OFFSET + limits.max_logit_rows,)),
        "fork_args": ("int32", (16,)),
        "marks": ("int32", (marks_layout(limits.max_marks, len(manifest.rings)).size,)),
        "logits": ("float32", (limits.max_logit_rows, manifest.model.vocab_size)),
    }
    ranges: list[tuple[int, int, str]] = []
    for name, (dtype, shape) in expected.items():
        field: IoField = getattr(io, name)
        if (field.dtype, field.shape) != (dtype, shape):
            raise ArtifactError(
                f"io.{name} rejected: expected {dtype} {list(shape)}, got {field.dtype} {list(field.shape)}"
            )
        ranges.append((field.offset, field.bytes, f"io.{name}"))
    _check_ranges(ranges, manifest.arenas.io, "io")


def _check_entry_points(manifest: Manifest) -> None:
    signatures = {e.name: e.arenas for e in manifest.entry_points}
    if len(signatures) != len(manifest.entry_points):
        raise ArtifactError("entry points rejected: expected each name once, got one twice")
    wanted: dict[str, tuple[str, ...]] = {
        "step": ("io", "weights", "workspace", "states", "pages", "snapshots"),
        "snapshot": ("io", "states", "snapshots"),
        "restore": ("io", "states", "snapshots"),
    }
    if manifest.capabilities.fork:
        wanted["fork"] = ("io", "states")
    for name, arenas in wanted.items():
        if signatures.get(name) != arenas:
            raise ArtifactError(
                f"entry point {name!r} rejected: expected the arenas {list(arenas)}, "
                f"got {signatures.get(name)}"
            )


def _check_states(manifest: Manifest) -> None:
    names = [s.name for s in manifest.states]
    if len(set(names)) != len(names):
        raise ArtifactError("states rejected: expected each name once, got one twice")
    page_tokens = manifest.limits.page_tokens
    for ring in manifest.rings:
        for what in ("capacity", "width", "every"):
            _expect_between(f"state {ring.name!r} {what}", getattr(ring, what), 1, 1 << 31)
        _expect_between(f"state {ring.name!r} live.align", ring.live.align, 1, 1 << 31)
        _expect_between(f"state {ring.name!r} live.back", ring.live.back, 0, 1 << 31)
    for rows in manifest.appends:
        for what in ("rows_per_page", "width", "every"):
            _expect_between(f"state {rows.name!r} {what}", getattr(rows, what), 1, 1 << 31)
        if rows.rows_per_page * rows.every != page_tokens:
            raise ArtifactError(
                f"state {rows.name!r} rejected: expected rows_per_page * every = {page_tokens} tokens, "
                f"got {rows.rows_per_page} * {rows.every}"
            )
    rings = [(r.offset, r.capacity * r.row_bytes, f"state {r.name!r}") for r in manifest.rings]
    pages = [(a.offset, a.rows_per_page * a.row_bytes, f"state {a.name!r}") for a in manifest.appends]
    _check_ranges(rings, manifest.arenas.state_slot, "state_slot")
    _check_ranges(pages, manifest.arenas.page, "page")


def _check_weights(manifest: Manifest) -> None:
    names = [w.name for w in manifest.weights]
    if len(set(names)) != len(names):
        raise ArtifactError("weights rejected: expected each name once, got one twice")
    for weight in manifest.weights:
        for size in weight.shape:
            _expect_between(f"weight {weight.name!r} dimension", size, 1, 1 << 40)
        least = product(weight.shape) * ITEM_BYTES[weight.dtype]
        if weight.bytes < least:
            raise ArtifactError(
                f"weight {weight.name!r} rejected: expected at least {least} bytes, got {weight.bytes}"
            )
    ranges = [(w.offset, w.bytes, f"weight {w.name!r}") for w in manifest.weights]
    _check_ranges(ranges, manifest.arenas.weights, "weights")


def _check_ranges(ranges: Iterable[tuple[int, int, str]], size: int, arena: str) -> None:
    end, before = 0, "its start"
    for offset, length, name in sorted(ranges):
        _expect_aligned(f"{name} offset", offset)
        if offset < end:
            raise ArtifactError(
                f"{name} rejected: expected an offset of {end} or more (after {before}), got {offset}"
            )
        end, before = offset + length, name
    if end > size:
        raise ArtifactError(
            f"{before} rejected: expected its end within {size} bytes of arena {arena}, got {end}"
        )


def _expect_aligned(what: str, value: int) -> None:
    if value < 0 or value % ALIGNMENT:
        raise ArtifactError(f"{what} rejected: expected a multiple of {ALIGNMENT}, got {value}")


def _expect_between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArtifactError(f"{what} rejected: expected {least} to {most}, got {value}")


class BlockOffsets:
    """Where the numbers of a block stand in its int32 buffer; every part starts at a multiple of 64 bytes.

    `[0]` rows, `[1]` segments, then `positions [max_rows]`, `row_segment [max_rows]`,
    `segment_starts [max_segments + 1]`, `slots [max_segments]`.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        starts = [16]
        for size in sizes:
            starts.append(starts[-1] + (size + 15) // 16 * 16)
        self.positions, self.row_segment, self.segment_starts, self.slots, self.size = starts


def block_layout(max_rows: int, max_segments: int) -> BlockOffsets:
    """Layout of the `block` buffer of the io arena."""
    return BlockOffsets([max_rows, max_rows, max_segments + 1, max_segments])


class MarksOffsets:
    """Where the numbers of snapshots stand in the `marks` buffer (int32).

    `[0]` count, then `owners [max_marks]` (segment of a step; slot outside of one), `positions [max_marks]`,
    and for each ring `offsets(ring) [max_marks]`: places in the arena of snapshots, in units of 64 bytes.
    """

    def __init__(self, max_marks: int, rings: int) -> None:
        self.stride = (max_marks + 15) // 16 * 16
        self.owners, self.positions = 16, 16 + self.stride
        self.size = self.offsets(rings)

    def offsets(self, ring: int) -> int:
        """Index of the place of the first mark's rows of a ring."""
        return self.positions + self.stride * (1 + ring)


def marks_layout(max_marks: int, rings: int) -> MarksOffsets:
    """Layout of the `marks` buffer of the io arena."""
    return MarksOffsets(max_marks, rings)
