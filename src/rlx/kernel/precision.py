"""The precision that values of a kernel need: what only reaches results of half precision by way
of continuous functions may be off by a fraction of their unit in the last place.

Two things follow. Roundings to half precision between the ops of a fused chain are dropped, as
arithmetic is in f32 anyway and the result is nearer to the exact one without them. And functions
may be approximated (`backends/gpu/lower/fast.py`). A value that is compared, rounded to a whole
number or used as an index is what it is, to the last bit: there a small error is a large one.
"""

from __future__ import annotations

from enum import IntEnum

from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Choose, Expr, Exprs, Kernel, Reduce
from rlx.kernel.rewrite import rewritten

CONTINUOUS = frozenset(
    {
        *("add", "sub", "mul", "div", "neg", "abs", "square", "maximum", "minimum", "where"),
        *("exp", "exp2", "expm1", "log", "log1p", "pow", "sqrt", "rsqrt"),
        *("tanh", "sigmoid", "sin", "cos", "atan2", "erf", "erfc"),
    }
)
"""Ops whose result moves little when their operands do."""


class Precision(IntEnum):
    """What a value must be right to; the greater is the finer."""

    BF16 = 0
    F16 = 1
    FULL = 2


HALVES = {DType.BF16: Precision.BF16, DType.F16: Precision.F16}


def precisions(kernel: Kernel) -> dict[Expr, Precision]:
    """The precision that each value needs, for all that is made of it."""
    found = {s.value: HALVES.get(s.value.dtype, Precision.FULL) for s in kernel.stores}
    for user in reversed(kernel.nodes):
        for arg in user.args:
            needed = _needed(user, arg, found[user])
            found[arg] = max(found.get(arg, Precision.BF16), needed)
    return found


def _needed(user: Expr, arg: Expr, of_user: Precision) -> Precision:
    """Of an operand, by what its user needs."""
    if of_user is Precision.FULL or not arg.dtype.is_float or not user.dtype.is_float:
        return Precision.FULL
    match user:
        case Apply(op=op) if op.name == "cast":
            return max(of_user, HALVES.get(user.dtype, Precision.BF16))
        case Apply(op=op):
            return of_user if op.name in CONTINUOUS else Precision.FULL
        case Reduce() | Choose():
            return of_user
        case _:
            return Precision.FULL


def without_roundings(kernel: Kernel) -> Kernel:
    """The same kernel with chains of half precision in f32 throughout. A value that is stored, or
    has other readers than arithmetic in f32, is rounded: all who read it have the same number."""
    needed, users = precisions(kernel), _users(kernel)
    gone = {n for n in kernel.nodes if _is_dropped(n, users) and needed[n] is not Precision.FULL}
    if not gone:
        return kernel

    def rule(node: Expr, args: list[Expr], _: Exprs) -> Expr | None:
        return args[0] if node in gone or (node.args and node.args[0] in gone) else None

    return rewritten(kernel, rule)


def _is_dropped(node: Expr, users: dict[Expr, list[Expr | None]]) -> bool:
    """Is it f32 rounded to half precision, only to be f32 again?"""
    if not _is_cast(node) or node.dtype not in HALVES or node.args[0].dtype is not DType.F32:
        return False
    return all(u is not None and _is_cast(u) and u.dtype is DType.F32 for u in users[node])


def _is_cast(node: Expr) -> bool:
    return isinstance(node, Apply) and node.op.name == "cast"


def _users(kernel: Kernel) -> dict[Expr, list[Expr | None]]:
    """Who reads each value; None is memory."""
    found: dict[Expr, list[Expr | None]] = {n: [] for n in kernel.nodes}
    for node in kernel.nodes:
        for arg in node.args:
            found[arg].append(node)
    for store in kernel.stores:
        found[store.value].append(None)
    return found


def sole_users(kernel: Kernel) -> dict[Expr, Expr]:
    """The reader of each value that has one."""
    found = _users(kernel)
    return {n: u[0] for n, u in found.items() if len(u) == 1 and u[0] is not None}
