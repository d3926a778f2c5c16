"""Artifacts and checkpoints that the tests damage copies of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from artifacts import DEMO, Build

from ds4c.models.generate import write_checkpoint
from ds4c.models.presets import PRESETS


@pytest.fixture(scope="session")
def artifact(built: Build) -> Path:
    """An artifact without a tokenizer."""
    return built("tiny-8").artifact


@pytest.fixture(scope="session")
def talking(built: Build) -> Path:
    """An artifact with a tokenizer."""
    return built("demo").artifact


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good checkpoint without a tokenizer, of which tests change copies."""
    folder = tmp_path_factory.mktemp("good") / "checkpoint"
    write_checkpoint(PRESETS["tiny-8"], folder, 1)
    return folder


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good checkpoint of three shards and an index."""
    folder = tmp_path_factory.mktemp("good") / "sharded"
    write_checkpoint(PRESETS["tiny-8"], folder, 1, shards=3)
    return folder


@pytest.fixture
def talking_checkpoint(tmp_path: Path) -> Path:
    """A copy of the bundled model."""
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))
