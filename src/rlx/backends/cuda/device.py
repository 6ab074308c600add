"""A CUDA device: its machine, code, memory and queues, by the driver library alone."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.backends.cuda.assemble import CUBIN, Log, assemble
from rlx.backends.cuda.context import Context
from rlx.backends.cuda.errors import DriverError
from rlx.backends.cuda.library import Library, open_library
from rlx.backends.cuda.machine import generation_of, machine_of
from rlx.backends.cuda.memory import Allocator
from rlx.backends.cuda.progress import Progress, Retirement
from rlx.backends.cuda.queue import DEFAULT_STREAMS, CudaQueue, DefaultQueue, ForeignQueue
from rlx.backends.cuda.staging import Bulk
from rlx.backends.gpu.device import Code, Device, Kernel, Memory
from rlx.core.errors import UnsupportedError

if TYPE_CHECKING:
    from rlx.program.program import Program

PROCESSORS, CACHE_BYTES, SHARED_BYTES = 16, 38, 97
"""Attributes of a device: multiprocessors, the second level cache, shared memory that a block may
ask for."""
MAX_SHARED_BYTES, LARGE_CLUSTERS = 8, 14
REGISTERS, LOCAL_BYTES = 4, 3
"""Attributes of a function: dynamic shared memory, and clusters of more than 8 blocks, that a
launch may ask for; what a thread has."""
DEFAULT_SHARED_BYTES = 48 << 10
PORTABLE_CLUSTER = 8
"""More must be asked for."""
RETIRED = 64
"""Modules that nobody uses and that are unloaded together, since the device must be idle then."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Function:
    """A kernel's handle, and that of its module."""

    value: int
    module: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What a thread of a kernel takes."""

    registers: int
    local_bytes: int
    """Spilled registers, and arrays that are indexed."""


class CudaDevice(Device):
    """One device, by number."""

    def __init__(self, number: int = 0, library: Library | None = None) -> None:
        context = Context(library or open_library(), number)
        self.capability = context.capability
        self.generation = generation_of(self.capability)
        self.machine = machine_of(
            self.capability, context.attribute(PROCESSORS), context.attribute(SHARED_BYTES)
        )
        self.cache_bytes = context.attribute(CACHE_BYTES)
        self._start(context)

    def _start(self, context: Context) -> None:
        """What all queues share: the context, its memory, and modules to be unloaded."""
        self.context = context
        self.driver = context.library.version
        self._progress: tuple[Progress, ...] = ()
        """Of queues whose work may not be done, whether they are still used or not."""
        self._retirement = Retirement()
        self._lock = threading.RLock()
        self._bulk: Bulk | None = None
        self._retired: list[int] = []
        self._searched: dict[str, Any] = {}
        self._allocator = Allocator(self.context, lambda: self._progress)
        self.context.running = self._running

    def open(self) -> None:
        """Make its context, or an error that says why there is none, if nobody has yet."""
        _ = self.context.handle

    @property
    def searched(self) -> dict[str, Any]:
        return self._searched

    @property
    def name(self) -> str:
        return self.context.name

    @property
    def architecture(self) -> str:
        return self.generation.architecture.name

    # -- code ------------------------------------------------------------------------------------

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        return assemble(self.context, self.generation.architecture, programs)

    def load(self, code: Code) -> Kernel:
        self._unload_retired()
        log = Log()
        binary = code.binary if code.binary.startswith(CUBIN) else code.binary + b"\0"
        try:
            module = self.context.made("cuModuleLoadDataEx", binary, 2, log.keys, log.values)
        except DriverError as error:
            raise log.error(code.name, error) from None
        function = self.context.made("cuModuleGetFunction", module, code.name.encode())
        held = Function(function, module)
        weakref.finalize(held, self._retired.append, module).atexit = False
        self._allow(code, function)
        return Kernel(code, held)

    def _allow(self, code: Code, function: int) -> None:
        """Limits of a function that are raised before a launch exceeds their defaults."""
        if code.shared_bytes > self.machine.shared_bytes:
            raise UnsupportedError(
                f"kernel {code.name} asks for {code.shared_bytes} bytes of shared memory, and a "
                f"block of {self.name} has {self.machine.shared_bytes}. Compile the model for this "
                "device."
            )
        if code.shared_bytes > DEFAULT_SHARED_BYTES:
            self.context("cuFuncSetAttribute", function, MAX_SHARED_BYTES, code.shared_bytes)
        if code.cluster > PORTABLE_CLUSTER:
            self.context("cuFuncSetAttribute", function, LARGE_CLUSTERS, 1)

    def _unload_retired(self) -> None:
        self._retirement.collect()
        if len(self._retired) < RETIRED:
            return
        with self._lock:
            count = len(self._retired)  # what is retired from now on may run after the wait
            with self.context.idle() as is_idle:
                for module in self._retired[:count] if is_idle else ():
                    self.context.quietly("cuModuleUnload", module)
                    self._retired.remove(module)

    def resources(self, kernel: Kernel) -> Resources:
        """What the assembler gave a kernel."""
        return Resources(self._of(kernel, REGISTERS), self._of(kernel, LOCAL_BYTES))

    def _of(self, kernel: Kernel, attribute: int) -> int:
        found = ctypes.c_int()
        self.context("cuFuncGetAttribute", ctypes.byref(found), attribute, kernel.handle.value)
        return found.value

    # -- memory ----------------------------------------------------------------------------------

    def allocate(self, size: int) -> Memory:
        self._retirement.collect()
        return self._allocator.allocate(size)

    def free(self, memory: Memory) -> None:
        self._allocator.free(memory)

    def trim(self) -> None:
        """Give memory that is kept for reuse back to the driver."""
        self._retirement.collect()
        self._allocator.trim()

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Free memory of the device, and all of it."""
        return self.context.memory_bytes

    # -- queues ----------------------------------------------------------------------------------

    def queue(self, stream: int | None = None) -> CudaQueue:
        self._retirement.make_room()
        made = self._new_queue(stream)
        with self._lock:
            alive = [p for p in self._progress if not p.is_closed]
            self._progress = (*alive, made.progress)
        return made

    def _new_queue(self, stream: int | None) -> CudaQueue:
        others = DefaultQueue if stream in DEFAULT_STREAMS else ForeignQueue
        kind = CudaQueue if stream is None else others
        return kind(self.context, *self._shared, stream)

    @property
    def _shared(self) -> tuple[Callable[[], Bulk], Callable[[int], None], Retirement]:
        """By all queues."""
        return self._bulk_copies, self._allocator.share, self._retirement

    def _running(self) -> list[str]:
        return [name for progress in self._progress for name in progress.running]

    def _bulk_copies(self) -> Bulk:
        """Pinned memory for large copies of all queues, made when the first one asks for it."""
        with self._lock:
            if self._bulk is None:
                self._bulk = Bulk(self.context)
            return self._bulk
