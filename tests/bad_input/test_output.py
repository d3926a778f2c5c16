"""Output folders that exist, cannot be written or are full: what is there stays, nothing else appears."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_input.helpers import PATHS, Change, check_line, entries, fails, linked_copy, mounted, started

from ds4c import artifact as writer
from ds4c.errors import Ds4cError, UsageError
from ds4c.ir.kernel import Program
from ds4c.lower import compile as compile_child
from ds4c.lower.child import publish
from ds4c.lower.program_json import program_to_json

NOT_ALLOWED = "mount: not allowed here; needs root"


def none(_: Path) -> None:
    """Leave the folder as it is."""


def full(folder: Path) -> None:
    (folder / "m").mkdir()
    (folder / "m" / "precious").write_text("x")


def dangling(folder: Path) -> None:
    (folder / "m").symlink_to(folder / "nowhere")


TAKEN: dict[str, tuple[Change, tuple[str, ...], tuple[str, ...]]] = {
    "folder with files": (full, (), ("free", "use --force")),
    "folder with files, forced": (full, ("--force",), ("artifact to replace", "remove it yourself")),
    "empty folder": (lambda f: (f / "m").mkdir(), (), ("free",)),
    "file": (lambda f: (f / "m").write_text("x"), (), ("free",)),
    "file, forced": (lambda f: (f / "m").write_text("x"), ("--force",), ("artifact to replace",)),
    "dangling link": (dangling, (), ("free",)),
    "dangling link, forced": (dangling, ("--force",), ("artifact to replace",)),
}


@pytest.mark.parametrize(("prepare", "options", "parts"), TAKEN.values(), ids=TAKEN)
def test_what_is_in_the_way_stays(
    checkpoint: Path, tmp_path: Path, prepare: Change, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    prepare(tmp_path)
    before = entries(tmp_path)
    fails(["build", checkpoint, "-o", tmp_path / "m", *options], 2, "output", *parts)
    assert entries(tmp_path) == before


PLACES: dict[str, tuple[Change, str, str]] = {
    "under a file": (lambda f: (f / "file").write_text("x"), "file/m", "got Not a directory"),
    "deep under a file": (lambda f: (f / "file").write_text("x"), "file/a/b/m", "got Not a directory"),
    "name too long": (none, "x" * 300, "got File name too long"),
    "parent too long": (none, "x" * 300 + "/m", "got File name too long"),
    "here": (none, ".", "expected a name that is free"),
}


@pytest.mark.parametrize(("prepare", "place", "part"), PLACES.values(), ids=PLACES)
def test_places_where_no_folder_can_be(
    checkpoint: Path, tmp_path: Path, prepare: Change, place: str, part: str
) -> None:
    prepare(tmp_path)
    before = entries(tmp_path)
    fails(["build", checkpoint, "-o", tmp_path / place], 2, "output", part)
    assert entries(tmp_path) == before


def test_a_read_only_file_system(checkpoint: Path, artifact: Path, tmp_path: Path) -> None:
    """For building and for the results of commands; loading from one works."""
    with mounted(tmp_path / "disk", "size=12m") as disk:
        if disk is None:
            pytest.skip(NOT_ALLOWED)
        loaded = linked_copy(artifact, disk / "good")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        before = entries(disk)
        fails(["build", checkpoint, "-o", disk / "m"], 2, "got Read-only file system")
        fails(["build", checkpoint, "-o", disk / "good", "--force"], 2, "got Read-only file system")
        ids = tmp_path / "ids.npy"
        np.save(ids, np.arange(4))
        fails(["logits", loaded, "--tokens", ids, "-o", disk / "x.npy"], 2, "got Read-only file system")
        assert entries(disk) == before


@pytest.mark.slow
def test_a_folder_of_somebody_else(checkpoint: Path, tmp_path: Path) -> None:
    """As a user without rights; where the tests run as root, as another one."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    command = [sys.executable, "-m", "ds4c.cli.main", "build", str(checkpoint), "-o", str(closed / "a" / "m")]
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    prefix = nobody if os.geteuid() == 0 else []
    for folder in (*checkpoint.parents, *tmp_path.parents):
        if folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    try:
        probe = subprocess.run([*prefix, sys.executable, "-c", ""], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("setpriv: not installed")
    if probe.returncode:
        pytest.skip("setpriv: not allowed here, or the interpreter is out of that user's reach")
    done = subprocess.run(
        [*prefix, *command],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": PATHS, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if "No module named" in done.stderr:
        pytest.skip("setpriv: the sources are out of that user's reach")
    assert (done.returncode, done.stdout) == (2, "")
    check_line(done.stderr.strip(), "output", "got Permission denied")
    assert entries(closed) == []


@pytest.fixture
def compiled(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the compilation: the library comes from an artifact and is published as ever."""

    def compile_nothing(program: object, toolchain: object, path: str, *_: object) -> None:
        publish(artifact / "kernels.so", Path(path))

    monkeypatch.setattr("ds4c.lower.build_library", compile_nothing)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("room", "stage"), [(200, "kernels"), (1500, "weights"), (4500, "side files")])
def test_a_full_disk(checkpoint: Path, tmp_path: Path, room: int, stage: str) -> None:
    """Room for less than the kernels (400 KiB), than the weights (2.7 MiB), than TVM's library (3.3 MiB)."""
    with mounted(tmp_path / "disk", f"size={room}k") as disk:
        if disk is None:
            pytest.skip(NOT_ALLOWED)
        options = ["--context", "256", "--rows", "16", "--logit-rows", "4", "--segments", "2"]
        fails(
            ["build", checkpoint, "-o", disk / "a" / "m", *options],
            1,
            "output",
            "got No space left on device",
        )
        assert entries(disk) == [], stage


def test_a_full_disk_for_the_result_of_a_command(artifact: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(100))
    with mounted(tmp_path / "disk", "size=8k") as disk:
        if disk is None:
            pytest.skip(NOT_ALLOWED)
        (disk / "x.npy").write_text("as before")
        call = ["logits", artifact, "--tokens", tmp_path / "ids.npy", "-o", disk / "x.npy"]
        fails(call, 1, "got", "free space")
        assert entries(disk) == ["x.npy"]
        assert (disk / "x.npy").read_text() == "as before"


def test_a_name_taken_while_the_build_ran_is_kept(tmp_path: Path) -> None:
    def build_while_another_ends() -> None:
        with writer.new_folder(tmp_path / "m", False):
            (tmp_path / "m").mkdir()
            (tmp_path / "m" / "theirs").write_text("x")

    with pytest.raises(UsageError, match="expected a name that is free"):
        build_while_another_ends()
    assert entries(tmp_path) == ["m", "m/theirs"]


@pytest.mark.parametrize("failing", [1, 2])
def test_an_artifact_that_cannot_be_replaced_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Whichever of the two renames fails."""
    old = tmp_path / "m"
    old.mkdir()
    (old / "manifest.json").write_text("old")
    rename, calls = os.rename, []

    def fails_once(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == failing:
            raise OSError(28, "No space left on device", str(target))
        rename(source, target)

    monkeypatch.setattr("os.rename", fails_once)
    with pytest.raises(Ds4cError, match="No space left"), writer.new_folder(old, True) as work:
        (work / "manifest.json").write_text("new")
    assert entries(tmp_path) == ["m", "m/manifest.json"]
    assert (old / "manifest.json").read_text() == "old"


@pytest.mark.slow
def test_a_compiler_that_is_killed(checkpoint: Path, tmp_path: Path) -> None:
    """What the system does to a process that takes too much memory."""
    out = tmp_path / "out"
    out.mkdir()
    with started("build", checkpoint, "-o", out / "m", temporary=tmp_path / "tmp") as process:
        process.wait_for(process.compilers)
        for pid in process.compilers():
            os.kill(pid, signal.SIGKILL)
        code, stdout, stderr = process.finish()
        assert (code, stdout) == (1, "")
        check_line(stderr.splitlines()[-1], "kernel compiler", "got signal SIGKILL")
        assert process.children() == []
    assert entries(out) == []
    assert entries(tmp_path / "tmp") == []


@pytest.mark.slow  # imports the compiler
def test_no_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program without a kernel, so that nothing is compiled before."""
    program = program_to_json(Program({}, ()))
    request = {"program": program, "emitter": "unit.lower.emitters", "variant": "generic", "llvm": {}}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Ds4cError, match=r"expected g\+\+ on the PATH, got none; install"):
        compile_child.run({**request, "output": str(tmp_path / "library.so")})
