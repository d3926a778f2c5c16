"""Options, token files, prompts and description files that are wrong: exit code and one line."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_input.helpers import Change, check_line, entries, fails, linked_copy, rewrite, started

from ds4c.errors import TargetError
from ds4c_targets.cpu import target as cpu

HUGE = str(2**70)
NOT_TEXT = "\udcff"
"""What the shell's byte 0xff becomes in `sys.argv`."""

FLAGS: dict[str, tuple[list[str], int, str]] = {
    "unknown command": (["nonsense"], 2, "nonsense"),
    "unknown flag": (["build", "x", "-o", "y", "--nonsense"], 2, "--nonsense"),
    "flag without value": (["build", "x", "-o"], 2, "-o"),
    "missing flag": (["build", "x"], 2, "--output"),
    "too many arguments": (["build", "x", "y", "-o", "z"], 2, "y"),
    "word for a number": (["build", "x", "-o", "y", "--horizon", "many"], 2, "--horizon"),
    "unknown choice": (["serve", "x", "--log-format", "xml"], 2, "--log-format"),
    "unknown target": (["build", "x", "-o", "y", "--target", "tpu"], 5, "cpu, cuda, metal, rocm, got tpu"),
    "unknown variant": (["build", "x", "-o", "y", "--target", "cpu:z80"], 5, "got z80"),
    "target of no name": (["build", "x", "-o", "y", "--target", ""], 5, "got an empty name"),
    "target that is a module": (["build", "x", "-o", "y", "--target", "cpu.args"], 5, "got cpu.args"),
    "target that is a file": (["build", "x", "-o", "y", "--target", "__init__"], 5, "got __init__"),
    "zero threads": (["run", "x", "-p", "y", "--threads", "0"], 2, "--threads"),
    "negative count": (["chat", "x", "--max-tokens", "-1"], 2, "--max-tokens"),
    "size of no unit": (["serve", "x", "--memory-budget", "4 GB"], 2, "--memory-budget"),
    "stored size of no unit": (
        ["serve", "x", "--session-dir", "d", "--session-disk-budget", "1 PB"],
        2,
        "--session-disk-budget",
    ),
    "stored size without a folder": (["serve", "x", "--session-disk-budget", "1GiB"], 2, "--session-dir"),
    "no session in memory": (["serve", "x", "--max-resident", "0"], 2, "--max-resident"),
    "snapshots kept nowhere": (["serve", "x", "--snapshot-copies", "disk"], 2, "--snapshot-copies"),
    "address of no port": (["serve", "x", "--grpc-listen", "127.0.0.1"], 2, "HOST:PORT"),
    "port too large": (["serve", "x", "--grpc-listen", "127.0.0.1:65536"], 2, "HOST:PORT"),
    "metrics of no port": (["serve", "x", "--metrics-listen", "localhost"], 2, "HOST:PORT"),
    "metrics for all": (["serve", "x", "--metrics-listen", "[::]:0"], 2, "--auth-token-file"),
    "metrics on a path": (["serve", "x", "--metrics-listen", "unix:s"], 2, "--metrics-listen"),
    "open address": (["serve", "x", "--grpc-listen", "0.0.0.0:0"], 2, "--auth-token-file"),
    "closed descriptor": (["serve", "x", "--ready-fd", "99"], 2, "--ready-fd"),
    "time of nothing": (["serve", "x", "--drain-seconds", "nan"], 2, "--drain-seconds"),
    "time of ever": (["client", "--timeout", "inf", "info"], 2, "--timeout"),
    "unknown pass": (["opt", "-", "-p", "nonsense"], 2, "nonsense"),
    "pass without end": (["opt", "-", "-p", "plan-state{"], 2, "a,b{option=1}"),
    "pass option of words": (["opt", "-", "-p", "plan-state{horizon=a}"], 2, "a,b{option=1}"),
    "client: huge seed": (["client", "generate", "-p", "x", "--seed", HUGE], 2, "--seed"),
    "client: negative position": (["client", "generate", "-p", "x", "--rewind-to", "-1"], 2, "--rewind-to"),
    "client: below zero": (["client", "rewind", "s", "--to", "-1"], 2, "at least 0"),
    "client: huge position": (["client", "rewind", "s", "--to", HUGE], 2, "--to"),
    "client: huge drop": (["client", "rewind", "s", "--drop", str(2**32)], 2, "--drop"),
    "client: huge capacity": (["client", "open", "s", "--capacity", HUGE], 2, "--capacity"),
    "client: idle for ever": (["client", "open", "s", "--idle-seconds", "1e300"], 2, "--idle-seconds"),
    "client: no target": (["client", "plan", "s"], 2, "--to, --drop and --to-snapshot"),
    "client: snapshot not text": (["client", "unpin", "s", NOT_TEXT], 2, "request not made"),
    "client: label not text": (["client", "pin", "s", "s1", "--label", NOT_TEXT], 2, "request not made"),
    "client: pin below one": (["client", "pin", "s", "--at", "-3"], 2, "--at"),
    "client: fork below zero": (["client", "fork", "s", "--at", "-1"], 2, "--at"),
    "client: tokens of words": (["client", "generate", "--tokens", "a,b"], 2, "--tokens"),
    "client: endless token": (["client", "generate", "--tokens", "9" * 5000], 2, "--tokens"),
    "client: prompt not text": (["client", "generate", "-p", NOT_TEXT], 2, "request not made"),
    "client: session not text": (["client", "close", NOT_TEXT], 2, "request not made"),
    "client: half of TLS": (["client", "--tls-cert", "x", "info"], 2, "--tls-ca"),
    "client: TLS file missing": (["client", "--tls-ca", "none.pem", "info"], 2, "none.pem"),
    "client: token file missing": (["client", "--token-file", "none", "info"], 2, "none"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "part"), FLAGS.values(), ids=FLAGS)
def test_flags(
    arguments: list[str], code: int, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before anything is read or written: none of the named files exists."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"builtin.module {}"), "utf-8"))
    fails(arguments, code, part)
    assert entries(tmp_path) == []


BUILD_OPTIONS: dict[str, tuple[list[str], str]] = {
    "negative context": (["--context", "-5"], "--context: expected 1 to 4096"),
    "context above the model's": (["--context", "5000"], "--context: expected 1 to 4096"),
    "horizon above the context": (["--horizon", "513"], "--horizon: expected at most the context of 512"),
    "negative horizon": (["--horizon", "-1"], "--horizon: expected at least 0"),
    "rows above the context": (["--rows", "1000000000"], "--rows"),
    "no segments": (["--segments", "0"], "--segments: expected at least 1"),
    "too many segments": (["--segments", "1000000000"], "--segments: expected at most"),
    "logit rows above rows": (
        ["--rows", "4", "--logit-rows", "5"],
        "--logit-rows: expected at most --rows 4",
    ),
    "name not text": (["--name", NOT_TEXT], "--name"),
    "name with a line break": (["--name", "a\nb"], "--name"),
    "endless name": (["--name", "x" * 1000], "--name"),
}


@pytest.mark.parametrize(("options", "part"), BUILD_OPTIONS.values(), ids=BUILD_OPTIONS)
def test_build_options(checkpoint: Path, tmp_path: Path, options: list[str], part: str) -> None:
    fails(["build", checkpoint, "-o", tmp_path / "a" / "m", "--context", "512", *options], 2, part)
    assert entries(tmp_path) == []


def pickled(path: Path) -> None:
    np.save(path, np.array([{}]), allow_pickle=True)


def archive(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), a=np.arange(3))
    path.with_suffix(".npz").rename(path)


def array(values: object, dtype: str) -> Change:
    return lambda path: np.save(path, np.array(values, dtype))


def header(old: bytes, new: bytes) -> Change:
    """An array whose header says something else, of the same length."""

    def change(path: Path) -> None:
        np.save(path, np.arange(10))
        content = path.read_bytes()
        assert content.count(old) == 1
        path.write_bytes(content.replace(old, new))

    return change


TOKEN_FILES: dict[str, tuple[Change, int, str]] = {
    "missing": (lambda p: None, 2, "no such file"),
    "a folder": (Path.mkdir, 4, ".npy"),
    "empty": (lambda p: p.write_bytes(b""), 4, ".npy"),
    "text": (lambda p: p.write_text("1,2,3"), 4, ".npy"),
    "other bytes": (lambda p: p.write_bytes(b"\x80\x02}q\x00." * 50), 4, ".npy"),
    "cut": (lambda p: (array([1] * 50, "i8")(p), p.write_bytes(p.read_bytes()[:-3])), 4, ".npy"),
    "header of code": (header(b"'<i8'", b"a+b()"), 4, ".npy"),
    "header of no shape": (header(b"(10,)", b"'abc'"), 4, ".npy"),
    "header of a negative shape": (header(b"(10,)", b"(-9,)"), 4, ".npy"),
    "header of more than there is": (header(b"(10,), }      ", b"(9999999999,)}"), 4, ".npy"),
    "pickle": (pickled, 4, ".npy"),
    "archive": (archive, 4, ".npy"),
    "two dimensions": (array([[1]], "i4"), 4, "one-dimensional"),
    "no dimension": (array(1, "i4"), 4, "one-dimensional"),
    "no tokens": (array([], "i4"), 4, "at least one"),
    "reals": (array([1.0], "f4"), 4, "integer"),
    "truth values": (array([True], "?"), 4, "integer"),
    "beyond the vocabulary": (array([0, 160], "u2"), 2, "0 to 159, got 160"),
    "below zero": (array([0, -1], "i1"), 2, "0 to 159, got -1"),
    "beyond 64 bits": (array([2**64 - 1], "u8"), 2, "0 to 159"),
    "beyond the context": (array([1] * 513, "i4"), 2, "at most 512"),
}


@pytest.mark.parametrize(("make", "code", "part"), TOKEN_FILES.values(), ids=TOKEN_FILES)
def test_token_files(artifact: Path, tmp_path: Path, make: Change, code: int, part: str) -> None:
    make(tmp_path / "ids.npy")
    before = entries(tmp_path)
    fails(["logits", artifact, "--tokens", tmp_path / "ids.npy", "-o", tmp_path / "x.npy"], code, part)
    assert entries(tmp_path) == before


RESULTS: dict[str, tuple[str, str]] = {
    "a folder": (".", "a folder"),
    "no folder": ("none/x.npy", "No such file"),
}


@pytest.mark.parametrize(("place", "part"), RESULTS.values(), ids=RESULTS)
def test_places_of_a_result(artifact: Path, tmp_path: Path, place: str, part: str) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    fails(["logits", artifact, "--tokens", tmp_path / "ids.npy", "-o", tmp_path / place], 2, part)
    assert entries(tmp_path) == ["ids.npy"]


TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "IR text"),
    "other bytes": (b"\xff\xfe\x00", "UTF-8"),
    "cut": (b'builtin.module { "ds4.', "IR text"),
    "another language": (b"def f(): pass", "IR text"),
    "unknown operation": (b'builtin.module { "a.b"() : () -> () }', "a.b is not registered"),
    "deep nesting": (b"builtin.module {" * 3000, "IR text"),
}


@pytest.mark.parametrize("through_stdin", [False, True], ids=["file", "stdin"])
@pytest.mark.parametrize(("content", "part"), TEXTS.values(), ids=TEXTS)
def test_ir_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, part: str, through_stdin: bool
) -> None:
    (tmp_path / "x.mlir").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    fails(["opt", "-" if through_stdin else tmp_path / "x.mlir"], 4, part)


def test_ir_files_that_are_absent(tmp_path: Path) -> None:
    fails(["opt", tmp_path / "none"], 2, "no such file")
    fails(["opt", tmp_path], 4, "Is a directory")


TOKENS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda p: None, "No such file"),
    "a folder": (Path.mkdir, "Is a directory"),
    "empty": (lambda p: p.touch(0o600), "one token a line"),
    "only remarks": (lambda p: (p.touch(0o600), p.write_text("# none\n\n")), "one token a line"),
    "other bytes": (lambda p: (p.touch(0o600), p.write_bytes(b"\xff\xfe\xff\xfe" * 9)), "UTF-8"),
    "short": (lambda p: (p.touch(0o600), p.write_text("abc")), "at least 8"),
    "with spaces": (lambda p: (p.touch(0o600), p.write_text("a token of words")), "without spaces"),
    "open to all": (lambda p: (p.touch(), p.write_text("secret-token-1"), p.chmod(0o644)), "chmod 600"),
}


@pytest.mark.parametrize(("make", "part"), TOKENS.values(), ids=TOKENS)
def test_auth_token_files(tmp_path: Path, make: Callable[[Path], object], part: str) -> None:
    make(tmp_path / "tokens")
    line = fails(["serve", "x", "--auth-token-file", tmp_path / "tokens"], 2, part)
    assert "secret" not in line


PEM = b"-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [(None, 2, "No such file"), (b"\xff\x00", 2, "a PEM file"), (b"", 2, "a PEM file"), (PEM, 1, "TLS")],
    ids=["missing", "other bytes", "empty", "no certificate inside"],
)  # fmt: skip
def test_certificates(artifact: Path, tmp_path: Path, content: bytes | None, code: int, part: str) -> None:
    if content is not None:
        (tmp_path / "x.pem").write_bytes(content)
    files = ["--tls-cert", tmp_path / "x.pem", "--tls-key", tmp_path / "x.pem"]
    fails(["serve", artifact, "--grpc-listen", "127.0.0.1:0", *files], code, part)


PROMPTS: dict[str, tuple[list[str], bytes, str]] = {
    "beyond the context": (["-p", "hello world " * 2000], b"", "at most 512 in the session"),
    "not text": (["-p", NOT_TEXT], b"", "Unicode text"),
    "system not text": (["-p", "x", "--system", NOT_TEXT], b"", "Unicode text"),
    "stdin not text": (["-p", "-"], b"fine\xff", "UTF-8"),
    "huge seed": (["-p", "x", "--seed", HUGE], b"", "seed"),
    "no such share": (["-p", "x", "--top-p", "nan"], b"", "top_p"),
    "no such temperature": (["-p", "x", "--temperature", "inf"], b"", "temperature"),
}


@pytest.mark.parametrize(("options", "stdin", "part"), PROMPTS.values(), ids=PROMPTS)
def test_prompts(
    talking: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], stdin: bytes, part: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
    fails(["run", talking, *options], 4 if stdin else 2, part)


def test_a_chat_goes_on_after_bad_lines(
    talking: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        b"/rewind 99999",
        b"/rewind -1",
        b"/rewind",
        b"/nonsense",
        b"/undo",
        b"\xff\xfe",
        b"word " * 3000,
    ]
    typed = b"\n".join([*lines, b"What is rewind?"]) + b"\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), "utf-8"))
    from ds4c.cli.main import main

    assert main(["chat", str(talking), "--max-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    failures = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(failures) == len(lines), err
    for line in failures:
        check_line(line)
    assert out.strip(), "the good line is answered"


# --- the one description file in YAML: that of a target

YAMLS: dict[str, tuple[str | bytes, str]] = {
    "no YAML": ("variants: [", "YAML"),
    "other bytes": (b"\xff\xfe\x00", "UTF-8"),
    "empty": ("", "a mapping"),
    "a list": ("[1, 2]", "a mapping"),
    "nothing inside": ("{}", "variants"),
    "a variant of no features": ("variants: {generic: {llvm: {}}}\ndefault_variant_order: []", "features"),
    "an order of unknown variants": (
        "variants: {generic: {features: [avx2], llvm: {kind: llvm}}}\ndefault_variant_order: [best]",
        "default_variant_order",
    ),
    "code": ("!!python/object/apply:os.getcwd []", "YAML"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "part"), YAMLS.values(), ids=YAMLS)
def test_target_descriptions(tmp_path: Path, content: str | bytes, part: str) -> None:
    path = tmp_path / "target.yaml"
    rewrite(path, content)
    with pytest.raises(TargetError) as caught:
        cpu.read_description(path)
    check_line(f"error: {caught.value}", "target.yaml", part)


# --- addresses that are taken


def test_two_servers_on_one_port(artifact: Path, tmp_path: Path) -> None:
    """The second says so and goes; the first goes on."""
    with started("serve", artifact, "--grpc-listen", "127.0.0.1:0", temporary=tmp_path / "1") as first:
        assert first.process.stdout is not None
        address = first.process.stdout.readline().split()[-1]
        with started("serve", artifact, "--grpc-listen", address, temporary=tmp_path / "2") as second:
            code, out, err = second.finish()
        assert (code, out) == (1, "")
        check_line(err.strip(), "cannot listen", address, "choose another address")
        from ds4c.cli.main import main

        assert main(["client", "--addr", address, "info", "--json"]) == 0


SOCKETS: dict[str, tuple[Change, str, str]] = {
    "a file": (lambda f: (f / "s").write_text("x"), "s", "a socket or absent"),
    "a folder": (lambda f: (f / "s").mkdir(), "s", "a socket or absent"),
    "no folder": (lambda f: None, "none/s", "to be free and allowed"),
    "too long": (lambda f: None, "s" * 200, "at most 107 bytes"),
    "longer than any name": (lambda f: None, "s" * 300, "at most 107 bytes"),
}


@pytest.mark.parametrize(("prepare", "name", "part"), SOCKETS.values(), ids=SOCKETS)
def test_socket_files(artifact: Path, tmp_path: Path, prepare: Change, name: str, part: str) -> None:
    prepare(tmp_path)
    before = entries(tmp_path)
    fails(["serve", artifact, "--grpc-listen", f"unix:{tmp_path / name}"], 1, "cannot listen", part)
    assert entries(tmp_path) == before


def test_a_port_that_something_else_holds(artifact: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        fails(["serve", artifact, "--grpc-listen", address], 1, "cannot listen", address)


def test_inspect_of_nothing(tmp_path: Path, checkpoint: Path) -> None:
    fails(["inspect", tmp_path / "none"], 2, "got neither")
    source = linked_copy(checkpoint, tmp_path / "source")
    rewrite(source / "model.safetensors", b"x")
    fails(["inspect", source], 4, "model.safetensors")
    (source / "config.json").unlink()
    fails(["inspect", source], 2, "got neither")
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "deepseek_v4"
