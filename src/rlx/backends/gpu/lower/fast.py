"""Functions for results of half precision, by the special function units and short polynomials.

A value that only reaches results of half precision may be off by an eighth of their unit in the
last place at 1, relative to itself (a quarter of a unit just below a power of two): results are
rounded to half a unit. So exponentials are the unit's, and a sigmoid is made of them, as exact at
-20 as at 20; ½ + ½ tanh ½x is not, and is used only from where its error is within the bound on.
The other way around, 1 + tanh x is 2 sigmoid 2x, and 1 + erf x is erfc -x, which do not cancel.
The unit's tanh is off by 2⁻¹¹, enough for bf16 and too much for f16. Where the argument is proved
to be in a narrow range (a sigmoid of what a tanh was a factor of), an odd polynomial does without
the units, whose throughput is an eighth of that of a multiply-add; `univariate.py` has one for a
chain of functions. Results of less than 2⁻¹²⁵ are off by up to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rlx.backends.gpu.lower.polynomials import horner, log_tail, odd_polynomial
from rlx.backends.gpu.lower.univariate import MIN_REACH, Univariate, constant_of, univariate
from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Expr, Kernel
from rlx.kernel.precision import Precision, precisions, readers, unrounded
from rlx.kernel.ranges import ANY, Range, ranges
from rlx.program.builder import Builder
from rlx.program.values import Var

BOUNDS = {Precision.BF16: 2.0**-10, Precision.F16: 2.0**-13}
"""Relative errors that are an eighth of a unit in the last place at 1."""
MAX_TERMS = {"sigmoid": 5, "tanh": 2}
"""Of an odd polynomial: as many multiply-adds as cost less than the units do."""
TANH_ERROR = 2.0**-11
"""Relative, of the special function unit's tanh."""
UNITS = {"sigmoid": 2}
"""Uses of the special function units by a function; others are one."""
MANY_UNITS = 4
"""Uses for a point that take longer than memory does to read and write a half float."""
RECIPROCAL_BITS, NEWTON_ERROR = 0x7EF311C3, 2.0**-17
"""1 / x is within 5 % of the float whose bits are these less those of x; two steps of Newton's
leave a relative error of 2⁻¹⁷."""
LARGEST = 87.0
"""Of x for which eˣ and e⁻ˣ are normal numbers."""
LOG2_E = 1.4426950408889634
SMALL_TANH = 0.25
"""Below which tanh is its series, as 1 - 2 / (1 + e²ˣ) cancels there."""


@dataclass(frozen=True, slots=True)
class Fast:
    """How exact a function must be, and of which arguments."""

    precision: Precision
    argument: Range
    spares_units: bool = False
    """Is arithmetic cheaper here, as the units are what the kernel waits for?"""

    @property
    def bound(self) -> float:
        return BOUNDS[self.precision]


@dataclass(frozen=True, slots=True)
class Fused:
    """A node and some of its operands as one function of other values."""

    args: tuple[Expr, ...]
    apply: Callable[..., Var]
    """Of a builder, and the values of the arguments."""


@dataclass(frozen=True, slots=True)
class HalfPrecision:
    """What a kernel with results of half precision does otherwise than its expressions state."""

    sources: Mapping[Expr, Expr]
    """Values that are read as they were before they were rounded."""
    fast: Mapping[Expr, Fast]
    """Functions that are approximated."""
    fused: Mapping[Expr, Fused]
    quotients: frozenset[Expr] = frozenset()
    """Divisions by what is the same for several points: products with its reciprocal, which are
    within 1.5 units in the last place of f32."""
    polynomials: tuple[Univariate, ...] = ()
    """Those among the fused nodes that are one of another value."""

    @property
    def text(self) -> str:
        """In a few words, for reports; none where all is as stated."""
        replaced = frozenset[Expr]().union(*(p.inside for p in self.polynomials))
        calls = [n.op.name for n in self.fast if isinstance(n, Apply) and n not in replaced]
        degrees = ((len(p.inside), len(p.terms) - 1) for p in self.polynomials)
        parts = [f"{n} ops are a polynomial of degree {d}" for n, d in degrees]
        parts += [f"approximated: {', '.join(sorted(set(calls)))}"] if calls else []
        parts += [f"{len(self.sources)} roundings are left out"] if self.sources else []
        return "; ".join(parts)

    def source(self, node: Expr) -> Expr:
        return self.sources.get(node, node)

    def arguments(self, node: Expr) -> tuple[Expr, ...]:
        """What a node is computed of."""
        given = self.fused[node].args if node in self.fused else node.args
        return tuple(map(self.source, given))


NOTHING = HalfPrecision({}, {}, {})


def half_precision(kernel: Kernel) -> HalfPrecision:
    """By the precision that each value needs."""
    if not any(s.value.dtype in (DType.BF16, DType.F16) for s in kernel.stores):
        return NOTHING
    needed, known = precisions(kernel), ranges(kernel)
    sources = unrounded(kernel, needed)
    bounds = {n: BOUNDS[p] for n, p in needed.items() if p in BOUNDS}
    polynomials = univariate(kernel, sources, known, bounds)
    fused = _Fusion(kernel, needed, sources).found()
    fused |= {n: _polynomial(p) for n, p in polynomials.items()}
    replaced = frozenset[Expr]().union(*(p.inside for p in polynomials.values()))
    fast = _fast_calls(kernel, needed, known, replaced)
    quotients = _quotients(kernel, needed)
    return HalfPrecision(sources, fast, fused, quotients, tuple(polynomials.values()))


def _polynomial(made: Univariate) -> Fused:
    return Fused((made.variable,), lambda b, x: horner(b, x, made.terms))


def _quotients(kernel: Kernel, needed: Mapping[Expr, Precision]) -> frozenset[Expr]:
    named = [n for n in kernel.nodes if isinstance(n, Apply) and n.op.name == "div"]
    return frozenset(
        n
        for n in named
        if n.dtype is DType.F32
        and needed[n] is not Precision.EXACT
        and n.args[1].free < n.args[0].free
    )


def _fast_calls(
    kernel: Kernel,
    needed: Mapping[Expr, Precision],
    known: Mapping[Expr, Range],
    replaced: frozenset[Expr],
) -> dict[Expr, Fast]:
    """Those that polynomials have replaced take no unit's time."""
    named = [n for n in kernel.nodes if isinstance(n, Apply) and n.op.name in APPROXIMATIONS]
    calls = [n for n in named if n.dtype is DType.F32 and needed[n] in BOUNDS]
    made = {n: Fast(needed[n], known[n.args[0]]) for n in calls}
    of_units = [n for n in calls if n not in replaced and _odd_terms(n.op.name, made[n]) is None]
    units = sum(UNITS.get(n.op.name, 1) for n in of_units)
    return {n: replace(f, spares_units=units >= MANY_UNITS) for n, f in made.items()}


class _Fusion:
    """Nodes that are computed together with an operand that nobody else reads."""

    def __init__(
        self, kernel: Kernel, needed: Mapping[Expr, Precision], sources: Mapping[Expr, Expr]
    ) -> None:
        self.kernel, self.needed, self.sources = kernel, needed, sources
        self.users = readers(kernel)

    def found(self) -> dict[Expr, Fused]:
        sums = [n for n in self.kernel.nodes if isinstance(n, Apply) and n.dtype is DType.F32]
        named = [n for n in sums if n.op.name in ("add", "sub")]
        made = {n: self._sum(n) for n in named if self.needed[n] is not Precision.EXACT}
        products = [n for n in sums if n.op.name == "mul" and self.needed[n] in BOUNDS]
        made |= {n: self._gated(n) for n in products}
        return {n: f for n, f in made.items() if f is not None}

    def _gated(self, node: Apply) -> Fused | None:
        """k · x · (1 + f(c · u)), as gelu is: constants are multiplied here."""
        for own, other in (node.args, node.args[::-1]):
            plus, scaled = self._sole(own, node), self._sole(other, node)
            inner = None if plus is None else self._above_one(plus)
            factor = None if scaled is None else self._by_constant(scaled)
            if inner is not None and factor is not None and self.needed[own] in BOUNDS:
                return self._gate(inner, *factor, self.needed[own])
        return None

    def _gate(self, inner: Apply, x: Expr, k: float, needed: Precision) -> Fused | None:
        """The same, of f(c · u), x and k."""
        argument = self._sole(inner.args[0], inner)
        of = None if argument is None else self._by_constant(argument)
        u, c = of or (inner.args[0], 1.0)
        if inner.op.name == "tanh":
            return Fused((x, u), lambda b, x, u: _gated_tanh(b, x, u, 2.0 * k, 2.0 * c))
        if self._source(u) is not self._source(x):
            return None
        return Fused((x,), lambda b, x: _gated_erf(b, x, 2.0 * k, c, needed))

    def _above_one(self, plus: Apply) -> Apply | None:
        """f(u) of 1 + f(u)."""
        for own, other in (plus.args, plus.args[::-1]) if plus.op.name == "add" else ():
            inner = self._sole(own, plus)
            if inner is not None and inner.op.name in ONE_PLUS and _is_one(other):
                return inner
        return None

    def _by_constant(self, product: Apply) -> tuple[Expr, float] | None:
        """x and k of k · x."""
        for x, k in (product.args, product.args[::-1]) if product.op.name == "mul" else ():
            value = constant_of(k)
            if value is not None:
                return x, value
        return None

    def _source(self, node: Expr) -> Expr:
        return self.sources.get(node, node)

    def _sum(self, node: Apply) -> Fused | None:
        left, right = node.args
        is_sub = node.op.name == "sub"
        above_one = self._above_one(node)
        if above_one is not None:
            return self._one_plus(above_one, node)
        for own, other in ((left, right), (right, left)):
            inner = self._sole(own, node)
            if inner is not None and inner.op.name == "mul":
                return _product_sum(inner, other, is_sub and own is right, is_sub and own is left)
        return None

    def _one_plus(self, inner: Apply, node: Apply) -> Fused | None:
        if self.needed[node] not in BOUNDS:
            return None
        fast = Fast(self.needed[node], ANY)
        return Fused(inner.args, lambda b, x: ONE_PLUS[inner.op.name](b, x, fast))

    def _sole(self, arg: Expr, user: Expr) -> Apply | None:
        """The op that makes an operand, if it is for this user alone."""
        if arg in self.sources:
            is_alone = self.users[arg] == [user] and len(self.users[self.sources[arg]]) == 1
        else:
            is_alone = self.users[arg] == [user]
        made = self.sources.get(arg, arg)
        return made if is_alone and isinstance(made, Apply) and made.dtype is DType.F32 else None


def _product_sum(product: Apply, addend: Expr, minus_product: bool, minus_addend: bool) -> Fused:
    """± x · y ± z, rounded once."""

    def apply(b: Builder, x: Var, y: Var, z: Var) -> Var:
        return b.fma(-x if minus_product else x, y, -z if minus_addend else z)

    x, y = product.args
    return Fused((x, y, addend), apply)


def _is_one(node: Expr) -> bool:
    return constant_of(node) == 1.0


# -- functions ------------------------------------------------------------------------------------


def approximate(b: Builder, name: str, x: Var, fast: Fast) -> Var | None:
    """A function of f32 within the bound; None where it has no form that is faster."""
    return APPROXIMATIONS[name](b, x, fast)


def _of_unit(name: str) -> Callable[[Builder, Var, Fast], Var]:
    return lambda b, x, fast: b.call(name, x, fast=True)


def _tanh(b: Builder, x: Var, fast: Fast) -> Var:
    odd = _odd_terms("tanh", fast)
    if odd is not None:
        return x * horner(b, x * x, odd)
    if fast.bound >= TANH_ERROR:
        return b.call("tanh", x, fast=True)
    square = x * x
    series = x * horner(b, square, (1.0, -1 / 3, 2 / 15, -17 / 315))
    raised = b.call("exp2", x * (2 * LOG2_E), fast=True)
    whole = b.fma(b.call("reciprocal", raised + 1.0, fast=True), -2.0, 1.0)
    return series.where(abs(x) < SMALL_TANH, whole)


def _sigmoid(b: Builder, x: Var, fast: Fast) -> Var:
    odd = _odd_terms("sigmoid", fast)
    if odd is not None:
        return b.fma(x, horner(b, x * x, odd), 0.5)
    if _tanh_sigmoid_error(fast.argument[0]) <= fast.bound:
        return b.fma(b.call("tanh", x * 0.5, fast=True), 0.5, 0.5)
    if fast.spares_units and fast.bound >= NEWTON_ERROR:
        raised = b.call("exp2", x.max(-LARGEST) * -LOG2_E, fast=True)
        return _newton_reciprocal(b, raised + 1.0)
    raised = b.call("exp2", x * -LOG2_E, fast=True)
    return b.call("reciprocal", raised + 1.0, fast=True)


def _newton_reciprocal(b: Builder, x: Var) -> Var:
    """1 / x of positive normal numbers: the difference of exponents, and two steps of Newton's."""
    bits = b.const(RECIPROCAL_BITS, DType.U32) - x.bits(DType.U32)
    found = bits.bits(DType.F32)
    for _ in range(2):
        found = found * b.fma(-x, found, 2.0)
    return found


def _tanh_sigmoid_error(low: float) -> float:
    """Relative, of ½ + ½ tanh ½x from x = low on: greatest there, or at large x."""
    tanh = math.tanh(0.5 * low)
    return TANH_ERROR * max(0.5, abs(tanh) / (1.0 + tanh)) if tanh > -1.0 else math.inf


def _tail(b: Builder, x: Var, c: float, precision: Precision) -> Var:
    """½ erfc |c · x|."""
    scale = abs(c) * math.sqrt(2.0)
    terms = [term * scale**k for k, term in enumerate(log_tail(precision)[0])]
    return b.call("exp2", horner(b, abs(x), terms), fast=True)


def _erfc(b: Builder, x: Var, fast: Fast) -> Var:
    """2 - r where x < 0 and r elsewhere, with r = erfc |x|."""
    value = _tail(b, x, 1.0, fast.precision) * 2.0
    return (2.0 - value).where(x < 0.0, value)


def _gated_tanh(b: Builder, x: Var, u: Var, k: float, c: float) -> Var:
    """k · x · sigmoid(c · u): ½ + ½ tanh u is sigmoid 2u."""
    raised = b.call("exp2", u * (-LOG2_E * c), fast=True)
    made = x * b.call("reciprocal", raised + 1.0, fast=True)
    return made if k == 1.0 else made * k


def _gated_erf(b: Builder, x: Var, k: float, c: float, precision: Precision) -> Var:
    """k · x · r, with r = ½ erfc(-c · x): q = ½ erfc |c · x| where x is negative, and 1 - q, which
    is |1 - q| and |0 - q|: one instruction makes the 1 or 0."""
    q = _tail(b, x, c, precision)
    is_above = b.const(1.0, DType.F32).where((x if c > 0.0 else -x) > 0.0, b.const(0.0, DType.F32))
    made = x * abs(is_above - q)
    return made if k == 1.0 else made * k


ONE_PLUS: dict[str, Callable[[Builder, Var, Fast], Var]] = {
    "tanh": lambda b, x, fast: _sigmoid(b, x * 2.0, fast) * 2.0,
    "erf": lambda b, x, fast: _erfc(b, -x, fast),
}
"""1 + f(x), without the digits that the sum loses where f(x) is near -1."""
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


def _odd_terms(name: str, fast: Fast) -> tuple[float, ...] | None:
    """f(x) - f(0) = x · Σ terms[k] · x²ᵏ on the argument's range, within the bound; None where it
    takes more terms than are worth it."""
    reach = max(abs(fast.argument[0]), abs(fast.argument[1]))
    if name not in MAX_TERMS or not MIN_REACH <= reach < 4.0:
        return None
    found = (odd_polynomial(name, reach, count) for count in range(1, MAX_TERMS[name] + 1))
    return next((terms for terms, error in found if error <= fast.bound), None)
