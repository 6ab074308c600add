"""The operands of a size's operators: whole numbers and sizes.

What else stands beside a size is one error, which names the size as data. A value that has NumPy's
protocol decides itself, as nodes do: beside a node a size is a number of the graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rlx.core.errors import CallError, GraphError
from rlx.core.intervals import whole

T = TypeVar("T")
Made = TypeVar("Made")
Operator = Callable[[T, Any], Made]
DIVIDING = ("//", "%")
UFUNCS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "floor_divide": operator.floordiv, "remainder": operator.mod,
    "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
"""NumPy's functions of a NumPy number and a size, and what they are of Python's."""
REFUSED = {
    "truediv": "/", "pow": "**", "lshift": "<<", "rshift": ">>", "and": "&", "or": "|",
    "xor": "^", "matmul": "@", "divmod": "divmod",
}  # fmt: skip
ORDERINGS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def as_data(size: object) -> str:
    """The calls that make a size a number of the graph."""
    return f"As data it is node.graph.extent({size}, dtype='f32'), or the size beside a node."


def size_operator(
    sign: str, *, is_reflected: bool = False
) -> Callable[[Operator[T, Made]], Operator[T, Made]]:
    """An operator of sizes, called with a whole number or a size."""

    def decorated(function: Operator[T, Made]) -> Operator[T, Made]:
        @functools.wraps(function)
        def checked(size: T, other: Any) -> Any:
            if type(other) is not int and type(other) is not type(size):
                known = whole(other)
                if known is None:
                    return _beside(size, sign, other, is_reflected)
                other = known
            if other == 0 and sign in DIVIDING and not is_reflected:
                raise GraphError(f"{_text(size)} {sign} 0 is a division by 0. Use another divisor.")
            return function(size, other)

        return checked

    return decorated


def refuse_operators(cls: type) -> None:
    """The operators that sizes do not have are the same error."""
    for name, sign in REFUSED.items():
        setattr(cls, f"__{name}__", _refused(sign))
        setattr(cls, f"__r{name}__", _refused(sign, is_reflected=True))
    for name, sign in ORDERINGS.items():
        setattr(cls, f"__{name}__", _refused(sign))


def _refused(sign: str, *, is_reflected: bool = False) -> Callable[[Any, Any], Any]:
    return lambda size, other: _beside(size, sign, other, is_reflected)


def _beside(size: object, sign: str, other: Any, is_reflected: bool) -> Any:
    if hasattr(type(other), "__array_ufunc__") and not isinstance(other, type(size)):
        return NotImplemented
    left, right = (other, size) if is_reflected else (size, other)
    raise _misuse(f"{_text(left)} {sign} {_text(right)}", size)


def numpy_function(size: object, ufunc: Any, operands: Sequence[Any]) -> Any:
    """What an elementwise function of NumPy's gives of sizes: Python's operator, or an error."""
    known = [o if isinstance(o, type(size)) else whole(o) for o in operands]
    others = [o for o, k in zip(operands, known) if k is None]
    if any(map(_has_own_functions, others)):
        return NotImplemented
    if others or ufunc.__name__ not in UFUNCS:
        raise _misuse(f"np.{ufunc.__name__}({', '.join(map(_text, operands))})", size)
    return UFUNCS[ufunc.__name__](*known)


def _has_own_functions(value: Any) -> bool:
    return hasattr(type(value), "__array_ufunc__") and not isinstance(
        value, np.ndarray | np.generic
    )


def _misuse(what: str, size: object) -> CallError:
    return CallError(
        f"{what}: a size takes +, -, *, // and % with whole numbers and sizes. {as_data(size)}"
    )


def _text(value: object) -> str:
    """As users write it: sizes without their class."""
    terms = getattr(value, "terms", None)
    return repr(value) if terms is None else str(value) if len(terms) == 1 else f"({value})"
