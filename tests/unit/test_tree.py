"""The shape of the repository: what must be there, what must be nowhere, what the metadata promises."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {
    ".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".cfg", ".proto", ".mlir", ".sh", ".json", ".txt", "",
}  # fmt: skip

# Folders of one machine. `shared` is a folder that stands beside some checkouts; nothing may need it.
MACHINE_PATHS = re.compile(r"(?<![\w.-])/(?:work|root|mnt|Users)/|/home/(?!runner)\w|(?<![\w-])shared/\w")


def tracked_files() -> list[Path]:
    """What git knows of, or everything but caches where the tree is no git checkout."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        return [Path(name) for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]
    skip = {".venv", "out", "__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache"}
    found = [file.relative_to(ROOT) for file in ROOT.rglob("*") if file.is_file()]
    return [file for file in found if not skip & set(file.parts)]


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        ".ci/run",
        "demo/MODEL_CARD.md",
        "demo/model/config.json",
        "serve/proto/ds4c/v1/engine.proto",
    ],
)
def test_file_exists(name: str) -> None:
    assert (ROOT / name).is_file()


@pytest.mark.parametrize(
    "package", ["ds4c", "runtime/ds4c_runtime", "serve/ds4c_serve", "targets/ds4c_targets"]
)
def test_package_is_typed_and_documented(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    first_line = (ROOT / package / "__init__.py").read_text().splitlines()[0]
    assert first_line.startswith('"""')


def test_every_package_folder_has_an_init() -> None:
    """A folder without `__init__.py` is left out of a wheel in silence."""
    roots = [
        ROOT / name for name in ("ds4c", "runtime/ds4c_runtime", "serve/ds4c_serve", "targets/ds4c_targets")
    ]
    folders = {file.parent for root in roots for file in root.rglob("*.py")}
    lacking = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()]
    assert lacking == []


def test_files_of_packages_that_are_no_python_are_in_the_wheel() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = [
        pattern if package == "*" else f"{package.replace('.', '/')}/{pattern}"
        for package, every in tool["package-data"].items()
        for pattern in every
    ]
    roots = [root for root in tool["packages"]["find"]["where"] if root != "."]
    left_out: list[str] = []
    for file in tracked_files():
        inside = file.relative_to(file.parts[0]) if file.parts[0] in roots else file
        if inside.parts[0].startswith("ds4c") and len(inside.parts) > 1 and inside.suffix != ".py":
            if not any(inside.match(pattern) for pattern in patterns):
                left_out.append(str(file))
    assert left_out == []


def test_machine_path_pattern() -> None:
    for text in ("/".join(["", "work", "main"]), "../" + "shared" + "/design", "see `" + "shared" + "/x`"):
        assert MACHINE_PATHS.search(text), text
    for text in ("network/main", "shared_experts/w1", "a/b-shared/x", "gpu shared memory"):
        assert not MACHINE_PATHS.search(text), text


def test_no_machine_paths() -> None:
    here = Path(__file__).resolve().relative_to(ROOT)
    hits: list[str] = []
    for path in tracked_files():
        if path == here or path.suffix not in TEXT_SUFFIXES or path.name == "tokenizer.json":
            continue
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATHS.search(line):
                hits.append(f"{path}:{number}: {line.strip()[:80]}")
    assert hits == []


def test_nothing_large_is_tracked() -> None:
    """The bundled weights are the largest files; anything above them came in by mistake."""
    sizes = {str(path): (ROOT / path).stat().st_size for path in tracked_files()}
    assert {name: size for name, size in sizes.items() if size > 7_000_000} == {}


def test_every_extra_and_script_is_declared() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert {"build", "test", "oracle"} <= set(extras)
    base = project()["dependencies"]
    assert isinstance(base, list)
    banned = re.compile(r"^(apache-tvm(?!-ffi)|xdsl|torch|transformers|safetensors|pytest)")
    assert [line for line in base if banned.match(str(line))] == []
    assert any(str(line).startswith("apache-tvm-ffi==") for line in base), "apache-tvm-ffi must be pinned"


@pytest.mark.parametrize("group", ["ds4c.targets", "ds4c.devices"])
def test_entry_points_resolve(group: str) -> None:
    """The names in pyproject.toml lead to objects (checked on the installed package where there is one)."""
    try:
        importlib.metadata.version("ds4c")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("ds4c is not installed here, only on the path; run `make setup`")
    found = importlib.metadata.entry_points(group=group)
    assert "cpu" in found.names
    for entry in found:
        assert entry.load() is not None
