"""The command line as a whole: lazy commands, exit codes, one-line failures, clean stdout."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_executable import fake_engine
from port import CopyMode

from ds4c import errors
from ds4c.cli import common, main
from ds4c.cli.client import COMMANDS
from ds4c.cli.serve import announce
from ds4c_runtime import errors as runtime
from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import InvalidRequestError

ROOT = Path(__file__).resolve().parents[3]
PATHS = ":".join(str(ROOT / name) for name in (".", "runtime", "serve", "targets"))


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": PATHS, "PATH": "/usr/bin:/bin"},
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_code(
        "import sys; from ds4c.cli.main import main; code = main(['--help']);"
        "heavy = {'numpy', 'grpc', 'tvm', 'xdsl', 'ds4c_runtime', 'ds4c_serve', 'ds4c.cli.build'};"
        "print(sorted(heavy & set(sys.modules)), code)"
    )

    assert done.stdout.splitlines()[-1] == "[] 0"
    for name, line in main.COMMANDS.items():
        assert name in done.stdout
        assert line.split()[0] in done.stdout


@pytest.mark.parametrize("name", ["serve", "client", "doctor"])
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    printed = capsys.readouterr()
    assert f"Example: ds4c {name}" in printed.out
    assert printed.err == ""


def test_sub_commands_have_examples_too(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main.main(["client", name, "--help"]) == 0
        assert f"Example: ds4c client {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-command"], ["--no-such-option"], ["doctor", "--bad"], ["serve"], ["client"]]
)
def test_usage_errors_are_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert "--help" in printed.err


def test_version_names_package_and_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert "ds4c.v1" in capsys.readouterr().out


def test_doctor_prints_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["total"] > report["memory"]["available"] > 0
    assert report["packages"]["numpy"]
    assert "cpu" in report["devices"]


def test_doctor_asks_for_what_the_target_needs() -> None:
    from ds4c.cli import doctor
    from ds4c_targets.cpu import TARGET

    assert doctor.CPU_GENERIC == TARGET.variant_features("generic")


def test_environment_sets_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS4C_JSON", "1")
    assert main.main(["doctor"]) == 0
    assert json.loads(capsys.readouterr().out)["proto"] == "ds4c.v1"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CompileError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.CheckFailedError("x"), 3),
        (errors.MalformedInputError("x"), 4),
        (errors.TargetError("x"), 5),
        (errors.MemoryBudgetError("x"), 6),
        (runtime.ArtifactError("x"), 4),
        (runtime.DeviceError("x"), 5),
        (runtime.MemoryBudgetError("x"), 6),
        (runtime.InvalidRequestError("x", field="f"), 2),
        (runtime.BackendFailedError("x"), 1),
        (common.CommandFailure("x", common.ExitCode.UNREACHABLE), 7),
        (ModuleNotFoundError("No module named 'xdsl'", name="xdsl.ir"), 5),
        (FileNotFoundError(2, "No such file", "gone"), 1),
        (MemoryError("8 GiB"), 6),
    ],
)
def test_exit_codes_are_the_documented_ones(error: Exception, code: int) -> None:
    described = common.describe_failure(error)
    assert described is not None
    assert described[1] == code


def test_a_defect_keeps_its_traceback() -> None:
    assert common.describe_failure(ZeroDivisionError("x")) is None
    assert (
        common.describe_failure(ModuleNotFoundError("No module named 'ds4c.nope'", name="ds4c.nope")) is None
    )


def test_a_missing_extra_says_what_to_install() -> None:
    described = common.describe_failure(ModuleNotFoundError("No module named 'tvm'", name="tvm"))
    assert described is not None
    assert "pip install 'ds4c[build]'" in described[0]


def test_failures_are_folded_into_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_failure("first\n  second\n")
    assert capsys.readouterr().err == "error: first; second\n"


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("4096", 4096), ("3KiB", 3072), ("2GiB", 2 << 30), ("1 MiB", 1 << 20)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert common.parse_bytes(text, "--memory-budget") == count


@pytest.mark.parametrize("text", ["", "0", "-1", "GiB", "1.5GiB", "1GB", "4k", "²KiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(common.CommandFailure, match="--memory-budget"):
        common.parse_bytes(text, "--memory-budget")


def test_unreachable_server_is_exit_7_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["client", "--addr", f"127.0.0.1:{free_port()}", "info"]) == 7
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: server not reached")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["rewind", "s"], "--to, --drop and --to-snapshot, got 0"),
        (["rewind", "s", "--to", "1", "--drop", "1"], "--to, --drop and --to-snapshot, got 2"),
        (["plan", "s", "--to-snapshot", "s1", "--drop", "1"], "--to, --drop and --to-snapshot, got 2"),
        (["pin", "s"], "a snapshot id or --at"),
        (["pin", "s", "s1", "--at", "4"], "a snapshot id or --at"),
        (["pin", "s", "--at", "0"], "--at"),
        (["unpin", "s"], "SNAPSHOT"),
        (["rewind", "s", "--to", "-1"], "at least 0"),
        (["generate", "s", "-p", "a", "--tokens", "1"], "got both"),
        (["generate", "s", "--tokens", "1,-2"], "--tokens"),
    ],
)
def test_client_refuses_wrong_usage_before_it_calls(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["client", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--grpc-listen", "0.0.0.0:0"], "--auth-token-file"),
        (["--grpc-listen", "nonsense"], "HOST:PORT"),
        (["--metrics-listen", "nonsense"], "HOST:PORT"),
        (["--metrics-listen", "0.0.0.0:0"], "--auth-token-file"),
        (["--metrics-listen", "unix:/nowhere/s"], "--metrics-listen"),
        (["--tls-cert", "c.pem"], "--tls-key"),
        (["--memory-budget", "lots"], "--memory-budget"),
        (["--snapshot-budget", "none"], "--snapshot-budget"),
    ],
)
def test_serve_refuses_wrong_usage_before_it_loads(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.main(["serve", str(tmp_path / "no-artifact"), *arguments]) == 2
    printed = capsys.readouterr()
    assert named in printed.err
    assert printed.err.count("\n") == 1


def test_ready_is_one_line_and_goes_to_the_descriptor_too(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    engine = fake_engine(max_sessions=3)
    announce(["127.0.0.1:7", "unix:/x"], engine, writing)
    engine.shutdown(0)

    with os.fdopen(reading) as pipe:
        assert pipe.read() == "127.0.0.1:7 unix:/x\n"
    printed = capsys.readouterr()
    assert printed.out == f"ready: fake ({engine.manifest.artifact_id[:12]}) on 127.0.0.1:7 unix:/x\n"
    assert "3 sessions" in printed.err


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ds4c.cli.doctor.collect", interrupt)
    assert main.main(["doctor"]) == 130


def test_sigterm_ends_a_command_with_143() -> None:
    done = run_code(
        "import os, signal, sys\n"
        "from ds4c.cli.common import signals_as_exceptions\n"
        "with signals_as_exceptions():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert done.returncode == 143


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ([], CopyMode.DEVICE),
        (["--snapshot-copies", "host"], CopyMode.HOST),
        (["--snapshot-copies", "host-async"], CopyMode.HOST_ASYNC),
        (["--snapshot-copies", "host-pinned"], CopyMode.HOST_PINNED),
    ],
)
def test_serve_keeps_snapshots_where_it_is_told(
    arguments: list[str], mode: CopyMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def load(*_: object, **options: object) -> None:
        asked.append(options["copy_mode"])
        raise InvalidRequestError("enough", field="")

    monkeypatch.setattr(Engine, "load", load)
    artifact = tmp_path / "m"
    artifact.mkdir()
    assert main.main(["serve", str(artifact), "--grpc-listen", "127.0.0.1:0", *arguments]) != 0
    assert asked == [mode]
