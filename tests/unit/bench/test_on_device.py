"""The device script: what it installs, how it chooses, what it writes; its small table is for `test-more`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.on_device import FULL, SMALL, find_variant, model_config, to_markdown
from ds4c.passes.target import get_target

ROOT = Path(__file__).parents[3]


def test_a_machine_gets_what_its_device_needs() -> None:
    path = ROOT / "tests/device/requirements.py"
    spec = importlib.util.spec_from_file_location("requirements", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for device, wanted in [("cuda", "cuda-bindings"), ("rocm", "hip-python"), ("metal", "pyobjc")]:
        found = module.requirements(device)
        assert any(each.startswith(wanted) for each in found)
        assert any(each.startswith("pytest") for each in found)
        assert not any(each.startswith("ruff") for each in found)
    assert any(each.startswith("nvidia-cuda-nvrtc") for each in module.requirements("emulator"))


@pytest.mark.parametrize(
    ("target", "description", "wanted"),
    [
        ("cuda", "NVIDIA H200, sm_90, driver for CUDA 12.8", "sm_90"),
        ("cuda", "NVIDIA A10, sm_86, driver for CUDA 12.8", ""),
        ("rocm", "AMD Instinct MI300X, gfx942, HIP 7.2", "gfx942"),
        ("metal", "Apple M4 Pro", ""),
    ],
)
def test_kernels_are_built_for_the_card(target: str, description: str, wanted: str) -> None:
    assert find_variant(get_target(target), description) == wanted


def test_the_stack_has_every_kind_of_layer_with_true_shapes() -> None:
    config = model_config(FULL)
    assert set(config.compress_ratios) == {0, 4, 128}
    assert len(config.compress_ratios) == len(config.hash_layers) == config.num_hidden_layers
    assert (config.hidden_size, config.head_dim, config.num_experts_per_tok) == (4096, 512, 6)
    assert model_config(SMALL).hidden_size == 64


def test_the_table_names_the_card() -> None:
    row = {"what": "GEMV", "microseconds": 1234.56, "rate": "1 GB/s", "note": "50% of copy"}
    report = {"device": "NVIDIA X", "name": "cuda", "target": "cuda:sm_90", "date": "d", "rows": [row]}
    text = to_markdown(report)
    assert text.startswith("# NVIDIA X\n")
    assert "| GEMV | 1,234.6 | 1 GB/s | 50% of copy |" in text


def test_the_script_refuses_what_it_does_not_know() -> None:
    done = subprocess.run([ROOT / "tests/device/run.sh", "--fast"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "run.sh: expected --device, --small, --wheels or --out, got --fast\n",
    )


@pytest.mark.more
def test_a_small_table_on_the_emulator(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.on_device", "--device", "emulator", "--small"]
    paths = ":".join(str(ROOT / part) for part in ("", "runtime", "serve", "targets"))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([*command, "--out", tmp_path], cwd=ROOT, check=True, env=environment)
    report = json.loads((tmp_path / "device.json").read_text())
    begins = {row["what"].split()[0] for row in report["rows"]}
    assert begins == {"copy", "GEMV", "GEMM", "1000", "attention,", "chunk", "decode", "rewind"}
    kinds = {row["note"].split(",")[0] for row in report["rows"] if row["what"].startswith("rewind")}
    assert kinds == {"in_place", "snapshot", "snapshot_replay"}
    assert (tmp_path / "device.md").read_text().startswith("# ")
