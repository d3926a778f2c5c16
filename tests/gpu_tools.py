"""What tests of binaries need of the machine; without it they are skipped and say what is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ds4c.errors import TargetError


@pytest.fixture(scope="session")
def cuda_compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name and version of the CUDA compiler."""
    from ds4c_targets.cuda.compile import find_compiler

    return _or_skip(lambda: find_compiler(tmp_path_factory.mktemp("compiler")).version)


@pytest.fixture(scope="session")
def rocm_linker() -> str:
    """Name and version of the linker of code objects."""
    from ds4c_targets.rocm.binaries import find_linker

    return _or_skip(lambda: find_linker().version)


def _or_skip(find: Callable[[], str]) -> str:
    try:
        return find()
    except TargetError as error:
        pytest.skip(str(error))
