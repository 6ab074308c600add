"""Decision-tree ensembles, as tables of nodes and leaves.

Children follow their node in the table and each other: a walk only goes forward, so it ends. A node
that two others lead to is there twice, with the same children. Tests of other kinds than ≤ are
written with it: x < t is x ≤ the number before t, x = t is that x ≤ t and not x < t.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, dtype_of, nullary
from rlx.ops.control_flow import while_loop
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

Aggregate = Literal["sum", "average", "min", "max"]
FLOPS_PER_TREE = 64
"""A walk of eight nodes, some operations each."""
IDENTITY = {"sum": 0.0, "average": 0.0, "min": np.inf, "max": -np.inf}
"""What the weights of no tree come to."""


def _scores(
    x: Shape,
    threshold: Shape,
    feature: Shape,
    child: Shape,
    missing: Shape,
    root: Shape,
    weight: Shape,
    target: Shape | None = None,
    *,
    n_targets: int,
    span: int,
    aggregate: Aggregate,
) -> Shape:
    if not weight.dtype.is_float:
        raise GraphError(f"weights are floats, not {weight.dtype}")
    if n_targets < 1 or span < 0:
        raise GraphError(f"n_targets is {n_targets} and span {span}: take at least 1 and 0")
    width = n_targets if target is None else 1
    if weight.dims[1] != width:
        raise GraphError(f"leaves have {weight.dims[1]} weights, not {width}")
    return Shape((x.dims[0], n_targets), weight.dtype)


@op(
    "f[m c], f[n], i[n], i[n], bool[n], i[t], n[l k], i[l]? -> n[...]",
    kind=Kind.SPECIAL,
    shape=_scores,
    flops=f"{FLOPS_PER_TREE}*m*t",
    jumps=True,
)
def tree_ensemble(
    x: Array,
    threshold: Array,
    feature: Array,
    child: Array,
    missing: Array,
    root: Array,
    weight: Array,
    target: Array | None = None,
    *,
    n_targets: int,
    span: int,
    aggregate: Aggregate = "sum",
) -> Array:
    """For each row of x the sum, average, least or greatest of what its trees give, in f64 and
    rounded once. A row at node i of the table goes on to node i + child[i] if x[feature[i]] ≤
    threshold[i], else to the one behind it; NaN goes to the first of them where missing[i], else
    to the second. Where child[i] is 0, i is leaf number feature[i] and gives its row of weights,
    one for each of `n_targets`; or its one weight to its target. Trees begin at their roots. No
    child is further than `span` from its node; tables that lead out of range are an error."""
    _check(x.shape[1], feature, child, root, weight, target, n_targets, span)
    leaf = feature[_reached(x, threshold, feature, child, missing, root)]
    found = weight.astype(np.float64)[leaf] if root.size else np.zeros((len(x), 0, weight.shape[1]))
    if target is not None:
        hits = target[leaf][..., None] == np.arange(n_targets)
        found = np.where(hits, found, IDENTITY[aggregate])
    made = _folded(found, aggregate)
    return (made / max(1, root.size) if aggregate == "average" else made).astype(weight.dtype)


def _folded(found: Array, aggregate: Aggregate) -> Array:
    """[m, t, k] over the trees, in their order."""
    if aggregate in ("sum", "average"):
        return found.cumsum(axis=1)[:, -1] if found.shape[1] else found.sum(axis=1)
    fold = np.min if aggregate == "min" else np.max
    return fold(found, axis=1, initial=IDENTITY[aggregate])


def _check(
    columns: int,
    feature: Array,
    child: Array,
    root: Array,
    weight: Array,
    target: Array | None,
    n_targets: int,
    span: int,
) -> None:
    """Do the tables stay within themselves?"""
    inner = np.flatnonzero(child)
    if ((child < 0) | (child > span)).any() or (inner + child[inner] + 1 >= len(child)).any():
        raise Error("tree_ensemble: a child is out of range")
    limit = np.where(child == 0, len(weight), columns)
    if ((feature < 0) | (feature >= limit)).any():
        raise Error("tree_ensemble: a feature or the number of a leaf is out of range")
    if ((root < 0) | (root >= len(child))).any():
        raise Error("tree_ensemble: a root is out of range")
    if target is not None and ((target < 0) | (target >= n_targets)).any():
        raise Error("tree_ensemble: the target of a leaf is out of range")


def _reached(
    x: Array, threshold: Array, feature: Array, child: Array, missing: Array, root: Array
) -> Array:
    """[m, t]: where in the table each row ends in each tree."""
    node = np.broadcast_to(root.astype(np.int64), (len(x), len(root)))
    rows = np.arange(len(x))[:, None]
    while (step := child[node].astype(np.int64)).any():
        value = x[rows, np.where(step == 0, 0, feature[node])]
        is_first = (value <= threshold[node]) | (np.isnan(value) & missing[node])
        node = node + np.where(step == 0, 0, step + ~is_first)
    return node


@tree_ensemble.lowering
def _(
    x: Any,
    threshold: Any,
    feature: Any,
    child: Any,
    missing: Any,
    root: Any,
    weight: Any,
    target: Any = None,
    *,
    n_targets: int,
    span: int,
    aggregate: Aggregate,
) -> Any:
    """All rows take a step in all trees, until none of them moves."""
    rows, trees = dims_of(x)[0], dims_of(root)[0]
    tables = (x, threshold, feature, child, missing)

    def more(node: Any, x: Any, threshold: Any, feature: Any, child: Any, missing: Any) -> Any:
        return ops.any(ops.not_equal(ops.gather(child, node, axis=0), _whole(0, child)))

    def step(node: Any, x: Any, threshold: Any, feature: Any, child: Any, missing: Any) -> Any:
        here = ops.gather(child, node, axis=0)
        is_leaf = ops.equal(here, _whole(0, child))
        column = ops.where(is_leaf, _whole(0, feature), ops.gather(feature, node, axis=0))
        value = ops.take_along_axis(x, column, axis=1)
        is_first = ops.logical_or(
            ops.less_equal(value, ops.gather(threshold, node, axis=0)),
            ops.logical_and(ops.isnan(value), ops.gather(missing, node, axis=0)),
        )
        second = ops.cast(ops.logical_not(is_first), to=dtype_of(child))
        move = ops.where(is_leaf, _whole(0, child), ops.add(here, second))
        return ops.add(node, move), x, threshold, feature, child, missing

    start = ops.expand(ops.expand_dims(root, axes=(0,)), dims=(rows, trees))
    node = while_loop(more, step, start, *tables)[0]
    leaf = ops.gather(feature, node, axis=0)
    found = ops.cast(ops.gather(weight, leaf, axis=0), to=DType.F64)
    if target is not None:
        every = nullary(x, "iota", dims=(n_targets,), axis=0, dtype=dtype_of(target))
        own = ops.expand_dims(ops.gather(target, leaf, axis=0), axes=(2,))
        found = ops.where(ops.equal(own, every), found, IDENTITY[aggregate])
    fold = {"min": ops.min, "max": ops.max}.get(aggregate, ops.sum)
    made = fold(found, axes=(1,))
    if aggregate == "average":
        made = ops.div(made, nullary(x, "extent", dim=trees, dtype=DType.F64))
    return ops.cast(made, to=dtype_of(weight))


def _whole(value: int, beside: Any) -> Any:
    return np.asarray(value, dtype_of(beside).numpy)


# -- drawing --------------------------------------------------------------------------------------


@tree_ensemble.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    """Any table whose children are nodes of it: the first so many of them are roots."""
    rows, columns, trees, leaves = draw.size(), draw.size(1), draw.size(1), draw.size(1)
    span, targets = draw.integer(1, 9), draw.integer(1, 4)
    nodes, kind, whole = trees + draw.integer(0, 60), draw.dtype("f"), draw.dtype("i")
    has_target = draw.coin()
    table = (nodes,)
    specs = [
        Spec((rows, columns), kind),
        Spec(table, kind),
        Spec(table, whole, f"index:{min(columns, leaves)}"),
        Spec(table, whole, f"child:{span}"),
        Spec(table, DType.BOOL),
        Spec((trees,), whole, f"index:{trees}"),
        Spec((leaves, 1 if has_target else targets), draw.dtype("f"), "plain"),
        *([Spec((leaves,), whole, f"index:{targets}")] if has_target else []),
    ]
    aggregate = draw.choice(("sum", "average", "min", "max"))
    return specs, {"n_targets": targets, "span": span, "aggregate": aggregate}
