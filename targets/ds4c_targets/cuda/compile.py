"""The compiling child of the cuda target: `python -m ds4c_targets.cuda.compile REQUEST.json`.

Options are those of exact arithmetic: no fast math, and products fused only as `--fmad` allows, which cannot
change a bit of our kernels, since they spell out every fused operation.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ds4c.errors import CompileError, TargetError
from ds4c.lower.child import answer, error_line, run_compiler
from ds4c_targets.cuda.binaries import COMPILER_NAME, PTX_NAME, TEXT_NAME, cubin_name

OPTIONS = ("--std=c++17", "--fmad=true")
INSTALL = "pip install 'ds4c[cuda-build]'"


class Compiler(Protocol):
    """One of the two compilers."""

    @property
    def version(self) -> str:
        """Name and version."""
        ...

    def cubin(self, text: Path, architecture: str) -> bytes:
        """Code for one architecture."""
        ...

    def ptx(self, text: Path, architecture: str) -> bytes:
        """PTX of the architecture."""
        ...


class Nvrtc:
    """NVRTC of the wheels, by its bindings."""

    def __init__(self, headers: Sequence[Path]) -> None:
        nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        self._nvrtc = nvrtc
        error, major, minor = nvrtc.nvrtcVersion()
        _expect_success(error, "nvrtcVersion")
        self.version = f"NVRTC {_installed('nvidia-cuda-nvrtc') or f'{major}.{minor}'}"
        error, known = nvrtc.nvrtcGetSupportedArchs()
        _expect_success(error, "nvrtcGetSupportedArchs")
        self._known = {f"sm_{number}" for number in known}
        self._includes = [f"--include-path={folder}" for folder in headers]

    def cubin(self, text: Path, architecture: str) -> bytes:
        """Code for one architecture."""
        return self._compile(text, architecture, architecture, "CUBIN")

    def ptx(self, text: Path, architecture: str) -> bytes:
        """PTX of the architecture."""
        data = self._compile(text, architecture, architecture.replace("sm_", "compute_"), "PTX")
        return data.rstrip(b"\0")

    def _compile(self, text: Path, architecture: str, wanted: str, form: str) -> bytes:
        if architecture.rstrip("af") not in self._known:
            raise _unknown(self.version, architecture)
        nvrtc = self._nvrtc
        options = [f"--gpu-architecture={wanted}", *OPTIONS, *self._includes]
        error, program = nvrtc.nvrtcCreateProgram(text.read_bytes(), TEXT_NAME.encode(), 0, [], [])
        _expect_success(error, "nvrtcCreateProgram")
        try:
            (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
            if int(error):
                raise _refused(
                    self.version, architecture, self._read(program, "ProgramLog").decode(errors="replace")
                )
            return self._read(program, form)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _read(self, program: Any, what: str) -> bytes:
        error, size = getattr(self._nvrtc, f"nvrtcGet{what}Size")(program)
        _expect_success(error, what)
        data = b" " * size
        (error,) = getattr(self._nvrtc, f"nvrtcGet{what}")(program, data)
        _expect_success(error, what)
        return data


class Nvcc:
    """The compiler of an installed toolkit."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path, self._folder = path, folder
        words = run_compiler("nvcc", [path, "--version"], folder).replace(",", " ").split()
        numbers = [word[1:] for word in words if word[0] == "V" and word[1:2].isdigit()]
        self.version = f"nvcc {numbers[0] if numbers else 'of unknown version'}"

    def cubin(self, text: Path, architecture: str) -> bytes:
        """Code for one architecture."""
        return self._compile(text, architecture, "--cubin")

    def ptx(self, text: Path, architecture: str) -> bytes:
        """PTX of the architecture."""
        return self._compile(text, architecture, "--ptx")

    def _compile(self, text: Path, architecture: str, form: str) -> bytes:
        output = self._folder / f"nvcc.{architecture}.{form.strip('-')}"
        command = [
            self._path,
            form,
            f"--gpu-architecture={architecture}",
            *OPTIONS,
            text.name,
            "-o",
            output.name,
        ]
        try:
            run_compiler(f"{self.version} for {architecture}", command, self._folder)
        except CompileError as error:
            if "Unsupported gpu architecture" in str(error):
                raise _unknown(self.version, architecture) from None
            raise
        return output.read_bytes()


def find_compiler(folder: Path, wanted: str = "any") -> Compiler:
    """The compiler to use: NVRTC before nvcc.

    Args:
        folder: where a program may write.
        wanted: `nvrtc`, `nvcc` or `any`.

    Raises:
        TargetError: there is none.
    """
    lacking: list[str] = []
    if wanted in ("any", "nvrtc"):
        headers = header_folders()
        if find_spec("cuda") and find_spec("cuda.bindings") and headers:
            try:
                return Nvrtc(headers)
            except (ImportError, OSError, RuntimeError) as error:
                lacking.append(f"NVRTC that does not load ({' '.join(str(error).split())[:200]})")
        else:
            lacking.append("no NVRTC")
    if wanted in ("any", "nvcc"):
        path = shutil.which("nvcc")
        if path is not None:
            return Nvcc(path, folder)
        lacking.append("no nvcc on the PATH")
    raise TargetError(f"cuda compiler: expected NVRTC or nvcc, got {' and '.join(lacking)}; {INSTALL}")


def header_folders() -> list[Path]:
    """Folders of the headers that come with the wheels; empty without them."""
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [path for root in roots for path in sorted(Path(root).glob("cu*/include"))]
    return [path for path in found if (path / "cuda_fp16.h").is_file()]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _expect_success(error: Any, what: str) -> None:
    if int(error):
        raise CompileError(f"NVRTC: expected success of {what}, got {error!r}; {INSTALL}")


def _refused(compiler: str, architecture: str, log: str) -> CompileError:
    line = error_line(log)
    return CompileError(
        f"{compiler} for {architecture}: expected text it accepts, got {line}; this is a defect of ds4c"
    )


def _unknown(compiler: str, architecture: str) -> TargetError:
    return TargetError(
        f"{compiler}: expected an architecture it knows, got {architecture}; choose another variant"
    )


def run(request: dict[str, Any]) -> None:
    """Compile `kernels.cu` in `request["folder"]`."""
    folder = Path(request["folder"])
    compiler = find_compiler(folder, request["compiler"])
    text, newest = folder / TEXT_NAME, request["newest"]
    jobs = {cubin_name(each): (compiler.cubin, each) for each in request["architectures"]}
    jobs[PTX_NAME] = (compiler.ptx, newest)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # the compilers run outside of the GIL
        made = {name: pool.submit(compile_, text, each) for name, (compile_, each) in jobs.items()}
        for name, future in made.items():
            (folder / name).write_bytes(future.result())
    (folder / COMPILER_NAME).write_text(compiler.version)


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], run))
