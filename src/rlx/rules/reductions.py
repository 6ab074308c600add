"""Redundant, nested and renamed reductions."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.core.dim import is_static, product
from rlx.core.dtype import FLOATS
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.rules.activations import is_near
from rlx.rules.common import is_float, scalar
from rlx.rules.engine import Uses, rule
from rlx.rules.match import scalar_of

FOLDS = ("sum", "prod", "mean", "max", "min")


@rule(
    lambda x: ops.sum(x), lambda x: ops.prod(x), lambda x: ops.mean(x),
    lambda x: ops.max(x), lambda x: ops.min(x),
)  # fmt: skip
def reduce_unit_axes(x: Node, node: Node) -> Any:
    """Reducing axes of size 1 only reshapes; a sum starts at +0, which changes -0 to 0."""
    if x.dtype.is_complex and node.op != "sum":
        return None
    axes = node.attrs["axes"]
    if any(x.shape.dims[a] != 1 for a in axes):
        return None
    if node.op in ("sum", "mean") and not x.dtype.is_integer:
        x = ops.add(x, scalar(0, x))
    return ops.reshape(x, dims=node.shape.dims)


@rule(
    lambda x, d: ops.reshape(ops.sum(x), dims=d), lambda x, d: ops.reshape(ops.prod(x), dims=d),
    lambda x, d: ops.reshape(ops.mean(x), dims=d), lambda x, d: ops.reshape(ops.max(x), dims=d),
    lambda x, d: ops.reshape(ops.min(x), dims=d),
)  # fmt: skip
def reshape_as_keepdims(x: Node, node: Node, uses: Uses) -> Any:
    """A reshape that keeps or drops reduced axes is the reduction's keepdims."""
    inner = node.inputs[0]
    keepdims = not inner.attrs["keepdims"]
    made = inner.graph.node(inner.decl, (x,), {**inner.attrs, "keepdims": keepdims})
    return made if made.shape == node.shape and uses(inner) == 1 else None


@rule(
    lambda x, a, b: ops.max(ops.max(x, axes=a), axes=b),
    lambda x, a, b: ops.min(ops.min(x, axes=a), axes=b),
)
def max_of_max(x: Node, node: Node, uses: Uses) -> Any:
    """A maximum of maxima is the maximum; and the same for minima."""
    return _joined(x, node, uses)


@rule(
    lambda x, a, b: ops.sum(ops.sum(x, axes=a), axes=b),
    slack=1000.0,
    refines=True,
    why="sums of a few dozen terms as large as 40 or so, in another order",
)
def sum_of_sum(x: Node, node: Node, uses: Uses) -> Any:
    """The sum of sums is the sum."""
    return _joined(x, node, uses)


def _joined(x: Node, node: Node, uses: Uses) -> Any:
    inner = node.inputs[0]
    if uses(inner) != 1 or inner.attrs["keepdims"] != node.attrs["keepdims"]:
        return None
    gone = inner.attrs["axes"]
    left = [a for a in range(x.rank) if a not in gone or inner.attrs["keepdims"]]
    axes = {*gone, *(left[a] for a in node.attrs["axes"])}
    attrs = {k: v or inner.attrs[k] for k, v in node.attrs.items()}
    return node.graph.node(node.decl, (x,), {**attrs, "axes": tuple(sorted(axes))})


def _sample_mean(draw: Draw) -> Node:
    dims, dtype = draw.dims(1, 4, 1), draw.choice(sorted(FLOATS, key=str))
    x = Graph("sample").input("x", Shape(dims, dtype))
    axes = (draw.integer(0, len(dims) - 1), len(dims) - 1)[: draw.integer(1, 2)]
    total = ops.sum(x, axes=tuple(set(axes)), keepdims=draw.coin())
    count = float(math.prod(dims[a] for a in set(axes)))
    return ops.div(total, count) if draw.coin() else ops.mul(1 / count, total)


@rule(
    lambda x, c: ops.div(ops.sum(x), c),
    lambda x, c: ops.mul(ops.sum(x), c),
    sample=_sample_mean,
    slack=2.0,
    refines=True,
    why="a quotient where there was a product with its reciprocal",
)
def sum_over_count_as_mean(x: Node, c: Node, node: Node, uses: Uses) -> Any:
    """The sum divided by the count is the mean."""
    total = next((i for i in node.inputs if i is not c and i.op == "sum"), None)
    if total is None:  # the square of a sum
        return None
    count, value = product(x.shape.dims[a] for a in total.attrs["axes"]), scalar_of(c)
    if value is None or not is_static(count) or count < 1 or not is_float(x):
        return None
    wanted = float(count) if node.op == "div" else 1.0 / count
    if not is_near(float(value), wanted, x) or total.shape.dims != node.shape.dims:
        return None
    return ops.mean(x, **total.attrs) if uses(total) == 1 else None
