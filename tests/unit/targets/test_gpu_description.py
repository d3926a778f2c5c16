"""Descriptions of the GPU targets: what ships is complete, anything else is refused in one line."""

from __future__ import annotations

import importlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import ds4c_targets
from ds4c.errors import TargetError
from ds4c_targets.gpu.description import read_description
from ds4c_targets.gpu.target import GpuTarget
from ds4c_targets.gpu.tuning import Tuning

ROOT = Path(ds4c_targets.__file__).parent
NAMES = ("cuda", "rocm", "metal")
VARIANTS = {
    "cuda": {"sm_80": 32, "sm_90": 32, "sm_120": 32},
    "rocm": {"gfx942": 64, "gfx1100": 32, "gfx1151": 32, "gfx1201": 32},
    "metal": {f"apple-m{n}": 32 for n in range(1, 6)},
}


def target(name: str) -> GpuTarget:
    return importlib.import_module(f"ds4c_targets.{name}").TARGET


@pytest.mark.parametrize("name", NAMES)
def test_what_ships(name: str) -> None:
    found = target(name).description
    assert found.name == name
    assert {v.name: v.wave for v in found.variants} == VARIANTS[name]
    assert found.memory == ("unified" if name == "metal" else "discrete")
    assert found.passes[-1] == "fuse-linear"
    formats = sorted(p.stem for p in (ROOT / "gpu" / "formats").glob("[a-z]*.py") if p.stem != "base")
    assert sorted(found.weight_dtypes) == formats


def test_targets_differ_in_numbers_only() -> None:
    """The kernels are one source: where the numbers are equal, so are the functions."""
    assert len({target(name).description.tuning for name in NAMES}) == 1


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("sm_90", "sm_90"), ("sm_90+sm_120", "sm_90+sm_120"), ("sm_120+sm_80", "sm_120+sm_80"),
     ("", "sm_80+sm_90+sm_120"), ("all", "sm_90+sm_120+sm_80")],
)  # fmt: skip
def test_variants_by_name(text: str, chosen: str) -> None:
    assert target("cuda").resolve_variant(text) == chosen


@pytest.mark.parametrize(
    "text", ["sm_70", "sm_90+", "+", "sm_90+sm_90", "sm_90,sm_120", "all+sm_90", " sm_90"]
)
def test_other_variants_are_refused(text: str) -> None:
    with pytest.raises(TargetError) as caught:
        target("cuda").resolve_variant(text)
    line = str(caught.value)
    assert line.startswith(
        "cuda variant: expected some of sm_90, sm_120, sm_80, each once and joined by +, got "
    )


def contents() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "cuda" / "target.yaml").read_text())


def refused(tmp_path: Path, given: object) -> str:
    path = tmp_path / "target.yaml"
    path.write_text(yaml.safe_dump(given))
    with pytest.raises(TargetError) as caught:
        read_description(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: expected ")
    assert line.endswith("; install ds4c again")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("key", contents())
def test_every_key_is_needed(key: str, tmp_path: Path) -> None:
    given = contents()
    del given[key]
    assert key in refused(tmp_path, given)
    assert key in refused(tmp_path, {**contents(), key: 5})


@pytest.mark.parametrize("key", [f.name for f in fields(Tuning)])
def test_every_number_of_a_kernel_is_in_the_file(key: str, tmp_path: Path) -> None:
    given = contents()
    del given["tuning"][key]
    assert key in refused(tmp_path, given)
    given["tuning"][key] = ["many"]
    assert key in refused(tmp_path, given)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("more", 1, "unknown key 'more'"),
        ("name", "tpu", "'tpu'"),
        ("variants", {}, "variants with limits"),
        ("variants", {"sm_90": None}, "missing key 'threads'"),
        ("default_variants", ["sm_70"], "default_variants of sm_120, sm_80, sm_90"),
        ("default_variants", [], "default_variants of sm_120, sm_80, sm_90"),
    ],
)
def test_other_contents_are_refused(key: str, value: object, part: str, tmp_path: Path) -> None:
    assert part in refused(tmp_path, {**contents(), key: value})


def test_blocks_larger_than_a_device_has(tmp_path: Path) -> None:
    given = contents()
    given["variants"]["sm_80"]["threads"] = 128
    assert "blocks of at most 128 threads, got 256" in refused(tmp_path, given)
