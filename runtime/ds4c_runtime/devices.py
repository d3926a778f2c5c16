"""Finds a device by name: the built-in CPU, or a plug-in with an entry point in group `ds4c.devices`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from ds4c_runtime.device.base import Device
from ds4c_runtime.device.cpu import CpuDevice
from ds4c_runtime.errors import DeviceError

GROUP = "ds4c.devices"


def make_device(name: str) -> Device:
    """Make a device that has loaded nothing yet.

    Raises:
        DeviceError: no device of that name, or its plug-in cannot be imported.
    """
    if name == CpuDevice.name:
        return CpuDevice()
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = sorted({CpuDevice.name, *found})
        raise DeviceError(f"device not found: expected one of {', '.join(known)}, got {name!r}")
    try:
        return cast(Callable[[], Device], found[name].load())()
    except ImportError as error:
        raise DeviceError(
            f"device {name!r} not loaded: expected an importable plug-in, got {error}"
        ) from error
