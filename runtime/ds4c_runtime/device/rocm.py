"""AMD GPUs through HIP, as `hip-python` (extra `rocm`) gives it; needs ROCm's libamdhip64.

A code object runs on the one architecture it was made for, so an artifact has one for each. Bindings before
version 10 keep the GIL while they wait.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from ds4c_runtime.device.named_driver import Constants, NamedDriver, Names
from ds4c_runtime.device.status import DeviceStatus
from ds4c_runtime.device.stream_device import StreamDevice
from ds4c_runtime.errors import DeviceError

MODULE = "hip.hip"
_OBJECT = re.compile(r"kernels\.(gfx[0-9a-f]+)\.co")
_INSTALL = "pip install 'ds4c[rocm]'"
NAMES = Names(
    allocate="hipMalloc",
    free="hipFree",
    allocate_host="hipHostMalloc",
    free_host="hipHostFree",
    load_module="hipModuleLoadData",
    function="hipModuleGetFunction",
    make_stream="hipStreamCreateWithFlags",
    synchronize="hipStreamSynchronize",
    make_event="hipEventCreateWithFlags",
    record="hipEventRecord",
    wait_for="hipStreamWaitEvent",
    is_done="hipEventQuery",
    synchronize_event="hipEventSynchronize",
    destroy_event="hipEventDestroy",
    fill="hipMemsetAsync",
    upload="hipMemcpyHtoDAsync",
    download="hipMemcpyDtoHAsync",
    copy="hipMemcpyDtoDAsync",
    launch="hipModuleLaunchKernel",
    begin_capture="hipStreamBeginCapture",
    end_capture="hipStreamEndCapture",
    instantiate="hipGraphInstantiateWithFlags",
    destroy_captured="hipGraphDestroy",
    run_graph="hipGraphLaunch",
    destroy_graph="hipGraphExecDestroy",
)


class RocmDriver(NamedDriver):
    """The first device of HIP."""

    name = "rocm"
    names = NAMES
    _architecture = ""

    def constants(self) -> Constants:
        """Values of HIP."""
        api: Any = self.api
        return Constants(
            "hipSuccess",
            api.hipError_t.hipErrorNotReady,
            api.hipError_t.hipErrorOutOfMemory,
            api.hipStreamNonBlocking,
            api.hipEventDisableTiming,
            api.hipStreamCaptureMode.hipStreamCaptureModeRelaxed,
            None,
        )

    def open(self) -> str:
        """Take device 0."""
        if self.api is None:
            self.api = _import_api()
        try:
            self.invoke("hipInit", 0)
        except DeviceError as error:
            raise DeviceError(f"device rocm refused: expected a GPU that answers, got {error}") from error
        except Exception as error:  # the bindings find no library; the class of that differs by version
            raise DeviceError(
                f"device rocm refused: expected ROCm's libamdhip64, got {type(error).__name__}; install ROCm"
            ) from error
        if not self.invoke("hipGetDeviceCount"):
            raise DeviceError("device rocm refused: expected a GPU, got none; look at `rocminfo`")
        properties = self.invoke("hipGetDeviceProperties", 0)
        name, architecture = _text(properties.name), _text(properties.gcnArchName)
        self._architecture = architecture.split(":")[0]  # without features as in gfx942:sramecc+:xnack-
        version: int = self.invoke("hipDriverGetVersion")
        return f"{name}, {self._architecture}, HIP {version // 10_000_000}.{version // 100_000 % 100}"

    def choose(self, files: Sequence[str]) -> str:
        """The code object of exactly this architecture."""
        return choose_image(files, self._architecture)

    def make_current(self) -> None:
        """Set device 0."""
        self.invoke("hipSetDevice", 0)

    def close(self) -> None:
        """HIP's device is the process's; there is nothing to give back."""
        self.deactivate()


class RocmDevice(StreamDevice):
    """An AMD GPU."""

    def __init__(self) -> None:
        super().__init__(RocmDriver())


def choose_image(files: Sequence[str], architecture: str) -> str:
    """The file of an artifact that a device of an architecture such as `gfx1100` runs.

    Raises:
        DeviceError: there is none.
    """
    objects = {m[1]: m[0] for f in files if (m := _OBJECT.fullmatch(f))}
    if architecture in objects:
        return objects[architecture]
    built = ", ".join(sorted(objects)) or "none"
    raise DeviceError(
        f"device rocm refused: expected kernels for {architecture}, got {built}; "
        f"build with --target rocm:{architecture}"
    )


def _text(value: bytes | str) -> str:
    """A name of the device; bindings differ by version."""
    return value if isinstance(value, str) else value.split(b"\0", 1)[0].decode(errors="replace")


def _import_api() -> Any:
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise DeviceError(
            f"device rocm refused: expected the package hip-python, got {error}; {_INSTALL}"
        ) from error


def probe() -> DeviceStatus:
    """Whether there is a GPU that answers."""
    driver = RocmDriver()
    try:
        return DeviceStatus(driver.name, True, driver.open())
    except DeviceError as error:
        return DeviceStatus(driver.name, False, str(error))
