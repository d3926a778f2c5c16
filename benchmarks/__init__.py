"""Speed of ds4c beside other engines on the same weights; `make bench` runs all of it.

Not part of the installed package: run it from a checkout, `python -m benchmarks --help`.
"""
