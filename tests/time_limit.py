"""A run that must end in time: after `DS4C_TEST_UNTIL` (seconds since 1970) no test begins.

What is left out is skipped with the reason and counted at the end, so that a run which was cut says so and
does not count as failed. A test that hangs is ended by pytest-timeout.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "DS4C_TEST_UNTIL"
REASON = "cut: no time left for it in this run"


def is_over() -> bool:
    """Whether the time of this run is over."""
    return time.time() > float(os.environ.get(VARIABLE) or "inf")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "a run for which there is no test counts as passed"
    parser.getgroup("ds4c").addoption("--may-be-empty", action="store_true", help=help_text)


@pytest.hookimpl(tryfirst=True)  # before any fixture is made
def pytest_runtest_setup() -> None:
    if is_over():
        pytest.skip(REASON)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--may-be-empty"):
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    cut = sum(REASON in str(report.longrepr) for report in skipped)
    if cut:
        ran = sum(len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "failed"))
        terminalreporter.write_line(f"ds4c: CUT by time: {cut} tests did not begin, {ran} ran")
