"""Operand conversion: scalar promotion, dtype promotion and result checks around a reference.

Python scalars are weak, dtypes that a signature holds equal are promoted, half floats compute in
f32, and a result has exactly the inferred shape.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.core.dim import Dim
from rlx.core.dtype import DType, promote, promote_all, weak
from rlx.core.errors import Error, GraphError, OutOfMemoryError
from rlx.core.extent import measure
from rlx.core.memory_limits import require_memory
from rlx.core.shape import Shape
from rlx.core.sig import Signature

Array = NDArray[Any]
OfSize = Callable[[Dim, DType], Any]
"""The operand that a size is, of a dtype."""


def dtypes_of(signature: Signature, shapes: Sequence[Shape | None]) -> list[DType | None]:
    """What each operand is to be cast to: the promoted dtype of its letter's operands."""
    letters = [
        signature.operand(i).letter if signature.operands else None for i in range(len(shapes))
    ]
    merged: dict[str, DType] = {}
    for letter, shape in zip(letters, shapes):
        if letter is not None and shape is not None:
            known = merged.get(letter, shape.dtype)
            merged[letter] = promote(known, shape.dtype)
    return [
        None if letter is None or shape is None else merged[letter]
        for letter, shape in zip(letters, shapes)
    ]


def promote_scalars(
    signature: Signature, args: Sequence[Any], of_size: OfSize | None = None
) -> list[Any]:
    """Python scalars made arrays of the dtype that the operands beside them give; so are sizes that
    a call binds, by `of_size`."""
    for i, a in enumerate(args):
        if a is None:
            raise GraphError(f"operand {i} is None, expected an array or a node")
    letters = [
        signature.operand(i).letter if signature.operands else None for i in range(len(args))
    ]
    known: dict[str | None, list[DType]] = {}
    for letter, a in zip(letters, args):
        if not is_weak(a) and hasattr(a, "dtype"):
            known.setdefault(letter, []).append(DType.of(a.dtype))
    beside: dict[str | None, DType] = {
        letter: promote_all(dtypes) for letter, dtypes in known.items() if letter
    }
    return [
        scalar(a, beside.get(letter))
        if is_weak(a)
        else of_size(a, size_dtype(beside.get(letter)))
        if of_size and isinstance(a, Dim)
        else a
        for letter, a in zip(letters, args)
    ]


def size_dtype(beside: DType | None) -> DType:
    """A size is a Python integer whose value a call gives."""
    dtype = DType.I64 if beside is None else weak(0, beside)
    return dtype.real if dtype.is_complex else dtype


def python_names(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute names that are Python keywords carry an underscore in the reference."""
    return {f"{k}_" if k in ("else", "if", "while", "in") else k: v for k, v in attrs.items()}


def computable(array: Array) -> Array:
    """What a reference computes with: no half floats, and C order, as NumPy sums in
    memory order and the bits of a result must not depend on where a plan puts its operands."""
    return np.asarray(array, DType.of(array.dtype).compute.numpy, order="C")


def is_weak(value: Any) -> bool:
    """Is it a Python scalar? NumPy's have a dtype of their own, though some subclass Python's."""
    return isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic)


def scalar(value: bool | int | float | complex, beside: DType | None = None) -> Array:
    """A Python scalar as an array; beside an array its kind counts, not its size."""
    if beside is None:
        defaults = {bool: DType.BOOL, int: DType.I64, float: DType.F32, complex: DType.C64}
        beside = defaults[type(value)]
    dtype = weak(value, beside)
    if isinstance(value, int) and not isinstance(value, bool) and dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            raise GraphError(f"{value} does not fit {dtype}")
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype.numpy)


@contextmanager
def within_memory(op: str, results: Sequence[Shape]) -> Generator[None]:
    """Results are computed inside: those that the machine has no memory for are refused before."""
    sizes = (r.size_bytes for r in results)
    require_memory(sum(n for n in sizes if isinstance(n, int)), op)
    try:
        yield
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(f"{op}: there is not enough memory: {error}.") from None


def fitted(op: str, made: Any, expected: Shape, sizes: dict[str, int] | None = None) -> Array:
    """The result in its dtype. What it measures goes to `sizes`, for the results beside it."""
    array = np.asarray(made)
    if expected.is_measured:
        known = {} if sizes is None else sizes
        known.update(measure(expected.dims, array.shape) | known)
        expected = expected.bind(known)
    if array.dtype != expected.dtype.numpy:
        array = array.astype(expected.dtype.numpy)
    if array.shape != expected.dims:
        raise Error(f"{op}: the reference gave {list(array.shape)}, the rule {expected}")
    return array
