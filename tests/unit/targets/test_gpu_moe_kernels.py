"""The kernels of `test_moe_kernels.py` as CUDA and Metal text on the emulator."""

import pytest
from unit.targets.gpu_lab import on_gpu

pytestmark = pytest.mark.slow
globals().update(on_gpu("test_moe_kernels"))
