"""A queue of work on a CUDA device: one stream."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from rlx.backends.cuda.context import NON_BLOCKING, Context
from rlx.backends.cuda.errors import NOT_READY, DriverError
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
from rlx.backends.cuda.staging import NO_TIMING, Array, Bulk, Pinned, Readback, Slots, bytes_of
from rlx.backends.gpu.arrays.dlpack import CUDA
from rlx.backends.gpu.device import Graph, Kernel, Queue, StampedGraph
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
NAMED = 16
"""Kernels that an error names at most."""


class CudaQueue(Queue):
    """One stream. One thread at a time enqueues work; beside it others may read what the queue has
    written, wait for it, and order streams of theirs behind it. So nothing is captured from the
    stream itself, but from another one, and copies and fences have a lock."""

    def __init__(
        self,
        context: Context,
        bulk: Callable[[], Bulk],
        share: Callable[[int], None],
        stream: int | None = None,
    ) -> None:
        self.context = context
        self.device_id = CUDA, context.number
        self.stream = context.made("cuStreamCreate", NON_BLOCKING) if stream is None else stream
        self.running: deque[str] = deque(maxlen=NAMED)
        """The last kernels and graphs that were enqueued since the last wait."""
        self._bulk = bulk
        self._share = share
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
        self._tick = self._done = self._marked = 0
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
        self._tick += 1
        self._is_behind_kernel = False

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
        self._tick += 1
        self.running.append(kernel.code.name)
        if self._nodes is not None:
            self._nodes.append(KernelNode(made))

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
        running = tuple(self.running)
        with self.context.capturing() as stream:
            self._recording(nodes, stream)
            try:
                graph = captured(self.context, stream, lambda: self._enqueue_all(enqueue))
            finally:
                self._recording(None, self.stream)
                self.running.clear()
                self.running.extend(running)
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
        self._tick += 1
        self._is_behind_kernel = False
        self.running.append(name)

    def _check_not_recording(self, what: str) -> None:
        if self._nodes is not None and self._recorder == threading.get_ident():
            raise Error(
                f"{what} while work is recorded: a graph holds launches, copies and fills of the "
                f"device alone. Do it before or after."
            )

    # -- order and time --------------------------------------------------------------------------

    def wait(self) -> None:
        self._check_not_recording("wait")
        with self._copying:
            tick = self._tick
            self.context.streamed("cuStreamSynchronize", self.stream)
            self._waited(tick)

    def _waited(self, tick: int) -> None:
        """All up to there is done."""
        self._done = max(self._done, tick)
        self.running.clear()
        if self._has_read:
            self._readback.finish()
            self._has_read = False

    def record_stamped(self, parts: Sequence[Callable[[], None]]) -> StampedGraph:
        events = Events(self.context, len(parts) + 2)

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

    @cached_property
    def _mark(self) -> int:
        return self.context.made("cuEventCreate", NO_TIMING)

    def wait_for(self, stream: int) -> None:
        self._check_not_recording("wait_for")
        self._order(stream, self.stream)
        self._enqueued()

    def release_to(self, stream: int) -> None:
        if self.tick:
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

    # -- how far it has come ---------------------------------------------------------------------

    @property
    def tick(self) -> int:
        return 0 if self._tick == self._done or self._is_closed else self._tick

    @property
    def is_idle(self) -> bool:
        return self.has_reached(self._tick)

    def has_reached(self, tick: int) -> bool:
        """An event behind all that is enqueued is recorded, unless one is on its way."""
        if tick <= self._done or self._is_closed:
            return True
        with self._lock:
            if self._is_closed:
                return True
            if self._marked > self._done and not self._is_marked_done():
                return False
            if tick <= self._done:
                return True
            self._put_mark()
            return self._is_marked_done()

    def _put_mark(self) -> None:
        """An event behind all that is enqueued."""
        now = self._tick
        self.context.streamed("cuEventRecord", self._mark, self.stream)
        self._marked = now

    def _is_marked_done(self) -> bool:
        """What is marked while the event is queried is not known to be done."""
        marked = self._marked
        code = self.context.library["cuEventQuery"](self._mark)
        if code == NOT_READY:
            return False
        if code:
            self.context.failed("cuEventQuery", code, self._mark)
        self._done = max(self._done, marked)
        return True

    # -- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        with suppress(DriverError):
            self.wait()
        made = self.__dict__
        events = *made.get("_timers", ()), made.get("_mark", 0), made.get("_fence", 0)
        for event in events:
            if event:
                self.context.quietly("cuEventDestroy_v2", event)
        if "_small" in made:
            self._small.close()
        if "_readback" in made:
            self._readback.pinned.close()
        self._close_stream()

    def _close_stream(self) -> None:
        self.context.quietly("cuStreamDestroy_v2", self.stream)

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class DefaultQueue(CudaQueue):
    """A queue on the default stream of all libraries. It never ends: how far it has come is asked
    of an event that is recorded when somebody asks."""

    def wait(self) -> None:
        """For an event, which is of this device: the stream is that of the current one."""
        self._check_not_recording("wait")
        with self._copying:
            tick = self._tick
            if tick > self._done:
                with self._lock:
                    self._put_mark()
                self.context.streamed("cuEventSynchronize", self._mark)
            self._waited(tick)

    def _close_stream(self) -> None:
        """It is everybody's."""


class ForeignQueue(CudaQueue):
    """A queue on a stream that another library has made, in order with what that enqueues there.

    The stream may end at any time after a call, and nothing can be asked of it then: how far it
    has come is asked of an event that is recorded behind all that is enqueued. A graph records it
    by itself, as its last node, which takes the host less than a call.
    """

    def launch(self, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        super().launch(kernel, addresses, sizes)
        self._note()

    def replayed(self, name: str) -> None:
        super().replayed(name)
        self._marked = self._tick

    def _enqueue_all(self, enqueue: Callable[[], None]) -> None:
        enqueue()
        self.context.streamed("cuEventRecordWithFlags", self._mark, self._into, IN_GRAPH)
        if self._nodes is not None:
            self._nodes.append(MarkNode())

    def _enqueued(self) -> None:
        super()._enqueued()
        self._note()

    def _note(self) -> None:
        if self._nodes is None:
            self._put_mark()

    def has_reached(self, tick: int) -> bool:
        with self._lock:
            if self._marked > self._done:
                self._is_marked_done()
            return tick <= self._done or self._is_closed

    def wait(self) -> None:
        """Until the last event, behind which nothing of ours is."""
        with self._copying:
            marked = self._marked
            if marked > self._done:
                self.context.streamed("cuEventSynchronize", self._mark)
            self._waited(marked)

    def _close_stream(self) -> None:
        """It is not ours."""
