"""Functions of one value in a proved range, however they are composed, as one polynomial.

A value that dominates another in the graph of a kernel's expressions, but for constants, is the one
variable of a function: after a tanh, a sigmoid or a clamp, rounds of such functions are smooth
functions of a number in a narrow range. Where a polynomial costs less than the nodes in between, it
replaces them. That it is within the bound everywhere is proved by enclosures of the function and
its derivative on `PIECES` parts of the range, with the roundings of its evaluation added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rlx.backends.gpu.lower.polynomials import chebyshev_points, interpolated
from rlx.core.dtype import DType
from rlx.kernel.enclosure import FUNCTIONS, SMOOTH, Ends, Interval, Jet, distance, polynomial
from rlx.kernel.expr import Apply, Const, Expr, Kernel
from rlx.kernel.ranges import Range, ranges

MAX_DEGREE = 12
PIECES = 1024
SAMPLES = 64
"""Of the range, by which a degree is rejected without a proof."""
MAX_ATTEMPTS = 32
"""Pairs of a function and its variable that are tried in a kernel: each takes milliseconds."""
FUNCTION_SLOTS = 5
"""Multiply-adds that cost as much as a function by a special function unit, which has an eighth of
their throughput, and runs beside them."""
ROUNDING = 2.0**-24
MIN_REACH, MAX_REACH, MIN_WIDTH = 2.0**-126, 64.0, 2.0**-10
"""Of a range: where its numbers are normal ones and powers have the digits of f32 left, and where
points differ; the width is relative to the reach."""


@dataclass(frozen=True, slots=True)
class Univariate:
    """A node as a polynomial of one value."""

    variable: Expr
    terms: tuple[float, ...]
    inside: frozenset[Expr]
    """The nodes that it replaces."""


def univariate(
    kernel: Kernel,
    sources: Mapping[Expr, Expr],
    known: Mapping[Expr, Range],
    bounds: Mapping[Expr, float],
) -> dict[Expr, Univariate]:
    """Nodes that are cheaper as polynomials. `bounds` are the relative errors that nodes may have;
    those that are not named are computed as they are."""
    if not _has_function(kernel.nodes):
        return {}
    return _Search(kernel, sources, known, bounds).found()


def constant_of(node: Expr) -> float | None:
    """A number, as it was rounded."""
    inner = node.args[0] if isinstance(node, Apply) and node.op.name == "cast" else node
    if isinstance(inner, Const) and inner.dtype.is_float:
        return float(inner.value)
    return None


def _has_function(nodes: Iterable[Expr]) -> bool:
    return any(isinstance(n, Apply) and n.op.name in FUNCTIONS for n in nodes)


def _is_smooth(node: Expr) -> bool:
    return isinstance(node, Apply) and node.dtype is DType.F32 and node.op.name in SMOOTH


class _Search:
    """The functions of one value in a kernel."""

    def __init__(
        self,
        kernel: Kernel,
        sources: Mapping[Expr, Expr],
        known: Mapping[Expr, Range],
        bounds: Mapping[Expr, float],
    ) -> None:
        self.kernel, self.sources, self.known, self.bounds = kernel, sources, known, bounds
        self.attempts = MAX_ATTEMPTS
        self.ends = ranges(kernel, slack=0.0)
        self.users = self._live_users()
        self.dominator = self._dominators()

    def found(self) -> dict[Expr, Univariate]:
        """The last of a chain of nodes first: it is a function of the same values as the others."""
        made: dict[Expr, Univariate] = {}
        done: set[Expr] = set()
        for node in reversed(self.kernel.nodes):
            is_root = node in self.bounds and node in self.users and node not in done
            best = self._best(node) if is_root and _can_replace(node) else None
            if best is not None:
                made[node] = best
                done |= best.inside
        return made

    # -- the graph -------------------------------------------------------------------------------

    def operands(self, node: Expr) -> list[Expr]:
        """What a node is computed of, as it was before roundings that are left out."""
        return [self.sources.get(a, a) for a in node.args]

    def _live_users(self) -> dict[Expr, list[Expr | None]]:
        """Who reads each value that is computed; None is memory."""
        roots = [self.sources.get(s.value, s.value) for s in self.kernel.stores]
        users: dict[Expr, list[Expr | None]] = {r: [None] for r in roots}
        for node in reversed(self.kernel.nodes):
            for operand in self.operands(node) if node in users else ():
                users.setdefault(operand, []).append(node)
        return users

    def _dominators(self) -> dict[Expr, Expr | None]:
        """Of each smooth node, the last value that it is a function of."""
        found: dict[Expr, Expr | None] = {}
        depth: dict[Expr, int] = {}
        for node in self.kernel.nodes:
            args = [a for a in self.operands(node) if constant_of(a) is None]
            above = args[0] if args and _is_smooth(node) else None
            for other in args[1:]:
                above = _common(above, other, found, depth)
            found[node], depth[node] = above, 0 if above is None else depth[above] + 1
        return found

    def _region(self, root: Expr, variable: Expr) -> list[Expr]:
        """The nodes from a value to a function of it."""
        found, stack = {root}, [root]
        while stack:
            for arg in self.operands(stack.pop()):
                if arg is not variable and arg not in found and constant_of(arg) is None:
                    found.add(arg)
                    stack.append(arg)
        return [n for n in self.kernel.nodes if n in found]

    # -- polynomials -----------------------------------------------------------------------------

    def _best(self, root: Expr) -> Univariate | None:
        """The most nodes that a polynomial can replace."""
        for variable in reversed(self._variables(root)):
            if not self.attempts:
                break
            self.attempts -= 1
            nodes = self._region(root, variable)
            with np.errstate(all="ignore"):  # what is not finite is within no bound
                terms = self._terms(root, variable, nodes) if self._is_alone(root, nodes) else None
            if terms is not None:
                return Univariate(variable, terms, frozenset(nodes))
        return None

    def _variables(self, root: Expr) -> list[Expr]:
        """Values in a range that a node is a function of, the last one first."""
        found: list[Expr] = []
        above = self.dominator[root]
        while above is not None:
            low, high = self.known[above]
            reach = max(abs(low), abs(high))
            is_narrow = MIN_REACH <= reach <= MAX_REACH and high - low >= MIN_WIDTH * reach
            if above.dtype is DType.F32 and is_narrow:
                found.append(above)
            above = self.dominator[above]
        return found

    def _is_alone(self, root: Expr, nodes: list[Expr]) -> bool:
        """Is there more than one function in between, and all of it for this alone?"""
        inside = set(nodes)
        is_alone = all(inside.issuperset(self.users[n]) for n in nodes if n is not root)
        return is_alone and _has_function(nodes) and len(nodes) > 1

    def _terms(self, root: Expr, variable: Expr, nodes: list[Expr]) -> tuple[float, ...] | None:
        """Those of the least degree that is cheaper than the nodes, and within the bound."""
        low, high = self.known[variable]
        function = _Function(self, root, variable, nodes)
        samples = Interval.point(np.array(chebyshev_points(low, high, SAMPLES)))
        near, allowed = function.on(samples)
        whole: tuple[Interval, Jet, Jet, Ends] | None = None
        for degree in range(1, min(MAX_DEGREE + 1, _slots(nodes))):
            terms = function.interpolated(low, high, degree)
            off = (near.value - polynomial(terms, samples)).greatest_size
            if not np.all(off <= allowed):
                continue
            whole = whole or function.pieces(low, high)
            pieces, jet, middles, least = whole
            noise = _evaluation_error(terms, low, high)
            error = distance(jet, middles, terms, pieces) + noise
            if np.all(error <= least) and self._keeps_ends(function, terms, noise):
                return terms
        return None

    def _keeps_ends(self, function: _Function, terms: tuple[float, ...], noise: float) -> bool:
        """Is it 0, but for the noise of f32, at the ends where the function is? Bounded
        functions stay there for most arguments."""
        ends = Interval.point(np.array(self.ends[function.variable]))
        value = function.on(ends)[0].value
        is_zero = value.greatest_size <= ROUNDING
        off = (value - polynomial(terms, ends)).greatest_size
        return bool(np.all((off <= noise) | ~is_zero))


class _Function:
    """A node as a function of one value, and how much it may be off."""

    def __init__(self, search: _Search, root: Expr, variable: Expr, nodes: list[Expr]) -> None:
        self.search, self.root, self.variable, self.nodes = search, root, variable, nodes

    def on(self, x: Interval) -> tuple[Jet, Ends]:
        """The function on intervals, and the least error that is allowed there: the bound relative
        to its value, or to an operand that the graph has in half precision, where it is a sum."""
        made = {self.variable: Jet.variable(x.low, x.high)}
        for node in self.nodes:
            made[node] = self._jet(node, made)
        sizes = [made[n].value.least_size for n in self._rounded() if n in made]
        value = made[self.root]
        size = np.maximum.reduce([value.value.least_size, *sizes])
        return value, size * self.search.bounds[self.root]

    def _jet(self, node: Expr, made: Mapping[Expr, Jet]) -> Jet:
        assert isinstance(node, Apply)
        args: list[Jet] = []
        for given, operand in zip(node.args, self.search.operands(node)):
            number = constant_of(given)
            args.append(made[operand] if number is None else Jet.constant(number))
        return SMOOTH[node.op.name](*args)

    def _rounded(self) -> list[Expr]:
        """Operands of a sum that the graph rounds: it is off by as much as they are."""
        assert isinstance(self.root, Apply)
        if self.root.op.name not in ("add", "sub"):
            return []
        return [self.search.sources[a] for a in self.root.args if a in self.search.sources]

    def interpolated(self, low: float, high: float, degree: int) -> tuple[float, ...]:
        """The polynomial of a degree, in f32. At 0 it is the function, if 0 is in the range: what
        is exactly 0 or 1 there stays so, as where a sigmoid is 0 for all numbers below some."""
        if not low <= 0.0 <= high:
            points = chebyshev_points(low, high, degree + 1)
            return _rounded(interpolated(points, self._values(points)))
        points = chebyshev_points(low, high, degree)
        points = [p if p else 0.25 * high / degree for p in points]
        (start,), values = self._values([0.0]), self._values(points)
        slopes = [(v - start) / p for v, p in zip(values, points)]
        return _rounded((start, *interpolated(points, slopes)))

    def _values(self, points: list[float]) -> list[float]:
        return self.on(Interval.point(np.array(points)))[0].value.low.tolist()

    def pieces(self, low: float, high: float) -> tuple[Interval, Jet, Jet, Ends]:
        """Parts of the range: the function on each and in its middle, and the errors allowed."""
        ends = np.linspace(low, high, PIECES + 1)
        pieces = Interval(ends[:-1], ends[1:])
        middles = Interval.point((ends[:-1] + ends[1:]) * 0.5)
        jet, least = self.on(pieces)
        return pieces, jet, self.on(middles)[0], least


def _rounded(terms: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(np.float32(t)) for t in terms)


def _can_replace(node: Expr) -> bool:
    """Quotients have a form of their own, which reads both operands."""
    return isinstance(node, Apply) and _is_smooth(node) and node.op.name != "div"


def _common(
    x: Expr | None, y: Expr | None, above: Mapping[Expr, Expr | None], depth: Mapping[Expr, int]
) -> Expr | None:
    """The last value that dominates two."""
    while x is not y:
        if x is None or y is None:
            return None
        if depth[x] >= depth[y]:
            x = above[x]
        else:
            y = above[y]
    return x


def _slots(nodes: list[Expr]) -> int:
    """What nodes cost, in multiply-adds."""
    named = [n.op.name for n in nodes if isinstance(n, Apply)]
    return sum(FUNCTION_SLOTS if n in FUNCTIONS else 1 for n in named)


def _evaluation_error(terms: tuple[float, ...], low: float, high: float) -> float:
    """Of Horner's rule in f32: a rounding for each term, of no more than the sum of sizes."""
    reach = max(abs(low), abs(high))
    total = sum(abs(t) * reach**k for k, t in enumerate(terms))
    return 2 * len(terms) * ROUNDING * total
