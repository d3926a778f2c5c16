"""Attention and selection of the GPU targets: the tests of the cpu target, on the emitted texts."""

from __future__ import annotations

import pytest
from unit.targets.gpu_lab import on_gpu

pytestmark = pytest.mark.slow
globals().update(on_gpu("test_attention_kernels"))
