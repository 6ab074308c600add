"""N-dimensional Fourier transforms, spectrum shifts, and cosine transforms.

They go with NumPy's and SciPy's of the same names. All are computed in f64 and rounded once, and
lowered to the transform of the last axis, or to a product with a table of cosines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.attrs import Axes, Axis
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import composed, dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op
from rlx.ops.signal.fft import NORMS, Norm

EVERY: Any = None
LAST = Axis(-1)


def _steps(n: DimLike) -> int:
    """log₂ of a length, rounded up."""
    return max(1, (n.max or 4096) if isinstance(n, Dim) else n).bit_length()


def _flops(shapes: Any, results: Any, attrs: Any) -> DimLike:
    """5 n log₂ n for every axis."""
    larger = shapes[0] if shapes[0].dtype.is_float else results[0]
    return 5 * sum(_steps(larger.dims[a]) for a in attrs["axes"]) * larger.num_elements


def _last_first(x: Any, axis: int) -> Any:
    """x with `axis` and the last one exchanged."""
    last = len(dims_of(x)) - 1
    if axis == last:
        return x
    perm = list(range(last + 1))
    perm[axis], perm[last] = last, axis
    return ops.transpose(x, perm=tuple(perm))


def _along(x: Any, axis: int, name: str, **attrs: Any) -> Any:
    """A transform of the last axis, taken along another."""
    from rlx.ops.op import lookup

    return _last_first(lookup(name)(_last_first(x, axis), **attrs), axis)


def _check_points(x: Shape, axes: Sequence[int]) -> None:
    for axis in axes:
        if x.dims[axis] == 0:
            raise GraphError(f"operand 0 is {x}: a transform of axis {axis} needs at least a point")


# -- Fourier --------------------------------------------------------------------------------------


def _complex_shape(x: Shape, *, axes: tuple[int, ...], norm: Norm) -> Shape:
    _check_points(x, axes)
    return x.with_dtype(x.dtype.complex)


_fourier = op(
    "x[*s] -> x.complex[*s]",
    kind=Kind.SPECIAL,
    shape=_complex_shape,
    flops=_flops,
    has_fft=True,
    draw="plain",
)


@_fourier
def fftn(x: Array, *, axes: Axes = EVERY, norm: Norm = "backward") -> Array:
    """The discrete Fourier transform over `axes`, of complex or real numbers."""
    return _over(np.fft.fft, x, axes, norm)


@_fourier
def ifftn(x: Array, *, axes: Axes = EVERY, norm: Norm = "backward") -> Array:
    """The inverse transform over `axes`, of complex or real numbers."""
    return _over(np.fft.ifft, x, axes, norm)


def _over(transform: Any, x: Array, axes: Sequence[int], norm: Norm) -> Array:
    z = x.astype(np.complex128)
    for axis in axes:
        z = transform(z, axis=axis, norm=norm) if z.size else z
    return z


@fftn.lowering
def _(x: Any, *, axes: tuple[int, ...], norm: Norm) -> Any:
    return _lowered_over(x, axes, inverse=False, norm=norm)


@ifftn.lowering
def _(x: Any, *, axes: tuple[int, ...], norm: Norm) -> Any:
    return _lowered_over(x, axes, inverse=True, norm=norm)


def _lowered_over(x: Any, axes: Sequence[int], **attrs: Any) -> Any:
    z = ops.cast(x, to=dtype_of(x).complex)
    for axis in axes:
        z = _along(z, axis, "fft", **attrs)
    return z


def _draw_over(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = list(draw.dims(0, 4))
    axes = draw.axes(len(dims))
    for axis in range(len(dims)) if axes is None else axes:
        dims[axis] = max(1, dims[axis])
    spec = Spec(tuple(dims), draw.dtype("x"), "plain")
    return [spec], {"axes": axes, "norm": draw.choice(NORMS)}


fftn.sample(_draw_over)
ifftn.sample(_draw_over)


def _half_shape(x: Shape, *, axes: tuple[int, ...], norm: Norm) -> Shape:
    _check_some(axes)
    _check_points(x, axes)
    return x.with_dtype(x.dtype.complex).with_dim(axes[-1], x.dims[axes[-1]] // 2 + 1)


def _check_some(axes: Sequence[int]) -> None:
    if not axes:
        raise GraphError("a transform of real numbers needs at least one axis")


@op(
    "f[*s] -> f.complex[...]",
    kind=Kind.SPECIAL,
    shape=_half_shape,
    flops=_flops,
    has_fft=True,
    draw="plain",
)
def rfftn(x: Array, *, axes: Axes = EVERY, norm: Norm = "backward") -> Array:
    """The transform of real numbers over `axes`: of the last of them the first n // 2 + 1 bins."""
    half = np.fft.rfft(x.astype(np.float64), axis=axes[-1], norm=norm)
    return _over(np.fft.fft, half, axes[:-1], norm)


@rfftn.lowering
def _(x: Any, *, axes: tuple[int, ...], norm: Norm) -> Any:
    half = _along(x, axes[-1], "rfft", norm=norm)
    return _lowered_over(half, axes[:-1], inverse=False, norm=norm)


def _whole_shape(x: Shape, *, axes: tuple[int, ...], n: int | None, norm: Norm) -> Shape:
    _check_some(axes)
    _check_points(x, axes)
    length = 2 * (x.dims[axes[-1]] - 1) if n is None else n
    if not isinstance(length, Dim) and length < 1:
        raise GraphError(f"n is {length}: a transform needs at least one point")
    return x.with_dtype(x.dtype.real).with_dim(axes[-1], length)


@op(
    "c[*s] -> c.real[...]",
    kind=Kind.SPECIAL,
    shape=_whole_shape,
    flops=_flops,
    has_fft=True,
    draw="plain",
)
def irfftn(x: Array, *, axes: Axes = EVERY, n: int | None = None, norm: Norm = "backward") -> Array:
    """The real numbers whose `rfftn` is x; `n` is their length on the last of `axes`, and without
    it twice the bins less two."""
    whole = _over(np.fft.ifft, x, axes[:-1], norm)
    return np.fft.irfft(whole, n, axis=axes[-1], norm=norm)


@irfftn.lowering
def _(x: Any, *, axes: tuple[int, ...], n: int | None, norm: Norm) -> Any:
    whole = _lowered_over(x, axes[:-1], inverse=True, norm=norm)
    return _along(whole, axes[-1], "irfft", n=n, norm=norm)


def _draw_real(draw: Draw, letter: str, least: int) -> tuple[Spec, dict[str, Any]]:
    dims = [draw.size() for _ in range(draw.integer(1, 3))]
    axes = draw.axes(len(dims)) or (draw.integer(0, len(dims) - 1),)
    for axis in axes:
        dims[axis] = max(least, dims[axis])
    spec = Spec(tuple(dims), draw.dtype(letter), "plain")
    return spec, {"axes": axes, "norm": draw.choice(NORMS)}


@rfftn.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    spec, attrs = _draw_real(draw, "f", 1)
    return [spec], attrs


@irfftn.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n = draw.choice((None, 1, 2, 5, 8))
    spec, attrs = _draw_real(draw, "c", 2 if n is None else 1)
    return [spec], {**attrs, "n": n}


# -- the order of bins ----------------------------------------------------------------------------


def _rolled(x: Any, axis: int, places: DimLike) -> Any:
    """The last `places` entries of an axis first."""
    rest = dims_of(x)[axis] - places
    parts = ((rest, places), (0, rest))
    cut = [ops.narrow(x, axis=axis, start=start, length=size) for start, size in parts]
    return ops.concat(cut, axis=axis)


@composed("a[*s] -> a[*s]", kind=Kind.MOVEMENT)
def fftshift(x: Any, *, axes: Axes = EVERY) -> Any:
    """A spectrum with frequency 0 in the middle of `axes`."""
    for axis in axes:
        x = _rolled(x, axis, dims_of(x)[axis] // 2)
    return x


@composed("a[*s] -> a[*s]", kind=Kind.MOVEMENT)
def ifftshift(x: Any, *, axes: Axes = EVERY) -> Any:
    """A spectrum with frequency 0 at the front of `axes` again: the inverse of fftshift."""
    for axis in axes:
        size = dims_of(x)[axis]
        x = _rolled(x, axis, size - size // 2)
    return x


# -- cosines --------------------------------------------------------------------------------------

DctType = Literal[1, 2, 3, 4]
_INVERSE: dict[int, int] = {1: 1, 2: 3, 3: 2, 4: 4}
_OTHER_WAY: dict[str, Norm] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _cosine_shape(x: Shape, *, kind: int, axis: int, norm: Norm) -> Shape:
    size, least = x.dims[axis], 2 if kind == 1 else 1
    if not isinstance(size, Dim) and size < least:
        raise GraphError(f"operand 0 is {x}: type {kind} needs {least} points on axis {axis}")
    return x


def _cosine_flops(shapes: Any, results: Any, attrs: Any) -> DimLike:
    return 3 * _steps(shapes[0].dims[attrs["axis"]]) * shapes[0].num_elements


@op("f[*s n] -> f[*s n]", kind=Kind.SPECIAL, shape=_cosine_shape, flops=_cosine_flops, draw="plain")
def dct(x: Array, *, kind: DctType = 2, axis: Axis = LAST, norm: Norm = "backward") -> Array:
    """The discrete cosine transform of types 1 to 4 along `axis`, scaled as SciPy's: 2 Σ xₙ cos …
    without a norm, orthogonal with `ortho`."""
    return _by_matrix(x, kind, axis, norm)


@op("f[*s n] -> f[*s n]", kind=Kind.SPECIAL, shape=_cosine_shape, flops=_cosine_flops, draw="plain")
def idct(x: Array, *, kind: DctType = 2, axis: Axis = LAST, norm: Norm = "backward") -> Array:
    """The inverse of `dct`: types 2 and 3 are each other's."""
    return _by_matrix(x, _INVERSE[kind], axis, _OTHER_WAY[norm])


def _by_matrix(x: Array, kind: int, axis: int, norm: Norm) -> Array:
    wide = np.moveaxis(x.astype(np.float64), axis, -1)
    if 0 in wide.shape[-1:]:
        return x
    return np.moveaxis(wide @ _cosines(wide, kind, norm), -1, axis)


def _cosines(x: Any, kind: int, norm: Norm) -> Any:
    """The matrix of a transform of the last axis of x, [n, k], in table ops.

    Angles are whole numbers of steps, reduced modulo 2π while they are exact.
    """
    n, dtype = dims_of(x)[-1], dtype_of(x)
    size = nullary(x, "extent", dim=n)
    rows, columns = (nullary(x, "iota", dims=(n, n), axis=a) for a in (0, 1))
    left = ops.add(ops.mul(rows, 2), 1) if kind in (2, 4) else rows
    right = ops.add(ops.mul(columns, 2), 1) if kind in (3, 4) else columns
    half_turn = ops.mul(size, {2: 2, 3: 2, 4: 4}[kind]) if kind > 1 else ops.sub(size, 1)
    steps = ops.rem(ops.mul(left, right), ops.mul(half_turn, 2))
    turn = ops.div(ops.cast(steps, to=dtype), ops.cast(half_turn, to=dtype))
    matrix = ops.mul(ops.cos(ops.mul(turn, math.pi)), 2.0)
    ends = _ends(x, rows, kind), _ends(x, columns, kind)
    return ops.mul(_weighted(matrix, ends, kind, norm), _scale(size, dtype, kind, norm))


def _ends(x: Any, line: Any, kind: int) -> Any:
    """Where the first point is, or for type 1 the first and the last."""
    first = ops.equal(line, 0)
    if kind != 1:
        return first
    return ops.logical_or(first, ops.equal(line, nullary(x, "extent", dim=dims_of(x)[-1] - 1)))


def _weighted(matrix: Any, ends: tuple[Any, Any], kind: int, norm: Norm) -> Any:
    """Ends count half as inputs; where the matrix is orthogonal, √½ as inputs and outputs."""
    share = math.sqrt(0.5) if norm == "ortho" else 0.5
    if kind in (1, 3):
        matrix = ops.where(ends[0], ops.mul(matrix, share), matrix)
    if kind in (1, 2) and norm == "ortho":
        matrix = ops.where(ends[1], ops.mul(matrix, share), matrix)
    return matrix


def _scale(size: Any, dtype: DType, kind: int, norm: Norm) -> Any:
    period = ops.cast(ops.mul(ops.sub(size, 1) if kind == 1 else size, 2), to=dtype)
    one = ops.cast(1.0, to=dtype)
    if norm == "backward":
        return one
    return ops.div(one, ops.sqrt(period) if norm == "ortho" else period)


@dct.lowering
def _(x: Any, *, kind: int, axis: int, norm: Norm) -> Any:
    moved = _last_first(x, axis)
    dims = dims_of(moved)
    rows = ops.expand_dims(moved, axes=(0,)) if len(dims) == 1 else moved
    made = ops.matmul(rows, _cosines(moved, kind, norm))
    return _last_first(ops.reshape(made, dims=dims), axis)


@idct.lowering
def _(x: Any, *, kind: int, axis: int, norm: Norm) -> Any:
    return ops.dct(x, kind=_INVERSE[kind], axis=axis, norm=_OTHER_WAY[norm])


def _draw_cosine(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    kind, dims = draw.integer(1, 4), list(draw.dims(1, 4))
    axis = draw.integer(0, len(dims) - 1)
    dims[axis] = max(2 if kind == 1 else 1, dims[axis])
    attrs = {"kind": kind, "axis": axis, "norm": draw.choice(NORMS)}
    return [Spec(tuple(dims), draw.dtype("f"), "plain")], attrs


dct.sample(_draw_cosine)
idct.sample(_draw_cosine)
