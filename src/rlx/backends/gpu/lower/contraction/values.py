"""Values of a product of matrices, and where its flat positions are."""

from __future__ import annotations

from rlx.backends.gpu.lower.hoisted import HoistedIndices
from rlx.backends.gpu.lower.loop import MAX_I32, reach_of, size_of
from rlx.backends.gpu.lower.scopes import Scope, Values
from rlx.backends.gpu.schedule.product import Product
from rlx.core.dim import DimLike
from rlx.core.dim import product as count_of
from rlx.core.dtype import DType
from rlx.kernel.expr import Axis, Expr, Load, Size, postorder
from rlx.program.builder import Builder
from rlx.program.values import Var

Terms = tuple[tuple[Axis, DimLike], ...]
"""Of an index map, over the inner axes."""


class ProductValues(HoistedIndices):
    """Values of both operands and of what is stored."""

    def __init__(self, builder: Builder, product: Product, constants: frozenset[int]) -> None:
        super().__init__(builder, product.kernel(), index_dtype(product), None, constants)
        self.product = product
        self.guarded = self.guarded | _scattered(product)
        self.parts: dict[Terms, Values] = {}
        """What inner positions have to do with index maps, where a table has it."""

    def plus(self, total: Var, terms: list[tuple[Axis, DimLike]], slot: int) -> Var:
        known = self.parts.get(tuple(terms))
        return super().plus(total, terms, slot) if known is None else total + known[slot]

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
