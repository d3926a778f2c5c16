"""Artifacts that are damaged, incomplete or made for another machine: refused by every command that loads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import Build
from bad_input.helpers import Change, entries, fails, flip, linked_copy, rewrite
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4c_runtime.devices import probe_devices
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.manifest import FileEntry, Manifest
from ds4c_runtime.manifest_checks import check_horizon

FILES = (
    "LICENSE.tvm",
    "kernels.so",
    "libtvm_runtime.so",
    "manifest.json",
    "module.mlir",
    "tokenizer.json",
    "weights.bin",
)
LOADING = ("run", "chat", "serve", "logits", "bench")


def command(name: str, folder: Path, scratch: Path) -> list[str | Path]:
    """A command that loads the artifact."""
    ids = scratch / "ids.npy"
    np.save(ids, np.arange(3))
    return {
        "run": ["run", folder, "-p", "x"],
        "chat": ["chat", folder],
        "serve": ["serve", folder, "--grpc-listen", "127.0.0.1:0"],
        "logits": ["logits", folder, "--tokens", ids, "-o", scratch / "x.npy"],
        "bench": ["bench", folder],
    }[name]


def test_the_list_of_files_is_complete(talking: Path) -> None:
    assert tuple(sorted(f.name for f in talking.iterdir())) == FILES


@pytest.mark.parametrize("at", [0, -1, 0.5])
@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte(talking: Path, tmp_path: Path, name: str, at: float) -> None:
    folder = linked_copy(talking, tmp_path / "m")
    flip(folder / name, int(at * (folder / name).stat().st_size) if at == 0.5 else int(at))
    fails(command("run", folder, tmp_path), 4, "manifest" if name == "manifest.json" else name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(talking: Path, tmp_path: Path, name: str) -> None:
    folder = linked_copy(talking, tmp_path / "m")
    (folder / name).unlink()
    fails(command("run", folder, tmp_path), 4, name)


DAMAGE: dict[str, Change] = {
    "cut": lambda f: rewrite(f, f.read_bytes()[:-2]),
    "longer": lambda f: rewrite(f, f.read_bytes() + b"}"),
    "empty": lambda f: rewrite(f, b""),
    "folder": lambda f: (f.unlink(), f.mkdir()),
    "link": lambda f: (f.rename(f.parent.parent / "moved"), f.symlink_to(f.parent.parent / "moved")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", ["kernels.so", "weights.bin", "tokenizer.json", "manifest.json"])
def test_a_damaged_file(talking: Path, tmp_path: Path, name: str, damage: Change) -> None:
    folder = linked_copy(talking, tmp_path / "m")
    damage(folder / name)
    fails(command("run", folder, tmp_path), 4, name)


@pytest.mark.parametrize("name", LOADING)
def test_every_command_refuses(artifact: Path, tmp_path: Path, name: str) -> None:
    folder = linked_copy(artifact, tmp_path / "m")
    flip(folder / "weights.bin", 1000)
    fails(command(name, folder, tmp_path), 4, "weights.bin")
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("name", LOADING)
def test_no_artifact_at_all(tmp_path: Path, name: str) -> None:
    fails(command(name, tmp_path / "none", tmp_path), 4, "none", "ds4c build")


def test_inspect_shows_only_what_was_built(artifact: Path, tmp_path: Path) -> None:
    folder = linked_copy(artifact, tmp_path / "m")
    flip(folder / "module.mlir", 10)
    fails(["inspect", folder, "--ir"], 4, "module.mlir")
    (folder / "module.mlir").unlink()
    fails(["inspect", folder, "--ir"], 4, "module.mlir")
    flip(folder / "manifest.json", 100)
    fails(["inspect", folder, "--json"], 4, "manifest")


Edit = Callable[[dict[str, Any]], object]


def other(path: str, value: Any) -> Edit:
    """Set a value of the manifest, given by keys with dots."""

    def edit(manifest: dict[str, Any]) -> None:
        *way, last = path.split(".")
        for key in way:
            manifest = manifest[key]
        manifest[last] = value

    return edit


def signed(manifest: dict[str, Any]) -> str:
    """Text of a manifest whose id fits, as if it had been built so."""
    content = {name: value for name, value in manifest.items() if name != "artifact_id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**manifest, "artifact_id": hashlib.sha256(text.encode()).hexdigest()})


ELSEWHERE: dict[str, tuple[Edit, int, tuple[str, ...]]] = {
    "no such target": (other("target.name", "tpu"), 5, ("one of cpu, cuda, emulator", "'tpu'")),
    "no such feature": (
        other("target.features", ["avx2", "made_up"]),
        5,
        ("expected the CPU features avx2, made_up", "without made_up", "cpu:generic"),
    ),
    "another tvm-ffi": (other("versions.tvm_ffi", "0.1.99"), 5, ("apache-tvm-ffi 0.1.99", "install")),
    "newer manifest": (other("version", 3), 4, ("version 2", "got 'ds4c-artifact' version 3")),
    "older manifest": (other("version", 1), 4, ("version 2", "got 'ds4c-artifact' version 1")),
    "version of text": (other("version", "2"), 4, ("version 2", "version '2'")),
    "another format": (other("format", "onnx"), 4, ("'ds4c-artifact'", "'onnx'")),
    "a key of the future": (other("limits.colour", 1), 4, ("unknown key 'colour'",)),
    "a ring too small": (
        lambda m: m["states"][0].update(capacity=3),
        4,
        ("capacity of at least", "got 3"),
    ),
    "context above its pages": (other("model.context", 10**6), 4, ("pages for 1000000 tokens",)),
    "a file outside": (lambda m: m["files"][0].update(name="../LICENSE"), 4, ("plain file name",)),
    "no kernels": (
        lambda m: m.update(files=[f for f in m["files"] if f["name"] != "kernels.so"]),
        4,
        ("kernels.so",),
    ),
    "no runtime": (
        lambda m: m.update(files=[f for f in m["files"] if f["name"] != "libtvm_runtime.so"]),
        4,
        ("libtvm_runtime.so",),
    ),
    "no weights": (
        lambda m: m.update(files=[f for f in m["files"] if f["name"] != "weights.bin"]),
        4,
        ("weights.bin",),
    ),
}


@pytest.mark.parametrize(("edit", "code", "parts"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_made_for_something_else(
    artifact: Path, tmp_path: Path, edit: Edit, code: int, parts: tuple[str, ...]
) -> None:
    folder = linked_copy(artifact, tmp_path / "m")
    manifest = json.loads((folder / "manifest.json").read_text())
    edit(manifest)
    rewrite(folder / "manifest.json", signed(manifest))
    fails(command("logits", folder, tmp_path), code, *parts)
    assert not (tmp_path / "x.npy").exists()


def for_target(artifact: Path, folder: Path, target: str) -> Path:
    """A copy whose manifest says that it was built for another target."""
    linked_copy(artifact, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    other("target.name", target)(manifest)
    rewrite(folder / "manifest.json", signed(manifest))
    return folder


@pytest.mark.parametrize("target", ["cuda", "rocm", "metal"])
@pytest.mark.parametrize("name", LOADING)
def test_a_machine_without_the_device(artifact: Path, tmp_path: Path, name: str, target: str) -> None:
    if next(s.is_usable for s in probe_devices() if s.name == target):
        pytest.skip(f"this machine has a device for {target}")
    folder = for_target(artifact, tmp_path / "m", target)
    for chosen in ([], ["--device", target]):
        fails([*command(name, folder, tmp_path), *chosen], 5, f"device {target}")
    fails([*command(name, folder, tmp_path), "--device", "cpu"], 5, "device cpu refused", f"got '{target}'")


@pytest.mark.parametrize("name", LOADING)
def test_a_device_for_other_artifacts(artifact: Path, tmp_path: Path, name: str) -> None:
    for device in ("cuda", "rocm", "metal", "emulator"):
        fails([*command(name, artifact, tmp_path), "--device", device], 5, f"device {device}", "got 'cpu'")
    fails([*command(name, artifact, tmp_path), "--device", "abacus"], 5, "one of cpu", "got 'abacus'")


def test_a_profile_of_another_device(artifact: Path, tmp_path: Path) -> None:
    folder = for_target(artifact, tmp_path / "m", "cuda")
    fails(["bench", folder, "--profile"], 2, "--profile: expected device cpu", "got cuda")
    fails(["bench", artifact, "--profile", "--device", "emulator"], 2, "--profile", "got emulator")


def with_file(folder: Path, name: str, content: bytes) -> None:
    """Put another file into a copy, under a manifest that vouches for it."""
    rewrite(folder / name, content)
    manifest = Manifest.read(folder)
    entry = FileEntry(name, hashlib.sha256(content).hexdigest(), len(content))
    files = tuple(entry if f.name == name else f for f in manifest.files)
    rewrite(folder / "manifest.json", dataclasses.replace(manifest, files=files).with_id().to_json())


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("kernels.so", b"not a library", "kernels"),
        ("kernels.so", b"\x7fELF" + bytes(2000), "kernels"),
        ("tokenizer.json", b"{}", "tokenizer"),
        ("tokenizer.json", b"\xff", "tokenizer"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}, "added_tokens": [], "decoder": null}', "tokenizer"),
    ],
)
def test_files_that_are_vouched_for_but_are_nothing(
    talking: Path, tmp_path: Path, name: str, content: bytes, part: str
) -> None:
    folder = linked_copy(talking, tmp_path / "m")
    with_file(folder, name, content)
    fails(command("run", folder, tmp_path), 4, part)


def test_an_artifact_without_tokenizer_takes_tokens_and_no_text(artifact: Path, tmp_path: Path) -> None:
    fails(["run", artifact, "-p", "x"], 1, "tokenizer.json")
    fails(["chat", artifact], 1, "tokenizer.json")
    from ds4c.cli.main import main

    assert main([str(part) for part in command("logits", artifact, tmp_path)]) == 0
    assert np.load(tmp_path / "x.npy").shape == (3, 160)


@pytest.mark.parametrize("missing", ["one byte", "almost all", "all but one byte"])
@pytest.mark.parametrize("sessions", [1, 8])
def test_too_little_memory_is_told_with_the_numbers(artifact: Path, missing: str, sessions: int) -> None:
    manifest = Manifest.read(artifact)
    arenas, limits = manifest.arenas, manifest.limits
    fixed = arenas.weights + arenas.workspace + arenas.io + sessions * arenas.state_slot
    needed = fixed + limits.pages_per_session * arenas.page
    text, given = {
        "one byte": (str(needed - 1), needed - 1),
        "almost all": ("1MiB", 1 << 20),
        "all but one byte": ("1", 1),
    }[missing]
    options = ["--max-sessions", str(sessions), "--memory-budget", text, "--grpc-listen", "127.0.0.1:0"]
    line = fails(["serve", artifact, *options], 6, f"at least {needed} bytes", f"got {given}")
    assert str(arenas.weights) in line


def test_more_sessions_than_there_is_memory(artifact: Path) -> None:
    options = ["--max-sessions", str(10**9), "--grpc-listen", "127.0.0.1:0"]
    fails(["serve", artifact, *options], 6, "memory")


def test_loading_leaves_no_trace(talking: Path, tmp_path: Path) -> None:
    folder = linked_copy(talking, tmp_path / "m")
    from ds4c.cli.main import main

    assert main(["run", str(folder), "-p", "x", "--max-tokens", "1"]) == 0
    assert entries(folder) == list(FILES)


# --- any change of a manifest


@pytest.fixture(scope="session")
def text(built: Build) -> str:
    return (built("demo").artifact / "manifest.json").read_text()


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["ring", "append", "host", "float32", "bfloat16", "../x", "", "\ud800", "a\nb"]),
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3)
)


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to every value inside."""
    if isinstance(value, dict):
        inner = [p for key, v in value.items() for p in places(v, (*way, key))]
    elif isinstance(value, list):
        inner = [p for i, v in enumerate(value) for p in places(v, (*way, i))]
    else:
        inner = []
    return [*([way] if way else []), *inner]


@st.composite
def changed(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """A manifest with one to three values replaced, removed, doubled, moved a little, or swapped."""
    manifest = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        # Every key of the top level is equally likely, so that lists of tensors do not drown the rest.
        top = draw(st.sampled_from(sorted(manifest)))
        way = draw(st.sampled_from([(top,), *places(manifest[top], (top,))]))
        holder = manifest
        for key in way[:-1]:
            holder = holder[key]
        last, old = way[-1], holder[way[-1]]
        kind = draw(st.sampled_from(["replace", "replace", "nudge", "nudge", "remove", "double", "add"]))
        if kind == "remove":
            del holder[last]
        elif kind == "double" and isinstance(holder, list):
            holder.insert(last, json.loads(json.dumps(old)))
        elif kind == "add" and isinstance(old, dict):
            old[draw(st.text(max_size=4))] = draw(VALUES)
        elif kind == "nudge" and isinstance(old, int) and not isinstance(old, bool):
            holder[last] = draw(st.sampled_from([old - 1, old + 1, -old, 64 * old, old // 2, old + 64]))
        else:
            holder[last] = draw(VALUES)
        if not manifest:
            break
    return manifest


def read(text: str) -> Manifest | str:
    """The manifest, or the line it is refused with; nothing else may happen."""
    try:
        manifest = Manifest.parse(text)
        check_horizon(manifest)
    except ArtifactError as error:
        return str(error)
    return manifest


def is_line(found: Manifest | str) -> bool:
    return isinstance(found, str) and "\n" not in found and "expected" in found and "got" in found


@given(data=st.data())
@settings(max_examples=150)
def test_any_change_of_a_manifest_is_refused_or_means_the_same(text: str, data: st.DataObject) -> None:
    original = json.loads(text)
    manifest = data.draw(changed(original))
    found = read(json.dumps(manifest))
    assert is_line(found) or found == Manifest.parse(text)


@given(data=st.data())
@settings(max_examples=150)
def test_any_change_under_a_fitting_id_is_refused_or_read_as_written(text: str, data: st.DataObject) -> None:
    """Whoever changes a manifest can compute its id too; then the numbers themselves are checked."""
    manifest = data.draw(changed(json.loads(text)))
    found = read(signed(manifest))
    assert is_line(found) or json.loads(found.to_json()) == json.loads(signed(manifest))


@given(
    at=st.integers(0, 2**20),
    length=st.integers(0, 40),
    content=st.binary(max_size=8) | st.just(b"\n" * 50_000),
)
@settings(max_examples=150)
@example(at=0, length=40, content=b"[" * 100_000)
def test_any_bytes_in_a_manifest_are_refused_or_mean_the_same(
    text: str, tmp_path_factory: pytest.TempPathFactory, at: int, length: int, content: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated"
    folder.mkdir(exist_ok=True)
    raw = text.encode()
    at %= len(raw)
    (folder / "manifest.json").write_bytes(raw[:at] + content + raw[at + length :])
    try:
        found: Manifest | str = Manifest.read(folder)
    except ArtifactError as error:
        found = str(error)
    assert is_line(found) or found == Manifest.parse(text)
