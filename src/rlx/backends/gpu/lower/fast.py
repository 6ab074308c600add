"""Functions for results of half precision, by the special function units and short polynomials.

A value that only reaches results of half precision may be off by an eighth of their unit in the
last place, relative to itself: results are rounded to half a unit. So exponentials are the unit's,
and a sigmoid is made of them, as exact at -20 as at 20; ½ + ½ tanh ½x is not,
and is used only from where its error is within the bound on. The unit's tanh is off by 2⁻¹¹, enough
for bf16 and too much for f16. Where the argument is proved to be in a narrow range (a sigmoid of
what a tanh was a factor of), an odd polynomial does without the units, whose throughput is an
eighth of that of a multiply-add. Results of less than 2⁻¹²⁶ may be 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.values import Var
from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Expr, Kernel
from rlx.kernel.precision import Precision, precisions, sole_users
from rlx.kernel.ranges import Range, ranges

BOUNDS = {Precision.BF16: 2.0**-10, Precision.F16: 2.0**-13}
"""Relative errors that are an eighth of a unit in the last place."""
MAX_TERMS = {"sigmoid": 5, "tanh": 2}
"""Of an odd polynomial: as many multiply-adds as cost less than the units do."""
TANH_ERROR = 2.0**-11
"""Relative, of the special function unit's tanh."""
LOG2_E = 1.4426950408889634
SMALL_TANH = 0.25
"""Below which tanh is its series, as 1 - 2 / (1 + e²ˣ) cancels there."""


@dataclass(frozen=True, slots=True)
class Fast:
    """How exact a function must be, and of which arguments."""

    precision: Precision
    argument: Range

    @property
    def bound(self) -> float:
        return BOUNDS[self.precision]


def fast_calls(kernel: Kernel) -> dict[Expr, Fast]:
    """The functions of a kernel that may be approximated."""
    named = [n for n in kernel.nodes if isinstance(n, Apply) and n.op.name in APPROXIMATIONS]
    if not named:
        return {}
    needed, known = precisions(kernel), ranges(kernel)
    calls = [n for n in named if n.dtype is DType.F32 and needed[n] in BOUNDS]
    return {n: Fast(needed[n], known[n.args[0]]) for n in calls}


@dataclass(frozen=True, slots=True)
class Contraction:
    """left · right + addend, rounded once, with signs."""

    left: Expr
    right: Expr
    addend: Expr
    negates_product: bool = False
    negates_addend: bool = False

    @property
    def args(self) -> tuple[Expr, ...]:
        return self.left, self.right, self.addend

    def apply(self, b: Builder, x: Var, y: Var, z: Var) -> Var:
        return b.fma(-x if self.negates_product else x, y, -z if self.negates_addend else z)


def contractions(kernel: Kernel) -> dict[Expr, Contraction]:
    """Sums of products that are one operation where results are of half precision."""
    needed, users = precisions(kernel), sole_users(kernel)
    found: dict[Expr, Contraction] = {}
    for node in kernel.nodes:
        if node.dtype is not DType.F32 or needed[node] not in BOUNDS:
            continue
        match node:
            case Apply(op=op, args=(Apply(args=(x, y)) as product, z)) if op.name in (
                "add",
                "sub",
            ) and _is_product(product, node, users):
                found[node] = Contraction(x, y, z, negates_addend=op.name == "sub")
            case Apply(op=op, args=(z, Apply(args=(x, y)) as product)) if op.name in (
                "add",
                "sub",
            ) and _is_product(product, node, users):
                found[node] = Contraction(x, y, z, negates_product=op.name == "sub")
            case _:
                pass
    return found


def _is_product(node: Apply, user: Expr, users: Mapping[Expr, Expr]) -> bool:
    return node.op.name == "mul" and node.dtype is DType.F32 and users.get(node) is user


# -- functions ------------------------------------------------------------------------------------


def approximate(b: Builder, name: str, x: Var, fast: Fast) -> Var | None:
    """A function of f32 within the bound; None where it has no form that is faster."""
    return APPROXIMATIONS[name](b, x, fast)


def _of_unit(name: str) -> Callable[[Builder, Var, Fast], Var]:
    return lambda b, x, fast: b.call(name, x, fast=True)


def _tanh(b: Builder, x: Var, fast: Fast) -> Var:
    odd = _odd_terms("tanh", fast)
    if odd is not None:
        return x * _horner(b, x * x, odd)
    if fast.bound >= TANH_ERROR:
        return b.call("tanh", x, fast=True)
    square = x * x
    series = x * _horner(b, square, (1.0, -1 / 3, 2 / 15, -17 / 315))
    raised = b.call("exp2", x * (2 * LOG2_E), fast=True)
    whole = b.fma(b.call("reciprocal", raised + 1.0, fast=True), -2.0, 1.0)
    return series.where(abs(x) < SMALL_TANH, whole)


def _sigmoid(b: Builder, x: Var, fast: Fast) -> Var:
    odd = _odd_terms("sigmoid", fast)
    if odd is not None:
        return b.fma(x, _horner(b, x * x, odd), 0.5)
    if _tanh_sigmoid_error(fast.argument[0]) <= fast.bound:
        return b.fma(b.call("tanh", x * 0.5, fast=True), 0.5, 0.5)
    raised = b.call("exp2", x * -LOG2_E, fast=True)
    return b.call("reciprocal", raised + 1.0, fast=True)


def _tanh_sigmoid_error(low: float) -> float:
    """Relative, of ½ + ½ tanh ½x from x = low on: greatest there, or at large x."""
    tanh = math.tanh(0.5 * low)
    return TANH_ERROR * max(0.5, abs(tanh) / (1.0 + tanh)) if tanh > -1.0 else math.inf


Approximation = Callable[[Builder, Var, Fast], Var | None]
APPROXIMATIONS: dict[str, Approximation] = {
    "exp": _of_unit("exp"),
    "exp2": _of_unit("exp2"),
    "sqrt": _of_unit("sqrt"),
    "rsqrt": _of_unit("rsqrt"),
    "tanh": _tanh,
    "sigmoid": _sigmoid,
}


# -- polynomials ----------------------------------------------------------------------------------


def _horner(b: Builder, x: Var, terms: Sequence[float]) -> Var:
    total = b.const(terms[-1], DType.F32)
    for term in reversed(terms[:-1]):
        total = b.fma(total, x, term)
    return total


def _odd_terms(name: str, fast: Fast) -> tuple[float, ...] | None:
    """f(x) - f(0) = x · Σ terms[k] · x²ᵏ on the argument's range, within the bound; None where it
    takes more terms than are worth it."""
    reach = max(abs(fast.argument[0]), abs(fast.argument[1]))
    if not reach < 4.0:
        return None
    found = (odd_polynomial(name, reach, count) for count in range(1, MAX_TERMS[name] + 1))
    return next((terms for terms, error in found if error <= fast.bound), None)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "tanh": math.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
}


@functools.cache
def odd_polynomial(name: str, reach: float, count: int) -> tuple[tuple[float, ...], float]:
    """The interpolation of (f(√t) - f(0)) / √t at Chebyshev's points of [0, reach²], as powers of
    t, and its greatest relative error on |x| ≤ reach."""
    f = FUNCTIONS[name]
    half = 0.5 * reach * reach
    points = [half * (1.0 + math.cos(math.pi * (k + 0.5) / count)) for k in range(count)]
    terms = _interpolated(points, [(f(math.sqrt(t)) - f(0.0)) / math.sqrt(t) for t in points])
    samples = [reach * k / 256 for k in range(-256, 257) if k]
    made = [f(0.0) + x * sum(c * x ** (2 * i) for i, c in enumerate(terms)) for x in samples]
    return terms, max(abs(y / f(x) - 1.0) for x, y in zip(samples, made))


def _interpolated(points: Sequence[float], values: Sequence[float]) -> tuple[float, ...]:
    """Newton's divided differences, expanded to powers."""
    table = list(values)
    for order in range(1, len(points)):
        for i in range(len(points) - 1, order - 1, -1):
            table[i] = (table[i] - table[i - 1]) / (points[i] - points[i - order])
    terms = [table[-1]]
    for point, value in zip(reversed(points[:-1]), reversed(table[:-1])):
        shifted = [0.0, *terms]
        terms = [s - point * t for s, t in zip(shifted, [*terms, 0.0])]
        terms[0] += value
    return tuple(terms)
