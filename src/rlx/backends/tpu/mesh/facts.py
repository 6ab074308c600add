"""What an op says about the axes of its operands and results.

An axis of a value is a place (node, axis). Ops tie places to each other: where one of them is split
over devices, so are the others, and each device computes its part by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rlx.core.dim import DimLike
from rlx.ir.mir import Node

Place: TypeAlias = "tuple[Node, int]"
"""An axis of a value."""


@dataclass(frozen=True, slots=True)
class Tie:
    """Two places that are split together; into parts that divide `units`, too."""

    a: Place
    b: Place
    units: tuple[DimLike, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A place that a device needs whole."""

    at: Place
    reason: str


@dataclass(frozen=True, slots=True)
class Summed:
    """A place that is reduced over: each device has a partial result, which all of them add."""

    at: Place
    by: Node


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a product's right operand, which are those of its result."""

    at: Place
    by: Node


Fact: TypeAlias = "Tie | Block | Summed | Columns"
Facts: TypeAlias = Iterator[Fact]


def blocked(node: Node, reason: str, axes: tuple[int, ...] | None = None) -> Facts:
    """These axes of every value that a node reads and makes; all of them where none are given."""
    for value in (*node.inputs, *(() if node.has_items else (node,))):
        if not value.has_items:
            rank = value.shape.rank
            yield from (Block((value, a), reason) for a in range(rank) if axes is None or a in axes)


def aligned(operand: Node, result: Node, but: tuple[int, ...] = ()) -> Facts:
    """Axes of an operand that broadcasts to a result; those of size 1 that are repeated are not
    tied, nor are those of the result listed in `but`."""
    shift = result.shape.rank - operand.shape.rank
    if shift < 0:
        yield from (Block((operand, a), "its axes do not broadcast") for a in range(-shift))
    for axis in range(max(0, -shift), operand.shape.rank):
        own, made = operand.shape.dims[axis], result.shape.dims[axis + shift]
        if axis + shift not in but and (own != 1 or made == 1):
            yield Tie((operand, axis), (result, axis + shift))
