"""Boolean algebra, comparisons and selects. NaN is unequal to all, neither less nor greater."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.ir.mir import Node
from rlx.rules.common import filled, fit, is_float
from rlx.rules.engine import rule


@rule(
    lambda x: ops.logical_and(x, True),
    lambda x: ops.logical_or(x, False),
    lambda x: ops.logical_xor(x, False),
)
def logical_identity(x: Node, node: Node) -> Any:
    """x and true = x or false = x xor false = x."""
    return fit(x, node)


@rule(lambda x: ops.logical_and(x, False), lambda x: ops.logical_xor(x, x))
def always_false(node: Node) -> Any:
    """x and false = x xor x = false."""
    return filled(False, node)


@rule(lambda x: ops.logical_or(x, True))
def always_true(node: Node) -> Any:
    """x or true = true."""
    return filled(True, node)


@rule(lambda x: ops.logical_xor(x, True))
def xor_true(x: Node, node: Node) -> Any:
    """x xor true = not x."""
    return fit(ops.logical_not(x), node)


@rule(
    lambda x, y: ops.logical_not(ops.equal(x, y)), lambda x, y: ops.logical_not(ops.not_equal(x, y))
)
def not_of_equal(x: Node, y: Node, node: Node) -> Any:
    """not (x = y) is x ≠ y, for NaN too."""
    return (ops.not_equal if node.inputs[0].op == "equal" else ops.equal)(x, y)


_OPPOSITE = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}


@rule(
    lambda x, y: ops.logical_not(ops.less(x, y)),
    lambda x, y: ops.logical_not(ops.less_equal(x, y)),
    lambda x, y: ops.logical_not(ops.greater(x, y)),
    lambda x, y: ops.logical_not(ops.greater_equal(x, y)),
)
def not_of_less(x: Node, y: Node, node: Node) -> Any:
    """not (x < y) is x ≥ y where all values are ordered: not for floats, which may be NaN."""
    if is_float(x):
        return None
    return node.graph.node(_OPPOSITE[node.inputs[0].op], (x, y))


@rule(
    lambda x: ops.equal(x, x),
    lambda x: ops.less_equal(x, x),
    lambda x: ops.greater_equal(x, x),
)
def equal_to_itself(x: Node, node: Node) -> Any:
    """x = x, for integers and truth values; NaN is not."""
    ordered = x.dtype.is_integer or x.dtype.value == "bool"
    return filled(True, node) if ordered else None


@rule(lambda x: ops.not_equal(x, x), lambda x: ops.less(x, x), lambda x: ops.greater(x, x))
def less_than_itself(x: Node, node: Node) -> Any:
    """x < x and x ≠ x are false, except that NaN ≠ NaN."""
    is_whole = x.dtype.is_integer or x.dtype.value == "bool"
    return filled(False, node) if is_whole or node.op != "not_equal" else None


@rule(lambda c, x: ops.where(c, x, x))
def where_same_branches(x: Node, node: Node) -> Any:
    """where(c, x, x) = x."""
    return fit(x, node)


@rule(lambda x, y: ops.where(True, x, y))
def where_true(x: Node, node: Node) -> Any:
    """where(true, x, y) = x."""
    return fit(x, node)


@rule(lambda x, y: ops.where(False, x, y))
def where_false(y: Node, node: Node) -> Any:
    """where(false, x, y) = y."""
    return fit(y, node)


@rule(lambda c, x, y: ops.where(ops.logical_not(c), x, y))
def where_of_not(c: Node, x: Node, y: Node) -> Any:
    """where(not c, x, y) = where(c, y, x)."""
    return ops.where(c, y, x)


@rule(lambda c, x, y, z: ops.where(c, ops.where(c, x, y), z))
def where_nested_in_true(c: Node, x: Node, z: Node, node: Node) -> Any:
    """where(c, where(c, x, y), z) = where(c, x, z)."""
    return fit(ops.where(c, x, z), node)


@rule(lambda c, x, y, z: ops.where(c, x, ops.where(c, y, z)))
def where_nested_in_false(c: Node, x: Node, z: Node, node: Node) -> Any:
    """where(c, x, where(c, y, z)) = where(c, x, z)."""
    return fit(ops.where(c, x, z), node)
