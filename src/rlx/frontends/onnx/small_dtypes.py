"""Element types that rlx has no dtype for, because they are smaller than a byte or floats of one.

Outside they are arrays of ml_dtypes, one element a byte. In a graph they are codes: floats are u8
bit patterns, integers are i8 or u8 numbers. Code 0 is the number 0, but of E8M0, which has none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Small:
    """An element type: so many bits, those of the first element lowest in a byte."""

    dtype: np.dtype[Any]
    bits: int

    @property
    def name(self) -> str:
        return self.dtype.name

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype.name

    @property
    def is_signed(self) -> bool:
        return not self.dtype.name.startswith("uint")

    @property
    def storage(self) -> DType:
        """The dtype of codes."""
        return DType.U8 if self.is_float or not self.is_signed else DType.I8

    def encode(self, array: Array, what: str) -> Array:
        """Elements as codes."""
        if array.dtype != self.dtype:
            raise Error(f"{what} is {array.dtype}, expected {self.name}.")
        if self.is_float:
            return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)
        return array.astype(self.storage.numpy)

    def decode(self, codes: Array) -> Array:
        """Codes as elements."""
        if self.is_float:
            return np.ascontiguousarray(codes).view(self.dtype).reshape(codes.shape)
        return codes.astype(self.dtype)

    @functools.cached_property
    def values(self) -> Array:
        """f32 by code, of a float type."""
        return np.arange(2**self.bits, dtype=np.uint8).view(self.dtype).astype(np.float32)

    def num_bytes(self, dims: tuple[int, ...]) -> int:
        return -(-math.prod(dims) * self.bits // 8)

    def read(self, raw: Array, dims: tuple[int, ...]) -> Array:
        """The elements that bytes hold."""
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        codes = (raw.view(np.uint8)[:, None] >> shifts) & np.uint8(2**self.bits - 1)
        flat = np.ascontiguousarray(codes.reshape(-1)[: math.prod(dims)])
        if self.is_float:
            return flat.view(self.dtype).reshape(dims)
        if self.dtype.name.startswith("int"):
            top = 2 ** (self.bits - 1)
            return ((flat ^ np.uint8(top)).astype(np.int8) - top).astype(self.dtype).reshape(dims)
        return flat.astype(self.dtype).reshape(dims)


@functools.cache
def small_kinds() -> Mapping[int, Small]:
    """ONNX's number of a type → how it is stored."""
    from onnx import TensorProto as T

    bits = {
        "UINT4": ("uint4", 4), "INT4": ("int4", 4), "UINT2": ("uint2", 2), "INT2": ("int2", 2),
        "FLOAT4E2M1": ("float4_e2m1fn", 4), "FLOAT8E4M3FN": ("float8_e4m3fn", 8),
        "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", 8), "FLOAT8E5M2": ("float8_e5m2", 8),
        "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", 8), "FLOAT8E8M0": ("float8_e8m0fnu", 8),
    }  # fmt: skip
    numbers = dict(T.DataType.items())
    return {
        numbers[name]: Small(np.dtype(getattr(ml_dtypes, kind)), size)
        for name, (kind, size) in bits.items()
        if name in numbers
    }


def bytes_of_fields(values: Any, what: str) -> Array:
    """Bytes that are stored one per field element, as integers."""
    wide = np.array(values, np.int64)
    if wide.size and (wide.min() < 0 or wide.max() > 0xFF):
        raise GraphError(f"{what}: a number is no byte")
    return wide.astype(np.uint8)


def small_of(dtype: np.dtype[Any]) -> Small | None:
    """The element type that arrays of this dtype have; None where rlx has the dtype itself."""
    return next((s for s in small_kinds().values() if s.dtype == dtype), None)
