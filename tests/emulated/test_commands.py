"""The commands on artifacts for GPUs: with `--device emulator` they answer as on the CPU.

What needs execution is done on one target, since the device does not know which; on the other in `test-more`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from artifacts import Build, tokens_for
from bad_input.helpers import check_line, fails
from emulated.models import CUDA, EMULATOR, METAL, TARGETS
from sizes import more

from ds4c.cli.main import main

pytestmark = pytest.mark.slow

ON_EMULATOR = ("--device", EMULATOR)
PROMPT = "What is rewind?"


@pytest.mark.parametrize("target", [more(CUDA), METAL])
def test_run_answers_as_the_cpu(built: Build, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["-p", PROMPT, "--max-tokens", "40"]
    assert main(["run", str(built("demo").artifact), *command]) == 0
    expected = capsys.readouterr().out
    assert expected.strip()
    assert main(["run", str(built("demo", target=target).artifact), *command, *ON_EMULATOR]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("target", [CUDA, more(METAL)])
def test_logits_do_not_depend_on_chunks(built: Build, target: str, tmp_path: Path) -> None:
    """And are near those of the CPU."""
    made = built("tiny-8", target=target)
    ids = tmp_path / "ids.npy"
    np.save(ids, np.array(tokens_for(made.config, 70, seed=9)))

    def logits(artifact: Path, name: str, *options: str) -> bytes:
        path = tmp_path / name
        assert main(["logits", str(artifact), "--tokens", str(ids), "-o", str(path), *options]) == 0
        return np.load(path).tobytes()

    whole = logits(made.artifact, "whole.npy", *ON_EMULATOR)
    assert logits(made.artifact, "parts.npy", "--chunks", "1,6,13", *ON_EMULATOR) == whole
    cpu = np.frombuffer(logits(built("tiny-8").artifact, "cpu.npy"), np.float32)
    assert np.abs(np.frombuffer(whole, np.float32) - cpu).max() <= 2e-4 * np.abs(cpu).max()


@pytest.mark.parametrize("target", [CUDA, more(METAL)])
def test_bench_measures_steps(built: Build, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(built("tiny-8", target=target).artifact)
    assert main(["bench", artifact, "--context", "16", "--repeats", "3", "--json", *ON_EMULATOR]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("target", [*TARGETS, "rocm:gfx1100"])
def test_verify_and_inspect_read_the_kernels(
    built: Build, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = str(built("tiny-8", target=target).artifact)
    assert main(["verify", artifact, "--json"]) == 0
    count = json.loads(capsys.readouterr().out)["kernels"]
    assert count > 20
    assert main(["inspect", artifact, "--kernels"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (at,) = [i for i, words in enumerate(lines) if words[:2] == ["variant", "function"]]
    assert len(lines) - at - 1 == count
    assert all(int(words[-1]) >= 1 for words in lines[at + 1 :]), "every kernel is launched"


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_verify_runs_rewinds(built: Build, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(built("tiny-8", target=target).artifact)
    assert main(["verify", artifact, "--rewind", "--json", *ON_EMULATOR]) == 0
    assert json.loads(capsys.readouterr().out)["rewind"]["sweep"]["in_place"] > 0


@pytest.mark.parametrize("target", [*TARGETS, "rocm:gfx1100"])
@pytest.mark.parametrize("command", [["run", "-p", PROMPT], ["bench"], ["verify", "--rewind"]])
def test_without_the_device_one_line(
    built: Build, target: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, (first, *rest) = target.partition(":")[0], command
    if first == "verify":  # its first lines of stdout are results
        assert main([first, str(built("tiny-8", target=target).artifact), *rest]) == 5
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        check_line(errors[0], name)
        return
    fails([first, built("tiny-8", target=target).artifact, *rest], 5, name)
