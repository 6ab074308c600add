"""Random inputs for a model: what bench, trace and fuzzing run it on."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rlx.core.dim import Dim, evaluate, symbols_of
from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.representative import TYPICAL, representative
from rlx.core.shape import Shape
from rlx.ops.op import Array

MAX_ELEMENTS = 1 << 27
"""Of one input."""


def random_inputs(
    declared: Mapping[str, Shape | None],
    sizes: Mapping[str, int],
    seed: int,
    *,
    typical: int = TYPICAL,
) -> dict[str, Array]:
    """An array for each input, of these sizes of named dims; `typical` is that of others."""
    rng = np.random.default_rng(seed)
    one = {k: v for shape in declared.values() if shape for k, v in _batch(shape).items()}
    known = {**one, **sizes}
    try:
        return {n: _random(n, shape, known, typical, rng) for n, shape in declared.items()}
    except MemoryError as error:
        raise OutOfMemoryError(
            f"random inputs do not fit: {error}. Give smaller sizes: --dim NAME=SIZE"
        ) from None


def _random(
    name: str,
    shape: Shape | None,
    sizes: Mapping[str, int],
    typical: int,
    rng: np.random.Generator,
) -> Array:
    """Numbers of a normal distribution; whole ones are 0 or 1, which are in range for most."""
    if shape is None:
        raise Error(f"input {name!r} has no shape in the model. Give it: --input {name}=FILE.npy")
    dims = dims_for(shape, sizes, typical)
    if math.prod(dims) > MAX_ELEMENTS:
        raise Error(f"input {name!r} is {shape}: too large to make up. Give it as a file.")
    dtype = shape.dtype.numpy
    if shape.dtype.is_float or shape.dtype.is_complex:
        return rng.standard_normal(dims).astype(dtype)
    return rng.integers(0, 2, dims).astype(dtype)


def dims_for(shape: Shape, sizes: Mapping[str, int], typical: int = TYPICAL) -> list[int]:
    """The dims of a shape, named ones of these sizes, or of a usual one."""
    usual = representative(symbols_of(shape.dims)).items()
    known = {n: typical if size == TYPICAL else size for n, size in usual} | dict(sizes)
    return [evaluate(d, known) for d in shape.dims]


def _batch(shape: Shape) -> dict[str, int]:
    """The first dim mostly counts samples, of which one will do."""
    first = shape.dims[0] if shape.dims else 1
    if not isinstance(first, Dim) or first.symbol is None:
        return {}
    return {first.name: max(1, first.bounds[0] or 0)}
