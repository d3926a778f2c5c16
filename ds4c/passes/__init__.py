"""Passes over `ds4` modules, one file each; `pipeline` lists them in order. Imports no target and no tvm."""
