"""Tiles of a product, and how blocks take them in turn."""

from __future__ import annotations

from rlx.backends.gpu.lower.contraction.values import ProductValues
from rlx.backends.gpu.lower.scopes import Scope
from rlx.backends.gpu.schedule.product import Product
from rlx.backends.gpu.schedule.wgmma import DEPTH, WgmmaSchedule
from rlx.core.dim import DimLike, dim_min
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.values import Var

I32 = DType.I32
TILE_ROWS = 8
"""Tiles below each other that are taken before those beside them: they share columns, which the
second-level cache then holds."""


class TileGrid:
    """The tiles of a product, and the program whose blocks take them."""

    def __init__(self, product: Product, schedule: WgmmaSchedule, name: str) -> None:
        self.product, self.schedule = product, schedule
        batch, rows, columns, inner = product.sizes
        self.down, self.across, self.steps = (
            (size + (tile - 1)) // tile
            for size, tile in ((rows, schedule.rows), (columns, schedule.columns), (inner, DEPTH))
        )
        self.tiles: DimLike = self.down * self.across * batch
        grid = (dim_min(self.tiles, schedule.blocks),)
        self.b = Builder(name, block=schedule.block, grid=grid, warp=schedule.warp)
        self.values = ProductValues(self.b, product, schedule.constants)

    def number(self, dim: DimLike) -> Var:
        """An extent of the grid."""
        return self.values.number(dim).to(I32)

    @property
    def has_same_columns(self) -> bool:
        """Have all tiles the same? What varies with columns alone is then made once, in front."""
        return self.across == 1 and not self.product.batch

    def place(self, tile: Var) -> tuple[Var, Var, Var]:
        """The tile's first row and column, and its place in the batch."""
        b = self.b
        down, across = self.number(self.down), self.number(self.across)
        area = down * across
        batch, rest = (tile // area, tile % area) if self.product.batch else (b.index(0), tile)
        band = across * TILE_ROWS
        first = rest // band * TILE_ROWS
        height = (down - first).min(TILE_ROWS)
        row, column = first + rest % band % height, rest % band // height
        return row * self.schedule.rows, column * self.schedule.columns, batch

    def open(self, batch: Var) -> None:
        """The scope of a tile."""
        values = self.values
        zero = self.b.const(0, values.index_dtype)
        index = {a: [zero] for a in self.product.single}
        index |= values.opened(self.product.batch, batch.to(values.index_dtype), 1)
        values.scopes = [Scope(self.b.depth, index)]
