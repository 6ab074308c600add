"""Tensor maps: what the copy engine knows of a buffer. Saved programs have them, too, so that this
needs nothing of the nodes of a program."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.core.dim import DimLike


@dataclass(frozen=True, slots=True)
class OuterDim:
    """Matrices at equal distances, of which one box has some."""

    count: DimLike
    stride: DimLike
    """Elements from one to the next."""
    box: int = 1


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """Windows along an axis of images."""

    count: DimLike
    first: int
    """Where the first one starts, which may be before the image."""
    step: int
    """From one to the next."""


MAX_OUTER = 3
"""The copy engine knows tensors of up to five dims."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A matrix in a buffer, or a tensor of them, as the copy engine reads it: a box of rows and
    columns at a time."""

    name: str
    buffer: str
    dims: tuple[DimLike, DimLike]
    box: tuple[int, int]
    pitch: DimLike | None = None
    """Elements from a row to the next; as many as it has columns where nothing is said."""
    offset: DimLike = 0
    """Of its first element in the buffer."""
    outer: tuple[OuterDim, ...] = ()
    """The dims of matrices, the outermost first."""
    windows: tuple[WindowAxis, ...] = ()
    """Where it is images, whose number is the first dim, and whose columns are channels: the
    windows along each dim between the two. The rows of a box are then neighbouring windows, in
    the order of their places and from one image to the next, all at one tap."""

    @property
    def row_stride(self) -> DimLike:
        return self.dims[1] if self.pitch is None else self.pitch
