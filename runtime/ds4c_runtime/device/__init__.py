"""Devices: where the arenas live and who runs the kernels. The only place that may load tvm-ffi."""
