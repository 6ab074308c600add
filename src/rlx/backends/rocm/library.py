"""The functions of HIP, AMD's runtime library, under the names of CUDA's driver.

HIP has the functions of CUDA's driver interface, with the same arguments, flags and codes of
errors, under names of its own. So contexts, memory, queues and graphs are those of `backends/cuda`,
on a library that translates the names. Only launches differ: their sizes are arguments.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from rlx.backends.cuda.errors import INVALID_DEVICE, NO_DEVICE, OUT_OF_MEMORY, DriverError
from rlx.backends.cuda.launch import Config
from rlx.backends.cuda.library import SIGNATURES, TYPES, Function, Library
from rlx.core.errors import Error, OutOfMemoryError, UnsupportedError

LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "win32": ("amdhip64_7.dll", "amdhip64_6.dll"),
    "linux": ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
              "/opt/rocm/lib/libamdhip64.so"),
}  # fmt: skip
"""By platform; the last one is where ROCm's packages install it."""
NAMES: Mapping[str, str] = {
    "cuInit": "hipInit",
    "cuDriverGetVersion": "hipRuntimeGetVersion",
    "cuDeviceGetCount": "hipGetDeviceCount",
    "cuDeviceGet": "hipDeviceGet",
    "cuDeviceGetName": "hipDeviceGetName",
    "cuDeviceTotalMem_v2": "hipDeviceTotalMem",
    "cuCtxSynchronize": "hipDeviceSynchronize",
    "cuModuleGetFunction": "hipModuleGetFunction",
    "cuModuleUnload": "hipModuleUnload",
    "cuFuncGetAttribute": "hipFuncGetAttribute",
    "cuMemAlloc_v2": "hipMalloc",
    "cuMemFree_v2": "hipFree",
    "cuMemGetInfo_v2": "hipMemGetInfo",
    "cuPointerGetAttribute": "hipPointerGetAttribute",
    "cuMemHostAlloc": "hipHostMalloc",
    "cuMemFreeHost": "hipHostFree",
    "cuMemcpyHtoDAsync_v2": "hipMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync_v2": "hipMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync_v2": "hipMemcpyDtoDAsync",
    "cuMemsetD8Async": "hipMemsetD8Async",
    "cuStreamCreate": "hipStreamCreateWithFlags",
    "cuStreamDestroy_v2": "hipStreamDestroy",
    "cuStreamSynchronize": "hipStreamSynchronize",
    "cuStreamWaitEvent": "hipStreamWaitEvent",
    "cuEventCreate": "hipEventCreateWithFlags",
    "cuEventDestroy_v2": "hipEventDestroy",
    "cuEventRecord": "hipEventRecord",
    "cuEventRecordWithFlags": "hipEventRecordWithFlags",
    "cuEventQuery": "hipEventQuery",
    "cuEventSynchronize": "hipEventSynchronize",
    "cuEventElapsedTime": "hipEventElapsedTime",
    "cuStreamBeginCapture_v2": "hipStreamBeginCapture",
    "cuStreamEndCapture": "hipStreamEndCapture",
    "cuGraphInstantiateWithFlags": "hipGraphInstantiateWithFlags",
    "cuGraphLaunch": "hipGraphLaunch",
    "cuGraphDestroy": "hipGraphDestroy",
    "cuGraphExecDestroy": "hipGraphExecDestroy",
}
"""What HIP calls a function of CUDA's driver."""
OWN: Mapping[str, str] = {
    "hipGetDevice": "p",
    "hipSetDevice": "i",
    "hipGetDevicePropertiesR0600": "pi",
    "hipModuleLoadData": "pp",
    "hipModuleLaunchKernel": "p" + "u" * 7 + "ppp",
}
"""Functions that have no counterpart, with the types of their arguments."""
LAUNCH = "cuLaunchKernelEx"


ADVICE = {
    3: "HIP does not survive a fork: start processes with the 'spawn' method.",
    200: "The code was compiled for another GPU: compile the model again on this one.",
    209: "The code was compiled for another GPU: compile the model again on this one.",
}
"""By the code of an error: not initialised; no code for this GPU."""


class HipLibrary(Library):
    """HIP, or what stands for it in tests."""

    product: ClassVar[str] = "ROCm"

    def name_of(self, name: str) -> str:
        return "hipModuleLaunchKernel" if name == LAUNCH else NAMES.get(name, name)

    def error(self, name: str, code: int) -> Error:
        said = f"{self.name_of(name)} of HIP failed: {self.text(code)}."
        if code == OUT_OF_MEMORY:
            return OutOfMemoryError(f"{said} Use smaller inputs, or free memory of the device.")
        if code in (NO_DEVICE, INVALID_DEVICE):
            return UnsupportedError(f"{said} Look at what `rlx doctor` shows, or use target='cpu'.")
        return DriverError(f"{said} {ADVICE[code]}" if code in ADVICE else said)

    def _typed(self, name: str) -> Function:
        if name == LAUNCH:
            return self._launch
        own = NAMES.get(name, name)
        kinds = OWN[own] if own in OWN else SIGNATURES[name]
        try:
            made = getattr(self._handle, own)
        except AttributeError:
            raise UnsupportedError(
                f"HIP {self.version} has no {own}. Install ROCm 6.0 or later."
            ) from None
        made.argtypes = [TYPES[t] for t in kinds]
        made.restype = ctypes.c_int
        self._found[name] = made
        return made

    def _launch(self, config: Any, function: int, arguments: Any, extra: Any) -> int:
        """A launch as CUDA states it. It has no attributes that HIP's would need."""
        given: Config = config._obj
        sizes = (*given.grid, *given.block, given.shared_bytes)
        return self["hipModuleLaunchKernel"](function, *sizes, given.stream, arguments, extra)

    def text(self, code: int) -> str:
        parts: list[str] = []
        for name in ("hipGetErrorName", "hipGetErrorString"):
            function = getattr(self._handle, name)
            function.argtypes, function.restype = [ctypes.c_int], ctypes.c_char_p
            parts.append((function(code) or b"?").decode(errors="replace"))
        return f"{parts[0]} ({code}: {parts[1]})"

    @property
    def version(self) -> str:
        """Of HIP: two digits of the major version, two of the minor one, then the patch."""
        number = ctypes.c_int()
        self["cuDriverGetVersion"](ctypes.byref(number))
        return f"{number.value // 10_000_000}.{number.value // 100_000 % 100}"

    def of_device(self, number: int) -> DeviceLibrary:
        """The functions with a device current."""
        return DeviceLibrary(self._handle, number)


class DeviceLibrary(HipLibrary):
    """Each thread has a current device, which streams and memory want to be theirs: it is changed
    for a call and changed back, so that nobody else notices."""

    def __init__(self, handle: Any, number: int) -> None:
        super().__init__(handle)
        plain = HipLibrary(handle)
        self.number, self._get, self._set = number, plain["hipGetDevice"], plain["hipSetDevice"]

    def _typed(self, name: str) -> Function:
        made = super()._typed(name)
        if name == LAUNCH:
            return made

        def called(*args: Any) -> int:
            before = ctypes.c_int(self.number)
            self._get(ctypes.byref(before))
            if before.value == self.number:
                return made(*args)
            self._set(self.number)
            try:
                return made(*args)
            finally:
                self._set(before.value)

        self._found[name] = called
        return called


def open_library() -> HipLibrary:
    """HIP, or an error that says that it is not there."""
    names = LIBRARIES.get(sys.platform, LIBRARIES["linux"])
    for name in names:
        try:
            return HipLibrary(ctypes.CDLL(name))
        except OSError:
            continue
    raise UnsupportedError(
        f"target 'rocm' needs AMD's HIP, and {names[0]} cannot be loaded. Install ROCm 6.0 or "
        "later with the driver of the GPU, or use target='cpu'."
    )
