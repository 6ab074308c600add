"""NumPy's functions on nodes: ufuncs and functions by NumPy's names, as ops of the table.

What has no counterpart is an error that names `rlx.ops`: a node has no values to compute with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.core.errors import GraphError
from rlx.ops.op import lookup, names

UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "floor_divide": "floor_div",
    "remainder": "mod", "mod": "mod", "power": "pow", "float_power": "pow", "negative": "neg",
    "absolute": "abs", "fabs": "abs", "sign": "sign", "square": "square", "sqrt": "sqrt",
    "cbrt": "cbrt", "reciprocal": "reciprocal", "exp": "exp", "exp2": "exp2", "expm1": "expm1",
    "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos",
    "tan": "tan", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "hypot": "hypot", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "rint": "round", "maximum": "maximum", "minimum": "minimum", "logaddexp": "logaddexp",
    "heaviside": "heaviside", "equal": "equal", "not_equal": "not_equal", "less": "less",
    "less_equal": "less_equal", "greater": "greater", "greater_equal": "greater_equal",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "logical_not": "logical_not", "isnan": "is_nan", "isinf": "is_inf", "isfinite": "is_finite",
    "bitwise_and": "bit_and", "bitwise_or": "bit_or", "bitwise_xor": "bit_xor",
    "left_shift": "shift_left", "right_shift": "shift_right", "matmul": "matmul",
    "conjugate": "conj",
}  # fmt: skip
"""NumPy's elementwise function → the op that it is."""
Axes = int | Sequence[int] | None


def ufunc(name: str, method: str, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What an elementwise function of NumPy's gives of nodes."""
    if method != "__call__" or options:
        raise unknown(f"{name}.{method}" if method != "__call__" else f"{name} with {[*options]}")
    if name in ("invert", "positive"):
        return ~operands[0] if name == "invert" else operands[0]
    if name not in UFUNCS:
        raise unknown(name)
    return lookup(UFUNCS[name])(*operands)


def function(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What another function of NumPy's gives of nodes."""
    found = FUNCTIONS.get(name)
    if found is None:
        raise unknown(name)
    try:
        return found(*args, **options)
    except TypeError as error:
        what = str(error).partition("() ")[2] or str(error)
        raise GraphError(f"np.{name} on nodes {what}. Use rlx.ops") from None


def unknown(name: str) -> GraphError:
    """The error of what there is no op for, and the op that may be meant."""
    import difflib

    near = difflib.get_close_matches(name.split(".")[0], list(names()), 1, cutoff=0.75)
    hint = f"rlx.ops.{near[0]}" if near else "the ops of rlx.ops"
    return GraphError(f"np.{name} has no meaning on nodes, which have no values yet. Use {hint}")


def _axes(x: Any, axis: Axes) -> tuple[int, ...]:
    given = range(x.rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(given)


def _reduction(name: str) -> Callable[..., Any]:
    def reduced(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Any:
        return lookup(name)(x, axes=_axes(x, axis), keepdims=keepdims)

    return reduced


def _position(name: str) -> Callable[..., Any]:
    def found(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        flat = reshape(x, (-1,)) if axis is None else x
        return lookup(name)(flat, axis=axis or 0, keepdims=keepdims)

    return found


def _cumulative(name: str) -> Callable[..., Any]:
    def cumulated(x: Any, axis: int | None = None) -> Any:
        return lookup(name)(reshape(x, (-1,)) if axis is None else x, axis=axis or 0)

    return cumulated


def _along(name: str) -> Callable[..., Any]:
    return lambda x, axis=-1: lookup(name)(x, axis=axis)


def _same(name: str) -> Callable[..., Any]:
    return lambda x: lookup(name)(x)


def reshape(x: Any, *dims: Any) -> Any:
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    return lookup("reshape")(x, dims=tuple(given))


def transpose(x: Any, *axes: Any) -> Any:
    given = (
        axes[0] if len(axes) == 1 and (axes[0] is None or not isinstance(axes[0], int)) else axes
    )
    return lookup("transpose")(x, perm=tuple(given or reversed(range(x.rank))))


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    order = list(range(x.rank))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return lookup("transpose")(x, perm=tuple(order))


def moveaxis(x: Any, source: int, destination: int) -> Any:
    order = list(range(x.rank))
    order.insert(destination % x.rank, order.pop(source % x.rank))
    return lookup("transpose")(x, perm=tuple(order))


def squeeze(x: Any, axis: Axes = None) -> Any:
    ones = tuple(i for i, d in enumerate(x.shape.dims) if d == 1)
    return lookup("squeeze")(x, axes=ones if axis is None else _axes(x, axis))


def var(x: Any, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    axes = _axes(x, axis)
    centred = x - lookup("mean")(x, axes=axes, keepdims=True)
    power = lookup("square")(centred)
    if ddof == 0:
        return lookup("mean")(power, axes=axes, keepdims=keepdims)
    count = math.prod(x.shape.dims[a] for a in axes) - ddof
    return lookup("sum")(power, axes=axes, keepdims=keepdims) / count


def std(x: Any, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    return lookup("sqrt")(var(x, axis, ddof=ddof, keepdims=keepdims))


def clip(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low = named.pop("a_min", named.pop("min", low))
    high = named.pop("a_max", named.pop("max", high))
    if named:
        raise TypeError(f"clip has no {next(iter(named))!r}")
    raised = x if low is None else lookup("maximum")(x, low)
    return raised if high is None else lookup("minimum")(raised, high)


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    flat = reshape(x, (-1,)) if axis is None else x
    return lookup("gather")(flat, indices, axis=axis or 0)


def _filled(value: float | None) -> Callable[..., Any]:
    def like(x: Any, fill_value: Any = value, dtype: Any = None) -> Any:
        one = x.graph.constant(fill_value).astype(dtype or x.dtype)
        return lookup("expand")(one, dims=x.shape.dims)

    return like


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{n: _reduction(n) for n in ("sum", "mean", "max", "min", "prod", "any", "all")},
    "amax": _reduction("max"), "amin": _reduction("min"),
    "argmax": _position("argmax"), "argmin": _position("argmin"),
    "cumsum": _cumulative("cumsum"), "cumprod": _cumulative("cumprod"),
    "sort": _along("sort"), "argsort": _along("argsort"),
    "real": _same("real"), "imag": _same("imag"), "angle": _same("angle"), "round": _same("round"),
    "around": _same("round"), "copy": lambda x: x, "sinc": _same("sinc"), "i0": _same("i0"),
    "reshape": reshape, "ravel": lambda x: reshape(x, (-1,)), "transpose": transpose,
    "permute_dims": transpose, "swapaxes": swapaxes, "moveaxis": moveaxis, "squeeze": squeeze,
    "expand_dims": lambda x, axis: lookup("expand_dims")(x, axes=_axes(x, axis)),
    "broadcast_to": lambda x, shape: lookup("expand")(x, dims=tuple(shape)),
    "tile": lambda x, reps: lookup("tile")(x, repeats=reps),
    "flip": lambda x, axis=None: lookup("flip")(x, axes=_axes(x, axis)),
    "concatenate": lambda arrays, axis=0: lookup("concat")(*arrays, axis=axis),
    "concat": lambda arrays, axis=0: lookup("concat")(*arrays, axis=axis),
    "stack": lambda arrays, axis=0: lookup("stack")(*arrays, axis=axis),
    "where": lambda condition, x, y: lookup("where")(condition, x, y),
    "clip": clip, "take": take, "var": var, "std": std,
    "take_along_axis": lambda x, i, axis=-1: lookup("take_along_axis")(x, i, axis=axis),
    "dot": lambda x, y: lookup("matmul")(x, y),
    "einsum": lambda equation, *operands: lookup("einsum")(*operands, equation=equation),
    "zeros_like": _filled(0.0), "ones_like": _filled(1.0), "full_like": _filled(None),
    "shape": lambda x: x.shape.dims, "ndim": lambda x: x.rank,
    "size": lambda x: x.shape.num_elements,
    "rfft": lambda x, n=None: lookup("rfft")(x, **({} if n is None else {"n": n})),
    "irfft": lambda x, n=None: lookup("irfft")(x, **({} if n is None else {"n": n})),
    "fft": lambda x: lookup("fft")(x), "ifft": lambda x: lookup("fft")(x, inverse=True),
}  # fmt: skip
"""NumPy's function → the same on nodes."""
