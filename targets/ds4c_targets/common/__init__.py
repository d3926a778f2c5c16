"""What the kernels of every target share: expressions, statements, and exact mathematics."""
