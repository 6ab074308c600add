"""Numbers of SIMT programs in NumPy.

What a node leaves open (a division by 0, a shift by the width, a float that no integer holds) gives
bits that no program expects, so that one which counts on them is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.ops.op import lookup
from rlx.program import nodes as ir
from rlx.program.functions import FUNCTIONS
from rlx.program.nodes import Node, Value

Array = np.ndarray[Any, Any]
TABLE_NAMES = {"fmod": "rem"}
"""Functions that the op table calls otherwise."""
FLUSHED = frozenset({"exp", "exp2", "reciprocal"})
"""Fast functions whose subnormal results are 0."""
UNEXPECTED = 0xA5


def evaluate(node: Node, args: Sequence[Array]) -> Array | None:
    """The result of a node that only computes; None where it does more."""
    dtype = node.results[0].dtype.numpy if node.results else None
    with np.errstate(all="ignore"):
        match node:
            case ir.Const():
                return np.asarray(node.value, dtype)
            case ir.Binary():
                return binary(node.op, *args)
            case ir.Compare():
                return COMPARES[node.op](*args)
            case ir.Unary():
                return UNARIES[node.op](args[0])
            case ir.Call():
                return call(node, args)
            case ir.Fma():
                return fma(*args)
            case ir.Select():
                return np.where(*args)
            case ir.Convert():
                return convert(args[0], node.results[0])
            case ir.Bitcast():
                assert dtype is not None
                return np.ascontiguousarray(args[0]).view(dtype).reshape(np.shape(args[0]))
            case _:
                return None


def unexpected(dtype: np.dtype[Any]) -> Array:
    """A number that nothing should depend on."""
    return np.frombuffer(bytes([UNEXPECTED]) * dtype.itemsize, dtype)[0]


def binary(op: str, a: Array, b: Array) -> Array:
    if op in ("div", "rem") and a.dtype.kind in "iu":
        return _quotient(op, a, b)
    if op in ("shl", "shr"):
        return _shifted(op, a, b)
    return np.asarray(BINARIES[op](a, b)).astype(a.dtype, copy=False)


def _quotient(op: str, a: Array, b: Array) -> Array:
    """Towards 0, as C has it."""
    wrong = b == 0
    if a.dtype.kind == "i":
        wrong = wrong | ((b == -1) & (a == np.iinfo(a.dtype).min))
    safe = np.where(wrong, np.ones_like(b), b)
    quotient = a // safe
    rest = a - quotient * safe
    if a.dtype.kind == "i":
        quotient = quotient + ((rest != 0) & ((rest < 0) != (a < 0))).astype(a.dtype)
        rest = a - quotient * safe
    made = quotient if op == "div" else rest
    return np.where(wrong, unexpected(a.dtype), made).astype(a.dtype)


def _shifted(op: str, a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    wrong = (b < 0) | (b >= bits)
    amount = np.where(wrong, 0, b).astype(a.dtype)
    made = np.left_shift(a, amount) if op == "shl" else np.right_shift(a, amount)
    return np.where(wrong, unexpected(a.dtype), made).astype(a.dtype)


BINARIES: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rem": np.fmod,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
COMPARES: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNARIES: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
}


def call(node: ir.Call, args: Sequence[Array]) -> Array:
    """By the op table's reference, in f64: within half a unit for f32. A fast function is off by
    all that it may be, up or down by the last bit of its argument."""
    dtype = args[0].dtype
    wide = [a.astype(np.float64) for a in args]
    name = TABLE_NAMES.get(node.function, node.function)
    made: Any = lookup(name).run(wide, {})
    error = FUNCTIONS[node.function].fast_error
    if node.accuracy == "fast" and error is not None:
        is_up = np.ascontiguousarray(args[0]).view(np.uint32) & 1
        made = made * (1.0 + np.where(is_up.reshape(made.shape), error, -error))
        if node.function in FLUSHED:
            made = np.where(np.abs(made) < np.finfo(np.float32).tiny, 0.0, made)
    return np.asarray(made).astype(dtype)


def fma(a: Array, b: Array, c: Array) -> Array:
    """The product of two f32 is exact in f64. That of two f64 is a sum of two, by Dekker, and what
    the sum with c loses is put back: rounded once, but for ties."""
    if a.dtype != np.float64:
        return (a.astype(np.float64) * b + c).astype(a.dtype)
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    lost = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)
    exact = total + (rest + lost)
    return np.where(np.isfinite(exact), exact, total)


def _halves(x: Array) -> tuple[Array, Array]:
    """An f64 as the sum of two of 26 bits each, by Veltkamp."""
    shifted = x * 134217729.0
    high = shifted - (shifted - x)
    return high, x - high


def convert(x: Array, to: Value) -> Array:
    dtype = to.dtype
    if dtype is DType.BOOL:
        return x != 0
    if x.dtype == np.bool_ or not (DType.of(x.dtype).is_float and dtype.is_integer):
        return x.astype(dtype.numpy)
    wide = np.trunc(x.astype(np.float64))
    bits = dtype.itemsize * 8 - dtype.is_signed
    low = -(2.0**bits) if dtype.is_signed else 0.0
    fits = (wide >= low) & (wide < 2.0**bits)
    made = np.where(fits, wide, 0.0).astype(dtype.numpy)
    return np.where(fits, made, unexpected(dtype.numpy))
