"""CUDA graphs: work of a stream that is captured once and replayed by one call.

Edges between a kernel and a dependent one after it are programmatic, as their launches were: the
second may begin before the first ends. The addresses of an instantiated graph's nodes can be
replaced, which takes the nodes that have them and not the whole graph.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rlx.backends.cuda.context import Context
from rlx.backends.cuda.launch import Prepared
from rlx.backends.gpu.device import Graph, Move, StampedGraph
from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.backends.cuda.queue import CudaQueue

RELAXED = 2
"""The capture mode: other calls of this and other threads go on as usual."""
DEVICE_MEMORY = 2
NAMED = 8
"""Kernels that a graph is named by."""


def captured(context: Context, stream: int, enqueue: Callable[[], None]) -> int:
    """The graph of what a function enqueues."""
    context("cuStreamBeginCapture_v2", stream, RELAXED)
    graph = ctypes.c_uint64()
    try:
        enqueue()
    except BaseException:
        with suppress(Error):
            context("cuStreamEndCapture", stream, ctypes.byref(graph))
            context("cuGraphDestroy", graph.value)
        raise
    context("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph.value


def nodes_in_order(context: Context, graph: int) -> list[int]:
    """The nodes of a graph that was captured from one stream: a chain."""
    count, edges = ctypes.c_size_t(), ctypes.c_size_t()
    context("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_uint64 * max(1, count.value))()
    context("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    context("cuGraphGetEdges_v2", graph, None, None, None, ctypes.byref(edges))
    ends = [(ctypes.c_uint64 * max(1, edges.value))() for _ in range(3)]
    context("cuGraphGetEdges_v2", graph, *ends, ctypes.byref(edges))
    after = dict(zip(ends[0][: edges.value], ends[1][: edges.value]))
    first = set(nodes[: count.value]) - set(after.values())
    return _chain(first.pop(), after) if len(first) == 1 else []


def _chain(first: int, after: Mapping[int, int]) -> list[int]:
    found = [first]
    while found[-1] in after:
        found.append(after[found[-1]])
    return found


# -- nodes ----------------------------------------------------------------------------------------


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("pointers", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class CopySide(ctypes.Structure):
    """One side of a copy."""

    _fields_ = (
        ("x", ctypes.c_size_t * 4),
        ("kind", ctypes.c_uint),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class CopyParams(ctypes.Structure):
    """CUDA_MEMCPY3D_v2."""

    _fields_ = (
        ("source", CopySide),
        ("target", CopySide),
        ("size", ctypes.c_size_t * 3),
    )


class FillParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class Node(ABC):
    """What a node of a captured graph does."""

    @property
    @abstractmethod
    def addresses(self) -> Sequence[int]:
        """All that it reads or writes."""

    @abstractmethod
    def moved(self, context: Context, moves: Sequence[Move]) -> Node | None:
        """The node at the new addresses; None where it has none of the old ones."""

    @abstractmethod
    def update(self, context: Context, graph: int, node: int) -> None:
        """Replace the node in an instantiated graph."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelNode(Node):
    launch: Prepared

    @property
    def addresses(self) -> Sequence[int]:
        return self.launch.addresses

    def moved(self, context: Context, moves: Sequence[Move]) -> KernelNode | None:
        given = self.launch
        addresses = tuple(_moved(a, moves) for a in given.addresses)
        if addresses == given.addresses:
            return None
        return KernelNode(given.moved(context, addresses))

    def update(self, context: Context, graph: int, node: int) -> None:
        config, pointers = self.launch.config, self.launch.parameters.pointers
        params = KernelParams(
            self.launch.kernel.handle.value, config.grid, config.block, config.shared_bytes,
            ctypes.addressof(pointers), None, None, None,
        )  # fmt: skip
        context("cuGraphExecKernelNodeSetParams_v2", graph, node, ctypes.byref(params))


@dataclass(frozen=True, slots=True, eq=False)
class CopyNode(Node):
    to: int
    source: int
    size: int

    @property
    def addresses(self) -> Sequence[int]:
        return self.to, self.source

    def moved(self, context: Context, moves: Sequence[Move]) -> CopyNode | None:
        to, source = _moved(self.to, moves), _moved(self.source, moves)
        is_same = (to, source) == (self.to, self.source)
        return None if is_same else CopyNode(to, source, self.size)

    def update(self, context: Context, graph: int, node: int) -> None:
        params = CopyParams(_side(self.source, self.size), _side(self.to, self.size))
        params.size[:] = self.size, 1, 1
        args = ctypes.byref(params), context.handle
        context("cuGraphExecMemcpyNodeSetParams", graph, node, *args)


@dataclass(frozen=True, slots=True, eq=False)
class FillNode(Node):
    address: int
    size: int
    byte: int

    @property
    def addresses(self) -> Sequence[int]:
        return (self.address,)

    def moved(self, context: Context, moves: Sequence[Move]) -> FillNode | None:
        address = _moved(self.address, moves)
        return None if address == self.address else replace(self, address=address)

    def update(self, context: Context, graph: int, node: int) -> None:
        params = FillParams(self.address, self.size, self.byte, 1, self.size, 1)
        args = ctypes.byref(params), context.handle
        context("cuGraphExecMemsetNodeSetParams", graph, node, *args)


@dataclass(frozen=True, slots=True, eq=False)
class MarkNode(Node):
    """An event that is recorded: how far a stream has come."""

    @property
    def addresses(self) -> Sequence[int]:
        return ()

    def moved(self, context: Context, moves: Sequence[Move]) -> None:
        return None

    def update(self, context: Context, graph: int, node: int) -> None:
        """It stays as it is."""


def _side(address: int, size: int) -> CopySide:
    return CopySide(kind=DEVICE_MEMORY, address=address, pitch=size, height=1)


def _moved(address: int, moves: Sequence[Move]) -> int:
    for old, size, new in moves:
        if old <= address < old + max(1, size):
            return address - old + new
    return address


# -- graphs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instantiated:
    """A graph of the driver, and what can be launched of it."""

    context: Context
    graph: int
    launched: int
    nodes: list[Node]
    """They hold the launches, hence their kernels, until the graph is destroyed."""

    @classmethod
    def of(cls, context: Context, graph: int, nodes: list[Node]) -> Instantiated:
        try:
            made = context.made("cuGraphInstantiateWithFlags", graph, 0)
        except BaseException:
            context.quietly("cuGraphDestroy", graph)
            raise
        return cls(context, graph, made, nodes)

    def destroy(self) -> None:
        self.context.quietly("cuGraphExecDestroy", self.launched)
        self.context.quietly("cuGraphDestroy", self.graph)


class CudaGraph(Graph):
    """An instantiated graph, which is destroyed when its work is done."""

    def __init__(self, queue: CudaQueue, graph: int, nodes: list[Node]) -> None:
        self._queue = queue
        self._context = queue.context
        self._nodes = nodes
        self._name = _name(nodes)
        self._made: Instantiated | None = None
        made = self._made = Instantiated.of(self._context, graph, nodes)
        self._graph, self._exec = made.graph, made.launched
        self._launch: Any = self._context.library["cuGraphLaunch"]

    def replay(self) -> None:
        queue = self._queue
        code = self._launch(self._exec, queue.stream)
        if code:
            self._context.failed("cuGraphLaunch", code, self._exec, queue.stream)
        queue.replayed(self._name)

    def rebind(self, moves: Sequence[Move]) -> bool:
        """Replays that were enqueued have the old addresses, later ones the new."""
        context, users, handles = self._context, self._users, self._handles
        if len(handles) != len(self._nodes):
            return False
        near = [a for a in users if _moved(a, moves) != a]
        for number in sorted({n for a in near for n in users.pop(a)}):
            found = self._nodes[number].moved(context, moves)
            if found is not None:
                found.update(context, self._exec, handles[number])
                self._nodes[number] = found
                for address in found.addresses:
                    users.setdefault(address, set()).add(number)
        return True

    @cached_property
    def _handles(self) -> list[int]:
        """Of the nodes, in order."""
        return nodes_in_order(self._context, self._graph)

    @cached_property
    def _users(self) -> dict[int, set[int]]:
        """The nodes that have an address; those of others stay as they are when some move."""
        found: dict[int, set[int]] = {}
        for number, node in enumerate(self._nodes):
            for address in node.addresses:
                found.setdefault(address, set()).add(number)
        return found

    def close(self) -> None:
        """Work that was enqueued goes on, and the graph is destroyed behind it."""
        self._retire()
        self._queue.collect()

    def _retire(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._queue.retire(made.destroy)

    def __del__(self) -> None:
        with suppress(Exception):
            self._retire()


class Events:
    """Time stamps of a graph. Between the first two is nothing: that is what a stamp takes."""

    def __init__(self, queue: CudaQueue, count: int) -> None:
        self.queue, self.context = queue, queue.context
        self.handles = [self.context.made("cuEventCreate", 0) for _ in range(count)]

    def stamps_ns(self) -> list[float]:
        """The ends of parts one after the other, once the last is there, each without its stamp."""
        self.context.streamed("cuEventSynchronize", self.handles[-1])
        stamp, *parts = map(self._elapsed_ns, self.handles, self.handles[1:])
        return list(accumulate((max(0.0, p - stamp) for p in parts), initial=0.0))

    def _elapsed_ns(self, start: int, stop: int) -> float:
        elapsed = ctypes.c_float()
        self.context.streamed("cuEventElapsedTime", ctypes.byref(elapsed), start, stop)
        return elapsed.value * 1e6

    def close(self) -> None:
        handles, self.handles = self.handles, []
        if handles:
            self.queue.retire(partial(_destroy_events, self.context, handles))

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def _destroy_events(context: Context, handles: Sequence[int]) -> None:
    for event in handles:
        context.quietly("cuEventDestroy_v2", event)


@dataclass(frozen=True, eq=False)
class CudaStampedGraph(StampedGraph):
    """A graph with an event between any two parts."""

    captured: Graph
    events: Events

    def replay(self) -> None:
        self.captured.replay()

    def stamps_ns(self) -> list[float]:
        return self.events.stamps_ns()

    def close(self) -> None:
        self.captured.close()
        self.events.close()


def _name(nodes: Sequence[Node]) -> str:
    """Of the graph, for errors: its kernels."""
    names = [n.launch.kernel.code.name for n in nodes if isinstance(n, KernelNode)]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"the graph of {', '.join(names[:NAMED])}{more}"
