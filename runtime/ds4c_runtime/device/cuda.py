"""NVIDIA GPUs through the driver API, as `cuda-bindings` (extra `cuda`) gives it; needs no toolkit.

A cubin runs on devices of its own major version from its minor version on. Where none fits, the driver
compiles the artifact's PTX when it is loaded, if it can.
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

PTX_NAME = "kernels.ptx"
MODULE = "cuda.bindings.driver"
_CUBIN = re.compile(r"kernels\.sm_(\d+)(\d)(a?)\.cubin")
_INSTALL = "pip install 'ds4c[cuda]'"
NAMES = Names(
    allocate="cuMemAlloc",
    free="cuMemFree",
    allocate_host="cuMemHostAlloc",
    free_host="cuMemFreeHost",
    load_module="cuModuleLoadData",
    function="cuModuleGetFunction",
    make_stream="cuStreamCreate",
    synchronize="cuStreamSynchronize",
    make_event="cuEventCreate",
    record="cuEventRecord",
    wait_for="cuStreamWaitEvent",
    is_done="cuEventQuery",
    synchronize_event="cuEventSynchronize",
    destroy_event="cuEventDestroy",
    fill="cuMemsetD8Async",
    upload="cuMemcpyHtoDAsync",
    download="cuMemcpyDtoHAsync",
    copy="cuMemcpyDtoDAsync",
    launch="cuLaunchKernel",
    begin_capture="cuStreamBeginCapture",
    end_capture="cuStreamEndCapture",
    instantiate="cuGraphInstantiate",
    destroy_captured="cuGraphDestroy",
    run_graph="cuGraphLaunch",
    destroy_graph="cuGraphExecDestroy",
)


class CudaDriver(NamedDriver):
    """The first device of the CUDA driver, in its primary context."""

    name = "cuda"
    names = NAMES
    _device: Any = None
    _context: Any = None
    _capability = (0, 0)

    def constants(self) -> Constants:
        """Values of the driver API."""
        api: Any = self.api
        return Constants(
            "CUDA_SUCCESS",
            api.CUresult.CUDA_ERROR_NOT_READY,
            api.CUresult.CUDA_ERROR_OUT_OF_MEMORY,
            int(api.CUstream_flags.CU_STREAM_NON_BLOCKING),
            int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING),
            api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
            0,
        )

    def explain(self, status: Any) -> str:
        """Name and text of a status."""
        api: Any = self.api
        _, text = api.cuGetErrorString(status)
        return super().explain(status) + (f" ({text.decode(errors='replace')})" if text else "")

    def open(self) -> str:
        """Take device 0 with its primary context."""
        if self.api is None:
            self.api = _import_api()
        try:
            self.invoke("cuInit", 0)
        except DeviceError as error:
            raise DeviceError(f"device cuda refused: expected a GPU that answers, got {error}") from error
        except Exception as error:  # the bindings find no library; the class of that is not public
            raise DeviceError(
                f"device cuda refused: expected the NVIDIA driver's libcuda, got {type(error).__name__}; "
                "install the driver"
            ) from error
        if not self.invoke("cuDeviceGetCount"):
            raise DeviceError("device cuda refused: expected a GPU, got none; look at `nvidia-smi`")
        self._device = self.invoke("cuDeviceGet", 0)
        attributes = self.api.CUdevice_attribute
        self._capability = (
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self._context = self.invoke("cuDevicePrimaryCtxRetain", self._device)
        raw: bytes = self.invoke("cuDeviceGetName", 128, self._device)
        version: int = self.invoke("cuDriverGetVersion")
        name = raw.split(b"\0", 1)[0].decode(errors="replace")
        return (
            f"{name}, {_architecture(self._capability)}, driver for CUDA "
            f"{version // 1000}.{version % 1000 // 10}"
        )

    def _attribute(self, attribute: Any) -> int:
        return self.invoke("cuDeviceGetAttribute", attribute, self._device)

    def choose(self, files: Sequence[str]) -> str:
        """The newest cubin of this device's major version that is not newer than it, else the PTX."""
        return choose_image(files, self._capability)

    def make_current(self) -> None:
        """Set the primary context."""
        self.invoke("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        """Release the primary context."""
        self.deactivate()
        self.invoke("cuDevicePrimaryCtxRelease", self._device)


class CudaDevice(StreamDevice):
    """An NVIDIA GPU."""

    def __init__(self) -> None:
        super().__init__(CudaDriver())


def choose_image(files: Sequence[str], capability: tuple[int, int]) -> str:
    """The file of an artifact that a device of a compute capability runs.

    Raises:
        DeviceError: no cubin fits and there is no PTX.
    """
    cubins = {(int(m[1]), int(m[2]), m[3]): m[0] for f in files if (m := _CUBIN.fullmatch(f))}
    exact = (*capability, "a")  # code for the features of one architecture runs on no other
    if exact in cubins:
        return cubins[exact]
    fitting = [key for key in cubins if not key[2] and key[0] == capability[0] and key[1] <= capability[1]]
    if fitting:
        return cubins[max(fitting)]
    if PTX_NAME in files:
        return PTX_NAME
    built = ", ".join(f"sm_{major}{minor}{suffix}" for major, minor, suffix in sorted(cubins)) or "none"
    wanted = _architecture(capability)
    raise DeviceError(
        f"device cuda refused: expected kernels for {wanted}, got {built}; build with --target cuda:{wanted}"
    )


def _architecture(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def _import_api() -> Any:
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise DeviceError(
            f"device cuda refused: expected the package cuda-bindings, got {error}; {_INSTALL}"
        ) from error


def probe() -> DeviceStatus:
    """Whether there is a GPU that answers."""
    driver = CudaDriver()
    try:
        description = driver.open()
        driver.close()
    except DeviceError as error:
        return DeviceStatus(driver.name, False, str(error))
    return DeviceStatus(driver.name, True, description)
