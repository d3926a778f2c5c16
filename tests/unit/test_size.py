"""Hard limits on the size of files and functions; over them a second topic has crept in."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
SOURCE_FOLDERS = ("ds4c", "runtime", "serve", "targets", "demo", "tools", "tests", "benchmarks")


def is_generated(path: Path) -> bool:
    return "_pb2" in path.name


def is_kernel(path: Path) -> bool:
    """Kernels of a target: loop nests written out for the compiler, not for the reader's eye."""
    return path.parts[0] == "targets" and any("kernel" in part for part in path.parts[1:])


def python_files() -> list[Path]:
    """Files with limits, from the root."""
    found = [file for folder in SOURCE_FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    paths = [file.relative_to(ROOT) for file in found]
    return [path for path in paths if not is_generated(path) and not is_kernel(path)]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def long_functions(source: str, limit: int) -> list[str]:
    """`name: lines` of every function longer than `limit` lines, from `def` to its last line."""
    sizes = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(ast.parse(source))}
    return [f"{name}: {lines} lines" for name, lines in sizes.items() if lines > limit]


def test_there_are_files_to_measure() -> None:
    assert len(python_files()) > 20


def test_a_long_function_is_found() -> None:
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES))
    assert long_functions(f"def f():\n{body}\n", MAX_FUNCTION_LINES) == [f"f: {MAX_FUNCTION_LINES + 1} lines"]
    assert long_functions(f"def f():\n{body}\n", MAX_FUNCTION_LINES + 1) == []


def test_what_has_no_limit_is_generated_or_a_kernel() -> None:
    assert is_generated(Path("serve/ds4c_serve/v1/engine_pb2.py"))
    assert is_kernel(Path("targets/ds4c_targets/gpu/kernels/linear.py"))
    assert not is_generated(Path("serve/ds4c_serve/server.py"))
    assert not is_kernel(Path("tests/unit/targets/test_row_kernels.py"))


def test_every_file_and_function_is_short_enough() -> None:
    """All that are not are listed."""
    found: list[str] = []
    for path in python_files():
        source = (ROOT / path).read_text()
        lines = source.count("\n")
        if lines > MAX_FILE_LINES:
            found.append(f"{path}: expected at most {MAX_FILE_LINES} lines, got {lines}; split it")
        if lines >= MAX_FUNCTION_LINES:  # a shorter file has no longer function
            found += [f"{path}: {each}" for each in long_functions(source, MAX_FUNCTION_LINES)]
    assert not found, "\n".join(found)
