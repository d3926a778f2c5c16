"""Kernel emitters of the cpu target, one file for each family of ops; `emit.py` lists them."""
