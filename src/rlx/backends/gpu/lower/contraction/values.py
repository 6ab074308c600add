"""Expressions of a product: index maps in parts, each where the axes that it varies with are open.

What rows have to do with an address is added up once, before the loop over inner positions, so
that a step of that loop adds one number to each address.
"""

from __future__ import annotations

from rlx.backends.gpu.lower.expressions import Expressions
from rlx.backends.gpu.lower.loop import MAX_I32, reach_of, size_of
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule.product import Product
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.values import Var
from rlx.core.dim import DimLike
from rlx.core.dim import product as count_of
from rlx.core.dtype import DType
from rlx.kernel.expr import Affine, Axis, Expr, Load, Reduce, Size, postorder


class ProductValues(Expressions):
    """Values of both operands and of what is stored."""

    def __init__(self, builder: Builder, product: Product, constants: frozenset[int]) -> None:
        super().__init__(builder, product.kernel(), index_dtype(product), None, constants)
        self.product = product
        self.guarded = self.guarded | _scattered(product)

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        raise AssertionError("a contraction's expressions reduce nothing")

    def _affine(self, at: Affine, slot: int) -> Var:
        total: Var | None = None
        for level in range(len(self.scopes)):
            terms = [(a, c) for a, c in at.terms if self._level(a) == level]
            if terms:
                with self.at(level):
                    before = self.number(at.offset) if total is None else total
                    total = self._plus(before, terms, slot)
        return self.number(at.offset) if total is None else total

    def _plus(self, total: Var, terms: list[tuple[Axis, DimLike]], slot: int) -> Var:
        part: Var | None = None
        for axis, coefficient in terms:
            found = self.position(axis)
            term = found[slot if len(found) > 1 else 0] * self.dim(coefficient)
            part = term if part is None else part + term
        assert part is not None
        return total + part

    def scope(
        self, axes: tuple[Axis, ...], flat: Var, width: int = 1, *, is_whole: bool = False
    ) -> Scope:
        """A flat position of axes, and whether there is one, where there may be none."""
        extent = self.dim(count_of(a.extent for a in axes))
        mask = None if is_whole else flat < extent
        return Scope(self.b.depth, self.opened(axes, flat, width), mask)


def _scattered(product: Product) -> frozenset[Expr]:
    """What loads of scattered operands are part of: they are masked one by one."""
    found: set[Expr] = set()
    for operand in (product.left, product.right):
        for node in postorder([operand.value]) if operand.is_scattered else ():
            if isinstance(node, Load) or any(a in found for a in node.args):
                found.add(node)
    return frozenset(found)


def index_dtype(product: Product) -> DType:
    """64 bits where an index may not fit in 32."""
    nodes = product.kernel().nodes
    reach = [*map(reach_of, product.contract.maps), *map(size_of, product.sizes)]
    reach += [size_of(n.stride * n.bound) for n in nodes if isinstance(n, Load) and n.args]
    reach += [size_of(n.dim) for n in nodes if isinstance(n, Size)]
    is_small = all(r is not None and r <= MAX_I32 for r in reach)
    return DType.I32 if is_small else DType.I64
