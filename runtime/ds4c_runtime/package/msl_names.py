"""Names that our Metal text may use; a name that is not here is a misspelling or not ours to use.

Source: Metal Shading Language Specification 3.2, chapters 2 (types), 4 (address spaces), 5.2 (attributes of
kernel functions) and 6 (library).
"""

from __future__ import annotations

from collections.abc import Mapping

SCALARS: Mapping[str, int] = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2,
    "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8,
}  # fmt: skip
"""Bytes of each scalar type."""

_LANES = {"": 1, "2": 2, "3": 4, "4": 4}
TYPE_BYTES: Mapping[str, int] = {
    scalar + suffix: size * lanes for scalar, size in SCALARS.items() for suffix, lanes in _LANES.items()
}
"""Bytes of each type; a vector of 3 takes the room of one of 4."""

DTYPES: Mapping[str, str] = {
    "float": "float32", "half": "float16", "uchar": "uint8", "char": "int8", "ushort": "uint16",
    "int": "int32", "uint": "uint32", "long": "int64",
}  # fmt: skip
"""Our names of the types that a kernel takes pointers to."""

SPACES = ("device", "constant", "threadgroup", "thread")
BUFFER_SPACES = ("device", "constant")
MAX_BUFFERS = 31

BUILTINS: Mapping[str, tuple[str, ...]] = {
    "threadgroup_position_in_grid": ("uint", "uint2", "uint3"),
    "thread_position_in_threadgroup": ("uint", "uint2", "uint3"),
    "thread_index_in_threadgroup": ("uint",),
    "thread_index_in_simdgroup": ("uint",),
    "simdgroup_index_in_threadgroup": ("uint",),
}
"""Attributes of parameters that are no buffers, and the types they may have."""

POSITIONS = ("threadgroup_position_in_grid", "thread_position_in_threadgroup")
"""Attributes whose parameters must have equally many components."""

FUNCTIONS: Mapping[str, int] = {
    "threadgroup_barrier": 1, "simdgroup_barrier": 1,
    "simd_shuffle": 2, "simd_shuffle_xor": 2, "simd_shuffle_up": 2, "simd_shuffle_down": 2,
    "fma": 3, "sqrt": 1, "rsqrt": 1, "rint": 1, "round": 1, "floor": 1, "ceil": 1, "trunc": 1,
    "fabs": 1, "abs": 1, "min": 2, "max": 2, "fmin": 2, "fmax": 2, "clamp": 3, "select": 3,
    "exp": 1, "exp2": 1, "log": 1, "log2": 1, "popcount": 1, "clz": 1, "ctz": 1, "isnan": 1, "isinf": 1,
}  # fmt: skip
"""Library functions and their numbers of arguments."""

KEYWORDS = ("if", "else", "for", "while", "do", "break", "continue", "return", "const", "true", "false")
CONSTANTS = ("INFINITY", "NAN")
FLAGS = ("mem_none", "mem_device", "mem_threadgroup")
