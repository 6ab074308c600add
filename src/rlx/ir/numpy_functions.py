"""NumPy's functions by their qualified names, with NumPy's signatures and meaning, on nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.op import lookup
from rlx.ops.signal.fft import resized

Axes: TypeAlias = int | Sequence[int] | None
Function: TypeAlias = Callable[..., Any]


def _axes(x: Any, axis: Axes) -> tuple[int, ...]:
    given = range(x.rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(given)


def _op(name: str) -> Function:
    return lambda *operands: lookup(name)(*operands)


def _rank(x: Any) -> int:
    return int(np.ndim(x))


def _inexact(x: Any) -> Any:
    """Whole numbers become f32, as true division makes them."""
    is_inexact = x.dtype.is_float or x.dtype.is_complex
    return x if is_inexact else lookup("cast")(x, to=DType.F32)


# -- reductions -----------------------------------------------------------------------------------


def _reduction(name: str) -> Function:
    def reduced(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Any:
        return lookup(name)(x, axes=_axes(x, axis), keepdims=keepdims)

    return reduced


def _mean(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Any:
    return lookup("mean")(_inexact(x), axes=_axes(x, axis), keepdims=keepdims)


def _position(name: str) -> Function:
    def found(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        if axis is not None:
            return lookup(name)(x, axis=axis, keepdims=keepdims)
        made = lookup(name)(ravel(x), axis=0)
        return lookup("reshape")(made, dims=(1,) * x.rank) if keepdims else made

    return found


def _cumulative(name: str) -> Function:
    def cumulated(x: Any, axis: int | None = None) -> Any:
        return lookup(name)(ravel(x) if axis is None else x, axis=axis or 0)

    return cumulated


def _sorted(name: str) -> Function:
    def made(x: Any, axis: int | None = -1) -> Any:
        return lookup(name)(ravel(x) if axis is None else x, axis=0 if axis is None else axis)

    return made


def var(x: Any, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    x, axes = _inexact(x), _axes(x, axis)
    centred = x - lookup("mean")(x, axes=axes, keepdims=True)
    power = lookup("square")(lookup("abs")(centred))
    if ddof == 0:
        return lookup("mean")(power, axes=axes, keepdims=keepdims)
    count = math.prod(x.shape[a] for a in axes) - ddof
    return lookup("sum")(power, axes=axes, keepdims=keepdims) / count


def std(x: Any, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    return lookup("sqrt")(var(x, axis, ddof=ddof, keepdims=keepdims))


# -- dims -----------------------------------------------------------------------------------------


def reshape(x: Any, *shape: Any) -> Any:
    is_whole = len(shape) == 1 and isinstance(shape[0], tuple | list | Shape)
    return lookup("reshape")(x, dims=tuple(shape[0] if is_whole else shape))


def ravel(x: Any) -> Any:
    return reshape(x, (-1,))


def transpose(x: Any, *order: Any, axes: Any = None) -> Any:
    is_whole = len(order) == 1 and not isinstance(order[0], int)
    given: Any = axes or (order[0] if is_whole else order)
    return lookup("transpose")(x, perm=tuple(given or reversed(range(x.rank))))


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    order = list(range(x.rank))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return lookup("transpose")(x, perm=tuple(order))


def matrix_transpose(x: Any) -> Any:
    return swapaxes(x, -1, -2)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    taken, put = ([a % x.rank for a in _axes(x, axes)] for axes in (source, destination))
    if len(taken) != len(put):
        raise GraphError(f"np.moveaxis: {len(taken)} axes go to {len(put)} places")
    order = [a for a in range(x.rank) if a not in taken]
    for place, axis in sorted(zip(put, taken)):
        order.insert(place, axis)
    return lookup("transpose")(x, perm=tuple(order))


def squeeze(x: Any, axis: Axes = None) -> Any:
    ones = tuple(i for i, d in enumerate(x.shape) if d == 1)
    return lookup("squeeze")(x, axes=ones if axis is None else _axes(x, axis))


def tile(x: Any, reps: int | Sequence[int]) -> Any:
    times = (reps,) if isinstance(reps, int) else tuple(reps)
    lacking = len(times) - x.rank
    whole = reshape(x, (*[1] * lacking, *x.shape)) if lacking > 0 else x
    return lookup("tile")(whole, repeats=(*[1] * -lacking, *times))


def _size(x: Any, axis: int | None = None) -> Any:
    return x.shape.num_elements if axis is None else x.shape[axis]


# -- parts ----------------------------------------------------------------------------------------


def _joined(name: str) -> Function:
    return lambda arrays, axis=0: lookup(name)(*arrays, axis=axis)


def _expanded(x: Any, axis: int) -> Any:
    """A vector as a matrix of one row or one column."""
    return lookup("expand_dims")(x, axes=(axis,)) if _rank(x) == 1 else x


def vstack(tup: Sequence[Any]) -> Any:
    return lookup("concat")(*(_expanded(v, 0) for v in tup), axis=0)


def hstack(tup: Sequence[Any]) -> Any:
    return lookup("concat")(*tup, axis=0 if _rank(tup[0]) == 1 else 1)


def column_stack(tup: Sequence[Any]) -> Any:
    return lookup("concat")(*(_expanded(v, 1) for v in tup), axis=1)


def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    size = x.shape[axis]
    if isinstance(indices_or_sections, int):
        each = size // indices_or_sections
        if size % indices_or_sections != 0:
            raise GraphError(f"np.split: {size} elements are no {indices_or_sections} equal parts")
        return list(lookup("split")(x, sizes=(each,) * indices_or_sections, axis=axis))
    ends = [*indices_or_sections, None]
    front = (slice(None),) * (axis % x.rank)
    return [x[(*front, slice(a, b))] for a, b in zip([None, *ends], ends)]


def diff(x: Any, n: int = 1, axis: int = -1) -> Any:
    front = (slice(None),) * (axis % x.rank)
    for _ in range(n):
        x = x[(*front, slice(1, None))] - x[(*front, slice(None, -1))]
    return x


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: float = 0.0) -> Any:
    pairs = np.broadcast_to(np.asarray(pad_width), (x.rank, 2)).tolist()
    low, high = zip(*pairs)
    return lookup("pad")(x, low=low, high=high, value=constant_values, mode=mode)


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    return lookup("gather")(ravel(x) if axis is None else x, indices, axis=axis or 0)


def _triangle(is_upper: bool) -> Function:
    return lambda m, k=0: lookup("trilu")(m, k=k, upper=is_upper)


# -- values ---------------------------------------------------------------------------------------


def clip(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low = named.pop("a_min", named.pop("min", low))
    high = named.pop("a_max", named.pop("max", high))
    if named:
        raise TypeError(f"clip has no {next(iter(named))!r}")
    raised = x if low is None else lookup("maximum")(x, low)
    return raised if high is None else lookup("minimum")(raised, high)


def zeros_like(x: Any, dtype: Any = None) -> Any:
    return full_like(x, 0.0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Any:
    return full_like(x, 1.0, dtype)


def full_like(x: Any, fill_value: Any, dtype: Any = None) -> Any:
    one = x.graph.constant(fill_value).astype(dtype or x.dtype)
    return lookup("expand")(one, dims=x.shape.dims)


# -- products -------------------------------------------------------------------------------------


def dot(x: Any, y: Any) -> Any:
    if not _rank(x) or not _rank(y):
        return lookup("mul")(x, y)
    if _rank(y) > 2:
        raise GraphError("np.dot on nodes is for matrices. Use rlx.ops.einsum")
    return lookup("matmul")(x, y)


def outer(a: Any, b: Any) -> Any:
    return lookup("outer")(*(lookup("reshape")(v, dims=(-1,)) for v in (a, b)))


def trace(x: Any, offset: int = 0) -> Any:
    """Of the first two axes; rlx.ops.trace, as np.linalg.trace, is of the last two."""
    return lookup("trace")(moveaxis(x, (0, 1), (-2, -1)), offset=offset)


def solve(a: Any, b: Any) -> Any:
    return lookup("solve")(a, b, vectors=_rank(b) == 1)


# -- transforms -----------------------------------------------------------------------------------


def _transform(name: str, *, has_length: bool = False) -> Function:
    """Along any axis: the op's is the last one. Real numbers are complex ones to `fft`, as the op
    takes blocks of real and imaginary parts for such."""

    def made(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        x = _inexact(swapaxes(a, axis, -1))
        if name in ("fft", "ifft", "irfft"):
            x = lookup("cast")(x, to=x.dtype.complex)
        length = {"n": n} if has_length and n is not None else {}
        whole = x if has_length or n is None else resized(x, n)
        return swapaxes(lookup(name)(whole, **length, norm=norm or "backward"), axis, -1)

    return made


def _shifted(name: str) -> Function:
    return lambda x, axes=None: lookup(name)(x, axes=_axes(x, axes))


FUNCTIONS: dict[str, Function] = {
    **{n: _reduction(n) for n in ("sum", "max", "min", "prod", "any", "all")},
    "amax": _reduction("max"), "amin": _reduction("min"), "mean": _mean, "average": _mean,
    "argmax": _position("argmax"), "argmin": _position("argmin"),
    "cumsum": _cumulative("cumsum"), "cumprod": _cumulative("cumprod"),
    "sort": _sorted("sort"), "argsort": _sorted("argsort"), "var": var, "std": std,
    "real": lambda val: lookup("real")(val) if val.dtype.is_complex else val,
    "imag": lambda val: lookup("imag")(val) if val.dtype.is_complex else zeros_like(val),
    "angle": _op("angle"), "round": _op("round"),
    "around": _op("round"), "fix": _op("trunc"), "copy": lambda a: a, "sinc": _op("sinc"),
    "i0": _op("i0"), "clip": clip,
    "reshape": reshape, "ravel": ravel, "transpose": transpose, "permute_dims": transpose,
    "swapaxes": swapaxes, "moveaxis": moveaxis, "squeeze": squeeze,
    "matrix_transpose": matrix_transpose, "linalg.matrix_transpose": matrix_transpose,
    "expand_dims": lambda a, axis: lookup("expand_dims")(a, axes=_axes(a, axis)),
    "broadcast_to": lambda array, shape: lookup("expand")(array, dims=tuple(shape)),
    "tile": tile, "flip": lambda m, axis=None: lookup("flip")(m, axes=_axes(m, axis)),
    "fliplr": lambda m: lookup("flip")(m, axes=(1,)),
    "flipud": lambda m: lookup("flip")(m, axes=(0,)),
    "concatenate": _joined("concat"), "concat": _joined("concat"), "stack": _joined("stack"),
    "vstack": vstack, "hstack": hstack, "column_stack": column_stack, "split": split,
    "diff": diff, "pad": pad, "tril": _triangle(False), "triu": _triangle(True),
    "where": lambda condition, x, y: lookup("where")(condition, x, y), "take": take,
    "take_along_axis":
        lambda arr, indices, axis=-1: lookup("take_along_axis")(arr, indices, axis=axis),
    "searchsorted": lambda a, v, side="left": lookup("searchsorted")(a, v, side=side),
    "dot": dot, "outer": outer, "trace": trace,
    "einsum": lambda equation, *operands: lookup("einsum")(*operands, equation=equation),
    "zeros_like": zeros_like, "ones_like": ones_like, "full_like": full_like,
    "shape": lambda a: a.shape.dims, "ndim": lambda a: a.rank, "size": _size,
    "linalg.det": _op("det"), "linalg.inv": _op("inverse"), "linalg.solve": solve,
    "linalg.cholesky": _op("cholesky"), "linalg.slogdet": _op("slogdet"),
    "linalg.matmul": _op("matmul"), "linalg.outer": _op("outer"),
    "linalg.trace": lambda x, offset=0: lookup("trace")(x, offset=offset),
    "fft.rfft": _transform("rfft", has_length=True), "fft.fft": _transform("fft"),
    "fft.irfft": _transform("irfft", has_length=True), "fft.ifft": _transform("ifft"),
    "fft.fftshift": _shifted("fftshift"), "fft.ifftshift": _shifted("ifftshift"),
}  # fmt: skip
"""NumPy's function, without the `numpy.` of its name → the same on nodes."""
