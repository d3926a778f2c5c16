"""Program to shared library, for targets whose kernels are TIR functions.

A target brings the kernels; here they get a host function for each entry point and become one
library, in a child process. How the code of an op looks does not belong here.
"""

from ds4c.lower.build import Toolchain, build_library

__all__ = ["Toolchain", "build_library"]
