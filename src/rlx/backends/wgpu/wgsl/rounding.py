"""Which roundings of a program a compiler would undo.

Compilers of shaders treat floats as real numbers: Mesa makes y of `(x + y) - x`, 0 of `x - x` and
x + (a + b) of `(x + a) + b` with constants a and b. Programs that do so mean the rounded sum, as
when they round to a whole number or keep what a sum has lost. Such sums go through a function that
no compiler sees through.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlx.backends.gpu.source.uses import makers
from rlx.program import nodes as ir
from rlx.program.nodes import Node, Value
from rlx.program.program import Program

SUMS = ("add", "sub")


def cancelled(program: Program) -> frozenset[Value]:
    """Sums of which another sum, or a comparison, takes away a term, or adds up constants."""
    made = makers(program)
    found: set[Value] = set()
    for node in program.nodes:
        if isinstance(node, ir.Binary | ir.Compare) and _adds(node):
            first, second = node.args
            found.update(_meeting(first, second, made))
            found.update(_meeting(second, first, made))
    return frozenset(found)


def _meeting(value: Value, other: Value, made: dict[Value, Node]) -> Iterator[Value]:
    """The sum behind a value, if it has a term in common with another value."""
    node = made.get(_plain(value, made))
    if node is None or not _is_sum(node):
        return
    terms = [_plain(a, made) for a in node.args[-1 if isinstance(node, ir.Fma) else 0 :]]
    there = _plain(other, made)
    is_number = isinstance(made.get(there), ir.Const)
    if there in terms or (is_number and any(isinstance(made.get(t), ir.Const) for t in terms)):
        yield node.result


def _adds(node: ir.Binary | ir.Compare) -> bool:
    is_float = node.args[0].dtype.is_float
    return is_float and (isinstance(node, ir.Compare) or node.op in SUMS)


def _is_sum(node: Node) -> bool:
    return isinstance(node, ir.Fma) or (isinstance(node, ir.Binary) and _adds(node))


def _plain(value: Value, made: dict[Value, Node]) -> Value:
    """The value without its sign."""
    node = made.get(value)
    while isinstance(node, ir.Unary) and node.op == "neg":
        value = node.args[0]
        node = made.get(value)
    return value


def combined(program: Program) -> frozenset[Value]:
    """All sums and products that are terms of another sum: where every rounding counts."""
    used: set[Value] = set()
    for node in program.nodes:
        match node:
            case ir.Binary() if node.op in SUMS:
                used.update(node.args)
            case ir.Fma():
                used.add(node.args[2])
            case ir.Select():
                used.update(node.args[1:])
            case ir.Unary() if node.op == "neg":
                used.update(node.args)
            case _:
                pass
    sums = (n.result for n in program.nodes if _is_sum(n) or _is_product(n))
    return frozenset(used.intersection(sums))


def _is_product(node: Node) -> bool:
    return isinstance(node, ir.Binary) and node.op == "mul" and node.result.dtype.is_float
