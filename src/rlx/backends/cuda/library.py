"""The functions of NVIDIA's driver library that are used, with the types of their arguments.

libcuda comes with the GPU's driver and has the assembler; nothing else of CUDA is needed. ctypes
releases the interpreter's lock during every call, so that several threads assemble at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rlx.backends.cuda.errors import error_of
from rlx.core.errors import Error, UnsupportedError

NAMES = {"win32": "nvcuda.dll"}
LIBRARY = NAMES.get(sys.platform, "libcuda.so.1")
TYPES: Mapping[str, Any] = {
    "p": ctypes.c_void_p,  # a handle, or where a result is written
    "s": ctypes.c_char_p,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_ubyte,
    "a": ctypes.c_uint64,  # an address on the device, or flags of 64 bits
    "z": ctypes.c_size_t,
}
SIGNATURES: Mapping[str, str] = {
    "cuInit": "u",
    "cuDriverGetVersion": "p",
    "cuGetErrorString": "ip",
    "cuGetErrorName": "ip",
    # devices and contexts
    "cuDeviceGetCount": "p",
    "cuDeviceGet": "pi",
    "cuDeviceGetName": "pii",
    "cuDeviceGetAttribute": "pii",
    "cuDeviceTotalMem_v2": "pi",
    "cuDevicePrimaryCtxRetain": "pi",
    "cuCtxGetCurrent": "p",
    "cuCtxSetCurrent": "p",
    "cuCtxPushCurrent_v2": "p",
    "cuCtxPopCurrent_v2": "p",
    "cuCtxSynchronize": "",
    # code
    "cuLinkCreate_v2": "uppp",
    "cuLinkAddData_v2": "pipzsupp",
    "cuLinkComplete": "ppp",
    "cuLinkDestroy": "p",
    "cuModuleLoadDataEx": "ppupp",
    "cuModuleGetFunction": "pps",
    "cuModuleUnload": "p",
    "cuFuncSetAttribute": "pii",
    "cuFuncGetAttribute": "pip",
    # memory
    "cuMemAlloc_v2": "pz",
    "cuMemFree_v2": "a",
    "cuMemGetInfo_v2": "pp",
    "cuPointerGetAttribute": "pia",
    "cuMemHostAlloc": "pzu",
    "cuMemFreeHost": "p",
    "cuMemcpyHtoDAsync_v2": "apzp",
    "cuMemcpyDtoHAsync_v2": "pazp",
    "cuMemcpyDtoDAsync_v2": "aazp",
    "cuMemsetD8Async": "abzp",
    "cuTensorMapEncodeTiled": "piuapppp" + "iiii",
    "cuTensorMapEncodeIm2col": "piuappppuup" + "iiii",
    # streams, events, launches
    "cuStreamCreate": "pu",
    "cuStreamDestroy_v2": "p",
    "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppu",
    "cuEventCreate": "pu",
    "cuEventDestroy_v2": "p",
    "cuEventRecord": "pp",
    "cuEventRecordWithFlags": "ppu",
    "cuEventQuery": "p",
    "cuEventSynchronize": "p",
    "cuEventElapsedTime": "ppp",
    "cuLaunchKernelEx": "pppp",
    # graphs
    "cuStreamBeginCapture_v2": "pi",
    "cuStreamEndCapture": "pp",
    "cuGraphGetNodes": "ppp",
    "cuGraphGetEdges_v2": "ppppp",
    "cuGraphInstantiateWithFlags": "ppa",
    "cuGraphExecKernelNodeSetParams_v2": "ppp",
    "cuGraphExecMemcpyNodeSetParams": "pppp",
    "cuGraphExecMemsetNodeSetParams": "pppp",
    "cuGraphLaunch": "pp",
    "cuGraphDestroy": "p",
    "cuGraphExecDestroy": "p",
}
"""The types of each function's arguments; every one returns an error code."""
Function = Callable[..., int]


class Library:
    """The driver library of this machine, or what stands for it in tests."""

    product: ClassVar[str] = "CUDA"

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._found: dict[str, Function] = {}

    def __getitem__(self, name: str) -> Function:
        """A function of the library, which returns an error code."""
        found = self._found.get(name)
        return self._typed(name) if found is None else found

    def _typed(self, name: str) -> Function:
        try:
            made = getattr(self._handle, name)
        except AttributeError:
            raise UnsupportedError(
                f"NVIDIA's driver {self.version} has no {name}. Install driver 12.0 or later."
            ) from None
        made.argtypes = [TYPES[t] for t in SIGNATURES[name]]
        made.restype = ctypes.c_int
        self._found[name] = made
        return made

    def name_of(self, name: str) -> str:
        """What the library itself calls a function."""
        return name

    def error(self, name: str, code: int) -> Error:
        """What a call that failed is raised as."""
        return error_of(name, code, self.text(code))

    def text(self, code: int) -> str:
        """What an error code means, as the driver says."""
        parts: list[str] = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            said = ctypes.c_char_p()
            self[name](code, ctypes.byref(said))
            parts.append((said.value or b"?").decode(errors="replace"))
        return f"{parts[0]} ({code}: {parts[1]})"

    @property
    def version(self) -> str:
        """Of CUDA, as the driver has it."""
        number = ctypes.c_int()
        self["cuDriverGetVersion"](ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"


def open_library() -> Library:
    """The driver library, or an error that says that there is none."""
    try:
        return Library(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise UnsupportedError(
            f"target 'cuda' needs NVIDIA's driver, and {LIBRARY} cannot be loaded ({error}). "
            "Install the driver of the GPU, or use target='cpu'."
        ) from None
