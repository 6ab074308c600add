"""Strided memory layouts: offset and strides of a value in its buffer. A view is another layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.core.dim import Dim, DimLike
from rlx.core.public_calls import public_class


@public_class
@dataclass(frozen=True, slots=True)
class Layout:
    """Element (i, j, …) is at `offset + i·strides[0] + j·strides[1] + …`, in elements."""

    dims: tuple[DimLike, ...]
    strides: tuple[DimLike, ...]
    offset: DimLike = 0

    @classmethod
    def contiguous(cls, dims: Sequence[DimLike], offset: DimLike = 0) -> Layout:
        """The layout of an array in row-major order, without gaps."""
        strides: list[DimLike] = []
        step: DimLike = 1
        for d in reversed(dims):
            strides.append(step)
            step = step * d
        return cls(tuple(dims), tuple(reversed(strides)), offset)

    @property
    def is_contiguous(self) -> bool:
        """Are the elements contiguous in row-major order? Strides of size-1 dims are free."""
        plain = Layout.contiguous(self.dims).strides
        return all(d == 1 or s == p for d, s, p in zip(self.dims, self.strides, plain))

    def permuted(self, perm: Sequence[int]) -> Layout:
        """The layout with its axes in another order."""
        return Layout(
            tuple(self.dims[p] for p in perm), tuple(self.strides[p] for p in perm), self.offset
        )

    def sliced(self, axis: int, start: DimLike, length: DimLike, step: int = 1) -> Layout:
        """`length` elements of `axis` from `start`, every `step`-th; a negative step walks back."""
        dims, strides = list(self.dims), list(self.strides)
        offset = self.offset + start * strides[axis]
        dims[axis], strides[axis] = length, strides[axis] * step
        return Layout(tuple(dims), tuple(strides), offset)

    def expanded(self, dims: Sequence[DimLike]) -> Layout:
        """Broadcast to `dims`: repeated axes have stride 0."""
        lead = len(dims) - len(self.dims)
        old = (*[1] * lead, *self.dims)
        steps = (*[0] * lead, *self.strides)
        strides = tuple(s if o == d else 0 for o, d, s in zip(old, dims, steps))
        return Layout(tuple(dims), strides, self.offset)

    def reshaped(self, dims: Sequence[DimLike]) -> Layout | None:
        """The same elements in row-major order as `dims`, or None where that takes a copy.

        Axes are grouped into the least runs of equal product; a run stays in place if its old
        axes are evenly spaced.
        """
        if self.is_contiguous:
            return Layout.contiguous(dims, self.offset)
        runs = _common_runs([d for d in self.dims if d != 1], [d for d in dims if d != 1])
        if runs is None:
            return None
        old_strides = [s for d, s in zip(self.dims, self.strides) if d != 1]
        strides: list[DimLike] = []
        for old, new in runs:
            steps = old_strides[: len(old)]
            old_strides = old_strides[len(old) :]
            if not _is_even(old, steps):
                return None
            inner = Layout.contiguous(new).strides
            strides += [s * (steps[-1] if steps else 1) for s in inner]
        rest = iter(strides)
        return Layout(tuple(dims), tuple(0 if d == 1 else next(rest) for d in dims), self.offset)


def _is_even(dims: Sequence[DimLike], strides: Sequence[DimLike]) -> bool:
    """Is each stride the next one times the next dim?"""
    return all(strides[i] == strides[i + 1] * dims[i + 1] for i in range(len(dims) - 1))


Run = tuple[list[DimLike], list[DimLike]]


def _common_runs(old: list[DimLike], new: list[DimLike]) -> list[Run] | None:
    """Cut both lists into the fewest-element runs of equal products; None if it cannot be seen."""
    runs: list[Run] = []
    i = j = 0
    while i < len(old) and j < len(new):
        a, b = old[i], new[j]
        run: Run = ([a], [b])
        i, j = i + 1, j + 1
        while a != b:
            grow_old = _is_less(a, b)
            if grow_old is None or (i if grow_old else j) >= len(old if grow_old else new):
                return None
            if grow_old:
                run[0].append(old[i])
                a, i = a * old[i], i + 1
            else:
                run[1].append(new[j])
                b, j = b * new[j], j + 1
        runs.append(run)
    return runs if i == len(old) and j == len(new) else None


def _is_less(a: DimLike, b: DimLike) -> bool | None:
    """a < b, where every factor divides the other's: decided by ints, or by known factors."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a < b
    from rlx.core.dim import exact_div

    if exact_div(b, a) is not None:
        return True
    return False if exact_div(a, b) is not None else None
