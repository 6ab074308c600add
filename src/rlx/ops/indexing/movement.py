"""Data movement: reshape, transpose, slices, broadcasts. A view rule gives the strided layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, exact_div, product, provably_le
from rlx.core.errors import GraphError
from rlx.core.layout import Layout
from rlx.core.shape import DimsDiffer, Shape, broadcast, may_exceed
from rlx.ops.op import Array, Kind, op

PRIMITIVE = "a primitive: it states where values go"
Dims = tuple[DimLike, ...]


def movement(signature: str = "a[...] -> a[...]", **facts: Any) -> Any:
    """Declare a movement op."""
    return op(signature, kind=Kind.MOVEMENT, **facts)


def dims_of(x: Any) -> Dims:
    """The dims of a node, an array or a shape."""
    shape = x if isinstance(x, Shape) else x.shape
    return shape.dims if isinstance(shape, Shape) else tuple(shape)


def known(dims: Sequence[DimLike]) -> tuple[int, ...]:
    """Bound dims as ints: what a reference is given."""
    return tuple(map(int, dims))


def shown(dims: Sequence[DimLike]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def per_axis(x: Shape, name: str, given: Sequence[Any]) -> None:
    if len(given) != x.rank:
        raise GraphError(f"{name} has {len(given)} entries, but x is {x} of rank {x.rank}")


def not_negative(name: str, dim: DimLike) -> None:
    if not provably_le(0, dim):
        why = "which may be negative" if isinstance(dim, Dim) else "which is negative"
        raise may_exceed(f"{name} is {dim}, {why}", 0, dim)


def axes_in(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes of a result of `rank`, from the front and sorted."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise GraphError(
                f"axis {axis} is out of range for rank {rank}. Give one from {-rank} to {rank - 1}"
            )
    found = tuple(sorted(axis % rank for axis in axes))
    if len(set(found)) != len(found):
        raise GraphError(f"axes {tuple(axes)} name one axis twice. Name each once")
    return found


def spec(draw: Any, dims: Sequence[int]) -> Any:
    from rlx.ops.draw import Spec

    return Spec(tuple(dims), draw.dtype("a"))


# -- reshape, transpose, expand -------------------------------------------------------------------


def _reshaped(x: Shape, *, dims: Dims) -> Shape:
    if product(dims) != x.num_elements:
        raise DimsDiffer(
            f"{x} has {x.num_elements} elements, but {shown(dims)} has {product(dims)}. "
            "Give dims of the same product",
            x.num_elements,
            product(dims),
        )
    return x.with_dims(dims)


@movement(shape=_reshaped, why_no_lowering=PRIMITIVE)
def reshape(x: Array, *, dims: Dims) -> Array:
    """The values in row-major order, under other dims. One dim may be given as -1."""
    return x.reshape(known(dims))


@reshape.normal
def _(x: Shape, *, dims: Dims) -> dict[str, Any]:
    """-1 stands for the dim that makes the number of elements right."""
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if not unknown:
        return {}
    rest = product(d for d in dims if d != -1)
    found = exact_div(x.num_elements, rest) if len(unknown) == 1 and rest != 0 else None
    if found is None:
        what = f"{x} does not reshape to {shown(dims)}: -1 has no one value. State it"
        raise DimsDiffer(what, *_indivisible(x, dims)) if len(unknown) == 1 else GraphError(what)
    return {"dims": tuple(found if d == -1 else d for d in dims)}


def _indivisible(x: Shape, dims: Dims) -> tuple[DimLike, DimLike]:
    """Two sizes whose equality makes the number of elements divisible by the dims beside -1: first
    named dims that are at the same place from either end, then what is to be divided, and that
    rounded to a multiple."""
    at = dims.index(-1)
    head, tail = dims[:at], dims[at + 1 :]
    total, rest = x.num_elements, list[DimLike]()
    for dim in (*head, *tail):
        quotient = exact_div(total, dim)
        total, rest = (total, [*rest, dim]) if quotient is None else (quotient, rest)
    for old, new in (*zip(x.dims, head), *zip(reversed(x.dims), reversed(tail))):
        if isinstance(old, Dim) and isinstance(new, Dim) and old != new and new in rest:
            return old, new
    return total, total // dim_max(1, product(rest)) * product(rest)


@reshape.view
def _(layout: Layout, *, dims: Dims) -> Layout | None:
    return layout.reshaped(dims)


@reshape.sample
def _(draw: Any) -> Any:
    factors = draw.dims(0, 5)
    cut = sorted(draw.integer(0, len(factors)) for _ in range(2))
    old = [_merged(factors[: cut[0]], draw), factors[cut[0] :]]
    new: list[Any] = [*factors[: cut[1]], *_merged(factors[cut[1] :], draw)]
    if new and 0 not in new and draw.coin():
        new[draw.integer(0, len(new) - 1)] = -1
    return [spec(draw, [*old[0], *old[1]])], {"dims": tuple(new)}


def _merged(factors: Sequence[int], draw: Any) -> list[int]:
    """The same product as one dim, or with dims of 1 added."""
    if draw.coin():
        return [int(np.prod(factors, dtype=np.int64))]
    return [*factors, 1] if draw.coin() else list(factors)


def _transposed(x: Shape, *, perm: tuple[int, ...]) -> Shape:
    return x.with_dims(x.dims[p] for p in perm)


@movement(shape=_transposed, aliases=("permute_dims", "permute"), why_no_lowering=PRIMITIVE)
def transpose(x: Array, *, perm: tuple[int, ...] | None = None) -> Array:
    """Axis i of the result is axis perm[i] of x; without `perm`, the axes in reverse."""
    return x.transpose(perm)


@transpose.normal
def _(x: Shape, *, perm: tuple[int, ...] | None) -> dict[str, Any]:
    if perm is None:
        return {"perm": tuple(reversed(range(x.rank)))}
    if len(perm) != x.rank or axes_in(perm, x.rank) != tuple(range(x.rank)):
        raise GraphError(f"perm {perm} does not name every axis of {x} once")
    return {"perm": tuple(p % x.rank for p in perm)}


@transpose.view
def _(layout: Layout, *, perm: tuple[int, ...]) -> Layout:
    return layout.permuted(perm)


@transpose.sample
def _(draw: Any) -> Any:
    dims = draw.dims()
    perm = tuple(int(p) - len(dims) * draw.coin(0.3) for p in draw.rng.permutation(len(dims)))
    return [spec(draw, dims)], {"perm": None if draw.coin(0.2) else perm}


def _expanded(x: Shape, *, dims: Dims) -> Shape:
    if len(dims) < x.rank or broadcast(x.dims, dims) != dims:
        raise GraphError(f"{x} does not expand to {shown(dims)}: only dims of 1 are repeated")
    return x.with_dims(dims)


@movement(shape=_expanded, aliases=("broadcast_to",), why_no_lowering=PRIMITIVE)
def expand(x: Array, *, dims: Dims) -> Array:
    """x broadcast to `dims`: dims of 1 and missing leading ones are repeated."""
    return np.broadcast_to(x, known(dims))


@expand.view
def _(layout: Layout, *, dims: Dims) -> Layout:
    return layout.expanded(dims)


@expand.sample
def _(draw: Any) -> Any:
    dims = draw.dims()
    kept = dims[draw.integer(0, len(dims)) :]
    return [spec(draw, [1 if draw.coin(0.4) else d for d in kept])], {"dims": dims}


def is_one(dim: DimLike) -> bool:
    """Is it 1, whatever the named sizes are?"""
    return dim == 1 or (isinstance(dim, Dim) and provably_le(1, dim) and provably_le(dim, 1))


def _squeezed(x: Shape, *, axes: tuple[int, ...]) -> Shape:
    for axis in axes:
        if not is_one(x.dims[axis]):
            raise DimsDiffer(f"axis {axis} of {x} is {x.dims[axis]}, not 1", x.dims[axis], 1)
    return x.with_dims(d for i, d in enumerate(x.dims) if i not in axes)


@movement(shape=_squeezed)
def squeeze(x: Array, *, axes: tuple[int, ...] | None = None) -> Array:
    """x without these axes of size 1; without `axes`, without all that are 1."""
    return np.squeeze(x, axes)


@squeeze.normal
def _(x: Shape, *, axes: tuple[int, ...] | None) -> dict[str, Any]:
    if axes is None:
        return {"axes": tuple(i for i, d in enumerate(x.dims) if is_one(d))}
    return {"axes": axes_in(axes, x.rank)}


@squeeze.lowering
def squeezed(x: Any, *, axes: tuple[int, ...]) -> Any:
    """A reshape; a named size of which only proofs know that it is 1 is first cut to a plain 1."""
    for axis in axes:
        if isinstance(dims_of(x)[axis], Dim):
            x = ops.narrow(x, axis=axis, start=0, length=1)
    return ops.reshape(x, dims=tuple(d for i, d in enumerate(dims_of(x)) if i not in axes))


@squeeze.view
def _(layout: Layout, *, axes: tuple[int, ...]) -> Layout:
    kept = [i for i in range(len(layout.dims)) if i not in axes]
    return layout.permuted(kept)


@squeeze.sample
def _(draw: Any) -> Any:
    dims = [1 if draw.coin(0.4) else d for d in draw.dims()]
    axes = tuple(i - len(dims) * draw.coin(0.3) for i, d in enumerate(dims) if d == 1)
    return [spec(draw, dims)], {"axes": None if draw.coin(0.3) else axes}


def _unsqueezed(x: Shape, *, axes: tuple[int, ...]) -> Shape:
    return x.with_dims(_with_ones(x.dims, axes, 1))


def _with_ones(dims: Sequence[DimLike], axes: tuple[int, ...], one: DimLike) -> list[DimLike]:
    rest = iter(dims)
    return [one if i in axes else next(rest) for i in range(len(dims) + len(axes))]


@movement(shape=_unsqueezed, aliases=("unsqueeze",))
def expand_dims(x: Array, *, axes: tuple[int, ...]) -> Array:
    """x with axes of size 1 added, so that these are their places in the result."""
    return np.expand_dims(x, axes)


@expand_dims.normal
def _(x: Shape, *, axes: tuple[int, ...]) -> dict[str, Any]:
    return {"axes": axes_in(axes, x.rank + len(axes))}


@expand_dims.lowering
def _(x: Any, *, axes: tuple[int, ...]) -> Any:
    return ops.reshape(x, dims=tuple(_with_ones(dims_of(x), axes, 1)))


@expand_dims.view
def _(layout: Layout, *, axes: tuple[int, ...]) -> Layout:
    dims, strides = _with_ones(layout.dims, axes, 1), _with_ones(layout.strides, axes, 0)
    return Layout(tuple(dims), tuple(strides), layout.offset)


@expand_dims.sample
def _(draw: Any) -> Any:
    dims, count = draw.dims(0, 3), draw.integer(0, 2)
    rank = len(dims) + count
    axes = draw.rng.permutation(rank)[:count]
    return [spec(draw, dims)], {"axes": tuple(int(a) - rank * draw.coin(0.3) for a in axes)}


# -- parts ----------------------------------------------------------------------------------------


def _narrowed(x: Shape, *, axis: int, start: DimLike, length: DimLike) -> Shape:
    not_negative("start", start)
    not_negative("length", length)
    size = x.dims[axis]
    if not provably_le(start + length, size):
        known = not isinstance(start + length, Dim) and not isinstance(size, Dim)
        how = "is past" if known else "may be past"
        what = f"start {start} + length {length} {how} the end of axis {axis}: {size}"
        raise may_exceed(what, start + length, size)
    return x.with_dim(axis, length)


@movement(shape=_narrowed)
def narrow(x: Array, *, axis: Axis, start: DimLike, length: DimLike) -> Array:
    """`length` entries of an axis, from `start`."""
    first = int(start)
    return x[(slice(None),) * axis + (slice(first, first + int(length)),)]


@narrow.lowering
def _(x: Any, *, axis: int, start: DimLike, length: DimLike) -> Any:
    dims = dims_of(x)
    starts = tuple(start if i == axis else 0 for i in range(len(dims)))
    stops = tuple(start + length if i == axis else d for i, d in enumerate(dims))
    return ops.slice(x, starts=starts, stops=stops)


@narrow.view
def _(layout: Layout, *, axis: int, start: DimLike, length: DimLike) -> Layout:
    return layout.sliced(axis, start, length)


@narrow.sample
def _(draw: Any) -> Any:
    dims = draw.dims(1)
    axis = draw.integer(0, len(dims) - 1)
    start = draw.integer(0, dims[axis])
    length = draw.integer(0, dims[axis] - start)
    signed_axis = axis - len(dims) * draw.coin(0.3)
    return [spec(draw, dims)], {"axis": signed_axis, "start": start, "length": length}


def span(size: DimLike, start: DimLike, stop: DimLike, step: int) -> tuple[DimLike, DimLike]:
    """The first index and the number of indices of NumPy's `[start:stop:step]`. Of a bound that is
    clamped, the count is a min of differences: c - max(a, b) = min(c - a, c - b)."""
    if step > 0:
        first, high = _before(size, start), _before(size, stop)
        count = dim_min(high - size - start, high) if _is_from_back(start) else high - start
    else:
        high = _before(size, start, 1)
        first = dim_max(high - 1, 0)
        after = stop + 1
        count = dim_min(high - size - after, high) if _is_from_back(stop) else high - after
    length = dim_max(count, 0)
    return first, length if abs(step) == 1 else (length + (abs(step) - 1)) // abs(step)


def _before(size: DimLike, index: DimLike, past: int = 0) -> DimLike:
    """How many elements are before what is `past` an index."""
    if _is_from_back(index):
        return dim_max(size + index + past, 0)
    return dim_min(index + past, size)


def _is_from_back(index: DimLike) -> bool:
    if provably_le(index, -1):
        return True
    if not provably_le(0, index):
        what = f"the sign of the bound {index} is not known. Narrow its dims' ranges"
        raise may_exceed(what, 0, index)
    return False


def _sliced(x: Shape, *, starts: Dims, stops: Dims, steps: tuple[int, ...]) -> Shape:
    return x.with_dims(span(*axis)[1] for axis in zip(x.dims, starts, stops, steps))


@movement(shape=_sliced, why_no_lowering=PRIMITIVE)
def slice_(x: Array, *, starts: Dims, stops: Dims, steps: tuple[int, ...] | None = None) -> Array:
    """x[starts:stops:steps] on every axis, as NumPy has it: negative bounds count from the back,
    and with a negative step a stop before -size goes on to the front."""
    bounds = (starts, stops, steps or (1,) * x.ndim)
    return x[tuple(slice(int(a), int(b), c) for a, b, c in zip(*bounds))]


@slice_.normal
def _(x: Shape, *, starts: Dims, stops: Dims, steps: tuple[int, ...] | None) -> dict[str, Any]:
    """Where an axis is static its slice is normalised to the indices taken."""
    steps = (1,) * x.rank if steps is None else steps
    for name, given in (("starts", starts), ("stops", stops), ("steps", steps)):
        per_axis(x, name, given)
    if 0 in steps:
        raise GraphError("a step of 0 goes nowhere. Give another")
    axes = [_canonical_bounds(*axis) for axis in zip(x.dims, starts, stops, steps)]
    columns = tuple(zip(*axes)) if axes else ((), (), ())
    return dict(zip(("starts", "stops", "steps"), columns))


def _canonical_bounds(
    size: DimLike, start: DimLike, stop: DimLike, step: int
) -> tuple[DimLike, DimLike, int]:
    first, length = span(size, start, stop, step)
    if isinstance(size, Dim) or isinstance(first, Dim) or isinstance(length, Dim):
        return start, stop, step
    if length <= 1:
        return (first, first + 1, 1) if length else (0, 0, 1)
    last = first + (length - 1) * step
    end = last + (1 if step > 0 else -1)
    return first, end if end >= 0 else -size - 1, step


@slice_.view
def _(layout: Layout, *, starts: Dims, stops: Dims, steps: tuple[int, ...]) -> Layout:
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps)):
        first, length = span(layout.dims[axis], start, stop, step)
        layout = layout.sliced(axis, first, length, step)
    return layout


@slice_.sample
def _(draw: Any) -> Any:
    dims = draw.dims()
    starts, stops = (tuple(draw.integer(-d - 2, d + 2) for d in dims) for _ in range(2))
    steps = tuple(draw.choice((1, 1, 2, 3, -1, -2)) for _ in dims)
    attrs = {"starts": starts, "stops": stops, "steps": steps}
    return [spec(draw, dims)], attrs
