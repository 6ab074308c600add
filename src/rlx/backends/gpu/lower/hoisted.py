"""Expressions of products: index maps in parts, each where the axes that it varies with are open.

What rows have to do with an address is added up once, before the loop over inner positions, so
that a step of that loop adds one number to each address.
"""

from __future__ import annotations

from rlx.backends.gpu.lower.expressions import Expressions
from rlx.backends.gpu.lower.scopes import Guards, Values
from rlx.core.dim import DimLike
from rlx.kernel.expr import Affine, Axis, Reduce
from rlx.program.values import Var


class HoistedIndices(Expressions):
    """Values of expressions that reduce nothing."""

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        raise AssertionError("a contraction's expressions reduce nothing")

    def _affine(self, at: Affine, slot: int) -> Var:
        total: Var | None = None
        levels = [self._level(a) for a, _ in at.terms]
        for level in sorted(set(levels)):
            terms = [term for term, its in zip(at.terms, levels) if its == level]
            with self.at(level):
                before = self.number(at.offset) if total is None else total
                total = self.plus(before, terms, slot)
        return self.number(at.offset) if total is None else total

    def plus(self, total: Var, terms: list[tuple[Axis, DimLike]], slot: int) -> Var:
        part: Var | None = None
        for axis, coefficient in terms:
            found = self.position(axis)
            term = found[slot if len(found) > 1 else 0] * self.dim(coefficient)
            part = term if part is None else part + term
        assert part is not None
        return total + part
