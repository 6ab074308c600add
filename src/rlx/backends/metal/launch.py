"""Launches as Metal takes them: a pipeline, buffers by address, sizes as bytes, and the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.gpu.device import Code, Kernel
from rlx.core.dim import evaluate
from rlx.core.dtype import DType


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Pipeline:
    """A compiled kernel; equal text is compiled once."""

    state: Any
    name: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch."""

    pipeline: Pipeline
    addresses: tuple[int, ...]
    sizes: bytes
    """The scalars, as `struct Sizes` of the source has them."""
    grid: tuple[int, int, int]
    block: int


def dispatch(kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> Dispatch | None:
    """A launch; none where its grid is empty."""
    code = kernel.code
    x, y, z = (evaluate(d, sizes) for d in code.grid)
    if not x * y * z:
        return None
    return Dispatch(kernel.handle, tuple(addresses), packed(code, sizes), (x, y, z), code.block)


def packed(code: Code, sizes: Mapping[str, int]) -> bytes:
    """Scalars one behind the other, each at a multiple of its size, as C lays a struct out."""
    made = bytearray()
    for dtype, dim in code.scalars:
        made += bytes(-len(made) % dtype.itemsize)
        made += _bytes(evaluate(dim, sizes), dtype)
    return bytes(made)


def _bytes(value: int, dtype: DType) -> bytes:
    return np.asarray(value, dtype.numpy).tobytes()
