"""The cpu target: x86-64 processors with AVX2 or AVX-512, kernels compiled by TVM.

Importing it does not import tvm; compilation does so in a child process.
"""

from ds4c_targets.cpu.target import TARGET, CpuTarget

__all__ = ["TARGET", "CpuTarget"]
