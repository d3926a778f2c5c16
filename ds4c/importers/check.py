"""Check of a whole checkpoint against its configuration, with all problems in one message."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import MalformedInputError
from ds4c.importers.safetensors import MAX_LISTED, Checkpoint, Progress, some
from ds4c.models.tensors import TensorRole, TensorSpec

_BLOCK_ELEMENTS = 1 << 20
_EXPONENT_MASKS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "float32": (np.uint32, 0x7F800000),
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
}
"""Per float type: unsigned type of the same width, and the exponent bits (all set = NaN or infinite)."""


def check_checkpoint(checkpoint: Checkpoint, progress: Progress | None = None) -> None:
    """Check every tensor of `checkpoint`; see `Checkpoint.check`.

    Raises:
        MalformedInputError: One or more tensors are missing, unknown or wrong.
    """
    expected = checkpoint.architecture.tensors(checkpoint.config)
    problems: list[str] = []
    missing = [name for name in expected if name not in checkpoint]
    if missing:
        problems.append(f"{len(missing)} missing: {some(missing)}")
    if checkpoint.extra_names:
        extra = list(checkpoint.extra_names)
        problems.append(f"{len(extra)} unexpected: {some(extra)}")
    wrong: list[str] = []
    for name in checkpoint.names():
        problem = _tensor_problem(checkpoint, name, expected[name])
        if problem is not None:
            wrong.append(f"{name}: {problem}")
        if progress is not None:
            progress(name, checkpoint.info(name).num_bytes)
    if wrong:
        rest = len(wrong) - MAX_LISTED
        more = f"; and {rest} more" if rest > 0 else ""
        problems.append(f"{len(wrong)} wrong: " + "; ".join(wrong[:MAX_LISTED]) + more)
    if problems:
        raise MalformedInputError(
            f"{checkpoint.folder}: tensors do not fit config.json: expected those it describes, "
            f"got {' | '.join(problems)}"
        )


def first_not_finite(values: NDArray[Any]) -> int | None:
    """Find the first NaN or infinite element, as an index into the flattened array.

    Looks at exponent bits, block by block, so that 16-bit types need no conversion.

    Args:
        values: float32, float16 or `ml_dtypes.bfloat16`, contiguous.
    """
    unsigned, mask = _EXPONENT_MASKS[values.dtype.name]
    bits = values.reshape(-1).view(unsigned)
    buffer = np.empty(min(_BLOCK_ELEMENTS, bits.size), dtype=unsigned)
    for start in range(0, bits.size, _BLOCK_ELEMENTS):
        block = bits[start : start + _BLOCK_ELEMENTS]
        exponents = np.bitwise_and(block, unsigned(mask), out=buffer[: block.size])
        if exponents.max() == mask:
            return start + int(np.argmax(exponents == mask))
    return None


def _tensor_problem(checkpoint: Checkpoint, name: str, spec: TensorSpec) -> str | None:
    """Say what is wrong with one tensor that is present; None if nothing is."""
    info = checkpoint.info(name)
    if info.shape != spec.shape:
        return f"expected shape {list(spec.shape)}, got {list(info.shape)}"
    if spec.role.is_integer != info.dtype.startswith("I"):
        return f"expected {'an integer' if spec.role.is_integer else 'a float'} type, got {info.dtype}"
    values = checkpoint.load(name)
    if spec.role is TensorRole.INDEX:
        low, high = int(values.min()), int(values.max())
        limit = spec.limit
        return None if 0 <= low and high < limit else f"expected ids in [0, {limit}), got {low} to {high}"
    position = first_not_finite(values)
    if position is None:
        return None
    index = [int(part) for part in np.unravel_index(position, values.shape)]
    return f"expected finite values, got {values[tuple(index)]} at {index}"
