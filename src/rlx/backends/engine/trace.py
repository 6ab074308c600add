"""A segment as a function of the engine's arrays, which the engine traces and compiles.

Half floats are widened before a call and rounded after it, as the ops' references do; a call that
does so itself says it. What may fail on data is a code that a function computes: all codes are one
more result of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.backends.engine.calls import Check, Failure, Site
from rlx.backends.engine.engine import Engine
from rlx.backends.engine.steps import Segment
from rlx.core.attrs import bind
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.cost.target import LOOPS
from rlx.ir.mir import Graph, Node
from rlx.ops.op import python_names

Sizes = Mapping[str, int]


@dataclass(eq=False)
class Traced:
    """A segment, to be called with the engine's arrays. Engines refer to it weakly."""

    segment: Segment
    engine: Engine
    sizes: Sizes
    failures: list[tuple[Failure, ...]] = field(default_factory=list[tuple[Failure, ...]])
    """What each of the codes says, once the function was traced."""

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """The outputs of the segment; then all codes of failures, where there are some."""
        values: dict[Node, Any] = dict(zip(self.segment.inputs, arrays, strict=True))
        evaluation = Evaluation(self.engine, self.sizes)
        for node in self.segment.nodes:
            made = evaluation.node(node, values)
            values[node] = self.engine.placed(node, made, self.sizes)
        made = [values[o] for o in self.segment.outputs]
        checks = evaluation.checks
        self.failures[:] = [c.failures for c in checks]
        return (*made, self.engine.stack([c.code for c in checks])) if checks else tuple(made)


@dataclass(slots=True)
class Evaluation:
    """Nodes evaluated by the engine's calls."""

    engine: Engine
    sizes: Sizes
    checks: list[Check] = field(default_factory=list[Check])

    def node(self, node: Node, values: dict[Node, Any]) -> Any:
        """The value of a node, a tuple where it has several results."""
        if node.op == "item":
            return values[node.inputs[0]][node.attrs["index"]]
        operands = [self._operand(i, values) for i in node.inputs]
        attrs = {k: bind(v, self.sizes) for k, v in node.attrs.items()}
        if node.op in LOOPS:
            from rlx.backends.engine.control import traced

            return traced(self, node, operands, attrs)
        try:
            return self._called(node, operands, attrs)
        except Error:
            raise
        except Exception as error:  # whatever an engine raises where it traces a call
            raise self.engine.error(node.label, error) from error

    def _operand(self, node: Node, values: dict[Node, Any]) -> Any:
        if node not in values:
            values[node] = self.engine.constant(node.attrs["value"].array)
        return values[node]

    def _called(self, node: Node, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        engine, row = self.engine, self.engine.table.get(node.op)
        assert row is not None, f"{node.label} has no call"
        shapes = tuple(i.shape.bind(self.sizes) for i in node.inputs)
        results = tuple(s.bind(self.sizes) for s in node.shapes)
        keep = node.decl.is_exact or row.halves
        given = operands if keep else [self._widened(o, s) for o, s in zip(operands, shapes)]
        site = Site(engine, node, shapes, results, self.checks)
        named = python_names(attrs) | ({"site": site} if row.takes_site else {})
        made = engine.function(node.decl)(*given, **named)
        if not node.has_items:
            return self._fitted(node, made, results[0])
        return tuple(self._fitted(node, m, r) for m, r in zip(made, results, strict=True))

    def _widened(self, array: Any, shape: Shape) -> Any:
        wide = shape.dtype.compute
        return array if wide is shape.dtype else self.engine.cast(array, wide)

    def _fitted(self, node: Node, made: Any, expected: Shape) -> Any:
        """A result in its dtype, of exactly its dims."""
        got = self.engine.shape_of(made)
        if got.dims != expected.dims:
            raise Error(f"{node.label}: its call gave {got}, the rule {expected}")
        return made if got.dtype is expected.dtype else self.engine.cast(made, expected.dtype)

    # -- bodies ------------------------------------------------------------------------------------

    def graph(self, graph: Graph, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of a body whose sizes are bound."""
        values: dict[Node, Any] = dict(zip(graph.inputs, arrays, strict=True))
        for node in graph.order():
            if node.op == "constant":
                values[node] = self.engine.constant(node.attrs["value"].array)
            elif node not in values:
                values[node] = self.node(node, values)
        return [values[o] for o in graph.outputs]
