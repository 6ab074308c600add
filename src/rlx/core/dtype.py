"""Element types and their promotion lattice."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from rlx.core.errors import GraphError


class DType(enum.Enum):
    """An element type. The value is its printed name."""

    BOOL = "bool"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    C64 = "c64"
    C128 = "c128"

    # Enum's own hash is a Python-level call on a hot path; members are singletons.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same values and bytes."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_integer(self) -> bool:
        return self in INTEGERS

    @property
    def is_signed(self) -> bool:
        return self in SIGNED

    @property
    def is_complex(self) -> bool:
        return self in COMPLEX

    @property
    def real(self) -> DType:
        """The dtype of the parts of a complex number; itself otherwise."""
        return {DType.C64: DType.F32, DType.C128: DType.F64}.get(self, self)

    @property
    def complex(self) -> DType:
        """The complex dtype that holds this one's values."""
        return DType.C128 if self in (DType.F64, DType.C128) else DType.C64

    @property
    def compute(self) -> DType:
        """The dtype arithmetic is carried out in: half floats compute in f32 and round once."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self

    @classmethod
    def of(cls, value: Any) -> DType:
        """The dtype named by a DType, its printed name, or what NumPy takes for a dtype.

        NumPy's codes that count bytes are refused: its `i8` is rlx's i64.
        """
        if isinstance(value, DType):
            return value
        if isinstance(value, str) and value in _BY_NAME:
            return _BY_NAME[value]
        try:
            found = np.dtype(value)
            if value is None or (isinstance(value, str) and value != found.name):
                raise KeyError(value)
            return _FROM_NUMPY[found]
        except (KeyError, TypeError, ValueError):
            known = ", ".join(_BY_NAME)
            raise GraphError(f"{value!r} is not a dtype of rlx. Use one of: {known}.") from None

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.value


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
}
_FROM_NUMPY = {v: k for k, v in _NUMPY.items()}
_BY_NAME = {d.value: d for d in DType}

UNSIGNED = frozenset({DType.U8, DType.U16, DType.U32, DType.U64})
SIGNED = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})
INTEGERS = UNSIGNED | SIGNED
FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
COMPLEX = frozenset({DType.C64, DType.C128})

# The lattice: each dtype and its direct supertypes. Integers promote to any float, as
# floats are what arithmetic is done in; u64 has no signed integer above it (see `promote`).
_ABOVE: dict[DType, tuple[DType, ...]] = {
    DType.BOOL: (DType.U8, DType.I8),
    DType.U8: (DType.U16, DType.I16),
    DType.U16: (DType.U32, DType.I32),
    DType.U32: (DType.U64, DType.I64),
    DType.U64: (DType.F16, DType.BF16),
    DType.I8: (DType.I16,),
    DType.I16: (DType.I32,),
    DType.I32: (DType.I64,),
    DType.I64: (DType.F16, DType.BF16),
    DType.F16: (DType.F32,),
    DType.BF16: (DType.F32,),
    DType.F32: (DType.F64, DType.C64),
    DType.F64: (DType.C128,),
    DType.C64: (DType.C128,),
    DType.C128: (),
}


@functools.cache
def _upwards(dtype: DType) -> frozenset[DType]:
    """`dtype` and everything above it."""
    return frozenset({dtype}).union(*(_upwards(d) for d in _ABOVE[dtype]))


@functools.cache
def promote(a: DType, b: DType) -> DType:
    """The least dtype above both. u64 with a signed integer has none, so it is an error."""
    common = _upwards(a) & _upwards(b)
    for candidate in common:
        if common <= _upwards(candidate):
            return candidate
    raise GraphError(f"{a} and {b} have no common dtype: no integer holds both. Cast one first.")


def promote_all(dtypes: Iterable[DType]) -> DType:
    """The least dtype above all of them, in any order."""
    return functools.reduce(promote, dtypes)


def weak(value: bool | int | float | complex, dtype: DType) -> DType:
    """What a Python scalar becomes beside an array of `dtype`: its kind counts, not its size."""
    if isinstance(value, bool):
        return dtype
    if isinstance(value, int):
        return DType.I64 if dtype is DType.BOOL else dtype
    if isinstance(value, float):
        return dtype if dtype.is_float or dtype.is_complex else DType.F32
    return dtype if dtype.is_complex else dtype.complex
