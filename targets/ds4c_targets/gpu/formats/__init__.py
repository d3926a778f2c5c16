"""Weight formats, a file each: how a matrix lies in memory and how a kernel reads it. No tvm until it reads.

A module of this package defines `FORMAT`; its name is that of the dtype of operands.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ds4c.errors import TargetError
from ds4c_targets.gpu.formats.base import Format, Vector

__all__ = ["Format", "Vector", "format_of", "formats"]


@cache
def formats() -> dict[str, Format]:
    """Every format by the dtype of its operands."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")
    found: list[Format] = [importlib.import_module(f"{__name__}.{name}").FORMAT for name in names]
    return {f.name: f for f in found}


def format_of(dtype: str) -> Format:
    """The format of a weight matrix.

    Raises:
        TargetError: no format has that name.
    """
    known = formats()
    if dtype not in known:
        raise TargetError(f"gpu weight: expected a format of {', '.join(known)}, got {dtype}")
    return known[dtype]
