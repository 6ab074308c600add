"""What runs SIMT programs: a device with memory, queues of work on it, and recorded graphs.

A driver (CUDA, HIP) is one implementation; `simulated.py` interprets programs on NumPy and is
another, so that all that is built on devices runs in tests without one.

Addresses are integers. Work of one queue is done in order; a `Graph` is work that was recorded
once, with its addresses and sizes, and is replayed by one call.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.program.tensor_map import TensorMap

if TYPE_CHECKING:
    from rlx.program.program import Program

Array = np.ndarray[Any, Any]
ALIGN = 256
"""Of what a device allocates: a multiple of every vector, swizzle and tensor map's address."""
VECTOR_BYTES = 16
"""What kernels count on of every address."""


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel as a device loads it, and what a launch must know of it: all that is saved."""

    name: str
    binary: bytes
    grid: tuple[DimLike, DimLike, DimLike]
    block: int
    cluster: int
    shared_bytes: int
    buffers: tuple[str, ...]
    """The parameters are their addresses, then the scalars, then the tensor maps."""
    scalars: tuple[tuple[DType, DimLike], ...]
    maps: tuple[TensorMap, ...] = ()
    map_dtypes: tuple[DType, ...] = ()
    """Of the buffers of the tensor maps."""
    map_swizzles: tuple[bool, ...] = ()
    """Are their boxes swizzled in shared memory?"""
    is_dependent: bool = False
    """Does it wait for the kernels before it by itself, so that it may begin before they end?"""

    @classmethod
    def of(cls, program: Program, binary: bytes, shared_bytes: int) -> Code:
        """The code of a program, assembled."""
        from rlx.program.nodes import WaitDependencies

        return cls(
            program.name,
            binary,
            program.grid,
            program.block,
            program.cluster,
            shared_bytes,
            tuple(b.name for b in program.buffers),
            tuple((s.value.dtype, s.dim) for s in program.scalars if s.dim is not None),
            program.maps,
            tuple(program.buffer(m.buffer).dtype for m in program.maps),
            tuple(_is_swizzled(program, m) for m in program.maps),
            any(isinstance(n, WaitDependencies) for n in program.nodes),
        )

    def with_binary(self, binary: bytes) -> Code:
        """The same, assembled further."""
        return replace(self, binary=binary)


def _is_swizzled(program: Program, tensor: TensorMap) -> bool:
    """As is the memory that its boxes are copied to: all of it, or nothing of it."""
    from rlx.program.errors import LaunchError
    from rlx.program.nodes import BulkCopy

    copies = [n for n in program.nodes if isinstance(n, BulkCopy) and n.map == tensor.name]
    found = {program.memory(n.memory).is_swizzled for n in copies}
    if len(found) > 1:
        raise LaunchError(
            f"program {program.name}: boxes of map {tensor.name} are copied to swizzled memory and "
            "to memory that is not; declare a map for each."
        )
    return found == {True}


@dataclass(frozen=True, slots=True)
class Kernel:
    """Code that is loaded; `handle` is the device's."""

    code: Code
    handle: Any


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device."""

    address: int
    size: int


Move = tuple[int, int, int]
"""Addresses from the first on, so many bytes, become those from the last on."""


ByteSpan = tuple[int, int]
"""The first of some bytes, and the end of them."""


class Graph(ABC):
    """Recorded work of one queue."""

    @abstractmethod
    def replay(self) -> None:
        """Enqueue it once more."""

    def rebind(self, moves: Sequence[Move]) -> bool:
        """Use other addresses from now on, where that is cheaper than to record again; False
        where it is not."""
        return False

    def close(self) -> None:
        """Give back what it holds."""
        return


class StampedGraph(Graph):
    """Recorded work of which the device notes when each part begins."""

    @abstractmethod
    def stamps_ns(self) -> list[float]:
        """The time at the start of each part and at the end of the last, of the last replay, which
        is waited for; the first is 0."""


class Queue(ABC):
    """Work in order."""

    stream: int = 0
    """As other libraries of the device name it; 0 where they cannot."""
    device_id: tuple[int, int] = (12, 0)
    """The kind and number of its device, as DLPack counts them: an extension, if not said."""

    @abstractmethod
    def write(self, address: int, array: Array) -> None:
        """Bytes of a contiguous array to the device; the array may be changed afterwards."""

    @abstractmethod
    def read(self, address: int, array: Array) -> None:
        """Bytes from the device into a contiguous array; they are there after `wait`."""

    def view(self, address: int, size: int) -> Array | None:
        """Bytes of the device where the host has them, too, when all that was enqueued is done;
        None where it does not."""
        return None

    @abstractmethod
    def copy(self, to: int, address: int, size: int) -> None:
        """Bytes from one place of the device to another; the two do not overlap."""

    @abstractmethod
    def fill(self, address: int, size: int, byte: int) -> None:
        """The same byte everywhere."""

    @abstractmethod
    def order(self) -> None:
        """The next launch begins when all before it have ended, also where it might begin before:
        launches behind it may then read what the caller gave as soon as they begin."""

    @abstractmethod
    def launch(self, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        """A kernel on buffers at these addresses, in the order of its code's; nothing where its
        grid is empty."""

    def launch_within(
        self,
        kernel: Kernel,
        addresses: Sequence[int],
        sizes: Mapping[str, int],
        spans: Callable[[], Sequence[ByteSpan]],
    ) -> None:
        """The same, with the bytes from each address on that the kernel may touch: a device that
        checks bounds asks for them."""
        self.launch(kernel, addresses, sizes)

    @abstractmethod
    def wait(self) -> None:
        """Until all that was enqueued is done. An error of it is raised here."""

    @property
    def is_idle(self) -> bool:
        """Is all that was enqueued done? Nobody waits."""
        return True

    def wait_for(self, stream: int) -> None:
        """What is enqueued from now on begins after what another library's stream has."""
        return

    def release_to(self, stream: int) -> None:
        """Another library's stream waits for what was enqueued here."""
        return

    def share(self, address: int) -> None:
        """Other libraries may use the memory at an address on streams of theirs."""
        return

    def device_of(self, address: int) -> tuple[int, int]:
        """Whose memory an address is in, as DLPack counts devices."""
        return self.device_id

    @abstractmethod
    def record(self, enqueue: Callable[[], None]) -> Graph:
        """What a function enqueues here, as a graph: launches, copies and fills; nothing runs."""

    @abstractmethod
    def record_stamped(self, parts: Sequence[Callable[[], None]]) -> StampedGraph:
        """What functions enqueue here, one after the other, with a time stamp between any two: no
        part begins before the one before it has ended."""

    @abstractmethod
    def time_ns(self, enqueue: Callable[[], None]) -> float:
        """What the device takes for what a function enqueues."""

    def close(self) -> None:
        """Give back what it holds."""
        return


class Device(ABC):
    """One device. Its methods may be called by several threads."""

    machine: GpuMachine
    """Its numbers and capabilities."""
    cache_bytes: int = 0
    """Of its last cache; 0 where that is not known."""
    driver: str = ""
    """The release of what assembles and runs code."""

    @property
    def is_lost(self) -> bool:
        """Is it gone, so that another one has to be opened in its place?"""
        return False

    @property
    @abstractmethod
    def searched(self) -> dict[str, Any]:
        """What was measured of schedules on it by this process, by the search's own keys."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As its maker calls it."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """What code is printed for."""

    @abstractmethod
    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        """Verified programs as code, in order; several at a time where that is faster, and while
        others are written."""

    @abstractmethod
    def load(self, code: Code) -> Kernel:
        """Code that can be launched."""

    def ready(self, kernels: Sequence[Kernel]) -> None:
        """Kernels that calls will launch: what would compile them then does so now."""
        return

    @abstractmethod
    def allocate(self, size: int) -> Memory:
        """Bytes that nobody has written, aligned to `ALIGN`; an OutOfMemoryError says how many."""

    @abstractmethod
    def free(self, memory: Memory) -> None: ...

    @abstractmethod
    def queue(self, stream: int | None = None) -> Queue:
        """A new one; queues run beside each other. One on a stream of another library is in order
        with what that enqueues there, where devices have streams."""


D = TypeVar("D", bound=Device)


class Devices(Generic[D]):
    """Devices by number, each opened when it is asked for first, and anew when it is lost. There
    is one for all backends and threads: programs share its memory, which is reused behind the
    queues that it knows."""

    def __init__(self, open_device: Callable[[int], D]) -> None:
        self._open = open_device
        self._opened: dict[int, D] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> D:
        """The device, or an error that says why there is none: it is asked for again then."""
        found = self._opened.get(number)
        if found is not None and not found.is_lost:
            return found
        with self._lock:
            found = self._opened.get(number)
            if found is None or found.is_lost:
                found = self._opened[number] = self._open(number)
            return found
