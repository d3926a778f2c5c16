"""Rewind side by side: ours and other engines on one checkpoint and one grid, each in its own process.

`python -m benchmarks.peers_rewind` writes the table of docs/peers.md. `grid`, `ways`, `worker` and the
modules of the sides import nothing of ds4c but what their engine needs: mlx-vlm lives in an environment of
its own.
"""
