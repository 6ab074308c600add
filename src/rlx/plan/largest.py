"""The largest value of a plan: what to look at where memory does not suffice."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.core.dim import evaluate
from rlx.ir.lir import BufferPlan
from rlx.ir.mir import Node


def largest(plan: BufferPlan, sizes: Mapping[str, int]) -> tuple[Node, int]:
    """The node whose value takes most bytes, and how many, at the sizes of a call; at
    representative ones where a size is not given."""
    known = {**plan.representative, **sizes}
    taken = {n: evaluate(s.size, known) for n, s in plan.assignments.items()}
    node = max(taken, key=lambda n: taken[n])
    return node, taken[node]
