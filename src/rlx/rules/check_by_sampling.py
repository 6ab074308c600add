"""Property-based testing of rewrite rules: both sides are sampled, evaluated and compared.

Shapes, dtypes, attributes and values are random, with corner values (±0, ±inf, NaN, denormals,
integer extremes) among them. A rule without slack must agree bit for bit, NaN with NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx.core.dim import Dim, DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Op, Pattern, Var
from rlx.rules.engine import Rule, step
from rlx.rules.match import At, Either
from rlx.rules.sample_attrs import attributes_for

SYMBOLIC = Dim("n", 0, 64)
NUMBERS = ("k", "m")
"""Pattern variables of these names are drawn as constants."""
_VALUES = (0, 1, 2, 3, 4, 5, 8, -1, -2, -4, -7, 0.5, 0.25, 0.375, 1024)


@dataclass(frozen=True, slots=True)
class Proof:
    """How often a rule fired on drawn graphs, and the first draw on which its sides differ."""

    rule: str
    fired: int
    tried: int
    counterexample: str = ""

    @property
    def holds(self) -> bool:
        return self.fired > 0 and not self.counterexample


def prove(rule: Rule, *, wanted: int = 30, tries: int = 3000, seed: int = 0) -> Proof:
    """Try `rule` until it has fired `wanted` times, or a draw contradicts it."""
    fired = tried = 0
    while fired < wanted and tried < tries:
        draw = Draw((seed, tried))
        tried += 1
        sides = _sides(rule, draw)
        if sides is None:
            continue
        fired += 1
        difference = _difference(rule, sides, draw)
        if difference:
            return Proof(rule.name, fired, tried, f"draw {(seed, tried - 1)}: {difference}")
    return Proof(rule.name, fired, tried)


def _sides(rule: Rule, draw: Draw) -> tuple[Node, Node] | None:
    """A drawn node and what the rule makes of it, in one graph."""
    try:
        before = rule.sample(draw) if rule.sample else _Drawn(draw).root(rule)
    except GraphError:
        return None
    after = step(rule, before, lambda _: 1)
    return None if after is None else (before, after)


def _difference(rule: Rule, sides: tuple[Node, Node], draw: Draw) -> str:
    """What the sides disagree on for three draws of values, or nothing."""
    graph = sides[0].graph
    graph.set_outputs(sides)
    for _ in range(3):
        domain = rule.domain if _may_draw_corners(rule, sides[0]) and draw.coin(0.7) else "plain"
        values = {n.attrs["name"]: _value(n, draw, domain) for n in graph.leaves}
        before, after = evaluate(graph, values)
        problem = compare(before, after, rule)
        if problem:
            return f"{problem}\n{_shown(sides)}\n{values}"
    return ""


def _may_draw_corners(rule: Rule, before: Node) -> bool:
    """A decomposition that overflows midway proves nothing; f16 and bf16 do so at corner values."""
    return not rule.refines or before.shape.dtype.compute is before.shape.dtype


def _value(leaf: Node, draw: Draw, domain: str) -> Array:
    dims = tuple(draw_size(leaf, d) for d in leaf.shape.dims)
    return draw.values(Spec(dims, leaf.shape.dtype, domain))


def draw_size(leaf: Node, dim: DimLike) -> int:
    """A size for the symbolic dim: the same in all leaves of a graph."""
    return dim if is_static(dim) else 3


def _shown(sides: Sequence[Node]) -> str:
    lines = [f"{n!r} {dict(n.attrs)} <- {[i.index for i in n.inputs]}" for n in sides[0].graph]
    return "\n".join([*lines, f"before #{sides[0].index}, after #{sides[1].index}"])


# -- comparing ------------------------------------------------------------------------------------


def compare(before: Array, after: Array, rule: Rule) -> str:
    """How two results differ by more than the rule allows, or nothing."""
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{before.dtype}{before.shape} became {after.dtype}{after.shape}"
    if np.iscomplexobj(before):
        parts = [(f(before), f(after)) for f in (np.real, np.imag)]
    else:
        parts = [(before, after)]
    for a, b in parts:
        is_bad = _differs(a, b, rule)
        if is_bad.any():
            at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(is_bad)))
            return f"{a[at] if a.ndim else a} became {b[at] if b.ndim else b} at {at}"
    return ""


def _differs(a: Array, b: Array, rule: Rule) -> Array:
    if not DType.of(a.dtype).is_float:
        return a != b
    eps, exact = _eps(a), a.astype(np.float64)
    other, is_nan = b.astype(np.float64), np.isnan(exact)
    same = (exact == other) & (np.signbit(exact) == np.signbit(other)) | is_nan & np.isnan(other)
    if not rule.slack:
        return ~same
    finite = np.isfinite(exact)
    largest = np.abs(exact[finite]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        near = np.abs(exact - other) <= rule.slack * eps * max(largest, 1.0)
    is_same_infinite = same if not rule.refines else np.ones_like(finite)
    return ~np.where(finite, near, is_same_infinite)


def _eps(a: Array) -> float:
    return float(ml_dtypes.finfo(a.dtype).eps)


# -- drawing --------------------------------------------------------------------------------------


class _Drawn:
    """A sampled graph that a pattern matches: one dtype and one tuple of dims, varied where
    allowed."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.graph = draw, Graph("drawn")
        self.dtype: DType = draw.choice(list(DType))
        self.dims: tuple[DimLike, ...] = draw.dims(0, 4)
        if self.dims and draw.coin(0.3):
            spot = draw.integer(0, len(self.dims) - 1)
            self.dims = (*self.dims[:spot], SYMBOLIC, *self.dims[spot + 1 :])
        self.nodes: dict[str, Node] = {}
        self.values: dict[str, Any] = {}

    def root(self, rule: Rule) -> Node:
        pattern = self.draw.choice(rule.patterns)
        return self._case(pattern) if isinstance(pattern, Op) else self._node(pattern, None)

    def _case(self, op: Op) -> Node:
        """Any use of an op, by its own sample."""
        case = self.draw.case(op)
        shapes = [(s.dims, s.dtype) for s in case.specs]
        made = [self._input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate(shapes)]
        return self.graph.node(op, made, case.attrs)

    def _node(self, pattern: Any, letter: str | None) -> Node:
        if isinstance(pattern, Var):
            return self._variable(pattern.name, letter)
        if isinstance(pattern, Either):
            return self._node(self.draw.choice(pattern.args), letter)
        if isinstance(pattern, At):
            return self.nodes.setdefault(pattern.name, self._node(pattern.args[0], letter))
        if isinstance(pattern, Pattern):
            return self._applied(pattern)
        return self._literal(pattern)

    def _variable(self, name: str, letter: str | None) -> Node:
        if name in NUMBERS and name not in self.nodes:
            self.nodes[name] = self._literal(self.draw.choice(_VALUES))
        if name not in self.nodes:
            is_free = letter is None or len(letter) == 1
            dtype = self.dtype if is_free else DType.of(letter)
            self.nodes[name] = self._input(name, self._broadcastable(), dtype)
        return self.nodes[name]

    def _broadcastable(self) -> tuple[DimLike, ...]:
        draw = self.draw
        if draw.coin(0.7):
            return self.dims
        kept = self.dims[draw.integer(0, len(self.dims)) :]
        return tuple(1 if draw.coin(0.4) else d for d in kept)

    def _input(self, name: str, dims: Sequence[DimLike], dtype: DType) -> Node:
        from rlx.core.shape import Shape

        return self.graph.input(name, Shape(dims, dtype))

    def _applied(self, pattern: Pattern) -> Node:
        signature = pattern.op.signature
        inputs = [self._node(a, signature.operand(i).dtype) for i, a in enumerate(pattern.args)]
        if len(inputs) == 2 and pattern.op.is_commutative and self.draw.coin():
            inputs.reverse()
        attrs = attributes_for(self.draw, pattern.op, [i.shape for i in inputs])
        for name, want in pattern.attrs.items():
            attrs[name] = self._attribute(name, want, attrs)
        return self.graph.node(pattern.op, inputs, attrs)

    def _attribute(self, name: str, want: Any, drawn: dict[str, Any]) -> Any:
        if not isinstance(want, Var):
            return want
        return self.values.setdefault(want.name, drawn.get(name))

    def _literal(self, value: Any) -> Node:
        dtype = DType.BOOL if isinstance(value, bool) else self.dtype
        dims = [d for d in self._broadcastable() if is_static(d)] if self.draw.coin(0.3) else []
        with np.errstate(all="ignore"):
            array = np.full(dims, value).astype(dtype.numpy)
        if array.size == 0 or array.reshape(-1)[0] != value:
            raise GraphError(f"{dtype} does not hold {value}")
        return self.graph.constant(array)
