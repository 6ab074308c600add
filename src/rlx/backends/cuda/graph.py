"""CUDA graphs: work of a stream that is captured once and replayed by one call.

Edges between a kernel and a dependent one after it are programmatic, as their launches were: the
second may begin before the first ends. The addresses of an instantiated graph's nodes can be
replaced, which takes the nodes that have them and not the whole graph.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlx.backends.cuda.context import Context
from rlx.backends.cuda.launch import Prepared
from rlx.backends.gpu.device import Graph, Move
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


class Captured:
    """What a stream has captured so far, asked again and again."""

    def __init__(self, context: Context, stream: int) -> None:
        self._context, self._stream = context, stream
        self._nodes, self._count = ctypes.c_void_p(), ctypes.c_size_t()
        self._out = [
            ctypes.byref(v)
            for v in (
                ctypes.c_int(),
                ctypes.c_uint64(),
                ctypes.c_uint64(),
                self._nodes,
                self._count,
            )
        ]

    def last(self) -> int:
        """The node that was captured last: what the next one will depend on."""
        self._context.streamed("cuStreamGetCaptureInfo_v2", self._stream, *self._out)
        if self._count.value != 1:
            return 0
        return ctypes.c_uint64.from_address(self._nodes.value or 0).value


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


@dataclass(frozen=True, slots=True, eq=False)
class Node(ABC):
    """A node of a captured graph, and what it does."""

    handle: int

    @property
    @abstractmethod
    def addresses(self) -> Sequence[int]:
        """All that it reads or writes."""

    @abstractmethod
    def moved(self, context: Context, moves: Sequence[Move]) -> Node | None:
        """The node at the new addresses; None where it has none of the old ones."""

    @abstractmethod
    def update(self, context: Context, graph: int) -> None:
        """Replace it in an instantiated graph."""


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
        return KernelNode(self.handle, given.moved(context, addresses))

    def update(self, context: Context, graph: int) -> None:
        config, pointers = self.launch.config, self.launch.parameters.pointers
        params = KernelParams(
            self.launch.kernel.handle.value, config.grid, config.block, config.shared_bytes,
            ctypes.addressof(pointers), None, None, None,
        )  # fmt: skip
        context("cuGraphExecKernelNodeSetParams_v2", graph, self.handle, ctypes.byref(params))


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
        return None if is_same else CopyNode(self.handle, to, source, self.size)

    def update(self, context: Context, graph: int) -> None:
        params = CopyParams(_side(self.source, self.size), _side(self.to, self.size))
        params.size[:] = self.size, 1, 1
        args = ctypes.byref(params), context.handle
        context("cuGraphExecMemcpyNodeSetParams", graph, self.handle, *args)


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

    def update(self, context: Context, graph: int) -> None:
        params = FillParams(self.address, self.size, self.byte, 1, self.size, 1)
        args = ctypes.byref(params), context.handle
        context("cuGraphExecMemsetNodeSetParams", graph, self.handle, *args)


def _side(address: int, size: int) -> CopySide:
    return CopySide(kind=DEVICE_MEMORY, address=address, pitch=size, height=1)


def _moved(address: int, moves: Sequence[Move]) -> int:
    for old, size, new in moves:
        if old <= address < old + max(1, size):
            return address - old + new
    return address


# -- graphs ---------------------------------------------------------------------------------------


class CudaGraph(Graph):
    """An instantiated graph. It holds the launches, hence their kernels."""

    def __init__(self, queue: CudaQueue, graph: int, nodes: list[Node]) -> None:
        self._queue = queue
        self._context = queue.context
        self._graph = graph
        self._nodes = nodes
        self._name = _name(nodes)
        try:
            self._exec = self._context.made("cuGraphInstantiateWithFlags", graph, 0)
        except BaseException:
            self._context.quietly("cuGraphDestroy", graph)
            raise
        self._launch: Any = self._context.library["cuGraphLaunch"]

    def replay(self) -> None:
        queue = self._queue
        code = self._launch(self._exec, queue.stream)
        if code:
            self._context.failed("cuGraphLaunch", code, self._exec, queue.stream)
        queue.replayed(self._name)

    def rebind(self, moves: Sequence[Move]) -> bool:
        """Replays that were enqueued have the old addresses, later ones the new."""
        context, users = self._context, self._users
        near = [a for a in users if _moved(a, moves) != a]
        if not all(self._nodes[n].handle for a in near for n in users[a]):
            return False
        for number in sorted({n for a in near for n in users.pop(a)}):
            found = self._nodes[number].moved(context, moves)
            if found is not None:
                found.update(context, self._exec)
                self._nodes[number] = found
                for address in found.addresses:
                    users.setdefault(address, set()).add(number)
        return True

    @cached_property
    def _users(self) -> dict[int, set[int]]:
        """The nodes that have an address; those of others stay as they are when some move."""
        found: dict[int, set[int]] = {}
        for number, node in enumerate(self._nodes):
            for address in node.addresses:
                found.setdefault(address, set()).add(number)
        return found

    def close(self) -> None:
        """Work that was enqueued goes on: the driver frees the graph behind it."""
        if self._graph:
            self._context.quietly("cuGraphExecDestroy", self._exec)
            self._context.quietly("cuGraphDestroy", self._graph)
            self._graph = 0

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def _name(nodes: Sequence[Node]) -> str:
    """Of the graph, for errors: its kernels."""
    names = [n.launch.kernel.code.name for n in nodes if isinstance(n, KernelNode)]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"the graph of {', '.join(names[:NAMED])}{more}"
