"""Fixtures that several modules of target tests use."""

from gpu_tools import cuda_compiler, rocm_linker

__all__ = ["cuda_compiler", "rocm_linker"]
