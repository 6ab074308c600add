"""Concatenation, splitting, padding, tiling and flips."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.attrs import Axes, Axis
from rlx.core.dim import DimLike, dim_max, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.layout import Layout
from rlx.core.shape import DimsDiffer, Shape, dims_differ, may_exceed
from rlx.ops.cost import OpClass, Work
from rlx.ops.indexing.movement import (
    Dims,
    axes_in,
    dims_of,
    known,
    movement,
    not_negative,
    per_axis,
    spec,
)
from rlx.ops.op import Array

_EVERY: Any = None
_FIRST = Axis(0)

# -- concatenation --------------------------------------------------------------------------------


def _joined(*xs: Shape, axis: int) -> Shape:
    first, total = xs[0], xs[0].dims[axis]
    for i, x in enumerate(xs[1:], 1):
        if x.rank != first.rank or x.with_dim(axis, 0).dims != first.with_dim(axis, 0).dims:
            raise dims_differ(
                f"operand {i} is {x}, but operand 0 is {first}: "
                f"all dims but that of axis {axis} must be equal",
                x.with_dim(axis, 0).dims, first.with_dim(axis, 0).dims,
            )  # fmt: skip
        total = total + x.dims[axis]
    return first.with_dim(axis, total)


def _selections(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> Work:
    """Per element and operand: a bounds test, a masked load, and a select."""
    return {OpClass.ARITHMETIC: 4 * len(shapes) * results[0].num_elements}


@movement(
    "a[...]+ -> a[...]",
    shape=_joined,
    aliases=("concatenate",),
    cost=_selections,
    why_no_lowering="a primitive: it states where values go",
)
def concat(*xs: Array, axis: Axis) -> Array:
    """The operands one after the other along an axis."""
    return np.concatenate(xs, axis)


@concat.sample
def _(draw: Any) -> Any:
    first = spec(draw, draw.dims(1))
    axis = draw.integer(0, len(first.dims) - 1)
    sizes = [draw.size() for _ in range(draw.integer(1, 4))]
    specs = [_resized(first, axis, n) for n in sizes]
    return specs, {"axis": axis - len(first.dims) * draw.coin(0.3)}


def _resized(given: Any, axis: int, size: int) -> Any:
    dims = (*given.dims[:axis], size, *given.dims[axis + 1 :])
    return type(given)(dims, given.dtype)


def _stacked(*xs: Shape, axis: int) -> Shape:
    dims = list(xs[0].dims)
    dims.insert(axis, len(xs))
    return xs[0].with_dims(dims)


@movement("a[*s]+ -> a[...]", shape=_stacked)
def stack(*xs: Array, axis: int = 0) -> Array:
    """The operands one after the other along a new axis, the `axis`-th of the result."""
    return np.stack(xs, axis)


@stack.normal
def _(*xs: Shape, axis: int) -> dict[str, Any]:
    return {"axis": axes_in((axis,), xs[0].rank + 1)[0]}


@stack.lowering
def _(*xs: Any, axis: int) -> Any:
    return ops.concat([ops.expand_dims(x, axes=(axis,)) for x in xs], axis=axis)


@stack.sample
def _(draw: Any) -> Any:
    first = spec(draw, draw.dims(0, 4))
    rank = len(first.dims)
    return [first] * draw.integer(1, 3), {"axis": draw.integer(-rank - 1, rank)}


def _parts(x: Shape, *, sizes: Dims, axis: int) -> tuple[Shape, ...]:
    for size in sizes:
        not_negative("a size", size)
    total: DimLike = 0
    for size in sizes:
        total = total + size
    if not sizes or total != x.dims[axis]:
        what = f"the sizes add up to {total}, but axis {axis} of {x} is {x.dims[axis]}"
        raise DimsDiffer(what, x.dims[axis], total)
    return tuple(x.with_dim(axis, size) for size in sizes)


@movement("a[...] -> ", shape=_parts)
def split(x: Array, *, sizes: Dims, axis: Axis = _FIRST) -> tuple[Array, ...]:
    """x cut along an axis into parts of these sizes, one result each."""
    ends = list(itertools.accumulate(known(sizes)))
    return tuple(np.split(x, ends[:-1], axis))


@split.lowering
def _(x: Any, *, sizes: Dims, axis: int) -> tuple[Any, ...]:
    starts = itertools.accumulate(sizes[:-1], initial=0)
    return tuple(
        ops.narrow(x, axis=axis, start=start, length=size) for start, size in zip(starts, sizes)
    )


@split.sample
def _(draw: Any) -> Any:
    first = spec(draw, draw.dims(1))
    axis = draw.integer(0, len(first.dims) - 1)
    sizes = tuple(draw.size() for _ in range(draw.integer(1, 3)))
    return [_resized(first, axis, sum(sizes))], {"sizes": sizes, "axis": axis}


# -- around ---------------------------------------------------------------------------------------

Mode = Literal["constant", "edge", "reflect", "wrap"]


def _padded(x: Shape, *, low: Dims, high: Dims, value: float, mode: Mode) -> Shape:
    per_axis(x, "low", low)
    per_axis(x, "high", high)
    _check_value(x.dtype, value)
    for axis, (size, *amounts) in enumerate(zip(x.dims, low, high)):
        for amount in amounts:
            not_negative("a pad", amount)
            _check_source(axis, size, amount, mode)
    return x.with_dims(a + d + b for a, d, b in zip(low, x.dims, high))


def _check_source(axis: int, size: DimLike, amount: DimLike, mode: Mode) -> None:
    """Are there values to pad with? Reflecting does not repeat the edge itself."""
    if mode == "constant" or amount == 0:
        return
    least = 1 if mode == "edge" else amount + 1 if mode == "reflect" else amount
    if not provably_le(least, size):
        what = (
            f"mode {mode} by {amount} needs at least {least} entries on axis {axis}, "
            f"which has {size}. Pad less, or by a constant"
        )
        raise may_exceed(what, least, size)


def _check_value(dtype: DType, value: float) -> None:
    if dtype is DType.BOOL or dtype.is_integer:
        least, most = (0, 1) if dtype is DType.BOOL else _range(dtype)
        if not (value == value and least <= value <= most and value % 1 == 0):
            raise GraphError(f"the value {value} is no {dtype}")


def _range(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


@movement(shape=_padded)
def pad(x: Array, *, low: Dims, high: Dims, value: float = 0.0, mode: Mode = "constant") -> Array:
    """x with `low` entries before and `high` after it on each axis: a value, the edge, the
    entries mirrored at the edge, or those of the other end."""
    widths = list(zip(known(low), known(high)))
    if mode != "constant":
        return np.pad(x, widths, mode=mode) if x.ndim else x
    made = np.full([a + d + b for d, (a, b) in zip(x.shape, widths)], value).astype(x.dtype)
    made[tuple(slice(a, a + d) for d, (a, _) in zip(x.shape, widths))] = x
    return made


@pad.normal
def _(x: Shape, *, low: Dims, high: Dims, value: float, mode: Mode) -> dict[str, Any]:
    return {} if mode == "constant" else {"value": 0.0}


@pad.lowering
def _(x: Any, *, low: Dims, high: Dims, value: float, mode: Mode) -> Any:
    for axis, amounts in enumerate(zip(low, high)):
        before, after = (
            [] if amount == 0 else [_border(x, axis, amount, value, mode, at_end)]
            for amount, at_end in zip(amounts, (False, True))
        )
        x = ops.concat([*before, x, *after], axis=axis)
    return x


def _border(x: Any, axis: int, amount: DimLike, value: float, mode: Mode, at_end: bool) -> Any:
    """What stands before x, or after it, along one axis."""
    dims = dims_of(x)
    size, wide = dims[axis], (*dims[:axis], amount, *dims[axis + 1 :])
    if mode == "constant":
        return ops.expand(_constant_like(x, value), dims=wide)
    if mode == "edge":
        start = size - 1 if at_end else 0
        return ops.expand(ops.narrow(x, axis=axis, start=start, length=1), dims=wide)
    if mode == "wrap":
        return ops.narrow(x, axis=axis, start=0 if at_end else size - amount, length=amount)
    start = size - 1 - amount if at_end else 1
    return ops.flip(ops.narrow(x, axis=axis, start=start, length=amount), axes=(axis,))


def _constant_like(x: Any, value: float) -> Any:
    """A constant of the dtype of x: a node beside a node, an array beside an array."""
    made = np.asarray(value).astype(DType.of(x.dtype).numpy)
    return x.graph.constant(made) if hasattr(x, "graph") else made


@pad.sample
def _(draw: Any) -> Any:
    mode = draw.choice(("constant", "edge", "reflect", "wrap"))
    given = spec(draw, draw.dims(0, 4, smallest=0 if mode == "constant" else 1))
    low, high = (tuple(_amount(draw, d, mode) for d in given.dims) for _ in range(2))
    value = float(draw.integer(0, 1))
    return [given], {"low": low, "high": high, "value": value, "mode": mode}


def _amount(draw: Any, size: int, mode: str) -> int:
    most = {"constant": 3, "edge": 3, "reflect": size - 1, "wrap": size}[mode]
    return draw.integer(0, min(most, 3))


# -- again ----------------------------------------------------------------------------------------


def _tiled(x: Shape, *, repeats: Dims) -> Shape:
    per_axis(x, "repeats", repeats)
    for count in repeats:
        not_negative("a repeat", count)
    return x.with_dims(d * r for d, r in zip(x.dims, repeats))


@movement(shape=_tiled)
def tile(x: Array, *, repeats: Dims) -> Array:
    """x repeated along each axis."""
    return np.tile(x, known(repeats))


@tile.lowering
def _(x: Any, *, repeats: Dims) -> Any:
    dims = dims_of(x)
    apart = ops.reshape(x, dims=_interleaved([1] * len(dims), dims))
    wide = ops.expand(apart, dims=_interleaved(repeats, dims))
    return ops.reshape(wide, dims=tuple(d * r for d, r in zip(dims, repeats)))


def _interleaved(a: Sequence[DimLike], b: Sequence[DimLike]) -> Dims:
    return tuple(itertools.chain.from_iterable(zip(a, b)))


@tile.sample
def _(draw: Any) -> Any:
    given = spec(draw, draw.dims(0, 4))
    return [given], {"repeats": tuple(draw.integer(0, 3) for _ in given.dims)}


@movement("a[*s] -> a[*s]", aliases=("reverse",))
def flip(x: Array, *, axes: Axes = _EVERY) -> Array:
    """x with these axes backwards; without `axes`, all of them."""
    return np.flip(x, axes)


@flip.lowering
def _(x: Any, *, axes: tuple[int, ...]) -> Any:
    dims = dims_of(x)
    backwards = [i in axes for i in range(len(dims))]
    starts = tuple(-1 if b else 0 for b in backwards)
    stops = tuple(-d - 1 if b else d for b, d in zip(backwards, dims))
    return ops.slice(x, starts=starts, stops=stops, steps=tuple(-1 if b else 1 for b in backwards))


@flip.view
def _(layout: Layout, *, axes: tuple[int, ...]) -> Layout:
    for axis in axes:
        size = layout.dims[axis]
        layout = layout.sliced(axis, dim_max(size - 1, 0), size, -1)
    return layout
