"""What an op costs: how many operations of which class one application takes.

    @elementwise(UNARY, cost=OpClass.EXPONENTIAL)               one per element of the result
    @op(…, cost={OpClass.EXPONENTIAL: 1, OpClass.ARITHMETIC: 5})    of each so many per element
    @op(…, cost=f)                                              f(shapes, results, attrs) -> Work

It stands on the op's page, and nowhere else. An elementwise op that declares none costs what its
decomposition does, a contraction its flops as multiply-adds, any other op its flops.

A class has a nominal number of operations, the same on every target: the scale by which schedules
weigh an expression. Results depend on it (how many accumulators a sum has), so it is part of what a
program computes and is never measured. How long a class takes is the machine's (`Machine`), and may
be measured: the gate, layouts and predictions read that.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlx.core import attrs as attributes
from rlx.core.dim import DimLike
from rlx.core.shape import Shape
from rlx.ops.graphs import body_graph
from rlx.ops.op import Kind, Op


class OpClass(enum.Enum):
    """Ops that take about as long as each other on one machine."""

    MULTIPLY_ADD = "multiply-add"  # counted in flops: two by one instruction
    ARITHMETIC = "arithmetic"  # one instruction of a vector machine
    DIVISION = "division"  # square roots too
    EXPONENTIAL = "exponential"
    LOGARITHM = "logarithm"  # and exponentials accurate near 0
    HYPERBOLIC = "hyperbolic"
    ERROR_FUNCTION = "error function"
    TRIGONOMETRIC = "trigonometric"
    REMAINDER = "remainder"
    ARCTANGENT = "arctangent"
    ERROR_TAIL = "tail of the error function"
    POWER = "power"

    @property
    def operations(self) -> int:
        """Nominal cost of one, in additions."""
        return _OPERATIONS.get(self, 40)


_OPERATIONS = {
    OpClass.MULTIPLY_ADD: 1, OpClass.ARITHMETIC: 1, OpClass.DIVISION: 1,
    OpClass.EXPONENTIAL: 12, OpClass.LOGARITHM: 12,
    OpClass.HYPERBOLIC: 20, OpClass.ERROR_FUNCTION: 20,
}  # fmt: skip
"""A function of several cases, or of a long range reduction, is 40."""

Work = Mapping[OpClass, DimLike]
"""Class → how many operations of it."""
Cost = OpClass | Mapping[OpClass, int] | Callable[..., Work]
MAX_KNOWN = 1024
"""Works that an op remembers."""


def work_of(
    op: Op, shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> Work:
    """The work of one application."""
    if callable(op.cost):
        return op.cost(shapes, results, attrs)
    if op.cost is None and op.kind is not Kind.ELEMENTWISE:
        is_product = op.kind in (Kind.CONTRACTION, Kind.CONVOLUTION)
        flops = op.flops(shapes, results, attrs)
        return {OpClass.MULTIPLY_ADD if is_product else OpClass.ARITHMETIC: flops}
    count = results[0].num_elements
    return {c: n * count for c, n in _per_element(op, shapes, results, attrs).items()}


def conversion(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
    """Of a cast. Half floats are held as f32: rounding to them takes several instructions,
    widening none."""
    given, made = shapes[0].dtype, results[0].dtype
    each = 0 if given.compute is made else 1 if made.compute is made else 3
    return {OpClass.ARITHMETIC: each * results[0].num_elements}


def total(works: Iterable[Work]) -> Work:
    """Works together."""
    found: dict[OpClass, DimLike] = {}
    for work in works:
        for each, count in work.items():
            found[each] = found.get(each, 0) + count
    return found


def graph_work(graph: Any) -> Work:
    """The work of all nodes of a graph."""
    return total(
        work_of(n.decl, [s for i in n.inputs for s in i.shapes], n.shapes, n.attrs)
        for n in graph.nodes
    )


def operations_of(work: Work) -> DimLike:
    """The nominal number of operations, in additions."""
    return sum((count * each.operations for each, count in work.items()), start=0)


def operations_per_element(
    op: Op, shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> int:
    """The nominal number of operations on one element of an elementwise op; 1 of any other."""
    if op.kind is not Kind.ELEMENTWISE:
        return 1
    operands, made = ([Shape((), s.dtype) for s in each] for each in (shapes, results))
    return int(operations_of(work_of(op, operands, made, attrs)))


def _per_element(
    op: Op, shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> Mapping[OpClass, DimLike]:
    """Of an elementwise op, or of one that says so."""
    if isinstance(op.cost, OpClass):
        return {op.cost: 1}
    if op.cost is not None and not callable(op.cost):
        return op.cost
    if op.lower is None:
        return {OpClass.ARITHMETIC: 1}
    key = (*(s.dtype for s in shapes), *map(attributes.key, attrs.values()))
    if key not in op.known_work:
        if len(op.known_work) >= MAX_KNOWN:
            op.known_work.clear()
        op.known_work[key] = _decomposed(op, shapes, attrs)
    return op.known_work[key]


def _decomposed(op: Op, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
    """The work of an elementwise op's decomposition, on numbers."""
    graph, numbers = body_graph(op.name, [Shape((), s.dtype) for s in shapes])
    op.lowered(numbers, attrs, graph)
    return graph_work(graph)
