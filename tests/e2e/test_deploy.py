"""Deployment: the artifact goes to another folder, a server runs there from the base install alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from artifacts import DEMO, Build

pytestmark = [pytest.mark.e2e, pytest.mark.more]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a new virtual environment with ds4c and nothing of the `build` extra."""
    folder = tmp_path_factory.mktemp("deploy") / "venv"
    venv.create(folder, with_pip=True)
    source = folder.parent / "source"
    ignored = shutil.ignore_patterns(".venv", ".git", "out", "demo", "tests", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignored)
    done = subprocess.run(
        [folder / "bin" / "pip", "install", "-q", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def deployed(built: Build, base_install: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("server") / "m"
    shutil.copytree(built("demo").artifact, target)
    return target


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def ds4c(base_install: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [base_install / "ds4c", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd="/",
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def server(base_install: Path, deployed: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [
            *(base_install / "ds4c", "serve", str(deployed), "--grpc-listen", "127.0.0.1:0"),
            *("--metrics-listen", "127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        cwd="/",
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found, line
        yield f"127.0.0.1:{found.group(1)}"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_environment_lacks_the_compiler(base_install: Path) -> None:
    for module in ("tvm", "xdsl", "torch", "safetensors"):
        done = subprocess.run(
            [base_install / "python", "-c", f"import {module}"], capture_output=True, check=False
        )
        assert done.returncode != 0, f"{module} is installed"


def test_serve_generate_and_rewind(base_install: Path, server: str) -> None:
    call = ("client", "--addr", server)
    opened = ds4c(base_install, *call, "open", "chat", "--json")
    assert opened.returncode == 0, opened.stderr
    prompt = "<｜User｜>What is rewind?<｜Assistant｜></think>"
    arguments = ("-p", prompt, "--parse-special", "--max-tokens", "24", "--ignore-eos", "--json")
    first = ds4c(base_install, *call, "generate", "chat", *arguments)
    assert first.returncode == 0, first.stderr
    before = json.loads(first.stdout)
    rewound = ds4c(base_install, *call, "rewind", "chat", "--to", "0", "--json")
    assert rewound.returncode == 0, rewound.stderr
    again = json.loads(ds4c(base_install, *call, "generate", "chat", *arguments).stdout)
    assert again["token_ids"] == before["token_ids"]
    assert len(again["token_ids"]) == 24


def test_reading_commands_work_from_the_base_install(base_install: Path, deployed: Path) -> None:
    shown = ds4c(base_install, "inspect", str(deployed), "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["model"]["architecture"] == "deepseek_v4"
    assert ds4c(base_install, "doctor", "--json").returncode == 0
    ran = ds4c(base_install, "run", str(deployed), "-p", "What is rewind?", "--max-tokens", "8")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_building_says_which_extra_is_missing(base_install: Path, tmp_path: Path) -> None:
    done = ds4c(base_install, "build", str(DEMO), "-o", str(tmp_path / "m"))
    assert done.returncode == 5
    assert "extra `build`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "m").exists()
