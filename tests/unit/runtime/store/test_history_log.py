"""The history log: what was synced comes back, whatever happens to the file or the process."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from bad_input.helpers import flip, mounted
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.runtime.store.crashes import Crash, failing, number_of_calls

from ds4c_runtime.errors import StoredFileError, StoreFailedError
from ds4c_runtime.history import BLOCK_TOKENS, History
from ds4c_runtime.store import files, history_log
from ds4c_runtime.store.header import PREFIX_BYTES, render
from ds4c_runtime.store.history_log import KIND, HistoryLog, LogHeader, read_log

HEADER = LogHeader("s", "token:1", 64, 1000, "ab" * 32, "cd" * 32, "", 0, 1_700_000_000_000_000)
TURNS: list[list[int]] = [[1, 2, 3], [1, 2, 3, 4], [1, 2], [1, 2, 9, 9, 9, 9], [], [7] * 64, [7] * 10 + [8]]


def written(folder: Path, turns: Sequence[Sequence[int]] = TURNS) -> tuple[Path, list[int]]:
    """A log of those turns, and its size after each, first that of the header."""
    path = folder / "s.log"
    log = HistoryLog.create(path, HEADER)
    sizes = [path.stat().st_size]
    for turn in turns:
        log.sync(turn)
        sizes.append(path.stat().st_size)
    return path, sizes


def tokens(path: Path) -> list[int]:
    return read_log(path).tokens.tolist()


def test_what_was_synced_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    log = HistoryLog.create(path, HEADER)
    for count, turn in enumerate(TURNS, start=1):
        log.sync(turn)
        contents = read_log(path)
        assert (contents.header, contents.tokens.tolist(), contents.turns) == (HEADER, turn, count)
        assert (contents.damage, contents.cut_bytes, contents.good_bytes) == ("", 0, path.stat().st_size)
        log, _ = HistoryLog.open(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_turn_of_a_long_session_costs_its_new_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a rewind; what comes back is the whole."""
    count = 100_000
    header = dataclasses.replace(HEADER, capacity=count)
    history = History("", (i % 900 for i in range(count - 20_000)))
    history.truncate(50_000)
    log = HistoryLog.create(tmp_path / "s.log", header, history)
    asked: list[int] = []
    real = History.slice

    def counted(self: History, start: int, end: int) -> tuple[int, ...]:
        found = real(self, start, end)
        asked.append(len(found))
        return found

    monkeypatch.setattr(History, "slice", counted)
    for cut, added in ((50_000, 3), (40_001, 5), (40_006, 0), (40_006, 7)):
        history.truncate(cut)
        history.extend([1] * added)
        log.sync(history)
        assert sum(asked) <= 3 * BLOCK_TOKENS, "the whole history was gone through"
        asked.clear()
    assert tokens(tmp_path / "s.log") == list(real(history, 0, count))
    assert log.position == len(history) == 40_013


def test_a_turn_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    path, sizes = written(tmp_path)
    log, _ = HistoryLog.open(path)
    assert number_of_calls(lambda: log.sync(TURNS[-1])) == 0
    assert path.stat().st_size == sizes[-1]


def test_the_epoch_comes_back_and_is_a_turn_by_itself(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    log, _ = HistoryLog.open(path)
    log.sync(TURNS[-1], epoch=3)
    log, contents = HistoryLog.open(path)
    assert (contents.epoch, contents.turns, contents.tokens.tolist()) == (3, len(TURNS) + 1, TURNS[-1])
    assert number_of_calls(lambda: log.sync(TURNS[-1], epoch=3)) == 0
    log.sync([], epoch=4)
    assert (read_log(path).epoch, read_log(path).tokens.tolist()) == (4, [])


def test_a_turn_is_one_write_and_one_sync(tmp_path: Path) -> None:
    log, _ = HistoryLog.open(written(tmp_path)[0])
    with failing(1 << 30) as made:
        log.sync([5, 6])
    assert made == ["open", "ftruncate", "write", "fsync"]


def test_a_file_cut_anywhere_has_the_turns_before_the_cut(tmp_path: Path) -> None:
    path, sizes = written(tmp_path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        if length < sizes[0]:
            with pytest.raises(StoredFileError, match=r"s.log rejected: expected .*, got "):
                HistoryLog.open(path)
            assert path.stat().st_size == length
            continue
        complete = sum(size <= length for size in sizes) - 1
        expected = ([], *TURNS)[complete]
        log, contents = HistoryLog.open(path)
        assert (contents.tokens.tolist(), contents.turns, contents.damage) == (expected, complete, "")
        assert contents.cut_bytes == length - sizes[complete]
        assert path.stat().st_size == sizes[complete]
        log.sync([*expected[:60], 3])
        assert tokens(path) == [*expected[:60], 3]


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_changed_byte_is_damage_and_the_turns_before_it_are_kept(tmp_path: Path, mask: int) -> None:
    path, sizes = written(tmp_path)
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= mask
        path.write_bytes(changed)
        if at < sizes[0]:
            with pytest.raises(StoredFileError):
                read_log(path)
            continue
        complete = sum(size <= at for size in sizes) - 1
        contents = read_log(path)
        assert contents.tokens.tolist() == ([], *TURNS)[complete], at
        assert contents.damage.startswith(f"s.log damaged after turn {complete}: expected "), at


def test_a_damaged_log_is_set_aside_once(tmp_path: Path) -> None:
    path, sizes = written(tmp_path)
    flip(path, sizes[3] + 5)
    damaged = path.read_bytes()
    log, contents = HistoryLog.open(path)
    assert contents.damage
    assert log.tokens.tolist() == TURNS[2]
    assert (tmp_path / "s.log.bad").read_bytes() == damaged
    log.sync([1, 2, 3])
    again, contents = HistoryLog.open(path)
    assert (contents.damage, again.tokens.tolist()) == ("", [1, 2, 3])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.log", "s.log.bad"]
    flip(path, -1)
    HistoryLog.open(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.log", "s.log.2.bad", "s.log.bad"]


def test_a_damaged_log_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = written(tmp_path)
    flip(path, -1)
    damaged = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    log, _ = HistoryLog.open(path)
    assert log.tokens.tolist() == TURNS[-2]
    assert (tmp_path / "s.log.bad").read_bytes() == damaged


def frames(path: Path, sizes: list[int]) -> list[bytes]:
    content = path.read_bytes()
    return [content[a:b] for a, b in zip([0, *sizes], sizes, strict=False)]


REORDERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "a frame is missing": (lambda f: [*f[:3], *f[4:]], 2),
    "a frame twice": (lambda f: [*f[:4], f[3], *f[4:]], 3),
    "two are exchanged": (lambda f: [*f[:2], f[3], f[2], *f[4:]], 1),
    "bytes behind the last": (lambda f: [*f, bytes(12)], 7),
    "zeros instead of the last": (lambda f: [*f[:-1], bytes(len(f[-1]))], 6),
}


@pytest.mark.parametrize(("change", "kept"), REORDERED.values(), ids=REORDERED)
def test_frames_that_are_not_where_they_were(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], kept: int
) -> None:
    path, sizes = written(tmp_path)
    path.write_bytes(b"".join(change(frames(path, sizes))))
    contents = read_log(path)
    assert contents.damage
    assert contents.tokens.tolist() == TURNS[kept - 1]


def test_a_frame_of_another_log_is_damage(tmp_path: Path) -> None:
    path, sizes = written(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    foreign, foreign_sizes = written(other, [[5], *TURNS[1:]])
    mixed = frames(path, sizes)[:2] + frames(foreign, foreign_sizes)[2:]
    path.write_bytes(b"".join(mixed))
    assert read_log(path).tokens.tolist() == TURNS[0]
    assert read_log(path).damage


def frame(number: int, words: list[int], key: bytes, length: int | None = None) -> bytes:
    """A frame with right checksums and any content."""
    body = np.array(words, "<u4").tobytes()
    start = np.array([len(body) if length is None else length, number], "<u4").tobytes()
    head = start + np.array([zlib.crc32(start)], "<u4").tobytes()
    return head + body + hashlib.blake2b(head + body, digest_size=len(key), key=key).digest()


IMPOSSIBLE = {
    "keeps more than there is": [0, 1, 5],
    "beyond the capacity": [0, 0, *[1] * 65],
    "outside the vocabulary": [0, 0, 1000],
    "the largest integers": [2**32 - 1, 2**32 - 1, 2**32 - 1],
    "an empty body": [],
    "no count": [0],
}


@pytest.mark.parametrize("words", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_frame_that_says_what_cannot_be(tmp_path: Path, words: list[int]) -> None:
    content, digest = render(KIND, HEADER)
    path = tmp_path / "s.log"
    path.write_bytes(content + frame(0, words, digest[:16]))
    contents = read_log(path)
    assert contents.damage
    assert (contents.turns, contents.cut_bytes) == (0, 0)


@pytest.mark.parametrize("length", [2**32 - 4, 4 * 67, 9])
def test_a_huge_frame_is_not_read(tmp_path: Path, length: int) -> None:
    content, digest = render(KIND, HEADER)
    path = tmp_path / "s.log"
    path.write_bytes(content + frame(0, [0, 0], digest[:16], length))
    os.truncate(path, 1 << 40)  # a sparse file: reading what the frame says would take all memory
    assert read_log(path).damage


def changed_header(**values: object) -> bytes:
    """The start of a log whose header has other values and the right sha256."""
    content, _ = render(KIND, HEADER)
    text = json.dumps({**json.loads(content[PREFIX_BYTES:]), **values}).encode()
    return with_text(text)


def with_text(text: bytes, length: int | None = None, version: int = 1) -> bytes:
    start = KIND.magic + np.array([version, len(text) if length is None else length], "<u4").tobytes()
    return start + hashlib.sha256(start + text).digest() + text


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "another file": b"\x7fELF" * 30,
    "another version": with_text(b"{}", version=2),
    "a huge header": with_text(b"{}", length=2**32 - 1),
    "a header longer than the file": with_text(b"{}", length=3),
    "no JSON": with_text(b"\xff{"),
    "nested without end": with_text(b"[" * 60000),
    "a list": with_text(b"[]"),
    "an unknown key": changed_header(more=1),
    "a wrong type": changed_header(capacity="64"),
    "no number": changed_header(capacity=float("nan")),
    "no capacity": changed_header(capacity=0),
    "a negative capacity": changed_header(capacity=-1),
    "a huge capacity": changed_header(capacity=1 << 60),
    "a capacity of one too many": changed_header(capacity=(1 << 28) + 1),
    "a vocabulary of one too many": changed_header(vocab_size=(1 << 31) + 1),
    "no vocabulary": changed_header(vocab_size=0),
    "a negative time": changed_header(idle_us=-1),
    "a huge vocabulary": changed_header(vocab_size=1 << 33),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_headers_that_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(content)
    with pytest.raises(StoredFileError, match=r"^s.log rejected: expected [^\n]+, got [^\n]+$"):
        HistoryLog.open(path)
    assert path.read_bytes() == content


def test_the_largest_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(changed_header(capacity=1 << 28, vocab_size=1 << 31, idle_us=0))
    header = read_log(path).header
    assert (header.capacity, header.vocab_size) == (1 << 28, 1 << 31)


def link_to_a_log(path: Path) -> None:
    (path.parent / "real").mkdir()
    path.symlink_to(written(path.parent / "real")[0])


NO_FILES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "a link to a log": link_to_a_log,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "s.log")
    with pytest.raises(StoredFileError, match="regular file"):
        HistoryLog.open(tmp_path / "s.log")


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with pytest.raises(StoreFailedError, match="free name"):
        HistoryLog.create(path, HEADER)
    assert tokens(path) == TURNS[-1]


@given(
    turns=st.lists(st.lists(st.integers(0, 999), max_size=64), max_size=12),
    cut=st.floats(0, 1),
    reopen=st.sets(st.integers(0, 11)),
)
@settings(max_examples=150)
def test_any_cut_gives_a_prefix_of_the_turns(turns: list[list[int]], cut: float, reopen: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.log"
        log = HistoryLog.create(path, HEADER)
        states = [(path.stat().st_size, list[int]())]
        for number, turn in enumerate(turns):
            if number in reopen:
                log, _ = HistoryLog.open(path)
            log.sync(turn)
            states.append((path.stat().st_size, turn))
        length = states[0][0] + int((states[-1][0] - states[0][0]) * cut)
        os.truncate(path, length)
        log, contents = HistoryLog.open(path)
        assert contents.tokens.tolist() == [turn for size, turn in states if size <= length][-1]
        log.sync([9, 9])
        assert tokens(path) == [9, 9]


def test_rewinds_do_not_make_a_log_grow_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_log, "COMPACT_BYTES", 2000)
    path = tmp_path / "s.log"
    log, rng = HistoryLog.create(path, HEADER), random.Random(1)
    largest = 0
    for _ in range(300):
        history = rng.choices(range(1000), k=rng.randrange(64))
        log.sync(history)
        assert tokens(path) == history
        largest = max(largest, path.stat().st_size)
    assert largest < 4000
    assert [p.name for p in tmp_path.iterdir()] == ["s.log"]


def scenario(path: Path, done: list[list[int]]) -> None:
    """Make, append, rewind, damage and go on; notes every history that was acknowledged."""
    log = HistoryLog.create(path, HEADER)
    done.append([])
    for turn in ([1, 2, 3], [1, 2], [1, 2, 5, 6]):
        log.sync(turn)
        done.append(turn)
    log, _ = HistoryLog.open(path)
    for turn in ([1], [1, 7, 8], [4] * 64):
        log.sync(turn)
        done.append(turn)


STEPS = 60


@pytest.mark.parametrize("half", [False, True])
def test_death_at_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    """What was acknowledged is there; at most the turn that was being written is there too."""
    monkeypatch.setattr(history_log, "COMPACT_BYTES", 60)
    whole: list[list[int]] = []
    calls = number_of_calls(lambda: scenario(tmp_path / "whole.log", whole))
    assert calls > 30
    for at in range(calls):
        folder = tmp_path / str(at)
        folder.mkdir()
        path, done = folder / "s.log", list[list[int]]()
        with failing(at, crash=True, half=half), pytest.raises(Crash):
            scenario(path, done)
        if not path.exists():
            assert done == []
            continue
        log, contents = HistoryLog.open(path)
        assert contents.damage == ""
        assert contents.tokens.tolist() in whole[max(0, len(done) - 1) : len(done) + 1]
        log.sync([3, 2, 1])
        assert tokens(path) == [3, 2, 1]


def reached(path: Path, history: list[int]) -> None:
    log = HistoryLog.open(path)[0] if path.exists() else HistoryLog.create(path, HEADER)
    log.sync(history)


def test_a_full_disk_at_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, nothing lost, nothing left; the same turn goes through afterwards."""
    monkeypatch.setattr(history_log, "COMPACT_BYTES", 60)
    turns = [[1, 2, 3], [1, 2], [1, 2, 5, 6], [1], [4] * 30, [4] * 31]
    calls = number_of_calls(lambda: written(tmp_path, turns))
    for at in range(calls):
        folder = tmp_path / str(at)
        folder.mkdir()
        path, said = folder / "s.log", list[str]()
        with failing(at) as made:
            for expected in turns:
                try:
                    reached(path, expected)
                except StoreFailedError as error:
                    said.append(str(error))
                    reached(path, expected)
                assert tokens(path) == expected
        assert len(said) == 1 or made[at] == "unlink", "only what tidies up may fail in silence"
        assert all(
            line.endswith("got No space left on device; free space or mend the folder") for line in said
        )
        assert [p.name for p in folder.iterdir()] == ["s.log"]


def test_a_log_goes_on_after_a_failure(tmp_path: Path) -> None:
    """The same object, whatever call failed; a turn that failed and was rewound is not there."""
    for at in range(4):
        folder = tmp_path / str(at)
        folder.mkdir()
        path, _ = written(folder)
        log, _ = HistoryLog.open(path)
        with failing(at), pytest.raises(StoreFailedError):
            log.sync([1, 2, 3])
        log.sync(TURNS[-1])
        assert tokens(path) == TURNS[-1]
        log.sync([1, 2, 3])
        assert tokens(path) == [1, 2, 3]


def test_a_turn_that_was_not_acknowledged_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the disk as a whole, and cannot be cut; then the session is where it was before."""
    path, _ = written(tmp_path)
    log, _ = HistoryLog.open(path)
    cut, first = os.ftruncate, iter([True])

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        patch.setattr("os.ftruncate", lambda *each: cut(*each) if next(first, False) else refuse())
        with pytest.raises(StoreFailedError, match="Input/output error"):
            log.sync([1, 2, 3])
    assert tokens(path) == [1, 2, 3]
    log.sync(TURNS[-1])
    assert tokens(path) == TURNS[-1]


@pytest.mark.parametrize("harm", [lambda p: p.unlink(), lambda p: os.truncate(p, 20), lambda p: flip(p, 60)])
def test_a_log_that_somebody_else_changed_is_written_anew_or_found_out(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    path, _ = written(tmp_path)
    log, _ = HistoryLog.open(path)
    harm(path)
    log.sync([1, 2, 3])
    try:
        assert tokens(path) == [1, 2, 3]
    except StoredFileError:
        assert path.stat().st_size > 60


@pytest.mark.parametrize("at", range(1, 8))  # call 0 opens the log for a turn behind the others
def test_a_log_whose_rewrite_failed_is_where_its_session_is(tmp_path: Path, at: int) -> None:
    """Also if the new file has its name already: what was not acknowledged does not come back."""
    path, sizes = written(tmp_path)
    log, _ = HistoryLog.open(path)
    os.truncate(path, sizes[-1] - 1)  # so that it is written anew
    with failing(at), contextlib.suppress(StoreFailedError):
        log.sync([1, 2, 3])
    log.sync(TURNS[-1])
    assert tokens(path) == TURNS[-1]


@pytest.mark.parametrize("lacking", [1, 16, 60])
def test_a_log_that_became_shorter_is_written_anew(tmp_path: Path, lacking: int) -> None:
    path, sizes = written(tmp_path)
    log, _ = HistoryLog.open(path)
    os.truncate(path, sizes[-1] - lacking)
    log.sync([1, 2, 3])
    contents = read_log(path)
    assert (contents.tokens.tolist(), contents.turns, contents.damage) == ([1, 2, 3], 1, "")


def test_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=16k") as disk:
        if disk is None:
            pytest.skip("mount: not allowed here; needs root")
        header = LogHeader("s", "", 1 << 16, 1000, "", "", "", 0, 0)
        log = HistoryLog.create(disk / "s.log", header)
        log.sync([1] * 1000)
        with pytest.raises(StoreFailedError, match="got No space left on device; free"):
            log.sync([2] * 10000)
        assert tokens(disk / "s.log") == [1] * 1000
        log.sync([1] * 1001)
        assert tokens(disk / "s.log") == [1] * 1001


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreFailedError, match="got Not a directory"):
        HistoryLog.create(tmp_path / "file" / "s.log", HEADER)
    with pytest.raises(StoreFailedError, match="session folder failed: expected"):
        files.make_folder(tmp_path / "file")
