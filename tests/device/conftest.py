"""Tests that need a device: `DS4C_TEST_DEVICE` names it, `DS4C_TEST_SMALL` makes them short."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from artifacts import Build, Built

from ds4c_runtime.devices import probe_devices
from ds4c_runtime.local import LocalModel, open_local

NAME = os.environ.get("DS4C_TEST_DEVICE", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/device/" in item.path.as_posix()]
    for item in here:
        item.add_marker(pytest.mark.device)
        if not NAME:
            item.add_marker(pytest.mark.skip(reason="no device: set DS4C_TEST_DEVICE=cuda, rocm or metal"))


@dataclass(frozen=True)
class OnDevice:
    """The device under test and artifacts for it."""

    built: Build
    name: str
    is_small: bool

    def artifact(self, model: str) -> Built:
        """For the target of the device; the emulator runs CUDA text."""
        return self.built(model, target="cuda" if self.name == "emulator" else self.name)

    def open(self, model: str, **options: Any) -> LocalModel:
        return open_local(self.artifact(model).artifact, device=self.name, **options)


@pytest.fixture(scope="session")
def on_device(built: Build) -> OnDevice:
    (status,) = (s for s in probe_devices() if s.name == NAME)
    assert status.is_usable, status.detail
    return OnDevice(built, NAME, bool(os.environ.get("DS4C_TEST_SMALL")))
