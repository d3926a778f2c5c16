"""What `make test-more` runs: load, a soak, fuzzing, and real clients in environments of their own.

Each test skips with a reason where it cannot run. No part is for browsers: nothing is served to them yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from artifacts import Build
from more.servers import ServeProcess


@pytest.fixture(scope="session")
def demo(built: Build) -> Path:
    """The artifact of the bundled model for this machine's CPU."""
    return built("demo").artifact


@pytest.fixture
def start(demo: Path, tmp_path: Path) -> Iterator[Callable[..., ServeProcess]]:
    """Start `ds4c serve` on the bundled model; every server must drain and say nothing of a defect."""
    servers: list[ServeProcess] = []

    def start_one(*options: str) -> ServeProcess:
        servers.append(ServeProcess(demo, tmp_path / f"log{len(servers)}", *options))
        return servers[-1]

    yield start_one
    codes = [server.end() for server in servers]
    logs = [server.log.read_text() for server in servers]
    assert codes == [0] * len(servers), logs
    assert not any("Traceback" in log for log in logs), logs
