"""Loads an artifact and runs sessions on it: manifest, device, state, sessions, engine, sampler, text.

Needs no compiler: nothing here imports ds4c, TVM, xDSL or torch, and only `device/` imports tvm-ffi.
"""
