"""Kernels of all GPU targets and how they become text; targets differ in their `target.yaml` only."""
