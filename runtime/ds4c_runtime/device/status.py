"""What a device module says about this machine, for `ds4c doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceStatus:
    """Whether a device can be used here; what a module's `probe()` returns, quickly and without raising.

    Attributes:
        name: of the device.
        is_usable: whether an artifact for it would load.
        detail: in a few words: what was found (`NVIDIA H200, sm_90, driver 12.8`), or what is missing and how
            to get it (`no libcuda.so.1: install the NVIDIA driver`).
    """

    name: str
    is_usable: bool
    detail: str
