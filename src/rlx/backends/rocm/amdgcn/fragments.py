"""Which lane of a wave holds which elements of the 16×16 tiles of matrix instructions.

Along one side a tile has a lane for each of 16 positions; along the other, the groups of 16 lanes
share the 16 positions. An operand's sides are the rows of `a` and the columns of `b`, which lanes
go along, and the depth; an accumulator's lanes go along its columns. These are facts of AMD's
instruction set manuals of CDNA 2 and 3 (mfma), RDNA 3 and RDNA 4 (wmma).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.rocm.architecture import Architecture
from rlx.program.types import TileType

SIDE = 16
"""Rows and columns of every tile, and the depth of a product."""


@dataclass(frozen=True, slots=True)
class Fragments:
    """The layout of one architecture."""

    wave: int
    is_doubled: bool = False
    """Does each half of the wave hold whole operands (RDNA3)?"""
    is_interleaved: bool = False
    """Do the groups of lanes take turns along the rows of accumulators (RDNA3)?"""

    @classmethod
    def of(cls, target: Architecture) -> Fragments:
        is_third = target.generation == 11
        return cls(target.wave, is_doubled=is_third, is_interleaved=is_third)

    @property
    def held(self) -> int:
        """Elements of a tile for each lane, each of them in one lane."""
        return SIDE * SIDE // self.wave

    def registers(self, tile: TileType) -> int:
        """Elements in the registers of a lane: of a doubled operand, those of two lanes."""
        return self.held * (2 if self.is_doubled and tile.role != "c" else 1)

    def across(self, tile: TileType, group: int, element: int) -> int:
        """The position along the side that the groups of lanes share."""
        if tile.role == "c" and self.is_interleaved:
            return element * (self.wave // SIDE) + group
        return group * self.held + element

    def step(self, tile: TileType) -> tuple[int, int]:
        """How far the next group of lanes, and the next element, are along that side."""
        first = self.across(tile, 0, 0)
        return self.across(tile, 1, 0) - first, self.across(tile, 0, 1) - first

    def why_not(self, tile: TileType, warp: int) -> str | None:
        if (tile.rows, tile.columns) != (SIDE, SIDE):
            return f"its matrix instructions multiply tiles of {SIDE}x{SIDE}"
        return None if warp == self.wave else f"a tile is held by waves of {self.wave} lanes"
