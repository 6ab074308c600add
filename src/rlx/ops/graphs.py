"""The graph interface that ops see.

Graphs are built on the op table, one layer above it. Ops that hold bodies, and lowerings that write
loops, see them through these two classes; `rlx.ir.mir` derives from them and provides its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from rlx.core.attrs import HeldGraph
from rlx.core.shape import Shape

_PROVIDED: list[type[Any]] = []


class NodeBase:
    """A value of a graph: what an op applied to nodes gives."""

    __slots__ = ()
    graph: Any
    shape: Any


class GraphBase(HeldGraph):
    """A graph, as far as ops build, evaluate and inline bodies."""

    @abstractmethod
    def evaluate(self, values: Mapping[str, Any]) -> list[Any]:
        """The outputs by the ops' references, for values of the leaves by name."""

    @abstractmethod
    def infer_binding(self, values: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of named dims, read off arrays for the inputs."""

    @abstractmethod
    def inline(self, body: Any, operands: Sequence[Any]) -> list[Any]:
        """The outputs of `body` on nodes of this graph."""

    @abstractmethod
    def tracing(self) -> AbstractContextManager[None]:
        """A function of the user runs on nodes of this graph inside."""


def provide(graph_class: type[Any]) -> None:
    """Say which class graphs are of."""
    _PROVIDED.append(graph_class)


def empty_graph(name: str) -> Any:
    """A graph without nodes; where none was built yet, its class is found first."""
    if not _PROVIDED:
        import_module("rlx.ir.mir")
    return _PROVIDED[0](name)


def body_graph(name: str, shapes: Sequence[Shape]) -> tuple[Any, list[Any]]:
    """A graph that keeps no source lines, and its inputs x0, x1, …"""
    graph = empty_graph(name)
    graph.traces_lines = False
    return graph, [graph.input(f"x{i}", s) for i, s in enumerate(shapes)]
