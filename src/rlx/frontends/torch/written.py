"""Tensors that a call writes: their own memory where their elements are in order, else a copy that
is written back."""

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
    def of(cls, held: Any, dtype: DType) -> Written:
        """In place, if the elements are in order and of the dtype."""
        array = array_of(held) if isinstance(held, torch.Tensor) else np.asarray(held)
        is_fit = (
            array.dtype == dtype.numpy
            and array.flags.c_contiguous
            and array.flags.aligned
            and array.flags.writeable
            and _begin(held) == array.ctypes.data
        )
        if is_fit:
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


def reach(held: Any) -> Edges:
    """Where the memory of a tensor or array begins and ends."""
    return tensor_edges(held) if isinstance(held, torch.Tensor) else edges_of(np.asarray(held))


def tensor_edges(tensor: Any) -> Edges:
    """Where the memory of a tensor begins and ends."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def is_folded(held: Any) -> bool:
    """May two elements of it be in one place?"""
    if not isinstance(held, torch.Tensor):
        return False
    span = 0
    for step, size in sorted(zip(held.stride(), held.shape)):
        if size > 1 and step <= span:
            return True
        span += (size - 1) * step
    return False


def _begin(held: Any) -> int:
    return held.data_ptr() if isinstance(held, torch.Tensor) else np.asarray(held).ctypes.data


def overlaps(one: Edges, others: Iterable[Edges]) -> bool:
    """May others have a byte of this memory?"""
    return any(one[0] < high and low < one[1] for low, high in others)
