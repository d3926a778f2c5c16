"""What needs the base install only, seen without one: these processes can import no module of an extra.

`tests/more/test_deploy.py` does the same from a wheel in a new environment.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from artifacts import DEMO, Build

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "runtime", "serve", "targets"))
EXTRAS = ("tvm", "xdsl", "safetensors", "ml_dtypes", "torch", "transformers")
WITHOUT_EXTRAS = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from ds4c.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
COMMAND = (sys.executable, "-c", WITHOUT_EXTRAS)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PATHS}


def ds4c(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd="/",
        timeout=120,
        check=False,
    )


def test_the_extras_are_absent_in_these_processes() -> None:
    done = ds4c("opt", "--list")
    assert done.returncode == 5, done.stdout + done.stderr
    assert "extra `build`" in done.stderr


def test_serve_generate_and_rewind(built: Build) -> None:
    with subprocess.Popen(
        [*COMMAND, "serve", str(built("demo").artifact), "--grpc-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd="/",
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            assert found is not None
            call = ("client", "--addr", found.group())
            assert ds4c(*call, "open", "chat").returncode == 0
            arguments = ("-p", "What is rewind?", "--max-tokens", "24", "--ignore-eos", "--json")
            first = ds4c(*call, "generate", "chat", *arguments)
            assert first.returncode == 0, first.stderr
            assert ds4c(*call, "rewind", "chat", "--to", "0").returncode == 0
            again = ds4c(*call, "generate", "chat", *arguments)
            tokens = json.loads(first.stdout)["token_ids"]
            assert (json.loads(again.stdout)["token_ids"], len(tokens)) == (tokens, 24)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_reading_and_running_an_artifact(built: Build) -> None:
    artifact = built("demo").artifact
    shown = ds4c("inspect", artifact, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["model"]["architecture"] == "deepseek_v4"
    ran = ds4c("run", artifact, "-p", "What is rewind?", "--max-tokens", "8")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_building_says_which_extra_is_missing(tmp_path: Path) -> None:
    done = ds4c("build", DEMO, "-o", tmp_path / "m")
    assert done.returncode == 5
    assert "extra `build`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "m").exists()
