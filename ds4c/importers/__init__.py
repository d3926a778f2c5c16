"""Readers of checkpoints: bounded, checked, one set of tensor names."""
