"""Tests of stored sessions need the order of calls, not a disk that obeys: syncs of a busy disk take long."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
