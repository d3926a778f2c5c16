"""Shared by all tests: which tests a machine can run, the random seed, hypothesis settings.

Fixtures of one topic live beside that topic, not here.
"""

import ctypes
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import shared_cache
from hypothesis import settings

pytest_plugins = ("artifacts", "cost", "time_limit")

shared_cache.use()  # before anything compiles or starts a process
CACHE = shared_cache.Count.now()
"""What the shared cache holds when this run begins."""

SEED = int(os.environ.get("DS4C_TEST_SEED", "20261129"))
"""Every random test draws from this number; the header of each run prints it."""

IN_CI = "CI" in os.environ

# No deadline: the machines are small and shared. CI repeats the same examples, a person's runs explore.
settings.register_profile("ds4c", deadline=None, print_blob=True, derandomize=IN_CI)
settings.load_profile("ds4c")


def _lacks_oracle() -> str | None:
    lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    return f"oracle: {' and '.join(lacking)} not installed; run `make oracle`" if lacking else None


def _lacks_device() -> str | None:
    return (
        None if os.environ.get("DS4C_TEST_DEVICE") else "device: set DS4C_TEST_DEVICE to the device to test"
    )


REQUIREMENTS: dict[str, Callable[[], str | None]] = {
    "oracle": _lacks_oracle,
    "device": _lacks_device,
}
"""Marker -> what this machine lacks for it, or None. Each test marked `peers` asks for its own engine."""


def pytest_report_header() -> str:
    return f"ds4c: seed {SEED} (DS4C_TEST_SEED), hypothesis {'derandomized' if IN_CI else 'random'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed again where a failure is read (the header is dropped by -q), and what the cache gave."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"ds4c: repeat with DS4C_TEST_SEED={SEED}")
    after = shared_cache.Count.now()
    if terminalreporter.config.getoption("--costs") or after != CACHE:
        terminalreporter.write_line(CACHE.line(after))
    shared_cache.expire()


COMPILING = frozenset({"built", "lab", "library"})
"""Fixtures that compile kernels, which takes ten seconds and more: tests with one are `slow`."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if COMPILING & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    reasons = {marker: lacks() for marker, lacks in REQUIREMENTS.items()}
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def server_log_as_before() -> Iterator[None]:
    """`ds4c serve` configures the server's log for its whole process."""
    logger = logging.getLogger("ds4c_serve")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture(scope="session", autouse=True)
def one_tvm_runtime() -> None:
    """Load the TVM runtime of the installed package before any artifact brings its own copy.

    A second copy aborts the process when it registers its functions. Artifacts do not load theirs where one
    is loaded; `import tvm`, which kernel tests do in the same process, always loads the package's.
    """
    package = importlib.util.find_spec("tvm")
    if package is None or package.origin is None:
        return
    if "torch" in sys.modules:
        importlib.import_module("tvm_ffi")  # brings libtvm_ffi.so, which the library needs
    else:
        sys.modules["torch"] = None  # tvm_ffi would import it: seconds that most test runs need not spend
        importlib.import_module("tvm_ffi")
        del sys.modules["torch"]
    library = Path(package.origin).parent / "lib" / "libtvm_runtime.so"
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def seed() -> int:
    """The seed of this run."""
    return SEED


@pytest.fixture
def rng() -> np.random.Generator:
    """A fresh generator from the seed of this run."""
    return np.random.default_rng(SEED)
