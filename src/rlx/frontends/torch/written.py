"""Tensors that a call writes: their own memory where nothing else of the call shares it, else a
copy that is written back."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from rlx.core.dtype import DType
from rlx.frontends.torch.dtypes import array_of, tensor_of
from rlx.frontends.torch.namespaces import torch
from rlx.ops.op import Array

Edges = tuple[int, int]
"""Where memory begins and ends."""


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor, or array, that a call writes, and the memory that stands for it."""

    held: Any
    array: Array
    is_own: bool
    """Is it the memory of `held` itself?"""

    @classmethod
    def of(cls, held: Any, dtype: DType, others: Iterable[Edges]) -> Written:
        """In place, if the elements are in order and of the dtype, and none of the others has a
        byte of them."""
        array = array_of(held) if isinstance(held, torch.Tensor) else np.asarray(held)
        is_fit = (
            array.dtype == dtype.numpy
            and array.flags.c_contiguous
            and array.flags.aligned
            and array.flags.writeable
            and _begin(held) == array.ctypes.data
        )
        if is_fit and not _overlaps(edges_of(array), others):
            return cls(held, array, True)
        return cls(held, np.array(array, order="C"), False)

    def write_back(self) -> None:
        """Store what a copy has become."""
        if self.is_own:
            return
        write(self.held, self.array)

    def count(self) -> None:
        """Have torch know that the memory was written."""
        if self.is_own and isinstance(self.held, torch.Tensor) and not self.held.is_inference():
            torch.autograd.graph.increment_version(self.held)


def written_all(
    held: Sequence[Any], dtypes: Sequence[DType], arrays: Sequence[Array], weights: Sequence[Edges]
) -> list[Written]:
    """The tensors that a call writes, which reads `arrays` and `weights`, too."""
    others = [*map(edges_of, arrays), *weights]
    own = [_reach(h) for h in held]
    rest = [[*others, *own[:i], *own[i + 1 :]] for i in range(len(own))]
    return [Written.of(h, d, r) for h, d, r in zip(held, dtypes, rest, strict=True)]


@contextmanager
def writing(written: Sequence[Written]) -> Generator[None]:
    """A call that writes: what it wrote in place counts as changed even if it fails, and copies are
    written back if it does not."""
    try:
        yield
        for one in written:
            one.write_back()
    finally:
        for one in written:
            one.count()


def write(held: Any, value: Array) -> None:
    """Store values into a tensor or array."""
    if isinstance(held, torch.Tensor):
        with torch.no_grad():
            held.copy_(tensor_of(value))
    else:
        np.copyto(held, value)


def edges_of(array: Array) -> Edges:
    """Where the memory of an array begins and ends."""
    return byte_bounds(array) if array.size else (0, 0)


def _reach(held: Any) -> Edges:
    if isinstance(held, torch.Tensor):
        return tensor_edges(held)
    return edges_of(np.asarray(held))


def tensor_edges(tensor: Any) -> Edges:
    """Where the memory of a tensor begins and ends."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def _begin(held: Any) -> int:
    return held.data_ptr() if isinstance(held, torch.Tensor) else np.asarray(held).ctypes.data


def _overlaps(one: Edges, others: Iterable[Edges]) -> bool:
    return any(one[0] < high and low < one[1] for low, high in others)
