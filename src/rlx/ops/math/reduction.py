"""Reductions, softmax, cumulative sums, argmax and top-k.

An empty axis has a sum (0), a product (1), and no greatest or least element: where its size is
known to be 0, that is an error, unless `empty_ok` asks for the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axes, Axis
from rlx.core.dim import Dim, DimLike, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.requirements import require_size
from rlx.core.shape import Shape, may_exceed
from rlx.ops.compose import count_of, dims_of, dtype_of, nullary
from rlx.ops.cost import OpClass
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

EVERY: Any = None
LAST = Axis(-1)
NO_INDEX = 2**63 - 1
_FOLD = "a primitive fold: every target has it"


def folded_dims(
    dims: Sequence[DimLike], axes: Sequence[int], keepdims: bool
) -> tuple[DimLike, ...]:
    """What is left of `dims` when `axes` are folded away."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(dims))
    return tuple(d for i, d in enumerate(dims) if i not in axes)


def _folded(x: Shape, *, axes: tuple[int, ...], keepdims: bool) -> Shape:
    return x.with_dims(folded_dims(x.dims, axes, keepdims))


def _tested(x: Shape, *, axes: tuple[int, ...], keepdims: bool) -> Shape:
    return _folded(x, axes=axes, keepdims=keepdims).with_dtype(DType.BOOL)


def _extreme(x: Shape, *, axes: tuple[int, ...], keepdims: bool, empty_ok: bool) -> Shape:
    for axis in axes:
        if not empty_ok and x.dims[axis] == 0:
            raise GraphError(
                f"operand 0 is {x}: its axis {axis} is empty, so it has no greatest or least "
                "element. Set empty_ok to get the identity"
            )
    return _folded(x, axes=axes, keepdims=keepdims)


def reduction(signature: str, **facts: Any) -> Any:
    """Declare a fold of axes: one operation per element read."""
    return op(signature, kind=Kind.REDUCTION, flops="size0", **facts)


@reduction("t[*s] -> t[...]", shape=_folded, why_no_lowering=_FOLD)
def sum_(x: Array, *, axes: Axes = EVERY, keepdims: bool = False) -> Array:
    """The sum over `axes`, in the operand's dtype: integers wrap."""
    return summed(x, axes, keepdims)


def summed(x: Array, axes: Sequence[int], keepdims: bool) -> Array:
    """NumPy's pairwise sum, which it uses only at unit stride: for other axes elements
    are put there first."""
    if x.dtype.kind not in "fc" or not axes or not x.size:
        return np.sum(x, axis=tuple(axes), keepdims=keepdims, dtype=x.dtype)
    rows = np.moveaxis(x, axes, range(-len(axes), 0))
    lead = rows.shape[: x.ndim - len(axes)]
    total = np.ascontiguousarray(rows).reshape(*lead, -1).sum(-1, dtype=x.dtype)
    return total.reshape(folded_sizes(x.shape, axes, keepdims))


def folded_sizes(dims: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    return tuple(int(d) for d in folded_dims(dims, axes, keepdims))


@reduction("t[*s] -> t[...]", shape=_folded)
def prod(x: Array, *, axes: Axes = EVERY, keepdims: bool = False) -> Array:
    """The product over `axes`, in the operand's dtype: integers wrap."""
    return np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


@prod.lowering
def _(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The last of the cumulative products, with a 1 in front for the empty product."""
    for axis in axes:
        dims = dims_of(x)
        low = tuple(int(a == axis) for a in range(len(dims)))
        ones = ops.pad(x, low=low, high=(0,) * len(dims), value=1.0)
        x = ops.narrow(ops.cumprod(ones, axis=axis), axis=axis, start=dims[axis], length=1)
    return x if keepdims else ops.squeeze(x, axes=axes)


@reduction("x[*s] -> x[...]", shape=_folded)
def mean(x: Array, *, axes: Axes = EVERY, keepdims: bool = False) -> Array:
    """The sum over `axes` divided by their size; of nothing it is NaN. Floats and complex only:
    cast integers first, to the float that is meant."""
    count = np.asarray(np.prod([x.shape[a] for a in axes]), dtype=x.dtype)
    return summed(x, axes, keepdims) / count


@mean.lowering
def _(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return ops.div(ops.sum(x, axes=axes, keepdims=keepdims), count_of(x, axes))


@reduction("n[*s] -> n[...]", shape=_extreme, why_no_lowering=_FOLD)
def max_(x: Array, *, axes: Axes = EVERY, keepdims: bool = False, empty_ok: bool = False) -> Array:
    """The greatest element over `axes`; NaN wherever one is. An axis that turns out empty when
    the graph runs gives the identity: -inf, or the least integer."""
    return np.max(x, axis=axes, keepdims=keepdims, initial=_identity(x, -1))


@reduction("n[*s] -> n[...]", shape=_extreme, why_no_lowering=_FOLD)
def min_(x: Array, *, axes: Axes = EVERY, keepdims: bool = False, empty_ok: bool = False) -> Array:
    """The least element over `axes`; NaN wherever one is. An axis that turns out empty when the
    graph runs gives the identity: inf, or the greatest integer."""
    return np.min(x, axis=axes, keepdims=keepdims, initial=_identity(x, 1))


def _identity(x: Array, sign: int) -> Any:
    """What every value of x's dtype is at least (sign -1) or at most (sign 1)."""
    if x.dtype.kind == "f":
        return sign * np.inf
    info = np.iinfo(x.dtype)
    return info.max if sign > 0 else info.min


@reduction("a[*s] -> bool[...]", shape=_tested)
def any_(x: Array, *, axes: Axes = EVERY, keepdims: bool = False) -> Array:
    """Is an element over `axes` not zero? Of nothing: no."""
    return np.any(x != 0, axis=axes, keepdims=keepdims)


@reduction("a[*s] -> bool[...]", shape=_tested)
def all_(x: Array, *, axes: Axes = EVERY, keepdims: bool = False) -> Array:
    """Is no element over `axes` zero? Of nothing: yes."""
    return np.all(x != 0, axis=axes, keepdims=keepdims)


def _truth(x: Any) -> Any:
    """Zeros and ones that can be compared."""
    return ops.cast(x if dtype_of(x) is DType.BOOL else ops.cast(x, to=DType.BOOL), to=DType.U8)


@any_.lowering
def _(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    greatest = ops.max(_truth(x), axes=axes, keepdims=keepdims, empty_ok=True)
    return ops.cast(greatest, to=DType.BOOL)


@all_.lowering
def _(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    least = ops.min(_truth(x), axes=axes, keepdims=keepdims, empty_ok=True)
    return ops.cast(least, to=DType.BOOL)


@reduction("f[*s] -> f[...]", shape=_folded, aliases=("logsumexp",))
def log_sum_exp(x: Array, *, axes: Axes = EVERY, keepdims: bool = False) -> Array:
    """log of the sum of exp(x) over `axes`, without overflow; of nothing, or of -inf, -inf."""
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isinf(top), np.zeros_like(top), top)
    result = np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift
    return result if keepdims else np.squeeze(result, axis=axes)


@log_sum_exp.lowering
def _(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    top = ops.max(x, axes=axes, keepdims=True, empty_ok=True)
    shift = ops.where(ops.is_inf(top), 0.0, top)
    total = ops.sum(ops.exp(ops.sub(x, shift)), axes=axes, keepdims=True)
    result = ops.add(ops.log(total), shift)
    return result if keepdims else ops.squeeze(result, axes=axes)


# -- rows that are read more than once ------------------------------------------------------------

_SOFTMAX = {OpClass.EXPONENTIAL: 1, OpClass.ARITHMETIC: 5}
"""A division, or a logarithm, is one of each row."""


@op("f[*s n] -> f[*s n]", kind=Kind.ROW, flops="5*out", cost=_SOFTMAX)
def softmax(x: Array, *, axis: Axis = LAST) -> Array:
    """exp(x - max) divided by its sum along `axis`. A row of -inf alone is NaN, as 0/0 is."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=axis, keepdims=True)


@softmax.lowering
def _(x: Any, *, axis: int) -> Any:
    e = ops.exp(_below_max(x, axis))
    return ops.div(e, ops.sum(e, axes=(axis,), keepdims=True))


@op("f[*s n] -> f[*s n]", kind=Kind.ROW, flops="5*out", cost=_SOFTMAX)
def log_softmax(x: Array, *, axis: Axis = LAST) -> Array:
    """The logarithm of softmax, without taking it of small numbers."""
    below = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True))


@log_softmax.lowering
def _(x: Any, *, axis: int) -> Any:
    below = _below_max(x, axis)
    return ops.sub(below, ops.log(ops.sum(ops.exp(below), axes=(axis,), keepdims=True)))


def _below_max(x: Any, axis: int) -> Any:
    """x minus its greatest element along `axis`: what exp cannot overflow on."""
    return ops.sub(x, ops.max(x, axes=(axis,), keepdims=True, empty_ok=True))


# -- which element --------------------------------------------------------------------------------


def _index_shape(x: Shape, *, axis: int | None, keepdims: bool) -> Shape:
    axes = range(x.rank) if axis is None else (axis,)
    for a in axes:
        require_size(
            x.dims[a] - 1, f"operand 0 is {x}: its axis {a} is empty, so no element is chosen"
        )
    return Shape(folded_dims(x.dims, axes, keepdims), DType.I64)


def _chosen(choose: Callable[..., Any], x: Array, axis: int | None, keepdims: bool) -> Array:
    axes = range(x.ndim) if axis is None else (axis,)
    if any(x.shape[a] == 0 for a in axes):
        return np.full(folded_dims(x.shape, axes, keepdims), NO_INDEX)
    return choose(x, axis=axis, keepdims=keepdims).astype(np.int64)


@reduction("n[*s] -> i64[...]", shape=_index_shape)
def argmax(x: Array, *, axis: Axis | None = None, keepdims: bool = False) -> Array:
    """Where the greatest element along `axis` is, the first of equals; the first NaN if there is
    one. Without an axis, the index counts through all elements in order. An axis whose size
    is found while the graph runs, and is 0, gives the greatest i64, which is no index."""
    return _chosen(np.argmax, x, axis, keepdims)


@reduction("n[*s] -> i64[...]", shape=_index_shape)
def argmin(x: Array, *, axis: Axis | None = None, keepdims: bool = False) -> Array:
    """Where the least element along `axis` is, the first of equals; the first NaN if there is
    one. Without an axis, the index counts through all elements in order. An axis whose size
    is found while the graph runs, and is 0, gives the greatest i64, which is no index."""
    return _chosen(np.argmin, x, axis, keepdims)


@argmax.lowering
def _(x: Any, *, axis: int | None, keepdims: bool) -> Any:
    return _first_hit(ops.max, x, axis, keepdims)


@argmin.lowering
def _(x: Any, *, axis: int | None, keepdims: bool) -> Any:
    return _first_hit(ops.min, x, axis, keepdims)


def _first_hit(extreme: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
    """The least position among those that hold the extreme, or NaN."""
    if axis is None:
        flat = _first_hit(extreme, ops.reshape(x, dims=(-1,)), 0, False)
        return ops.reshape(flat, dims=(1,) * len(dims_of(x))) if keepdims else flat
    hit = ops.equal(x, extreme(x, axes=(axis,), keepdims=True))
    if dtype_of(x).is_float:
        hit = ops.logical_or(hit, ops.is_nan(x))
    position = nullary(x, "iota", dims=dims_of(x), axis=axis, dtype=DType.I64)
    found = ops.where(hit, position, NO_INDEX)
    return ops.min(found, axes=(axis,), keepdims=keepdims)


def _best(x: Shape, *, k: int, axis: int, largest: bool) -> tuple[Shape, Shape]:
    if k < 0 or not provably_le(k, x.dims[axis]):
        known = " is not known to hold that many" if isinstance(x.dims[axis], Dim) else ""
        what = f"operand 0 is {x}: k={k} elements of axis {axis} with {x.dims[axis]}{known}"
        raise may_exceed(what, k, x.dims[axis])
    values = x.with_dim(axis, k)
    return values, values.with_dtype(DType.I64)


@op(
    "n[*s n] -> n[...], i64[...]",
    kind=Kind.SPECIAL,
    shape=_best,
    is_epilogue=True,
    flops="size0*k",
    why_no_lowering="a partial sort needs a dedicated kernel",
)
def top_k(x: Array, *, k: int, axis: Axis = LAST, largest: bool = True) -> tuple[Array, Array]:
    """The `k` greatest (or least) elements along `axis` in order, and where they were. Equals come
    by index; NaN counts as greater than all."""
    where = np.take(ordered(x, axis, largest), np.arange(k), axis=axis)
    return np.take_along_axis(x, where, axis=axis), where


def ordered(x: Array, axis: int, descending: bool) -> Array:
    """Where the elements along `axis` are, in order; equals by index, NaN greater than all."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable").astype(np.int64)
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable").astype(np.int64)
    return np.flip(x.shape[axis] - 1 - backwards, axis)


# -- cumulative sums and positions ----------------------------------------------------------------


@op(
    "t[*s n] -> t[*s n]",
    kind=Kind.SPECIAL,
    why_no_lowering="a cumulative sum is a scan, which no simpler op expresses in linear time",
)
def cumsum(x: Array, *, axis: Axis = LAST, exclusive: bool = False, reverse: bool = False) -> Array:
    """The cumulative sum along `axis`; `exclusive` leaves each element out of its own sum,
    `reverse` runs from the end. Integers wrap. Sums of f32 are carried in f64, those of f64 with
    what their roundings lose: an error does not grow with the length."""
    return scanned(np.add, x, axis, 0 if exclusive else None, reverse)


def carried(dtype: DType) -> DType:
    """The accumulator dtype of a scan: many roundings of f32 would add up, and a sum of 2²⁴ ones
    would stay there."""
    return {DType.F32: DType.F64, DType.C64: DType.C128}.get(dtype.compute, dtype)


BLOCK = 16
"""Elements that the reference adds one after the other."""


def _blocked_sums(x: Array) -> Array:
    """Running sums along the first axis: those of blocks, on the sum of the blocks before."""
    count = len(x) // BLOCK
    if count < 2:
        return np.cumsum(x, axis=0, dtype=x.dtype)
    whole = np.cumsum(x[: count * BLOCK].reshape(count, BLOCK, *x.shape[1:]), 1, dtype=x.dtype)
    whole[1:] += _blocked_sums(whole[:-1, -1])[:, None]
    rest = np.cumsum(x[count * BLOCK :], axis=0, dtype=x.dtype) + whole[-1, -1]
    return np.concatenate([whole.reshape(count * BLOCK, *x.shape[1:]), rest])


def _accumulated(fold: np.ufunc, x: Array, axis: int) -> Array:
    """The scan along `axis`, in its accumulator dtype."""
    dtype = DType.of(x.dtype)
    exact = fold in (np.maximum, np.minimum) or not (dtype.is_float or dtype.is_complex)
    if exact:
        return fold.accumulate(x, axis=axis, dtype=x.dtype)
    wide = x.astype(carried(dtype).numpy)
    if fold is np.add:
        return np.moveaxis(_blocked_sums(np.moveaxis(wide, axis, 0)), 0, axis).astype(x.dtype)
    return fold.accumulate(wide, axis=axis).astype(x.dtype)


def scanned(fold: np.ufunc, x: Array, axis: int, first: Any, reverse: bool) -> Array:
    """The scan along `axis`. With a `first`, that comes first, and so each element is
    left out of its own fold."""
    given = np.flip(x, axis) if reverse else x
    total = _accumulated(fold, given, axis)
    if first is not None:
        total = np.roll(total, 1, axis=axis)
        np.moveaxis(total, axis, 0)[:1] = first
    return np.flip(total, axis) if reverse else total


def _positions(*, dims: tuple[DimLike, ...], axis: int, dtype: DType) -> Shape:
    if not 0 <= axis < len(dims):
        raise GraphError(f"attribute axis: {axis} is out of range for rank {len(dims)}")
    return Shape(dims, dtype)


@op(
    " -> $dtype[...]",
    kind=Kind.MOVEMENT,
    shape=_positions,
    why_no_lowering="positions are given by the index itself",
)
def iota(*, dims: tuple[DimLike, ...], axis: int, dtype: DType = DType.I64) -> Array:
    """Each element's position along `axis`, counted from 0."""
    sizes = [int(d) for d in dims]
    line = np.arange(sizes[axis]).astype(dtype.numpy)
    return np.broadcast_to(np.expand_dims(line, [a for a in range(len(sizes)) if a != axis]), sizes)


@op(
    " -> $dtype[]",
    kind=Kind.MOVEMENT,
    why_no_lowering="a size is known to the plan, not computed",
)
def extent(*, dim: DimLike, dtype: DType = DType.I64) -> Array:
    """The size `dim` as a value: what a formula over named dims comes to in this run."""
    return np.asarray(int(dim)).astype(dtype.numpy)


# -- drawing --------------------------------------------------------------------------------------


def _draw_extreme(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, empty_ok = list(draw.dims()), draw.coin(0.3)
    axes = draw.axes(len(dims))
    for a in range(len(dims)) if axes is None else axes:
        dims[a] = dims[a] if empty_ok else max(1, dims[a])
    attrs = {"axes": axes, "keepdims": draw.coin(), "empty_ok": empty_ok}
    return [Spec(tuple(dims), draw.dtype("n"))], attrs


def _draw_index(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = list(draw.dims())
    axis = draw.integer(-len(dims), len(dims) - 1) if dims and draw.coin(0.8) else None
    for a in range(len(dims)) if axis is None else (axis,):
        dims[a] = max(1, dims[a])
    return [Spec(tuple(dims), draw.dtype("n"))], {"axis": axis, "keepdims": draw.coin()}


def _draw_best(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims(1)
    axis = draw.integer(0, len(dims) - 1)
    attrs = {"k": draw.integer(0, dims[axis]), "axis": axis, "largest": draw.coin()}
    return [Spec(dims, draw.dtype("n"))], attrs


def _draw_positions(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims(1)
    return [], {"dims": dims, "axis": draw.integer(0, len(dims) - 1), "dtype": draw.dtype("n")}


max_.sample(_draw_extreme)
min_.sample(_draw_extreme)
argmax.sample(_draw_index)
argmin.sample(_draw_index)
top_k.sample(_draw_best)
iota.sample(_draw_positions)
extent.sample(lambda draw: ([], {"dim": draw.size(), "dtype": draw.dtype("n")}))
