"""Finds a device by name: built-in ones by their module, plug-ins by an entry point in group `ds4c.devices`.

Modules are imported when a device is asked for: each but the CPU's needs libraries that a machine may lack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from ds4c_runtime.device.base import Device
from ds4c_runtime.device.status import DeviceStatus
from ds4c_runtime.errors import DeviceError
from ds4c_runtime.manifest import Manifest

GROUP = "ds4c.devices"


@dataclass(frozen=True)
class BuiltIn:
    """A device of this package.

    Attributes:
        module: has the class and a function `probe() -> DeviceStatus`.
        class_name: its class.
        targets: names of the targets whose artifacts it runs.
    """

    module: str
    class_name: str
    targets: tuple[str, ...]


BUILT_IN = {
    "cpu": BuiltIn("ds4c_runtime.device.cpu", "CpuDevice", ("cpu",)),
    "emulator": BuiltIn("ds4c_runtime.device.emulator", "EmulatorDevice", ("cuda", "metal")),
    "cuda": BuiltIn("ds4c_runtime.device.cuda", "CudaDevice", ("cuda",)),
    "rocm": BuiltIn("ds4c_runtime.device.rocm", "RocmDevice", ("rocm",)),
    "metal": BuiltIn("ds4c_runtime.device.metal", "MetalDevice", ("metal",)),
}


def default_device(manifest: Manifest) -> str:
    """Name of the device that an artifact was built for: that of its target."""
    return manifest.target.name


def device_for(manifest: Manifest, name: str | None = None) -> Device:
    """Make the device that is to run an artifact, by default the one it was built for.

    Raises:
        DeviceError: as `make_device`, or the device does not run artifacts of that target.
    """
    chosen, target = name or default_device(manifest), manifest.target.name
    built_in = BUILT_IN.get(chosen)
    if built_in is not None and target not in built_in.targets:
        raise DeviceError(
            f"device {chosen} refused: expected an artifact for target {' or '.join(built_in.targets)}, got "
            f"{target!r}; build it with --target {built_in.targets[0]} or choose another device"
        )
    return make_device(chosen)


def make_device(name: str) -> Device:
    """Make a device that has loaded nothing yet.

    Raises:
        DeviceError: no device of that name, or its module cannot be imported.
    """
    built_in = BUILT_IN.get(name)
    try:
        if built_in is not None:
            return cast(Callable[[], Device], getattr(import_module(built_in.module), built_in.class_name))()
        found = {point.name: point for point in entry_points(group=GROUP)}
        if name in found:
            return cast(Callable[[], Device], found[name].load())()
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"device {name} not loaded: expected its module to import, got {error}") from error
    known = sorted({*BUILT_IN, *found})
    raise DeviceError(f"device not found: expected one of {', '.join(known)}, got {name!r}; choose another")


def probe_devices() -> list[DeviceStatus]:
    """What each built-in device says about this machine; never raises."""
    return [_probe(name, built_in) for name, built_in in BUILT_IN.items()]


def _probe(name: str, built_in: BuiltIn) -> DeviceStatus:
    try:
        return cast(Callable[[], DeviceStatus], import_module(built_in.module).probe)()
    except Exception as error:  # a driver may fail in any way; the report goes on with the next device
        return DeviceStatus(name, False, f"{type(error).__name__}: {error}".splitlines()[0])
