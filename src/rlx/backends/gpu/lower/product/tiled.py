"""Products whose threads each have a tile of sums: what is stored of it, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu.lower.product.expressions import ProductExpressions
from rlx.backends.gpu.lower.scopes import Guards, Scope
from rlx.kernel.expr import Axis, Expr
from rlx.program.values import Var


class TiledProduct(ProductExpressions):
    """Values at the points of a tile, when its sums are finished."""

    sides: tuple[frozenset[Axis], frozenset[Axis]]
    """The axes of rows and of columns."""
    is_finishing = False

    def store_tile(
        self, sums: Sequence[Var], rows: Sequence[Scope], columns: Sequence[Scope], width: int
    ) -> None:
        """The stores of a tile whose rows are scopes of their own, and whose columns scopes of so
        many neighbours; sums are in the order of rows, then columns."""
        self.vector = self.contract.columns
        self.is_finishing = True
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                first = (i * len(columns) + j) * width
                with self.inside(row), self.inside(column), self.inside(self.scope({})):
                    self.store_sums(list(sums[first : first + width]))

    def place(self, node: Expr, guards: Guards) -> int:
        """What varies with rows and columns belongs to the point of both; what varies with either,
        to its own scope, so that it is made once."""
        level = super().place(node, guards)
        free = node.free.union(*(g.free for g, _ in guards))
        is_both = self.is_finishing and all(free & side for side in self.sides)
        return len(self.scopes) - 1 if is_both else level
