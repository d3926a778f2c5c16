"""CUDA text to one cubin for each architecture, and PTX for the newest, without a GPU or a driver.

NVRTC from the wheels of the extra `cuda-build` is preferred; else `nvcc` of a toolkit is used. Which of them
it was, and its version, is for the artifact; nothing of theirs becomes part of it. The compiler runs in a
child process (`compile.py`), which compiles for several architectures at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ds4c.errors import TargetError
from ds4c.lower.child import run_child
from ds4c_targets.gpu.binaries import record_compiler

TEXT_NAME = "kernels.cu"
PTX_NAME = "kernels.ptx"
COMPILER_NAME = "compiler.txt"
"""Where the child leaves the name and version of the compiler."""


def cubin_name(architecture: str) -> str:
    """File name of the cubin of an architecture such as `sm_90`."""
    return f"kernels.{architecture}.cubin"


def build_binaries(folder: Path, architectures: Sequence[str], compiler: str = "any") -> str:
    """Compile `kernels.cu` of a folder into `kernels.sm_90.cubin` and so on, and `kernels.ptx`, beside it.

    Args:
        folder: of temporary files.
        architectures: such as `sm_90`, at least one, each once.
        compiler: `nvrtc`, `nvcc`, or `any` for the first that is there.

    Returns:
        Name and version of the compiler.

    Raises:
        TargetError: there is no compiler, or it does not know an architecture.
        CompileError: it refused the text or died.
    """
    for each in architectures:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", each):
            raise TargetError(
                f"cuda architecture: expected a name such as sm_90, got {each!r}; choose another"
            )
    request = {
        "folder": str(folder),
        "architectures": list(architectures),
        "newest": max(architectures, key=_number),
        "compiler": compiler,
    }
    outputs = [folder / name for name in (*binary_names(architectures), COMPILER_NAME)]
    run_child("ds4c_targets.cuda.compile", request, outputs, "cuda compiler")
    return (folder / COMPILER_NAME).read_text()


def finish(folder: Path, variants: Sequence[str], log: Callable[[str], None]) -> Sequence[str]:
    """Make the binaries of the text in a folder; gives the names of the files to ship, the text included."""
    version = build_binaries(folder, variants)
    record_compiler(folder, version)
    log(f"{version}: {' '.join(variants)}")
    return (TEXT_NAME, *binary_names(variants))


def binary_names(architectures: Sequence[str]) -> tuple[str, ...]:
    """File names of the binaries."""
    return (*(cubin_name(each) for each in architectures), PTX_NAME)


def _number(architecture: str) -> int:
    """The number of an architecture; larger is newer."""
    return int(re.sub(r"\D", "", architecture))
