"""Exit codes: of every class of the error trees, as README.md gives them, and no class without one."""

import importlib
import re
from pathlib import Path

import pytest

from ds4c.cli.common import ExitCode, describe_failure
from ds4c.errors import Ds4cError
from ds4c_runtime.errors import RuntimeFailure

README = Path(__file__).resolve().parents[2] / "README.md"
MODULES = ("ds4c.errors", "ds4c_runtime.errors", "ds4c_serve.errors")
FAILED, USAGE, CHECK_FAILED, MALFORMED, UNUSABLE, MEMORY, UNREACHABLE = range(1, 8)

EXIT_CODES = {
    "ds4c.errors": {
        "Ds4cError": FAILED,
        "CompileError": FAILED,
        "UsageError": USAGE,
        "CheckFailedError": CHECK_FAILED,
        "MalformedInputError": MALFORMED,
        "TargetError": UNUSABLE,
        "MemoryBudgetError": MEMORY,
    },
    "ds4c_runtime.errors": {
        "RuntimeFailure": FAILED,
        # What the caller gave is wrong, whatever the state of the session.
        "InvalidRequestError": USAGE,
        "ContextLengthError": USAGE,
        "PositionOutOfRangeError": USAGE,
        # Right as such, refused by the state of things now.
        "UnknownSessionError": FAILED,
        "UnknownSnapshotError": FAILED,
        "SessionExistsError": FAILED,
        "StaleContinuationError": FAILED,
        "SessionBusyError": FAILED,
        "RewindTooDearError": FAILED,
        "QueueFullError": FAILED,
        "SessionLimitError": FAILED,
        "DrainingError": FAILED,
        "NotInArtifactError": FAILED,
        "StateInvalidError": FAILED,
        "NoTokenizerError": FAILED,
        "NoProgressError": FAILED,
        "BackendFailedError": FAILED,
        "StoreFailedError": FAILED,
        "ArtifactError": MALFORMED,
        "StoredFileError": MALFORMED,
        "DeviceError": UNUSABLE,
        "MemoryBudgetError": MEMORY,
        "DeviceMemoryError": MEMORY,
    },
    "ds4c_serve.errors": {"LoadingError": FAILED, "UnauthenticatedError": FAILED},
}


def classes(module: str) -> dict[str, type[Exception]]:
    """The error classes that a module defines, whatever they derive from."""
    return {
        name: found
        for name, found in vars(importlib.import_module(module)).items()
        if isinstance(found, type) and issubclass(found, BaseException) and found.__module__ == module
    }


@pytest.mark.parametrize("module", MODULES)
def test_every_class_has_the_exit_code_of_the_table(module: str) -> None:
    assert {name: cls.exit_code for name, cls in classes(module).items()} == EXIT_CODES[module]


@pytest.mark.parametrize("module", MODULES)
def test_the_command_line_ends_with_that_code(module: str) -> None:
    for name, cls in classes(module).items():
        # Constructors take facts, which do not matter here.
        bare = type(name, (cls,), {"__init__": lambda self, *_: None})
        described = describe_failure(bare("one line"))
        assert described is not None, name
        assert described[1] == EXIT_CODES[module][name], name


def test_no_other_module_adds_to_the_trees() -> None:
    """An error of ours in another module would have no line in the table."""
    for module in ("ds4c.build", "ds4c.cli.main", "ds4c_runtime.engine", "ds4c_serve.server", "ds4c_targets"):
        importlib.import_module(module)
    found = [Ds4cError, RuntimeFailure]
    for cls in found:
        found += cls.__subclasses__()
    packages = ("ds4c.", "ds4c_runtime.", "ds4c_serve.", "ds4c_targets.")
    assert {cls.__module__ for cls in found if cls.__module__.startswith(packages)} <= set(MODULES)


def test_the_codes_are_those_of_the_documents() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    said = re.search(r"stable exit code: (.*?), 130/143 signals\.", text)
    assert said is not None
    assert said.group(1) == (
        "1 failed, 2 usage, 3 check failed, 4 malformed input, 5 target or device not usable, 6 memory, "
        "7 no server"
    )
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILED": FAILED,
        "USAGE": USAGE,
        "CHECK_FAILED": CHECK_FAILED,
        "MALFORMED": MALFORMED,
        "UNUSABLE": UNUSABLE,
        "MEMORY": MEMORY,
        "UNREACHABLE": UNREACHABLE,
        "INTERRUPTED": 128 + 2,
        "TERMINATED": 128 + 15,
    }
