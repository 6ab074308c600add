"""Random inputs for a model: what bench, trace and fuzzing run it on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from rlx.core.dim import Dim, evaluate, lower_bound, symbols_of
from rlx.core.errors import Error, MisfitError, OutOfMemoryError
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
    known = {**_batches(s for s in declared.values() if s is not None), **sizes}
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
        raise MisfitError(
            f"input {name!r} has no shape in the model. Give it: --input {name}=FILE.npy"
        )
    dims = dims_for(shape, sizes, typical)
    if math.prod(dims) > MAX_ELEMENTS:
        raise MisfitError(
            f"input {name!r} is {shape}: too large to make up. Give --input {name}=FILE.npy"
        )
    dtype = shape.dtype.numpy
    if shape.dtype.is_float or shape.dtype.is_complex:
        return rng.standard_normal(dims).astype(dtype)
    return rng.integers(0, 2, dims).astype(dtype)


def dims_for(shape: Shape, sizes: Mapping[str, int], typical: int = TYPICAL) -> list[int]:
    """The dims of a shape, named ones of these sizes, or of a usual one."""
    usual = representative(symbols_of(shape.dims)).items()
    known = {n: typical if size == TYPICAL else size for n, size in usual} | dict(sizes)
    return [evaluate(d, known) for d in shape.dims]


def usual_sizes(shapes: Iterable[Shape]) -> dict[str, int]:
    """What the named dims of these shapes are where nobody says: one sample, of a usual size."""
    held = list(shapes)
    return representative(symbols_of(d for s in held for d in s.dims)) | _batches(held)


def filled(name: str, value: float, like: Array) -> Array:
    """An array of this number alone; one that its dtype cannot hold is a slip."""
    with np.errstate(all="ignore"):
        made = np.full_like(like, value)
    if made.dtype.kind in "iub" and made.size and made.flat[0] != value:
        raise Error(f"input {name!r} is {like.dtype}, which cannot be {value}.")
    return made


def _batches(shapes: Iterable[Shape]) -> dict[str, int]:
    return {k: v for shape in shapes for k, v in _batch(shape).items()}


def _batch(shape: Shape) -> dict[str, int]:
    """The first dim mostly counts samples, of which one will do."""
    first = shape.dims[0] if shape.dims else 1
    symbol = first.bound_symbol if isinstance(first, Dim) else None
    return {} if symbol is None else {symbol.name: max(1, lower_bound(first))}
