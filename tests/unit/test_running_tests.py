"""What runs the tests: their cost, order, cache and time limit, and the CPU-seconds of a whole command."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cost
import pytest
import shared_cache
import time_limit
from cost import Costs, Cpu

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "tools" / "measured.py"
BURN = "import time\nwhile time.process_time() < {0}: pass"


@dataclass(frozen=True)
class Item:
    """Of a test, what its order depends on."""

    nodeid: str


def test_heavy_files_come_first_and_unknown_ones_between() -> None:
    items = [Item(f"{file}::test_{i}") for file in ("light", "new", "heavy", "usual") for i in (2, 1)]
    cost.order_by_cost(items, {"heavy": 9.0, "light": 0.5, "usual": 2.0})
    assert [item.nodeid for item in items] == [
        f"{file}::test_{i}" for file in ("heavy", "new", "usual", "light") for i in (2, 1)
    ]


def test_new_costs_replace_old_ones_and_files_that_are_gone_go() -> None:
    before = {"tests/a.py": 5.0, "tests/b.py": 2.0, "tests/gone.py": 1.0}
    found = cost.merged(before, {"tests/a.py": Cpu(1.0, 2.04)}, ["tests/a.py", "tests/b.py"])
    assert found == {"tests/a.py": 3.0, "tests/b.py": 2.0}


def test_the_table_adds_up_files_of_a_folder() -> None:
    costs = Costs(start=Cpu(4.0, 0.0))
    for file, spent in (("unit/ir/test_a.py", 1.0), ("unit/ir/test_b.py", 2.0), ("rewind/test_c.py", 5.0)):
        costs.add(f"tests/{file}", Cpu(spent, 0.5))
    numbers = {line.split("CPU-s")[0].rsplit(None, 1)[0].strip(): line.split()[-5:] for line in costs.table()}
    assert list(numbers) == ["rewind", "unit/ir", "(until the first test)", "all"]
    assert numbers["unit/ir"] == ["CPU-s", "own", "3.0", "children", "1.0"]
    assert numbers["all"] == ["CPU-s", "own", "12.0", "children", "1.5"]


@pytest.mark.slow
def test_workers_begin_with_heavy_files_and_send_what_tests_cost(tmp_path: Path) -> None:
    """With the options of the Makefile."""
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("test_a", "test_b", "test_c"):
        (folder / f"{name}.py").write_text(
            f"def test_x():\n    {BURN.format(0.3)}\n".replace("\nwhile", "\n    while")
        )
    (tmp_path / "conftest.py").write_text(
        "import cost\ncost.read_durations = lambda: {'tests/test_a.py': 1, 'tests/test_c.py': 9}\n"
    )
    makefile = (ROOT / "Makefile").read_text()
    workers = next(line for line in makefile.splitlines() if line.startswith("WORKERS :="))
    options = workers.partition(":=")[2].replace("-n 2", "-n 1").split()
    command = [sys.executable, "-m", "pytest", "-v", "-p", "cost", "--costs", *options, "tests"]
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    passed = [line.split()[-1] for line in run.stdout.splitlines() if "PASSED" in line]
    assert passed == [f"tests/{name}.py::test_x" for name in ("test_c", "test_b", "test_a")]
    assert "(until the first test)" in run.stdout


def test_an_entry_of_the_cache_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_cache.VARIABLE, str(tmp_path))
    before = shared_cache.Count.now()
    with pytest.raises(ZeroDivisionError):
        shared_cache.entry("kernels", "x", lambda path: path.write_text(str(1 / 0)))
    assert shared_cache.Count.now() == before, "half an entry"
    assert shared_cache.entry("kernels", "x", lambda path: path.write_text("1")).read_text() == "1"
    assert shared_cache.entry("kernels", "x", lambda path: path.write_text("2")).read_text() == "1"
    after = shared_cache.Count.now()
    assert "cache cold" in before.line(after)
    assert "kernels 0 found 1 made" in before.line(after)
    assert "cache warm" in after.line(after)


def test_old_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_cache.VARIABLE, str(tmp_path))
    old, new = (
        shared_cache.entry("artifacts", name, lambda path: (path.mkdir(), (path / "f").write_text("")))
        for name in ("old", "new")
    )
    past = time.time() - 15 * 86_400
    os.utime(old, (past, past))
    shared_cache.expire()
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.slow
def test_the_digest_reads_every_source_that_a_build_imports() -> None:
    """Listed by a process that imports the compiler, all targets and their compiling children."""
    code = (
        "import sys, ds4c.build, ds4c.lower.build, ds4c.passes.target as t\n"
        "for name in ('cpu', 'cuda', 'metal', 'rocm'): t.get_target(name)\n"
        "names = ('ds4c', 'ds4c_targets', 'ds4c_runtime')\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] in names), sep='\\n')"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {Path(line).resolve() for line in run.stdout.splitlines()}
    assert len(imported) > 40
    assert imported - {path.resolve() for path in shared_cache.compiler_sources()} == set()


def test_no_test_begins_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(time_limit.VARIABLE, raising=False)
    assert not time_limit.is_over()
    for seconds, over in ((60, False), (-1, True)):
        monkeypatch.setenv(time_limit.VARIABLE, str(time.time() + seconds))
        assert time_limit.is_over() == over


@pytest.mark.slow
def test_a_run_that_is_cut_passes_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import time\ndef test_1(): time.sleep(1.5)\ndef test_2(): 1 / 0\n")
    environment = {
        **os.environ,
        "PYTEST_ADDOPTS": "",
        "PYTHONPATH": str(ROOT / "tests"),
        time_limit.VARIABLE: str(time.time() + 1e9),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "time_limit", "--may-be-empty", "test_a.py"]
    whole = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (whole.returncode, "1 failed, 1 passed" in whole.stdout, "CUT" in whole.stdout) == (1, True, False)
    (tmp_path / "conftest.py").write_text(
        "import time, time_limit\ntime_limit.is_over = lambda n=[]: n.append(1) or len(n) > 1"
    )
    cut = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (cut.returncode, "1 passed, 1 skipped" in cut.stdout) == (0, True)
    assert "CUT by time: 1 tests did not begin, 1 ran" in cut.stdout
    none = subprocess.run(
        [*command, "-k", "no"], cwd=tmp_path, env=environment, check=False, capture_output=True
    )
    assert none.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another parent")
def test_orphans_are_counted_too() -> None:
    """A grandchild whose parent does not wait for it, and one that outlives all."""
    burn = f'{sys.executable} -c "{BURN.format(1)}"'
    script = f"({burn} &) ; {burn}; sleep 60 >/dev/null 2>&1 & exit 3"
    command = [sys.executable, str(MEASURED), "it", "--budget", "1", "--", "sh", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 3
    found = re.search(r"it: (\d+) CPU-seconds of all its processes", run.stdout)
    assert found is not None
    assert int(found[1]) >= 2 * 1, run.stdout
    assert "budget 1 CPU-seconds: EXCEEDED" in run.stdout
    assert "outlived its command and was ended" in run.stderr
    assert "sleep 60" in run.stderr


def test_minutes_become_a_time_unless_an_earlier_one_is_set() -> None:
    spec = importlib.util.spec_from_file_location("measured", MEASURED)
    assert spec is not None
    assert spec.loader is not None
    measured = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measured)
    now = time.time()
    assert measured.until(25, "") == pytest.approx(now + 1500, abs=5)
    assert measured.until(25, str(now + 60)) == now + 60
    assert measured.until(25, str(now + 6000)) == pytest.approx(now + 1500, abs=5)
