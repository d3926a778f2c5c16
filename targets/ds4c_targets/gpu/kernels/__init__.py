"""Kernels by family; each function gives the launches of one kernel in order."""
