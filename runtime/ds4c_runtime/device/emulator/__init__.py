"""A device that runs the shipped CUDA or Metal text of an artifact on the CPU."""

from ds4c_runtime.device.emulator.device import EmulatorDevice, probe

__all__ = ["EmulatorDevice", "probe"]
