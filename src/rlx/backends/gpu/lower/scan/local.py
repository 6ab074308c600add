"""Index maps of a scan's values in the memory of one block.

A value is contiguous over its axes. A block has one point of some of them, or a few neighbours, so
that its part is contiguous over smaller extents: each coefficient of an index map is so many
strides of the whole, and is as many strides of the part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlx.core.dim import DimLike, exact_div
from rlx.core.layout import Layout
from rlx.kernel.expr import Affine, Axis
from rlx.kernel.refusal import NotLowered
from rlx.kernel.scan import Value


@dataclass(frozen=True, slots=True)
class LocalIndex:
    """Where the elements of a value are that belong to a block."""

    value: Value
    extents: tuple[int, ...]

    @property
    def size(self) -> int:
        total = 1
        for extent in self.extents:
            total *= extent
        return total

    def of(self, at: Affine) -> tuple[list[tuple[Axis, int]], int]:
        """The terms and the offset of an index map there."""
        return [(a, self._moved(c)) for a, c in at.terms], self._moved(at.offset)

    def _moved(self, coefficient: DimLike) -> int:
        """In strides of the block's part."""
        whole = Layout.contiguous(tuple(a.extent for a in self.value.axes)).strides
        own = Layout.contiguous(self.extents).strides
        total, left = 0, coefficient
        for stride, local in zip(whole, own):
            count = _whole_strides(left, stride)
            total, left = total + count * int(local), left - count * stride
        if left != 0:
            raise NotLowered(f"{self.value.name}: {coefficient} is no place of its axes")
        return total


def _whole_strides(left: DimLike, stride: DimLike) -> int:
    if isinstance(left, int) and isinstance(stride, int):
        return left // stride if stride else 0
    found = exact_div(left, stride)
    return found if isinstance(found, int) else 0


def local_index(value: Value, widths: Mapping[Axis, int]) -> LocalIndex | None:
    """The part of a value that a block has, with so many points of some axes; None where the
    others are named dims."""
    extents = [widths.get(a, a.extent) for a in value.axes]
    known = tuple(e for e in extents if isinstance(e, int))
    return LocalIndex(value, known) if len(known) == len(extents) else None
