"""Kernels of every GPU target, and how they become text and binaries; targets differ in their `target.yaml` only."""
