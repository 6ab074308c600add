"""The largest value of a plan: what to look at where memory does not suffice."""

from __future__ import annotations

from rlx.core.dim import evaluate
from rlx.ir.lir import BufferPlan
from rlx.ir.mir import Node


def largest(plan: BufferPlan) -> tuple[Node, int]:
    """The node whose value takes most bytes, and how many, at representative sizes."""
    sizes = {n: evaluate(s.size, plan.representative) for n, s in plan.assignments.items()}
    node = max(sizes, key=lambda n: sizes[n])
    return node, sizes[node]
