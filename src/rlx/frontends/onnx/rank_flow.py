"""Where the rank of a value of one element goes: may [] and [1] give different results?

Frameworks without scalars export flags now as [], now as [1], and which it is may depend on data.
Elementwise operators broadcast both alike, and with an operand of a known rank their result has
that; conditions and shapes that are stated take either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HANDS_ON = frozenset({
    "Abs", "Add", "And", "Cast", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Sub", "Where", "Xor",
})  # fmt: skip
"""Operators whose result has the rank of their largest operand."""
INT64, BOOL = 7, 9
"""Of `TensorProto.DataType`."""


def is_seen(graph: Any, name: str, has_rank: Callable[[str], bool]) -> bool:
    """Does a result of a body, but for the condition of a loop, depend on whether the value of this
    name is [] or [1]? `has_rank` tells of values from outside that they are no scalars."""
    results = [o.name for o in graph.output][int(_is_of_loop(graph)) :]
    ranked, todo = _ranked(graph), [name]
    for each in todo:
        if each in results:
            return True
        for node in graph.node:
            if any(_reads(g, each) for g in _inner(node)):
                return True
            if each not in node.input or _takes_either(node, each):
                continue
            if node.op_type not in HANDS_ON:
                return True
            if not any(i in ranked or (i != each and has_rank(i)) for i in node.input):
                todo += [o for o in node.output if o not in todo]
    return False


def _takes_either(node: Any, name: str) -> bool:
    """Is it a condition, or what is reshaped?"""
    return node.op_type in ("If", "Reshape", "Size") and list(node.input).index(name) == 0


def _inner(node: Any) -> list[Any]:
    return [g for a in node.attribute for g in (a.g, *a.graphs)]


def _reads(graph: Any, name: str) -> bool:
    """Does a graph, or one inside of it, read a name?"""
    if any(name == o.name for o in graph.output):
        return True
    return any(
        name in node.input or any(_reads(g, name) for g in _inner(node)) for node in graph.node
    )


def _ranked(graph: Any) -> set[str]:
    """Constants that are no scalars."""
    found = {t.name for t in graph.initializer if t.dims}
    for node in graph.node:
        if node.op_type == "Constant":
            held = [a for a in node.attribute if a.t.dims or a.ints or a.floats]
            found.update(node.output if held else ())
    return found


def _is_of_loop(graph: Any) -> bool:
    """A loop's body takes a number and a truth value, and gives a truth value first."""
    kinds = [i.type.tensor_type.elem_type for i in (*graph.input[:2], *graph.output[:1])]
    return kinds == [INT64, BOOL, BOOL]
