"""Readers of files on files that are almost right: they read them, or say in one line why not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elf_writer
import gpu_package
import numpy as np
import pytest
from elf_writer import kernel
from fake_executable import small_manifest
from hypothesis import strategies as st
from more.fuzz import fuzz, json_mutants, mutants, refused, text_mutants

from ds4c.errors import MalformedInputError
from ds4c.importers.header import read_header
from ds4c_runtime.errors import ArtifactError, StoredFileError
from ds4c_runtime.launches import LaunchPlan
from ds4c_runtime.manifest import FileEntry, Manifest, WeightEntry
from ds4c_runtime.package.amdgpu import read_code_object
from ds4c_runtime.package.check import check_package
from ds4c_runtime.package.cubin import read_cubin
from ds4c_runtime.package.msl_lint import lint
from ds4c_runtime.package.ptx import read_ptx
from ds4c_runtime.package.texts import cuda_heads
from ds4c_runtime.store import header as stored
from ds4c_runtime.store import history_log, state_file
from ds4c_runtime.store.history_log import HistoryLog, LogHeader, read_log
from ds4c_runtime.store.state_file import StateHeader, StoredSnapshot, reading, write_state

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]
SECONDS = 30
"""For each kind of file, all forms of wrong input together."""


# ------------------------------------------------------------------------------------------ safetensors


def tensor_file(header: object, data: bytes = bytes(range(64))) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TENSORS: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
    "b": {"dtype": "BF16", "shape": [8], "data_offsets": [32, 48]},
    "c": {"dtype": "F4", "shape": [4, 8], "data_offsets": [48, 64]},
    "d": {"dtype": "U8", "shape": [0, 5], "data_offsets": [64, 64]},
}


@pytest.mark.parametrize("form", ["bytes", "values"])
def test_headers_of_checkpoints(form: str, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.safetensors"
    files = mutants([tensor_file(TENSORS)]) if form == "bytes" else json_mutants(TENSORS).map(tensor_file)

    def check(content: bytes) -> None:
        path.write_bytes(content)
        refused(lambda: read_header(path), MalformedInputError)

    path.write_bytes(tensor_file(TENSORS))
    assert list(read_header(path)) == ["a", "b", "c", "d"]
    fuzz(files, check, seconds=SECONDS / 2, seed=seed)


# ---------------------------------------------------------------------------------------------- manifest


def manifest() -> Manifest:
    made = small_manifest()
    files = (FileEntry("kernels.so", "ab" * 32, 7), FileEntry("tokenizer.json", "cd" * 32, 2))
    weights = (
        WeightEntry("a", "float32", (8, 4), "row", 0, 128),
        WeightEntry("b", "bfloat16", (16, 4), "panel16", 128, 256),
    )
    arenas = dataclasses.replace(made.arenas, weights=4096)
    return dataclasses.replace(made, files=files, weights=weights, arenas=arenas).with_id()


def with_right_id(raw: Any) -> str:
    """The text of a manifest that is not refused for its id alone, as far as one can be made."""
    text = json.dumps(raw)
    try:
        return Manifest.parse(text).to_json()
    except ArtifactError as error:
        found = str(error)
    # The refusal of a wrong id names the right one.
    for word in found.replace(",", " ").replace(";", " ").split():
        if len(word) == 64 and isinstance(raw, dict) and word != raw.get("artifact_id"):
            return json.dumps({**raw, "artifact_id": word})
    return text


@pytest.mark.parametrize("form", ["bytes", "values"])
def test_manifests(form: str, tmp_path: Path, seed: int) -> None:
    path, right = tmp_path / "manifest.json", manifest()
    text = right.to_json()
    cases: st.SearchStrategy[bytes] = mutants([text.encode()])
    if form == "values":
        cases = json_mutants(json.loads(text)).map(lambda raw: with_right_id(raw).encode())

    def check(content: bytes) -> None:
        path.write_bytes(content)
        refused(lambda: Manifest.read(tmp_path), ArtifactError)

    path.write_text(text)
    assert Manifest.read(tmp_path) == right
    fuzz(cases, check, seconds=SECONDS / 2, seed=seed)


# ------------------------------------------------------------------------------------------ stored sessions


def start_of(kind: stored.FileKind, header: object) -> bytes:
    """The start of a stored file with any JSON as its header, and the right length and sha256."""
    text = json.dumps(header).encode()
    begin = kind.magic + struct.pack("<II", kind.version, len(text))
    return begin + hashlib.sha256(begin + text).digest() + text


LOG = LogHeader("s", "", 500, 1024, "", "a" * 64, "", 0, 17)
SNAPSHOT = StoredSnapshot("s1", 7, 2, "d" * 64, "turn_end", True, "here", 17, "snapshot 0", "", (0, 1))
STATE = StateHeader("a" * 64, "b" * 64, "s", 9, "e" * 64, 2, (SNAPSHOT,), ())


def log_file(folder: Path) -> bytes:
    log = HistoryLog.create(folder / "s.log", LOG, [1, 2, 3])
    log.sync([1, 2, 3, 4, 5], 0)
    log.sync([1, 2, 9], 1)
    assert log.tokens.tolist() == read_log(log.path).tokens.tolist() == [1, 2, 9]
    return log.path.read_bytes()


def read_state(path: Path) -> None:
    with reading(path, STATE.artifact_id, STATE.layout) as (_, sections):
        for section in sections.values():
            section.read()


def state_content(folder: Path) -> bytes:
    sections = {"pages": [np.arange(192, dtype=np.uint8)], "snapshot 0": [np.arange(38, dtype=np.uint8)]}
    write_state(folder / "s.state", STATE, sections)
    read_state(folder / "s.state")
    return (folder / "s.state").read_bytes()


def header_of(content: bytes) -> tuple[Any, bytes]:
    """The JSON header of a stored file and what follows it."""
    end = stored.PREFIX_BYTES + struct.unpack_from("<I", content, 12)[0]
    return json.loads(content[stored.PREFIX_BYTES : end]), content[end:]


@pytest.mark.parametrize("form", ["bytes", "values"])
@pytest.mark.parametrize("kind", ["log", "state"])
def test_stored_sessions(kind: str, form: str, tmp_path: Path, seed: int) -> None:
    path = tmp_path / f"x.{kind}"
    content = log_file(tmp_path) if kind == "log" else state_content(tmp_path)
    file_kind = history_log.KIND if kind == "log" else state_file.KIND
    header, rest = header_of(content)
    cases: st.SearchStrategy[bytes] = mutants([content])
    if form == "values":
        cases = json_mutants(header).map(lambda raw: start_of(file_kind, raw) + rest)

    def check(changed: bytes) -> None:
        path.write_bytes(changed)
        refused(lambda: read_log(path) if kind == "log" else read_state(path), StoredFileError)

    fuzz(cases, check, seconds=SECONDS / 4, seed=seed)


# ----------------------------------------------------------------------------------- packages of GPU kernels

KERNELS = [kernel("scale_rows", shared_bytes=64), kernel("nothing", 1, shared_bytes=0)]
CUBIN, CODE_OBJECT = elf_writer.cubin(KERNELS), elf_writer.code_object(KERNELS)
PLAN = gpu_package.package("cuda").plan.to_json()
METAL, CUDA, PTX = gpu_package.METAL_TEXT, gpu_package.CUDA_TEXT, gpu_package.PTX_TEXT


def lint_of(text: str) -> None:
    for fault in lint(text, gpu_package.FUNCTIONS, 32768):
        assert "\n" not in f"{fault.function}{fault.expected}{fault.got}"


READERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], object]]] = {
    "cubin": (mutants([CUBIN]), lambda data: read_cubin("k.cubin", data)),
    "code object": (mutants([CODE_OBJECT]), lambda data: read_code_object("k.co", data)),
    "ptx": (text_mutants([PTX]), lambda text: read_ptx("k.ptx", text)),
    "cuda": (text_mutants([CUDA]), lambda text: cuda_heads("k.cu", text)),
    "metal": (text_mutants([METAL]), lint_of),
    "metal bytes": (mutants([METAL.encode()]).map(lambda data: data.decode("latin-1")), lint_of),
    "launches": (json_mutants(json.loads(PLAN)).map(json.dumps), LaunchPlan.parse),
    "launches bytes": (mutants([PLAN.encode()]).map(lambda data: data.decode("latin-1")), LaunchPlan.parse),
}


@pytest.mark.parametrize("name", READERS)
def test_parts_of_packages(name: str, seed: int) -> None:
    cases, read = READERS[name]
    fuzz(cases, lambda case: refused(lambda: read(case), ArtifactError), seconds=SECONDS / 12, seed=seed)


@pytest.mark.parametrize("target", gpu_package.VARIANTS)
def test_whole_packages(target: str, tmp_path: Path, seed: int) -> None:
    """One file of an artifact is another; its hash is not compared here: the check of parts has to see it."""
    made = gpu_package.package(target)
    right = made.write(tmp_path / "a")
    check_package(tmp_path / "a", right)
    originals = {name: (tmp_path / "a" / name).read_bytes() for name in (f.name for f in right.files)}
    cases = st.sampled_from(sorted(originals)).flatmap(
        lambda name: st.tuples(st.just(name), mutants([originals[name]]))
    )

    def check(case: tuple[str, bytes]) -> None:
        name, content = case
        (tmp_path / "a" / name).write_bytes(content)
        refused(lambda: check_package(tmp_path / "a", right), ArtifactError)
        (tmp_path / "a" / name).write_bytes(originals[name])

    fuzz(cases, check, seconds=SECONDS / 9, seed=seed)
