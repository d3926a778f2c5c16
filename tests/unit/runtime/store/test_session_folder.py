"""The folder of stored sessions: scan, quarantine, trial, lock, names."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_input.helpers import entries, flip
from fake_executable import small_manifest
from unit.runtime.store.crashes import failing

from ds4c_runtime.errors import StoredFileError, StoreFailedError
from ds4c_runtime.store.history_log import HistoryLog, LogHeader
from ds4c_runtime.store.session_folder import SessionFolder
from ds4c_runtime.store.state_file import StateHeader

MANIFEST = small_manifest()


class Opened:
    """A folder and what it said."""

    def __init__(self, path: Path) -> None:
        self.said: list[tuple[str, str]] = []
        self.folder = SessionFolder(path, MANIFEST, "ab" * 32, lambda *each: self.said.append(each))

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.close()

    def make(self, name: str = "s", tokens: tuple[int, ...] = (1, 2, 3), owner: str = "") -> HistoryLog:
        header = LogHeader(name, owner, 256, 1024, "ab" * 32, MANIFEST.artifact_id, "", 0, 0)
        return self.folder.create(header, tokens, 0)

    def store(self, log: HistoryLog, content: int = 7) -> None:
        header = StateHeader(
            MANIFEST.artifact_id, self.folder.layout, log.header.session_id, 3, "", 0, (), ()
        )
        self.folder.write_state(log, header, {"x": [np.full(100, content, np.uint8)]})

    def read(self, log: HistoryLog) -> dict[str, bytes] | None:
        with self.folder.reading(log) as state:
            return None if state is None else {name: s.read().tobytes() for name, s in state[1].items()}

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


def names(folder: Path, log: HistoryLog) -> list[str]:
    """Suffixes of the files of a session."""
    return sorted(name.removeprefix(log.path.stem) for name in entries(folder) if name != "lock")


def test_sessions_come_back(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        opened.make("a", (1, 2))
        opened.make("A", (3,))
        opened.make("..", ())
        opened.store(opened.make("a", (4, 5), owner="token:1"))
    assert len({name.lower() for name in entries(tmp_path)}) == 6
    with Opened(tmp_path) as opened:
        found = {
            (log.header.owner, log.header.session_id): log.tokens.tolist() for log in opened.folder.scan()
        }
        assert found == {("", "a"): [1, 2], ("", "A"): [3], ("", ".."): [], ("token:1", "a"): [4, 5]}
        assert opened.said == []
        assert opened.folder.bytes_used > 100
        assert not opened.folder.is_foreign("", "a")


def test_only_one_process_at_a_time(tmp_path: Path) -> None:
    with Opened(tmp_path), pytest.raises(StoreFailedError, match=r"expected .* to be free, got one that"):
        Opened(tmp_path)
    with Opened(tmp_path):
        pass


def test_a_state_is_on_trial_until_it_was_used(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
        assert opened.read(log) is None
        opened.store(log)
        assert names(tmp_path, log) == [".log", ".state"]
        assert opened.read(log) == {"x": bytes([7] * 100)}
        assert names(tmp_path, log) == [".log", ".state"]
        opened.folder.begin_trial(log)
        assert names(tmp_path, log) == [".log", ".trial"]
        assert opened.read(log) is None
        opened.folder.accept_state(log)
        assert names(tmp_path, log) == [".log", ".state"]
        opened.folder.accept_state(log)
        assert opened.read(log) is not None
        opened.store(log, 8)
        assert names(tmp_path, log) == [".log", ".state"]
        opened.folder.begin_trial(log)
        opened.store(log, 9)
        assert names(tmp_path, log) == [".log", ".state"], "a new state is not on trial"
        assert opened.read(log) == {"x": bytes([9] * 100)}
        assert opened.said == []


def test_a_state_on_trial_when_the_process_died_is_not_read_again(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        opened.read(log)
        opened.folder.begin_trial(log)
    with Opened(tmp_path) as opened:
        (log,) = opened.folder.scan()
        assert opened.kinds == ["integrity"]
        assert opened.read(log) is None
        assert opened.folder.state_bytes(log) == 0
        assert opened.folder.bytes_used == log.path.with_suffix(".state.bad").stat().st_size
        assert names(tmp_path, log) == [".log", ".state.bad"]
    with Opened(tmp_path) as opened:
        opened.folder.scan()
        assert opened.said == []


def other_session(opened: Opened, log: HistoryLog) -> None:
    other = opened.make("other")
    opened.store(other)
    other.path.with_suffix(".state").rename(log.path.with_suffix(".state"))
    opened.folder.remove(other)


def link(opened: Opened, log: HistoryLog) -> None:
    real = log.path.with_suffix(".real")
    log.path.with_suffix(".state").rename(real)
    log.path.with_suffix(".state").symlink_to(real)


BAD_STATES: dict[str, Callable[[Opened, HistoryLog], object]] = {
    "a changed byte": lambda _, log: flip(log.path.with_suffix(".state"), -1),
    "another session's": other_session,
    "empty": lambda _, log: log.path.with_suffix(".state").write_bytes(b""),
    "a link": link,
}


@pytest.mark.parametrize("harm", BAD_STATES.values(), ids=BAD_STATES)
def test_a_bad_state_is_set_aside_and_never_read_again(
    tmp_path: Path, harm: Callable[[Opened, HistoryLog], object]
) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        harm(opened, log)
        with pytest.raises(StoredFileError, match="rejected: expected"):
            opened.read(log)
        assert opened.read(log) is None
        assert ".state.bad" in names(tmp_path, log)
        assert opened.folder.state_bytes(log) == 0
        assert opened.folder.bytes_used == log.path.with_suffix(".state.bad").lstat().st_size
        opened.store(log)
        assert opened.read(log) is not None
    with Opened(tmp_path) as opened:
        (log,) = opened.folder.scan()
        assert log.tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("harm", BAD_STATES.values(), ids=BAD_STATES)
def test_a_bad_state_that_is_found_at_the_start(
    tmp_path: Path, harm: Callable[[Opened, HistoryLog], object]
) -> None:
    """Content is looked at when it is used, the rest at once."""
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        harm(opened, log)
    with Opened(tmp_path) as opened:
        (log,) = opened.folder.scan()
        if opened.folder.state_bytes(log):
            with pytest.raises(StoredFileError):
                opened.read(log)
        else:
            assert opened.kinds == ["integrity"]
        assert opened.read(log) is None


def test_a_state_of_another_artifact_is_set_aside(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        opened.store(opened.make())
    other = small_manifest(max_rows=20)
    folder = SessionFolder(tmp_path, other, "ab" * 32)
    (log,) = folder.scan()
    with pytest.raises(StoredFileError, match="expected artifact"), folder.reading(log):
        pass
    with folder.reading(log) as state:
        assert state is None


def test_what_is_found_out_while_a_state_is_used(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        with pytest.raises(StoredFileError), opened.folder.reading(log):
            raise StoredFileError("it says what cannot be")
        assert names(tmp_path, log) == [".log", ".state.bad"]


def test_a_state_that_cannot_be_read_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreFailedError("read failed")

    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        with monkeypatch.context() as patch:
            patch.setattr("ds4c_runtime.store.session_folder.reading", refuse)
            with pytest.raises(StoreFailedError):
                opened.read(log)
        assert opened.read(log) is not None


def test_leftovers_are_removed(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
    (tmp_path / "x.log.tmp").write_bytes(b"half")
    for suffix in ("state", "trial"):
        (tmp_path / f"x.{suffix}").write_bytes(b"a state without a log")
    (tmp_path / "notes.txt").write_text("not ours")
    with Opened(tmp_path) as opened:
        assert len(opened.folder.scan()) == 1
        assert opened.said == []
    assert entries(tmp_path) == sorted(["lock", log.path.name, "notes.txt"])


def test_a_state_that_cannot_be_read_now_stays_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing about the file: the disk may be well again later."""
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
    real = os.open

    def refuse(path: str | Path, *rest: int) -> int:
        if str(path).endswith(".state"):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *rest)

    with Opened(tmp_path) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            assert len(opened.folder.scan()) == 1
        assert [kind for kind, line in opened.said if "Input/output error" in line] == ["read"]
        assert names(tmp_path, log) == [".log", ".state"]
        assert opened.read(log) == {"x": bytes([7] * 100)}


def test_bad_logs_do_not_stop_the_others(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        good, bad, short = opened.make("good"), opened.make("bad"), opened.make("short")
        moved = opened.make("moved")
    flip(bad.path, 60)
    flip(short.path, -1)
    moved.path.rename(moved.path.with_name("f" * 32 + ".log"))
    with Opened(tmp_path) as opened:
        found = {log.header.session_id: log.tokens.tolist() for log in opened.folder.scan()}
        assert found == {"good": [1, 2, 3], "short": []}
        assert opened.kinds == ["integrity"] * 3
        assert any(line.endswith("kept 0 tokens before it") for _, line in opened.said)
        assert all("\n" not in line for _, line in opened.said)
        assert good.path.exists()
        assert not bad.path.exists()
    with Opened(tmp_path) as opened:
        assert len(opened.folder.scan()) == 2
        assert opened.said == []


@pytest.mark.parametrize(
    "change", [{"tokenizer_sha256": ""}, {"vocab_size": 1000}, {"capacity": 257}], ids=lambda c: next(iter(c))
)
def test_sessions_of_another_model_are_left_alone(tmp_path: Path, change: dict[str, object]) -> None:
    with Opened(tmp_path) as opened:
        header = dataclasses.replace(opened.make().header, session_id="foreign", **change)  # pyright: ignore
        foreign = opened.folder.create(header, (1,), 0)
    before = foreign.path.read_bytes()
    with Opened(tmp_path) as opened:
        assert [log.header.session_id for log in opened.folder.scan()] == ["s"]
        assert opened.kinds == ["foreign"]
        assert opened.folder.is_foreign("", "foreign")
        assert not opened.folder.is_foreign("", "s")
    assert foreign.path.read_bytes() == before


def test_removal_takes_everything(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        opened.folder.begin_trial(log)
        opened.folder.reject_state(log)
        opened.store(log)
        opened.folder.begin_trial(log)
        log.path.with_suffix(".log.bad").write_bytes(b"prompts")
        opened.folder.remove(log)
        assert entries(tmp_path) == ["lock"]
        assert opened.folder.bytes_used == 0


def test_a_session_that_cannot_be_removed_is_as_before(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        log = opened.make()
        opened.store(log)
        with failing(0), pytest.raises(StoreFailedError, match="removal failed"):
            opened.folder.remove(log)
        assert names(tmp_path, log) == [".log", ".state"]


def test_a_folder_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/deep"):
        with pytest.raises(StoreFailedError, match="session folder failed: expected"):
            Opened(tmp_path / name)


def test_the_files_are_private(tmp_path: Path) -> None:
    with Opened(tmp_path / "new") as opened:
        log = opened.make()
        opened.store(log)
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "new").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
