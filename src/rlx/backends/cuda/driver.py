"""The CUDA driver through ctypes: modules of PTX text, memory, launches, times.

libcuda comes with the GPU's driver and has the assembler; nothing else of CUDA is needed. One
primary context is used, the one that other libraries of the process use, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlx.backends.cuda.ptx.printer import Architecture, printable, ptx
from rlx.backends.gpu.simt.program import Program
from rlx.core.dim import evaluate
from rlx.core.errors import OutOfMemoryError, UnsupportedError

Array = np.ndarray[Any, Any]
LIBRARY = "libcuda.so.1"
ASSEMBLER_LOG, LOG_BYTES = 5, 6
"""Options of a module: where the assembler's messages go, and how many bytes there is room for."""
MAX_SHARED_BYTES = 8
"""The attribute of a function: dynamic shared memory that a launch may ask for."""
DEFAULT_SHARED_BYTES = 48 << 10
"""More must be asked for."""
CLUSTER = 4
"""The attribute of a launch: blocks of a cluster."""
OUT_OF_MEMORY = 2
CAPABILITY = 75, 76
"""The attributes of a device: major and minor version."""


class DriverError(UnsupportedError):
    """What the driver answered, and to what."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        *((f"grid_{a}", ctypes.c_uint) for a in "xyz"),
        *((f"block_{a}", ctypes.c_uint) for a in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device."""

    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program that is loaded."""

    program: Program
    function: Any
    shared_bytes: int


class Driver:
    """One device."""

    def __init__(self, number: int = 0) -> None:
        try:
            self._cuda: Any = ctypes.CDLL(LIBRARY)
        except OSError:
            raise UnsupportedError(
                f"target 'cuda' needs NVIDIA's driver ({LIBRARY}), which is not installed."
            ) from None
        self("cuInit", 0)
        self._device = self._made(ctypes.c_int, "cuDeviceGet", number)
        context = self._made(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", self._device)
        self("cuCtxSetCurrent", context)
        self._stream = self._made(ctypes.c_void_p, "cuStreamCreate", 1)

    def __call__(self, name: str, *args: Any) -> None:
        """Call a function of the driver."""
        code = getattr(self._cuda, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            said = (text.value or b"").decode()
            kind = OutOfMemoryError if code == OUT_OF_MEMORY else DriverError
            raise kind(f"{name} of the CUDA driver failed: {said} ({code}).")

    def _made(self, kind: Any, name: str, *args: Any) -> Any:
        """What a function writes to its first argument."""
        made = kind()
        self(name, ctypes.byref(made), *args)
        return made

    @cached_property
    def architecture(self) -> Architecture:
        """What code is printed for."""
        major, minor = (
            self._made(ctypes.c_int, "cuDeviceGetAttribute", a, self._device).value
            for a in CAPABILITY
        )
        return Architecture(f"sm_{major}{minor}{'a' if major >= 9 else ''}")

    # -- code ------------------------------------------------------------------------------------

    def load(self, program: Program) -> Kernel:
        """A verified program, assembled by the driver."""
        made = printable(program)
        text = ptx(program, self.architecture).encode()
        log = ctypes.create_string_buffer(1 << 13)
        keys = (ctypes.c_int * 2)(ASSEMBLER_LOG, LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            module = self._made(
                ctypes.c_void_p, "cuModuleLoadDataEx", ctypes.c_char_p(text), 2, keys, values
            )
        except DriverError as error:
            said = log.value.decode(errors="replace").strip()
            raise DriverError(f"{program.name}: {error} {said}") from None
        name = ctypes.c_char_p(program.name.encode())
        function = self._made(ctypes.c_void_p, "cuModuleGetFunction", module, name)
        if made.shared_bytes > DEFAULT_SHARED_BYTES:
            self("cuFuncSetAttribute", function, MAX_SHARED_BYTES, made.shared_bytes)
        return Kernel(program, function, made.shared_bytes)

    # -- memory ----------------------------------------------------------------------------------

    def allocate(self, size: int) -> Memory:
        """Bytes that nobody has written."""
        return Memory(self._made(ctypes.c_uint64, "cuMemAlloc_v2", max(1, size)).value, size)

    def free(self, memory: Memory) -> None:
        self("cuMemFree_v2", ctypes.c_uint64(memory.address))

    def write(self, memory: Memory, array: Array) -> None:
        given = np.ascontiguousarray(array)
        if given.nbytes:
            self("cuMemcpyHtoD_v2", ctypes.c_uint64(memory.address),
                 ctypes.c_void_p(given.ctypes.data), ctypes.c_size_t(given.nbytes))  # fmt: skip

    def read(self, memory: Memory, array: Array) -> None:
        """Into a contiguous array."""
        if array.nbytes:
            self("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data),
                 ctypes.c_uint64(memory.address), ctypes.c_size_t(array.nbytes))  # fmt: skip

    # -- launches --------------------------------------------------------------------------------

    def launch(
        self, kernel: Kernel, buffers: Mapping[str, Memory], sizes: Mapping[str, int]
    ) -> None:
        """Enqueue a kernel on buffers by name, at these sizes of named dims."""
        program = kernel.program
        grid = [evaluate(d, sizes) for d in program.grid]
        if 0 in grid:
            return
        args = _arguments(program, buffers, sizes)
        pointers = (ctypes.c_void_p * max(1, len(args)))(*map(ctypes.addressof, args))
        attribute = _Attribute(CLUSTER, 0)
        attribute.value[0], attribute.value[1], attribute.value[2] = program.cluster, 1, 1
        config = _Config(
            *grid, program.block, 1, 1, kernel.shared_bytes, self._stream,
            ctypes.addressof(attribute), int(program.cluster > 1),
        )  # fmt: skip
        self("cuLaunchKernelEx", ctypes.byref(config), kernel.function, pointers, None)

    def wait(self) -> None:
        """Until all that was enqueued is done."""
        self("cuStreamSynchronize", self._stream)

    def time_ns(self, enqueue: Callable[[], None]) -> float:
        """What the device takes for what a function enqueues."""
        start, stop = (self._made(ctypes.c_void_p, "cuEventCreate", 0) for _ in range(2))
        self("cuEventRecord", start, self._stream)
        enqueue()
        self("cuEventRecord", stop, self._stream)
        self("cuEventSynchronize", stop)
        elapsed = self._made(ctypes.c_float, "cuEventElapsedTime", start, stop)
        for event in (start, stop):
            self("cuEventDestroy_v2", event)
        return elapsed.value * 1e6


def _arguments(
    program: Program, buffers: Mapping[str, Memory], sizes: Mapping[str, int]
) -> Sequence[Any]:
    """Addresses of the buffers, then scalars: the order of the kernel's parameters."""
    if program.maps:
        raise UnsupportedError(f"{program.name}: its tensor maps are not passed by the driver yet.")
    args: list[Any] = [ctypes.c_uint64(buffers[b.name].address) for b in program.buffers]
    for scalar in program.scalars:
        if scalar.dim is None:
            raise UnsupportedError(f"{program.name}: scalar {scalar.name} is no size.")
        raw = np.asarray(evaluate(scalar.dim, sizes), scalar.value.dtype.numpy).tobytes()
        args.append(ctypes.create_string_buffer(raw, len(raw)))
    return args
