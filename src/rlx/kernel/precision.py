"""The precision that values of a kernel need: what only reaches results of half precision may be
off by a fraction of their unit in the last place.

Errors here are relative. An op that hands them on as they are needs its operand as exact as its
result. A sum of numbers of either sign may cancel, and an exponential makes a relative error of an
absolute one: their operands are needed in f32, but where the graph itself has them in half
precision, as then the graph has errors that large. If the sign of such a sum decides whether there
is a number at all, as below a root or a logarithm, they are what they are: 1 - sigmoid x is never
negative in the graph. A square doubles errors: what is squared is needed a step finer. A value that
is compared, made a whole number or used as an index is what it is, to the last bit.

Two things follow for kernels whose results are of half precision: roundings inside of a chain can
be dropped, as arithmetic is in f32 anyway, and functions can be approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Choose, Expr, Kernel, Reduce
from rlx.kernel.ranges import Range, ranges

PRESERVING = frozenset(
    {
        *("mul", "div", "neg", "abs", "square", "maximum", "minimum", "where"),
        *("sqrt", "rsqrt", "tanh", "erf"),
    }
)
"""Ops whose relative error is about that of their operands."""
CONTINUOUS = PRESERVING | {
    *("add", "sub", "exp", "exp2", "expm1", "log", "log1p", "pow", "sigmoid"),
    *("sin", "cos", "atan2", "erfc"),
}
"""Ops whose result moves little when their operands do."""
POSITIVE = frozenset({"exp", "exp2", "sigmoid", "erfc", "sqrt", "rsqrt", "square", "abs"})
"""Ops whose result has the same sign whatever their operand has."""
POLES = frozenset(
    {("sqrt", 0), ("rsqrt", 0), ("log", 0), ("pow", 0), ("div", 1), ("atan2", 0), ("atan2", 1)}
)
"""Ops that jump, or are no numbers, where the sign of an operand changes; and which one that is."""


class Precision(IntEnum):
    """What a value must be right to; the greater is the finer."""

    BF16 = 0
    F16 = 1
    F32 = 2
    EXACT = 3
    """As the graph states it, rounding by rounding."""


FINER = {Precision.BF16: Precision.F16, Precision.F16: Precision.F32}
HALVES = {DType.BF16: Precision.BF16, DType.F16: Precision.F16}


def precisions(kernel: Kernel) -> dict[Expr, Precision]:
    """The precision that each value needs, for all that is made of it."""
    known = ranges(kernel)
    found = {s.value: HALVES.get(s.value.dtype, Precision.EXACT) for s in kernel.stores}
    signed = _signed(kernel, known)
    for user in reversed(kernel.nodes):
        for arg in user.args:
            needed = _needed(user, arg, found[user], known, user in signed)
            found[arg] = max(found.get(arg, Precision.BF16), needed)
    return found


def _signed(kernel: Kernel, known: Mapping[Expr, Range]) -> frozenset[Expr]:
    """Values of either sign, or 0, whose sign decides whether there is a result."""
    found: set[Expr] = set()
    for user in reversed(kernel.nodes):
        name = user.op.name if isinstance(user, Apply) else ""
        for number, arg in enumerate(user.args):
            low, high = known[arg]
            may_change = low <= 0.0 <= high and not _is_positive(arg)
            if may_change and (user in found or (name, number) in POLES):
                found.add(arg)
    return frozenset(found)


def _is_positive(node: Expr) -> bool:
    return _is_square(node) or (isinstance(node, Apply) and node.op.name in POSITIVE)


def _needed(
    user: Expr, arg: Expr, of_user: Precision, known: Mapping[Expr, Range], is_signed: bool
) -> Precision:
    """Of an operand, by what its user needs; `is_signed`: and the sign of it."""
    if of_user is Precision.EXACT or not arg.dtype.is_float or not user.dtype.is_float:
        return Precision.EXACT
    match user:
        case Apply(op=op) if op.name == "cast":
            return HALVES.get(user.dtype, of_user)
        case Apply(op=op) if op.name not in CONTINUOUS:
            return Precision.EXACT
        case Apply() | Reduce():
            if not _preserves(user, known):
                if not _is_rounded(arg):
                    return max(of_user, Precision.F32)
                return Precision.EXACT if is_signed else of_user
            if _is_rounded(arg):
                return of_user
            return FINER.get(of_user, of_user) if _is_square(user) else of_user
        case Choose():
            return of_user
        case _:
            return Precision.EXACT


def _preserves(user: Apply | Reduce, known: Mapping[Expr, Range]) -> bool:
    """Is the relative error of the result about that of its operands?"""
    if isinstance(user, Reduce):
        return user.fold in ("max", "min") or _sign(known[user.args[0]]) != 0
    signs = [_sign(known[a]) for a in user.args]
    if user.op.name == "add":
        return signs[0] * signs[1] > 0
    if user.op.name == "sub":
        return signs[0] * signs[1] < 0
    return user.op.name in PRESERVING


def _is_square(user: Expr) -> bool:
    name = user.op.name if isinstance(user, Apply) else ""
    return name == "square" or (name == "mul" and user.args[0] is user.args[1])


def _sign(x: Range) -> int:
    """That all numbers of a range have; 0 where they have either."""
    return int(x[0] >= 0.0) - int(x[1] <= 0.0)


def _is_rounded(node: Expr) -> bool:
    """Is it a number of half precision?"""
    return _is_cast(node) and node.args[0].dtype in HALVES


def unrounded(kernel: Kernel, needed: Mapping[Expr, Precision]) -> dict[Expr, Expr]:
    """f32 values that were rounded to half precision, each with what it was before: what readers
    of a chain of half precision may take instead. A value that is stored, or has other readers
    than arithmetic in f32, is rounded: all who read it have the same number."""
    users = readers(kernel)
    found: dict[Expr, Expr] = {}
    for node in kernel.nodes:
        if not _is_rounded(node) or node.dtype is not DType.F32:
            continue
        (half,) = node.args
        is_alone = _is_cast(half) and half.args[0].dtype is DType.F32 and users[half] == [node]
        if is_alone and needed[node] is not Precision.EXACT:
            found[node] = found.get(half.args[0], half.args[0])
    return found


def _is_cast(node: Expr) -> bool:
    return isinstance(node, Apply) and node.op.name == "cast"


def readers(kernel: Kernel) -> dict[Expr, list[Expr | None]]:
    """Who reads each value; None is memory."""
    found: dict[Expr, list[Expr | None]] = {n: [] for n in kernel.nodes}
    for node in kernel.nodes:
        for arg in node.args:
            found[arg].append(node)
    for store in kernel.stores:
        found[store.value].append(None)
    return found
