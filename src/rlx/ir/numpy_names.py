"""NumPy's functions on nodes: ufuncs and functions by NumPy's names, as ops of the table.

What has no counterpart is an error: a node has no values to compute with.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.core.errors import GraphError
from rlx.ir.numpy_functions import FUNCTIONS
from rlx.ops.op import lookup

UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "floor_divide": "floor_div",
    "remainder": "mod", "mod": "mod", "fmod": "rem", "power": "pow", "float_power": "pow",
    "negative": "neg", "absolute": "abs", "fabs": "abs", "sign": "sign", "square": "square",
    "sqrt": "sqrt", "cbrt": "cbrt", "reciprocal": "reciprocal", "exp": "exp", "exp2": "exp2",
    "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "arctan2": "atan2", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "hypot": "hypot",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "round", "maximum": "maximum",
    "minimum": "minimum", "logaddexp": "logaddexp", "heaviside": "heaviside",
    "nextafter": "nextafter", "gcd": "gcd", "lcm": "lcm", "equal": "equal",
    "not_equal": "not_equal", "less": "less", "less_equal": "less_equal", "greater": "greater",
    "greater_equal": "greater_equal", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor", "logical_not": "logical_not", "isnan": "is_nan",
    "isinf": "is_inf", "isfinite": "is_finite", "bitwise_and": "bit_and", "bitwise_or": "bit_or",
    "bitwise_xor": "bit_xor", "left_shift": "shift_left", "right_shift": "shift_right",
    "matmul": "matmul",
}  # fmt: skip
"""NumPy's elementwise function → the op that it is."""
OPERATORS: dict[str, Callable[..., Any]] = {
    "invert": lambda x: ~x, "positive": lambda x: x,
    "conjugate": lambda x: lookup("conj")(x) if x.dtype.is_complex else x,
    "divmod": lambda x, y: (lookup("floor_div")(x, y), lookup("mod")(x, y)),
    "deg2rad": lambda x: x * (math.pi / 180), "radians": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi), "degrees": lambda x: x * (180 / math.pi),
}  # fmt: skip
"""Those that are several."""
METHODS = {
    "add.reduce": "sum", "multiply.reduce": "prod", "maximum.reduce": "max",
    "minimum.reduce": "min", "logical_and.reduce": "all", "logical_or.reduce": "any",
    "add.accumulate": "cumsum", "multiply.accumulate": "cumprod",
}  # fmt: skip
"""The method of an elementwise function, along the first axis → NumPy's function."""
HINTS = {
    "convolve": "convolve", "cross": "cross", "linalg.cross": "cross", "fft.fftn": "fftn",
    "fft.ifftn": "ifftn", "fft.irfftn": "irfftn", "fft.rfftn": "rfftn", "frexp": "frexp",
    "linalg.eig": "eig", "linalg.eigh": "eigh", "linalg.eigvals": "eigvals",
    "linalg.lstsq": "lstsq", "linalg.pinv": "pinv", "linalg.qr": "qr", "linalg.svd": "svd",
    "linalg.svdvals": "svdvals", "nonzero": "nonzero", "put_along_axis": "scatter_elements",
    "tensordot": "einsum", "unique": "unique", "compress": "compress", "partition": "top_k",
    "argpartition": "top_k", "inner": "einsum", "vecdot": "einsum", "linalg.vecdot": "einsum",
}  # fmt: skip
"""What NumPy has with other arguments or results → the op for it."""


def ufunc(name: str, method: str, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What an elementwise function of NumPy's gives of nodes."""
    if method != "__call__":
        found = METHODS.get(f"{name}.{method}")
        if found is None:
            raise unknown(f"{name}.{method}")
        given = {"axis": 0, **options} if len(operands) == 1 else options
        return function(found, operands, given)
    if options:
        raise unknown(f"{name} with {[*options]}")
    if name in OPERATORS:
        return OPERATORS[name](*operands)
    if name not in UFUNCS:
        raise unknown(name)
    return lookup(UFUNCS[name])(*operands)


def qualified(made: Any) -> str:
    """A function's name below `numpy`: two of its modules have a `trace`."""
    return f"{made.__module__}.{made.__name__}".removeprefix("numpy.")


def function(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What another function of NumPy's gives of nodes."""
    found = FUNCTIONS.get(name)
    if found is None:
        raise unknown(name)
    try:
        inspect.signature(found).bind(*args, **options)
    except TypeError as error:
        raise GraphError(f"np.{name} on nodes: {error}. Use rlx.ops") from None
    return found(*args, **options)


def unknown(name: str) -> GraphError:
    """The error of what is no op, and the op for it where there is one."""
    hint = f"Use rlx.ops.{HINTS[name]}" if name in HINTS else "Use the ops of rlx.ops"
    return GraphError(f"np.{name} has no meaning on nodes, which have no values yet. {hint}")
