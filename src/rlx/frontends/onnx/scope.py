"""Scopes: the names that nodes of a model see, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.errors import GraphError, UnsupportedError
from rlx.frontends.onnx.id_tensors import coded_in
from rlx.frontends.onnx.values import Absent, Coded, Sizes, Value, Weight, of_parts, parts_of
from rlx.ir.mir import Graph, Node

if TYPE_CHECKING:
    from rlx.frontends.onnx.importer import Importer

CONSTANT_ELEMENTS = 64
"""Weights up to here are constants, which passes may fold; larger ones are params."""


@dataclass(slots=True)
class Scope:
    """The names that a graph's nodes see: its own, and through `capture` those outside."""

    graph: Graph
    importer: Importer
    parent: Scope | None = None
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    captured: dict[Node, Node] = field(default_factory=dict[Node, Node])
    """Value outside → the input that stands for it in here."""
    functions: Mapping[str, int] | None = None
    """The opsets of a function's body; None is the model's."""
    made: set[str] = field(default_factory=set[str])
    """The names that its own nodes, inputs and initialisers have given so far."""
    is_closed: bool = False
    """A function sees no names from outside."""
    step: Value | None = None
    """In the body of a loop, the number of the step."""
    proto: Any = None
    """The graph inside a node that is read."""

    def steps(self) -> list[Value]:
        """The numbers of the steps of all loops around, from the outermost in."""
        return [] if self.parent is None else self._outer_steps()

    def _outer_steps(self) -> list[Value]:
        assert self.parent is not None
        around = self.parent.steps()
        is_here = self.parent.graph is self.graph
        seen = [s if is_here else self._brought(f"step.{i}", s) for i, s in enumerate(around)]
        return seen if self.step is None else [*seen, self.step]

    def find(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if self.parent is None or self.is_closed:
            raise GraphError(f"{self.graph.name}: nothing so far is called {name[:80]!r}")
        found = self.parent.find(name)
        is_here = self.parent.graph is self.graph
        self.values[name] = found if is_here else self._brought(name, found)
        return self.values[name]

    def _brought(self, name: str, found: Value) -> Value:
        """A value from outside: numbers and sizes as they are, the rest as one more input."""
        match found:
            case Sizes() | Weight() | Absent():
                return found
            case Node():
                return self._brought_node(name, found)
            case _:
                parts = [self._brought(f"{name}.{i}", v) for i, v in enumerate(parts_of(found))]
                return of_parts(found, parts)

    def _brought_node(self, name: str, outside: Node) -> Node:
        known = self.importer.as_array(outside)
        if known is not None and known.size <= CONSTANT_ELEMENTS:
            return self.graph.constant(known)
        return self._captured(name, outside)

    def _captured(self, name: str, outside: Node) -> Node:
        if outside not in self.captured:
            inside = self.graph.input(f"outer.{len(self.captured)}.{name}"[:200], outside.shape)
            self.captured[outside] = inside
            self.importer.outside[inside] = outside
        return self.captured[outside]

    def as_node(self, value: Value) -> Node:
        match value:
            case Sizes():
                return value.node(self.graph)
            case Weight():
                return self.weight(value)
            case Node():
                return value
            case Coded(codes=codes):
                return codes
            case _:
                raise UnsupportedError(f"{self.graph.name}: a sequence or map is used as a tensor")

    def result(self, name: str) -> Value:
        """What a graph gives under this name."""
        return coded_in(self, self.find(name))

    def weight(self, value: Weight) -> Node:
        """A weight as a node: a constant if it is small, else a param of the outermost graph."""
        dtype = value.dtype
        if value.array.size <= CONSTANT_ELEMENTS:
            return self.graph.constant(np.array(value.array, dtype.numpy))
        if self.parent is None:
            return self.importer.param(value)
        outside = self.parent.weight(value)
        return outside if outside.graph is self.graph else self._captured(value.name, outside)
