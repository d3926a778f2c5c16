"""Sessions on disk: a log of each history apart from a file of its state. Knows no kernels and no engine."""
