"""Rebuilding expressions: every kind of them, over other axes, with nodes replaced or rewritten."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel import expr as expressions
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Store
from rlx.kernel.refusal import NotLowered
from rlx.kernel.rewrite import Rewriter, rebuilt, rewritten, substituted, substitution
from rlx.kernel.structure import structure_of
from rlx.ops.op import lookup

I, J, K = Axis("i", 4), Axis("j", 3), Axis("k", 5)
MOVES = {I: Affine.of(K) * 2 + 1}
KINDS = {
    kind
    for kind in vars(expressions).values()
    if isinstance(kind, type) and issubclass(kind, Expr) and kind is not Expr
}


def value(at: Affine, point: dict[Axis, int]) -> int:
    return int(at.offset) + sum(int(c) * point[a] for a, c in at.terms)


def one_of_each(exprs: Exprs) -> list[Expr]:
    """An expression of every kind, all but the constants over i."""
    at = Affine.of(I) * 3 + 2
    load = exprs.load(0, at, DType.F32)
    guard = exprs.inside(at, 0, 7)
    return [
        exprs.const(np.float32(2), DType.F32),
        exprs.size(6, DType.I64),
        exprs.index(at),
        guard,
        load,
        exprs.gather(1, at, DType.F32, exprs.index(at), 8, 9),
        exprs.apply(lookup("exp"), [load], {}, DType.F32),
        exprs.choose(guard, load, exprs.const(np.float32(0), DType.F32)),
        exprs.reduce("sum", J, exprs.load(0, at + Affine.of(J), DType.F32)),
        Accumulator(DType.F32, free=frozenset({I, J})),
    ]


def test_every_kind_of_expression_is_rebuilt_over_other_axes() -> None:
    given = one_of_each(Exprs())
    assert {type(e) for e in given} == KINDS
    rewriter = Rewriter(Exprs(), substitution(MOVES))
    for old in given:
        new = rewriter(old)
        assert type(new) is type(old)
        assert new.dtype is old.dtype
        assert new.free == {K if a is I else a for a in old.free}
        if isinstance(old, expressions.Load | expressions.Index | expressions.Inside):
            assert new.at == Affine.of(K) * 6 + 5


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(NotLowered, match="no expression that can be rebuilt"):
        rebuilt(Expr(DType.F32), [], Exprs())


@pytest.mark.parametrize("seed", range(20))
def test_substituting_axes_is_evaluating_at_their_values(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def drawn(*axes: Axis) -> Affine:
        terms = tuple((a, int(c)) for a in axes if (c := rng.integers(-3, 4)) != 0)
        return Affine(terms, int(rng.integers(-5, 6)))

    at, axes = drawn(I, J, K), {I: drawn(J, K), J: drawn(K)}
    point = {J: 7, K: 11}
    inner = {a: value(axes[a], point) for a in axes} | {K: 11}
    made = substituted(at, axes)
    assert value(made, point) == value(at, inner)
    assert all(c != 0 for _, c in made.terms)


def test_what_is_below_a_replaced_expression_is_not_rebuilt() -> None:
    exprs = Exprs()
    below = exprs.load(0, Affine.of(I), DType.F32)
    old = exprs.apply(lookup("exp"), [below], {}, DType.F32)
    new = exprs.load(1, Affine.of(I), DType.F32)
    rewriter = Rewriter(Exprs(), replaced={old: new})
    made = rewriter(exprs.apply(lookup("neg"), [old], {}, DType.F32))
    assert made.args == (new,)
    assert below not in rewriter.made


def test_a_rule_rewrites_what_it_gives_and_leaves_the_rest() -> None:
    exprs, shape = Exprs(), Shape((4,))
    x = exprs.load(0, Affine.of(I), DType.F32)
    twice = exprs.apply(lookup("add"), [x, x], {}, DType.F32)
    kernel = Kernel("k", (I,), (Store(0, Affine.of(I), twice),), (shape,), (shape,))
    same = rewritten(kernel)
    assert structure_of(same) == structure_of(kernel)
    assert set(same.nodes).isdisjoint(kernel.nodes)

    def negated(node: Expr, args: list[Expr], made: Exprs) -> Expr | None:
        return made.op("neg", args[0]) if node is twice else None

    assert [type(n).__name__ for n in rewritten(kernel, negated).nodes] == ["Load", "Apply"]
