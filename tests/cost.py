"""What tests cost: CPU-seconds by file and folder; heavy files first where several workers share them.

A test costs the CPU time of its process and of the children that were waited for, from the end of the last
test to its own end, fixtures included. `tests/durations.json` keeps the sum of each file of a cold run; only
the order comes from there, so a wrong number costs time and nothing else.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Cpu:
    """CPU-seconds of a process and of its children that ended and were waited for."""

    own: float = 0.0
    children: float = 0.0

    @classmethod
    def now(cls) -> Cpu:
        """Since this process began."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.process_time(), ended.ru_utime + ended.ru_stime)

    @property
    def both(self) -> float:
        """The sum."""
        return self.own + self.children

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.own + other.own, self.children + other.children)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.own - other.own, self.children - other.children)


@dataclass
class Costs:
    """Costs of a run by file; `start` is what workers needed until their first test: imports, collection."""

    files: dict[str, Cpu] = field(default_factory=dict)
    start: Cpu = Cpu()
    last: Cpu = Cpu()

    def add(self, file: str, cost: Cpu) -> None:
        """One phase of one test."""
        self.files[file] = self.files.get(file, Cpu()) + cost

    def table(self) -> list[str]:
        """One line for each folder, the costliest first, and their sum."""
        folders: dict[str, Cpu] = {}
        for file, cost in self.files.items():
            folder = str(Path(file).parent.relative_to("tests"))
            folders[folder] = folders.get(folder, Cpu()) + cost
        rows = sorted(folders.items(), key=lambda row: -row[1].both)
        rows.append(("(until the first test)", self.start))
        rows.append(("all", sum((cost for _, cost in rows), Cpu())))
        return [
            f"  {name:24} {c.both:8.1f} CPU-s   own {c.own:8.1f}   children {c.children:8.1f}"
            for name, c in rows
        ]


COSTS = pytest.StashKey[Costs]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ds4c")
    group.addoption("--costs", action="store_true", help="print CPU-seconds of tests by folder")
    group.addoption(
        "--write-durations", action="store_true", help="write what files cost to tests/durations.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COSTS] = Costs()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Controller(config), "ds4c-costs")


@pytest.hookimpl(trylast=True)  # what `-m` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one process alone runs them as they stand
        order_by_cost(items, read_durations())


def order_by_cost(items: list[Any], costs: Mapping[str, float]) -> None:
    """Sort tests by the cost of their file, the costliest first; what is not known costs the median."""
    usual = statistics.median(costs.values()) if costs else 0.0
    items.sort(key=lambda item: -costs.get(file_of(item.nodeid), usual))


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


def read_durations() -> dict[str, float]:
    """CPU-seconds by file, as a run wrote them."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def merged(before: Mapping[str, float], files: Mapping[str, Cpu], present: Sequence[str]) -> dict[str, float]:
    """The old costs with those of a run in their place; files that are gone are left out."""
    costs = {**before, **{file: round(cost.both, 1) for file, cost in files.items()}}
    return {file: costs[file] for file in sorted(costs) if file in present}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    costs = session.config.stash[COSTS]
    costs.start = costs.last = Cpu.now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    costs, now = item.config.stash[COSTS], Cpu.now()
    spent = now - costs.last
    costs.last = now
    report.ds4c_cpu = [spent.own, spent.children]  # travels from a worker with the report
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        start = session.config.stash[COSTS].start
        session.config.workeroutput["ds4c_start"] = [start.own, start.children]
    elif session.config.getoption("--write-durations"):
        present = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
        found = merged(read_durations(), session.config.stash[COSTS].files, present)
        DURATIONS.write_text(json.dumps(found, indent=1) + "\n")


class Controller:
    """What only the process that prints needs; of xdist's hooks none exists without xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self.costs = config.stash[COSTS]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.costs.start += Cpu(*getattr(node, "workeroutput", {}).get("ds4c_start", (0, 0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.costs.add(file_of(report.nodeid), Cpu(*getattr(report, "ds4c_cpu", (0, 0))))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if config.getoption("--costs"):
            terminalreporter.write_line("ds4c: CPU-seconds by folder of tests")
            for line in self.costs.table():
                terminalreporter.write_line(line)
