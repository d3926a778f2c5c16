"""All pass tests use the stand-in target of `example_modules`."""

from collections.abc import Iterator

import pytest
from example_modules import fake_target


@pytest.fixture(autouse=True)
def _no_real_target() -> Iterator[None]:
    with fake_target():
        yield
