"""Conversion of callers' values to NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError

CACHE_LINE_BYTES = 64
"""XLA reads memory of the host in place from such a multiple on, and copies other."""


def _exchanged(value: Any) -> np.ndarray[Any, Any]:
    """An array of another library, by DLPack; NumPy itself knows neither bf16 nor 8-bit floats."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        from rlx.core.dlpack import CPU_MEMORY, numpy_array

        kind, _ = value.__dlpack_device__()
        if kind not in CPU_MEMORY:
            raise BufferError("it is on another device. Copy it to the host before") from None
        return numpy_array(value.__dlpack__())


def is_array(value: Any) -> bool:
    """NumPy's, or of another library that offers DLPack or `__array__`; their classes are not."""
    return isinstance(value, np.ndarray) or (
        not isinstance(value, type)
        and (hasattr(value, "__dlpack__") or hasattr(value, "__array__"))
    )


def as_array(value: Any, what: str, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """`value` as a NumPy array, without a copy where it offers DLPack. 8-bit floats, which rlx
    stores but does not compute with, are widened to the dtype that is declared: that is exact."""
    array = _read(value, what)
    if dtype is not None and not is_array(value) and array.dtype != dtype.numpy:
        _check_numbers(array, what, dtype, value)
    is_widened = array.dtype.itemsize == 1 and dtype is not None and _widens(array.dtype, dtype)
    return array.astype(dtype.numpy) if dtype is not None and is_widened else array


def _check_numbers(array: np.ndarray[Any, Any], what: str, dtype: DType, value: Any) -> None:
    """Numbers of Python have no method that casts them. What is no numbers the caller refuses."""
    if is_numeric(array.dtype):
        got = f"{DType.of(array.dtype)}{list(array.shape)} in a {type(value).__name__}"
        name = dtype.numpy.name
        raise GraphError(f"{what} is {dtype}, got {got}. Give np.asarray(…, {name!r}).")


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Is it of numbers? NumPy counts those of other packages, such as bf16, to the void ones."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)


def _widens(given: np.dtype[Any], dtype: DType) -> bool:
    """Does `dtype` hold every value of an 8-bit float? f16 has not the range of bare exponents."""
    return (
        given.name.startswith("float8_")
        and dtype.is_float
        and (dtype is not DType.F16 or "e8m0" not in given.name)
    )


def _read(value: Any, what: str) -> np.ndarray[Any, Any]:
    if value is None:
        raise Error(f"no value for {what}.")
    if isinstance(value, Mapping):
        raise Error(f"{what} is a dict. Arrays by name are keywords, exe(**feed), or go to run.")
    try:
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        return _exchanged(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise Error(f"{what} cannot be read as an array: {error}") from None


def frozen_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy in C order that nobody can write, at a multiple of a cache line."""
    memory = np.empty(array.nbytes + CACHE_LINE_BYTES, np.uint8)
    offset = -memory.ctypes.data % CACHE_LINE_BYTES
    made = np.ndarray(array.shape, array.dtype, memory.data, offset)
    made[...] = array
    made.setflags(write=False)
    return made


def stand(array: Any) -> np.ndarray[Any, Any]:
    """A host array of the dims of an array that may be elsewhere, which takes no memory."""
    if isinstance(array, np.ndarray):
        return array
    return np.broadcast_to(np.zeros((), np.bool_), tuple(array.shape))
