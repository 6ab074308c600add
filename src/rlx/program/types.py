"""Types of values: a number in each member of a team, one for all of them, an address, a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlx.core.dtype import DType


@dataclass(frozen=True, slots=True)
class TileType:
    """A matrix whose elements are spread over the threads of a warp.

    Operand `a` is m×k, `b` is k×n, the accumulator `c` is m×n. Which thread holds which element is
    the target's choice: `TilePlace` gives it where a program must know.
    """

    role: Literal["a", "b", "c"]
    rows: int
    columns: int
    dtype: DType

    def __str__(self) -> str:
        return f"{self.role}{self.rows}x{self.columns}.{self.dtype}"


@dataclass(frozen=True, eq=False, slots=True)
class Uniform:
    """A number that is one for all members of a team: one of `UNIFORM`."""

    dtype: DType

    def __str__(self) -> str:
        return f"uniform.{self.dtype}"


@dataclass(frozen=True, eq=False, slots=True)
class Address:
    """A byte in memory: `POINTER`, or `POINTERS`, of which each member of a team has its own."""

    is_varying: bool = False

    def __str__(self) -> str:
        return "addresses" if self.is_varying else "address"


UNIFORM = {dtype: Uniform(dtype) for dtype in DType}
POINTER, POINTERS = Address(), Address(is_varying=True)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Of a value that an emitter wrote in its target's language."""

    def __str__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()
Type = DType | TileType | Uniform | Address | Unknown
"""A `DType` alone is that of a number that each member of a team has."""


def dtype_of(kind: Type) -> DType:
    """Of a number, or of a tile's elements."""
    if isinstance(kind, DType):
        return kind
    if isinstance(kind, Address | Unknown):
        raise TypeError(f"{kind} is no number")
    return kind.dtype
