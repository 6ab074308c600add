"""Classification losses, and stop_gradient."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.core.shape import dims_differ
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.movement import movement, shown
from rlx.ops.op import Array, Kind

Reduction = Literal["none", "mean", "sum"]
_CLASSES = Axis(1)


def _check(x: Any, labels: Any, weights: Any, axis: int) -> None:
    dims = dims_of(x)
    rows: tuple[DimLike, ...] = (*dims[:axis], *dims[axis + 1 :])
    if dims_of(labels) != rows:
        what = (
            f"operand 1 is {shown(dims_of(labels))}, expected {shown(rows)}: one label for each "
            f"row of classes, which are on axis {axis}"
        )
        raise dims_differ(what, dims_of(labels), rows)
    if weights is not None and dims_of(weights) != (dims[axis],):
        what = (
            f"operand 2 is {shown(dims_of(weights))}, expected {shown((dims[axis],))}: one weight "
            "for each class"
        )
        raise dims_differ(what, dims_of(weights), (dims[axis],))


def _ignored(labels: Any, ignore_index: int | None) -> Any:
    """Which labels do not count; None where none can."""
    info = np.iinfo(dtype_of(labels).numpy)
    if ignore_index is None or not info.min <= ignore_index <= info.max:
        return None
    return ops.equal(labels, info.dtype.type(ignore_index))


def _likelihood(
    x: Any, labels: Any, weights: Any, axis: int, reduction: Reduction, ignore_index: int | None
) -> Any:
    """The loss of log-probabilities, in their dtype."""
    ignored = _ignored(labels, ignore_index)
    zero = np.zeros((), dtype_of(labels).numpy)
    safe = labels if ignored is None else ops.where(ignored, zero, labels)
    found = ops.take_along_axis(x, ops.expand_dims(safe, axes=(axis,)), axis=axis)
    loss = ops.neg(ops.squeeze(found, axes=(axis,)))
    share = None if weights is None else ops.gather(weights, safe, axis=0)
    loss = loss if share is None else ops.mul(loss, share)
    loss = loss if ignored is None else ops.where(ignored, 0.0, loss)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return ops.sum(loss)
    if share is None and ignored is None:
        return ops.mean(loss)
    one = np.ones((), dtype_of(x).numpy)
    share = one if share is None else share
    share = share if ignored is None else ops.where(ignored, 0.0, share)
    return ops.div(ops.sum(loss), ops.sum(share))


def _widened(x: Any) -> Any:
    """Halves as f32: a loss is rounded once."""
    if x is None:
        return None
    dtype = dtype_of(x)
    return x if dtype.compute is dtype else ops.cast(x, to=dtype.compute)


def _rounded(loss: Any, x: Any) -> Any:
    return loss if dtype_of(loss) is dtype_of(x) else ops.cast(loss, to=dtype_of(x))


@composed("f[...], i[...], f[...]? -> f[...]", kind=Kind.SPECIAL)
def nll_loss(
    x: Any,
    labels: Any,
    weights: Any = None,
    *,
    axis: Axis = _CLASSES,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Any:
    """-x at the class that `labels` names, times that class's weight, for log-probabilities whose
    classes are on `axis`; labels have the dims of x without it. Where a label is `ignore_index`
    the loss is 0 and does not count; any other label that is no class is an error. `mean` divides
    by the sum of the weights that count, or by how many count, and is NaN where none does."""
    _check(x, labels, weights, axis)
    loss = _likelihood(_widened(x), labels, _widened(weights), axis, reduction, ignore_index)
    return _rounded(loss, x)


@composed("f[...], i[...], f[...]? -> f[...]", kind=Kind.SPECIAL)
def softmax_cross_entropy(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    axis: Axis = _CLASSES,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Any:
    """nll_loss of log_softmax(logits): the cross entropy of the classes' softmax and the labels.
    With reduction `none`, [n, classes] and [n] give the loss of each row. ONNX's second result,
    log_prob, is log_softmax of the logits on `axis`."""
    _check(logits, labels, weights, axis)
    scores = ops.log_softmax(_widened(logits), axis=axis)
    loss = _likelihood(scores, labels, _widened(weights), axis, reduction, ignore_index)
    return _rounded(loss, logits)


def _draw_loss(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    """Labels are classes; where there is none, there is no label."""
    dims = list(draw.dims(1, 4))
    axis = draw.integer(0, len(dims) - 1)
    if not dims[axis] and (len(dims) == 1 or 0 not in dims[:axis] + dims[axis + 1 :]):
        dims[axis] = 3
    classes, rows = dims[axis], (*dims[:axis], *dims[axis + 1 :])
    dtype = draw.dtype("f")
    specs = [Spec(tuple(dims), dtype), Spec(rows, draw.dtype("i"), f"index:{classes}")]
    if draw.coin():
        specs.append(Spec((classes,), dtype, "positive"))
    attrs = {
        "axis": axis - len(dims) * draw.coin(0.3),
        "reduction": draw.choice(("none", "mean", "sum")),
        "ignore_index": draw.choice((None, 0, 1, -100, 300)),
    }
    return specs, attrs


nll_loss.sample(_draw_loss)
softmax_cross_entropy.sample(_draw_loss)


# -- where a gradient stops -----------------------------------------------------------------------


@movement("a[*s] -> a[*s]")
def stop_gradient(x: Array) -> Array:
    """x, of which a derivative is taken to be zero."""
    return x


@stop_gradient.lowering
def _(x: Any) -> Any:
    """Once no derivative is to be taken, x itself."""
    return x


@stop_gradient.view
def _(layout: Layout) -> Layout:
    return layout
