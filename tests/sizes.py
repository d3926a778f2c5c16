"""Parameters of tests that only some runs take: `pytest` alone none of these, `make test` the slow ones."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: object) -> Any:
    """A parameter set that `pytest` alone leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def more(*values: object) -> Any:
    """A parameter set that only `make test-more` runs."""
    return pytest.param(*values, marks=pytest.mark.more)
