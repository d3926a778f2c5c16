"""Only `tests/port.py` reaches into engine, session, store and device; a unit test may reach into its module.

Found are names with an underscore of another object or module, also as the text that `setattr` and the like
take; names of the runtime's inner parts; and imports of its inner modules. What a class does with its own
`self._x` is its own affair.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PORT = "port.py"
INNER_MODULES = frozenset(
    {
        "engine_core", "engine_sessions", "engine_snapshots", "extents", "first_use", "progress", "registry",
        "residency", "session_base", "snapshot", "snapshot_pool", "snapshot_ring", "state", "step",
        "timeline", "transport", "worker",
    }
)  # fmt: skip
"""Of `ds4c_runtime`: parts that may be cut in another way without a change of what an engine does."""
INNER_PARTS = frozenset({"lease", "ring", "stepper", "timeline", "transport"})
INNER_CALLS = frozenset({"check_integrity", "forget_state", "poison_dead_rows", "poison_free"})
STORE_PARTS = frozenset({"free_pages", "page_count", "max_sessions", "pages", "snapshots", "states"})
"""Of the store of states; a folder of stored sessions, which tests call a store too, has none of them."""
DOCUMENTED = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})
"""Underscores that the standard library documents."""
BY_TEXT = frozenset({"delattr", "getattr", "hasattr", "setattr"})
PRIVATE = re.compile(r"_[A-Za-z]\w*")
INNER_TEXT = re.compile(
    rf"ds4c_runtime\.(?:{'|'.join(sorted(INNER_MODULES))})\b.*|ds4c\w*\.(?:\w+\.)*_[a-z]\w*"
)


def own_module(file: str) -> str | None:
    """The inner module that a file is the unit test of."""
    path = Path(file)
    if path.parent != Path("unit/runtime") or not path.name.startswith("test_"):
        return None
    name = path.stem.removeprefix("test_")
    fitting = [module for module in INNER_MODULES if name == module or name.startswith(f"{module}_")]
    return max(fitting, key=len, default=None)


def offences(file: str, source: str) -> list[str]:
    """`file:line: what` of everything that belongs into the port."""
    if file == PORT:
        return []
    is_unit = own_module(file) is not None
    found: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(source)):
        for what, is_inner in _offences_of(node):
            if not (is_inner and is_unit):
                found.add((getattr(node, "lineno", 0), what))
    return [f"{file}:{line}: {what}" for line, what in sorted(found)]


def _offences_of(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """What is wrong with a node, and whether a unit test of an inner module may do it."""
    if isinstance(node, ast.Attribute):
        if PRIVATE.fullmatch(node.attr) and node.attr not in DOCUMENTED and not _is_self(node.value):
            yield f".{node.attr}", False
        if node.attr in INNER_PARTS and not _is_self(node.value):
            yield f".{node.attr}", True
        if node.attr in INNER_CALLS:
            yield f".{node.attr}", True
        if node.attr in STORE_PARTS and isinstance(node.value, ast.Attribute) and node.value.attr == "store":
            yield f".store.{node.attr}", True
    elif isinstance(node, ast.ImportFrom):
        yield from _offences_of_import(node)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.removeprefix("ds4c_runtime.") in INNER_MODULES:
                yield f"import {alias.name}", True
    elif isinstance(node, ast.Call):
        yield from _offences_of_call(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and INNER_TEXT.fullmatch(node.value):
        yield f'"{node.value}"', True


def _offences_of_import(node: ast.ImportFrom) -> Iterator[tuple[str, bool]]:
    module = node.module or ""
    names = [alias.name for alias in node.names]
    if module.removeprefix("ds4c_runtime.") in INNER_MODULES:
        yield f"from {module}", True
    for name in names:
        if module == "ds4c_runtime" and name in INNER_MODULES:
            yield f"from {module} import {name}", True
        if PRIVATE.fullmatch(name):
            yield f"from {module} import {name}", False


def _offences_of_call(node: ast.Call) -> Iterator[tuple[str, bool]]:
    """`setattr(x, "_name")` and the like, also that of `monkeypatch`."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name not in BY_TEXT or len(node.args) < 2 or _is_self(node.args[0]):
        return
    text = node.args[1]
    if isinstance(text, ast.Constant) and isinstance(text.value, str) and PRIVATE.fullmatch(text.value):
        yield f'{name} of "{text.value}"', False


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_only_the_port_reaches_inside() -> None:
    files = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
    assert files.keys() >= {PORT}
    found = {file: offences(file, path.read_text()) for file, path in files.items()}
    wrong = [line for lines in found.values() for line in lines]
    assert wrong == [], "say it by tests/port.py:\n" + "\n".join(wrong)


def test_every_inner_module_is_there() -> None:
    folder = TESTS.parent / "runtime" / "ds4c_runtime"
    assert {name for name in INNER_MODULES if not (folder / f"{name}.py").is_file()} == set()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("engine._store", "._store"),
        ("pool = session.timeline", ".timeline"),
        ("machine.session.timeline.floor", ".timeline"),
        ("session.line.ring.entries", ".ring"),
        ("self.session.lease", ".lease"),
        ("model.stepper", ".stepper"),
        ("thing.check_integrity()", ".check_integrity"),
        ("self.poison_free()", ".poison_free"),
        ("model.store.snapshots.arena", ".store.snapshots"),
        ("self.model.store.pages", ".store.pages"),
        ("elf_writer._metadata(1)", "._metadata"),
        ("from ds4c.lower.compile import _link", "from ds4c.lower.compile import _link"),
        ("from ds4c_runtime.state import StateStore", "from ds4c_runtime.state"),
        ("from ds4c_runtime import timeline", "from ds4c_runtime import timeline"),
        ("import ds4c_runtime.registry", "import ds4c_runtime.registry"),
        ("patch.setattr(memory, '_huge_pages', 1)", 'setattr of "_huge_pages"'),
        ("getattr(engine, '_worker')", 'getattr of "_worker"'),
        (
            "patch('ds4c_runtime.snapshot_pool.SnapshotPool.reserve')",
            '"ds4c_runtime.snapshot_pool.SnapshotPool.',
        ),
        ("patch('ds4c_serve.server._sessions')", '"ds4c_serve.server._sessions"'),
    ],
)
def test_what_is_inside_is_found(line: str, what: str) -> None:
    (found,) = offences("rewind/test_x.py", f"\n{line}\n")
    assert found.startswith(f"rewind/test_x.py:2: {what}")


@pytest.mark.parametrize(
    "line",
    [
        "self._own",
        "cls._own",
        "super()._own()",
        "session.__class__",
        "report._replace(kind=1)",
        "os._exit(1)",
        "self.ring",
        "session.snapshots()",
        "kept.store.bytes_used",
        "machine.snapshots",
        "from ds4c_runtime.session import Session",
        "from ds4c_runtime.store.state_file import read",
        "setattr(self, '_own', 1)",
        "'ds4c_runtime.device'",
    ],
)
def test_what_is_not_inside_is_no_offence(line: str) -> None:
    assert offences("rewind/test_x.py", line) == []


def test_a_unit_test_may_use_its_module_but_no_underscore() -> None:
    source = "from ds4c_runtime.snapshot_ring import Entry\npool.check_integrity()\npool._rings\n"
    assert own_module("unit/runtime/test_snapshot_pool.py") == "snapshot_pool"
    assert offences("unit/runtime/test_snapshot_pool.py", source) == [
        "unit/runtime/test_snapshot_pool.py:3: ._rings"
    ]
    for file in (
        "unit/runtime/test_snapshots.py",
        "unit/runtime/store/test_state.py",
        "rewind/test_state.py",
    ):
        assert own_module(file) is None
        assert len(offences(file, source)) == 3
    assert offences(PORT, source) == []
