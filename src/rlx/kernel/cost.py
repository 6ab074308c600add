"""What the expressions of a kernel cost: the costs of their ops, at one point."""

from __future__ import annotations

from rlx.core.dim import is_static
from rlx.core.shape import Shape
from rlx.kernel.expr import Apply
from rlx.ops.cost import OpClass, operations_of, work_of


def cost_of(node: Apply) -> int:
    """The op's own cost at one point, in operations."""
    if isinstance(node.op.cost, OpClass):
        return node.op.cost.operations
    given, made = [Shape((), a.dtype) for a in node.args], Shape((), node.dtype)
    found = operations_of(work_of(node.op, given, [made], node.attrs))
    return found if is_static(found) else 1
