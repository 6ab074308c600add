"""The steps of a plan, run one after the other on arrays of the engine and of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.engine.engine import Engine
from rlx.backends.engine.functions import Checks, Functions, guarded
from rlx.backends.engine.steps import BodySteps, ControlStep, HostStep, Segment, Step
from rlx.core.arrays import stand
from rlx.core.dim import evaluate
from rlx.core.extent import measure
from rlx.ir.interpret import evaluate_node, infer_binding
from rlx.ir.mir import Node
from rlx.ops.op import Array

Values = dict[Node, Any]
"""Arrays of the engine, or of the host where the engine does not read them or cannot hold them."""
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs steps. It holds no state of a call."""

    engine: Engine
    functions: Functions
    name: str

    def run(self, steps: Sequence[Step], values: Values, sizes: Sizes, checks: Checks) -> None:
        """Adds what the steps compute to `values`, what they measure to `sizes`, and what may have
        failed to `checks`. Before the host reads values, nothing they depend on has failed."""
        for step in steps:
            if isinstance(step, Segment):
                self._segment(step, values, sizes, checks)
                continue
            checks.raise_first(self.name)
            if isinstance(step, HostStep):
                self._host(step, values, sizes)
            else:
                self._control(step, values, sizes, checks)

    def _segment(self, segment: Segment, values: Values, sizes: Sizes, checks: Checks) -> None:
        function = self.functions.of(segment, sizes)
        with self.engine.scope():
            arrays = [self.own(values, n) for n in segment.inputs]
            made = checks.called(function, arrays, self.name)
        values.update(zip(segment.outputs, made))

    def own(self, values: Values, node: Node) -> Any:
        """A value as the engine takes it; one of the host is copied there once."""
        found = value_of(values, node)
        if isinstance(found, np.ndarray) and not self.engine.takes_numpy:
            found = values[node] = guarded(self.engine, self.name, self.engine.array, found)
        return found

    def numpy(self, value: Any) -> Array:
        """A value as the host takes it, once it is known."""
        if isinstance(value, np.ndarray):
            return value
        return guarded(self.engine, self.name, self.engine.numpy, value)

    def _host(self, step: HostStep, values: Values, sizes: Sizes) -> None:
        node = step.node
        with self.engine.scope():
            operands = [self.numpy(value_of(values, i)) for i in node.inputs]
        made = evaluate_node(node, operands, sizes)
        self._put(node, step.items, made, values)

    def _put(self, node: Node, items: Sequence[Node], made: Any, values: Values) -> None:
        if not node.has_items:
            values[node] = made
            return
        for item in items:
            values[item] = made[item.attrs["index"]]

    # -- control flow that the host takes ----------------------------------------------------------

    def _control(self, step: ControlStep, values: Values, sizes: Sizes, checks: Checks) -> None:
        with self.engine.scope():
            operands = [value_of(values, i) for i in step.node.inputs]
            runs = {"if": self._branch, "while": self._loop, "scan": self._scan}
            made = runs[step.node.op](step, operands, sizes, checks)
        for shape, array in zip(step.node.shapes, made, strict=True):
            if shape.is_measured:
                sizes.update(measure(shape.bind(sizes).dims, array.shape))
        self._put(step.node, step.items, made, values)

    def _body(
        self, body: BodySteps, arrays: Sequence[Any], sizes: Sizes, checks: Checks
    ) -> list[Any]:
        """The outputs of a body, whose own sizes follow from what it is given."""
        leaves = body.graph.inputs
        stands = {n.attrs["name"]: stand(a) for n, a in zip(leaves, arrays, strict=True)}
        inner = {**sizes, **infer_binding(leaves, stands)}
        values: Values = dict(zip(leaves, arrays))
        self.run(body.steps, values, inner, checks)
        return [value_of(values, o) for o in body.graph.outputs]

    def _is_true(self, value: Any, checks: Checks) -> bool:
        checks.raise_first(self.name)
        return bool(self.numpy(value).reshape(()))

    def _branch(
        self, step: ControlStep, operands: list[Any], sizes: Sizes, checks: Checks
    ) -> list[Any]:
        side = "then" if self._is_true(operands[0], checks) else "else"
        return self._body(step.bodies[side], operands[1:], sizes, checks)

    def _loop(
        self, step: ControlStep, operands: list[Any], sizes: Sizes, checks: Checks
    ) -> list[Any]:
        attrs, body = step.node.attrs, step.bodies["body"]
        split = len(operands) - attrs["num_bcasts"]
        values, whole = operands[:split], operands[split:]
        count = len(body.graph.outputs) - attrs["num_rows"]
        most, rows = attrs["max_iterations"], list[list[Any]]()
        while most is None or len(rows) < most:
            (goes_on,) = self._body(step.bodies["cond"], [*values, *whole], sizes, checks)
            if not self._is_true(goes_on, checks):
                break
            made = self._body(body, [*values, *whole], sizes, checks)
            values = made[:count]
            rows.append(made[count:])
        return [*values, *self._stacked(step, rows, [*values, *whole], count, sizes)]

    def _stacked(
        self, step: ControlStep, rows: list[list[Any]], given: list[Any], count: int, sizes: Sizes
    ) -> list[Array]:
        """The rows of each step on the host, as their number is data."""
        graph = step.bodies["body"].graph
        if rows:
            return [np.stack([self.numpy(r) for r in column]) for column in zip(*rows)]
        names = {n.attrs["name"]: stand(a) for n, a in zip(graph.inputs, given)}
        inner = {**sizes, **infer_binding(graph.inputs, names)}
        shapes = [o.shape.bind(inner) for o in graph.outputs[count:]]
        return [np.empty((0, *s.static_dims), s.dtype.numpy) for s in shapes]

    def _scan(
        self, step: ControlStep, operands: list[Any], sizes: Sizes, checks: Checks
    ) -> list[Any]:
        node, body = step.node, step.bodies["body"]
        count = node.attrs["num_carries"]
        end = count + node.attrs["num_bcasts"]
        carries, whole, slices = operands[:count], operands[count:end], operands[end:]
        shapes = [s.bind(sizes) for s in node.shapes[count:]]
        length, rows = evaluate(node.attrs["length"], sizes), dict[int, list[Any]]()
        for t in reversed(range(length)) if node.attrs["reverse"] else range(length):
            made = self._body(
                body, [*carries, *whole, *(_row(x, t) for x in slices)], sizes, checks
            )
            carries, rows[t] = made[:count], made[count:]
        if not length:
            return [*carries, *(np.empty(s.static_dims, s.dtype.numpy) for s in shapes)]
        columns = zip(*(rows[t] for t in range(length)))
        return [*carries, *map(self._column, columns)]

    def _column(self, rows: Sequence[Any]) -> Any:
        if isinstance(rows[0], np.ndarray):
            return np.stack(rows)
        return self.engine.stack(list(rows))


def _row(array: Any, index: int) -> Any:
    """A slice, which is an array even where it is one number."""
    return np.asarray(array[index]) if isinstance(array, np.ndarray) else array[index]


def value_of(values: Values, node: Node) -> Any:
    """A value that a step computed; constants are theirs."""
    if node.op == "constant" and node not in values:
        return node.attrs["value"].array
    return values[node]
