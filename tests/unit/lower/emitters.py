"""Emitters that fail in every way a compiling child can."""

from __future__ import annotations

import os
import signal
from typing import Any

from ds4c.errors import TargetError
from ds4c.ir.kernel import KernelSpec


def emit_kernel(spec: KernelSpec, variant: str) -> Any:
    """The variant names the failure."""
    if variant == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if variant == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if variant == "exit":
        os._exit(7)
    if variant == "target":
        raise TargetError(f"toy kernel: expected another op, got {spec.op}")
    raise ValueError(f"no such failure\n{variant}")
