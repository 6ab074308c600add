"""CUDA graphs: work of a stream that is captured once and replayed by one call.

Edges between a kernel and a dependent one after it are programmatic, as their launches were: the
second may begin before the first ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rlx.backends.cuda.context import Context
from rlx.backends.cuda.launch import Prepared
from rlx.backends.gpu.device import Graph
from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.backends.cuda.queue import CudaQueue

RELAXED = 2
"""The capture mode: other calls of this and other threads go on as usual."""


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


class CudaGraph(Graph):
    """An instantiated graph. It holds the launches, hence their kernels."""

    def __init__(self, queue: CudaQueue, graph: int, nodes: tuple[Prepared, ...]) -> None:
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
        self._launch = self._context.library["cuGraphLaunch"]

    def replay(self) -> None:
        queue = self._queue
        code = self._launch(self._exec, queue.stream)
        if code:
            self._context.failed("cuGraphLaunch", code, self._exec, queue.stream)
        queue.replayed(self._name)

    def close(self) -> None:
        """Work that was enqueued goes on: the driver frees the graph behind it."""
        if self._graph:
            self._context.quietly("cuGraphExecDestroy", self._exec)
            self._context.quietly("cuGraphDestroy", self._graph)
            self._graph = 0

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def _name(nodes: tuple[Prepared, ...]) -> str:
    """Of the graph, for errors: its kernels."""
    names = list(dict.fromkeys(n.kernel.code.name for n in nodes))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"the graph of {', '.join(names[:8])}{more}"
