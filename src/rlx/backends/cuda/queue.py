"""A queue of work on a CUDA device: one stream."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from rlx.backends.cuda.context import NON_BLOCKING, Context
from rlx.backends.cuda.errors import DriverError
from rlx.backends.cuda.graph import (
    CopyNode,
    CudaGraph,
    CudaStampedGraph,
    Events,
    FillNode,
    KernelNode,
    MarkNode,
    Node,
    captured,
)
from rlx.backends.cuda.launch import Prepared, prepare
from rlx.backends.cuda.progress import DefaultProgress, ForeignProgress, Progress, Retirement
from rlx.backends.cuda.staging import NO_TIMING, Array, Bulk, Pinned, Readback, Slots, bytes_of
from rlx.backends.gpu.device import Graph, Kernel, Queue, StampedGraph
from rlx.core.dlpack import CUDA
from rlx.core.errors import Error

IN_GRAPH = 1
"""The flag of an event that a captured stream records whenever the graph is replayed."""
LEGACY_STREAM = 1
"""The default stream of all threads, as DLPack names it."""
DEFAULT_STREAMS = (0, LEGACY_STREAM)
"""It has two names."""
DEVICE_OF_POINTER = 9
"""The attribute of an address: the number of its device."""
SMALL_BYTES = 64 << 10
"""Up to which copies go through memory of the queue's own and are not waited for."""
TINY_BYTES = 8 << 10
"""Up to which a copy as Python's bytes on the way is cheaper than views of arrays."""
SMALL_SLOTS, SMALL_SLOT_BYTES = 4, 128 << 10
READBACK_BYTES = 256 << 10
PREPARED = 4096
"""Launches that are held prepared."""


class CudaQueue(Queue):
    """One stream. One thread at a time enqueues work; beside it others may read what the queue has
    written, wait for it, and order streams of theirs behind it. So nothing is captured from the
    stream itself, but from another one, and copies and fences have a lock."""

    kind: ClassVar[type[Progress]] = Progress

    def __init__(
        self,
        context: Context,
        bulk: Callable[[], Bulk],
        share: Callable[[int], None],
        retirement: Retirement,
        stream: int | None = None,
    ) -> None:
        self.context = context
        self.device_id = CUDA, context.number
        self.stream = context.made("cuStreamCreate", NON_BLOCKING) if stream is None else stream
        self.progress = self.kind(context, self.stream)
        self._bulk = bulk
        self._share = share
        self._retirement = retirement
        self._launch = context.library["cuLaunchKernelEx"]
        self._prepared: dict[Hashable, Prepared] = {}
        self._shaped: dict[Hashable, Prepared] = {}
        """The last launch of a kernel at certain sizes."""
        self._is_behind_kernel = False
        self._into = self.stream
        """Where work is enqueued: the stream, or the one that is captured."""
        self._nodes: list[Node] | None = None
        self._recorder = 0
        """The thread that records."""
        self._lock, self._copying = threading.Lock(), threading.RLock()
        self._is_closed = self._has_read = False

    # -- copies ----------------------------------------------------------------------------------

    def write(self, address: int, array: Array) -> None:
        size = array.nbytes
        if not size:
            return
        self._check_not_recording("write")
        with self._copying:
            if size <= TINY_BYTES:
                self._small.put(address, array, size, self.stream)
            else:
                data = bytes_of(np.ascontiguousarray(array))
                copies = self._small if size <= SMALL_BYTES else self._bulk()
                copies.write(address, data, self.stream)
            self._enqueued()

    def read(self, address: int, array: Array) -> None:
        size = array.nbytes
        if not array.flags.c_contiguous:
            raise Error("results are read into contiguous arrays only; give one that is.")
        if not size:
            return
        self._check_not_recording("read")
        with self._copying:
            if size > SMALL_BYTES:
                self._bulk().read(address, bytes_of(array), self.stream)
            else:
                if not self._readback.has_room(size):
                    self.wait()
                self._readback.read(address, array, self.stream)
                self._has_read = True
            self._enqueued()

    def copy(self, to: int, address: int, size: int) -> None:
        if size:
            self.context.streamed("cuMemcpyDtoDAsync_v2", to, address, size, self._into)
            self._enqueued()
            if self._nodes is not None:
                self._nodes.append(CopyNode(to, address, size))

    def fill(self, address: int, size: int, byte: int) -> None:
        if size:
            self.context.streamed("cuMemsetD8Async", address, byte, size, self._into)
            self._enqueued()
            if self._nodes is not None:
                self._nodes.append(FillNode(address, size, byte))

    @cached_property
    def _small(self) -> Slots:
        return Slots(self.context, SMALL_SLOTS, SMALL_SLOT_BYTES)

    @cached_property
    def _readback(self) -> Readback:
        return Readback(self.context, Pinned(self.context, READBACK_BYTES))

    def _enqueued(self) -> None:
        self._is_behind_kernel = False
        if not self._is_recording:
            self.progress.count += 1

    # -- kernels ---------------------------------------------------------------------------------

    def order(self) -> None:
        self._is_behind_kernel = False

    def launch(self, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        given = tuple(addresses), tuple(sizes.items())
        try:
            made = self._prepared[id(kernel), given]
        except KeyError:
            made = self._prepare(kernel, given, sizes)
        if made is None:
            return
        is_dependent = made.is_dependent and self._is_behind_kernel
        made.enqueue(self.context, self._launch, self._into, is_dependent)
        self._is_behind_kernel = True
        if self._nodes is not None:
            self._nodes.append(KernelNode(made))
        else:
            self.progress.count += 1
            self.progress.running.append(kernel.code.name)

    def _prepare(
        self,
        kernel: Kernel,
        given: tuple[tuple[int, ...], tuple[tuple[str, int], ...]],
        sizes: Mapping[str, int],
    ) -> Prepared | None:
        """The launch, which holds its kernel, so that no other has its identity. Where only the
        addresses are new, they are all that is replaced."""
        if len(self._prepared) >= PREPARED:
            self._prepared.clear()
            self._shaped.clear()
        shape = id(kernel), given[1]
        found = self._shaped.get(shape)
        if found is not None:
            made = found.moved(self.context, given[0])
        else:
            made = prepare(self.context, kernel, given[0], sizes)
        if made is not None:
            self._prepared[id(kernel), given] = self._shaped[shape] = made
        return made

    # -- graphs ----------------------------------------------------------------------------------

    def record(self, enqueue: Callable[[], None]) -> Graph:
        self._check_not_recording("record")
        nodes = list[Node]()
        self._retirement.make_room()
        with self.context.capturing() as stream:
            self._recording(nodes, stream)
            try:
                graph = captured(self.context, stream, lambda: self._enqueue_all(enqueue))
            finally:
                self._recording(None, self.stream)
        return CudaGraph(self, graph, nodes)

    def _enqueue_all(self, enqueue: Callable[[], None]) -> None:
        """What a graph is to hold."""
        enqueue()

    def _recording(self, nodes: list[Node] | None, stream: int) -> None:
        """Enqueue into a stream, which is captured if there are nodes."""
        with self._lock:
            self._nodes, self._into, self._is_behind_kernel = nodes, stream, False
            self._recorder = threading.get_ident()

    def replayed(self, name: str) -> None:
        """A graph was enqueued."""
        progress = self.progress
        progress.count += 1
        progress.running.append(name)
        self._is_behind_kernel = False

    @property
    def _is_recording(self) -> bool:
        """Does this thread?"""
        return self._nodes is not None and self._recorder == threading.get_ident()

    def _check_not_recording(self, what: str) -> None:
        if self._is_recording:
            raise Error(
                f"{what} while work is recorded: a graph holds launches, copies and fills of the "
                f"device alone. Do it before or after."
            )

    # -- order and time --------------------------------------------------------------------------

    def wait(self) -> None:
        self._check_not_recording("wait")
        with self._copying:
            self.progress.wait()
            self.progress.running.clear()
            if self._has_read:
                self._readback.finish()
                self._has_read = False

    def record_stamped(self, parts: Sequence[Callable[[], None]]) -> StampedGraph:
        events = Events(self, len(parts) + 2)

        def enqueue() -> None:
            for event, part in zip(events.handles, (None, *parts, None)):
                self.context.streamed("cuEventRecordWithFlags", event, self._into, IN_GRAPH)
                self._is_behind_kernel = False
                if part is not None:
                    part()

        return CudaStampedGraph(self.record(enqueue), events)

    def time_ns(self, enqueue: Callable[[], None]) -> float:
        start, stop = self._timers
        self.context.streamed("cuEventRecord", start, self.stream)
        self._is_behind_kernel = False
        enqueue()
        self.context.streamed("cuEventRecord", stop, self.stream)
        self._is_behind_kernel = False
        self.context.streamed("cuEventSynchronize", stop)
        elapsed = ctypes.c_float()
        self.context.streamed("cuEventElapsedTime", ctypes.byref(elapsed), start, stop)
        return elapsed.value * 1e6

    @cached_property
    def _timers(self) -> tuple[int, int]:
        start, stop = (self.context.made("cuEventCreate", 0) for _ in range(2))
        return start, stop

    def wait_for(self, stream: int) -> None:
        self._check_not_recording("wait_for")
        self._order(stream, self.stream)
        self._enqueued()

    def release_to(self, stream: int) -> None:
        if self.progress.tick:
            self._order(self.stream, stream)
            self._is_behind_kernel = False

    def _order(self, first: int, second: int) -> None:
        """A stream waits for an event as it was recorded last, so that one serves for all."""
        if (first or LEGACY_STREAM) != (second or LEGACY_STREAM):
            with self._copying:
                self.context.streamed("cuEventRecord", self._fence, first)
                self.context.streamed("cuStreamWaitEvent", second, self._fence, 0)

    @cached_property
    def _fence(self) -> int:
        return self.context.made("cuEventCreate", NO_TIMING)

    def share(self, address: int) -> None:
        self._share(address)

    def device_of(self, address: int) -> tuple[int, int]:
        number = ctypes.c_int()
        self.context("cuPointerGetAttribute", ctypes.byref(number), DEVICE_OF_POINTER, address)
        return CUDA, number.value

    @property
    def is_idle(self) -> bool:
        return self.progress.has_reached(self.progress.count)

    # -- end -------------------------------------------------------------------------------------

    def retire(self, destroy: Callable[[], None]) -> None:
        """Destroy something once all that is enqueued is done."""
        self._retirement.add(self.progress, destroy)

    def collect(self) -> None:
        """Destroy what is not used any more."""
        self._retirement.collect()

    def close(self) -> None:
        if not self._is_closed:
            with suppress(DriverError):
                self.wait()
        self._retire()
        self.collect()

    def _retire(self) -> None:
        """What it has made. The stream is used by whoever asks for its progress, up to the end."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        made = self.__dict__
        events = [e for e in (*made.get("_timers", ()), made.get("_fence", 0)) if e]
        pinned = [made[name] for name in ("_small", "_readback") if name in made]
        self.retire(partial(_destroy, self.progress, events, pinned))

    def __del__(self) -> None:
        with suppress(Exception):
            self._retire()


def _destroy(progress: Progress, events: Iterable[int], pinned: Iterable[Slots | Readback]) -> None:
    for event in events:
        progress.context.quietly("cuEventDestroy_v2", event)
    for memory in pinned:
        memory.close()
    progress.close()


class DefaultQueue(CudaQueue):
    """A queue on the default stream of all libraries."""

    kind = DefaultProgress


class ForeignQueue(CudaQueue):
    """A queue on a stream that another library has made, in order with what that enqueues there.

    The stream may end at any time after a call, so an event is recorded behind all that is
    enqueued. A graph records it by itself, as its last node, which takes the host less than a call.
    """

    kind = ForeignProgress

    def launch(self, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        super().launch(kernel, addresses, sizes)
        self._note()

    def replayed(self, name: str) -> None:
        super().replayed(name)
        progress = self.progress
        progress.marked = progress.count

    def _enqueue_all(self, enqueue: Callable[[], None]) -> None:
        enqueue()
        self.context.streamed("cuEventRecordWithFlags", self.progress.mark, self._into, IN_GRAPH)
        if self._nodes is not None:
            self._nodes.append(MarkNode())

    def _enqueued(self) -> None:
        super()._enqueued()
        self._note()

    def _note(self) -> None:
        if not self._is_recording:
            self.progress.put_mark()
