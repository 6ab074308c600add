"""DLPack: arrays of any library as a C struct in a capsule, with a function that releases it.

Both kinds of struct are read: the one with a version, and the one before there were versions. A
consumer renames the capsule and calls the struct's deleter when it is done; an unconsumed capsule
calls it itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from rlx.core.errors import Error

VERSION = 1, 0
"""That is written where the consumer knows it."""
READ_ONLY = 1
ALIGN = 256
"""An address for empty arrays, which may have none."""
NAME, NAME_USED = b"dltensor", b"used_dltensor"
VERSIONED, VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"
CPU, CUDA, CUDA_HOST, METAL, ROCM, CUDA_MANAGED, WEBGPU = 1, 2, 3, 8, 10, 13, 15
"""Kinds of devices."""
CPU_MEMORY = (CPU, CUDA_HOST, CUDA_MANAGED)
"""Those whose memory the host reads."""
DTypeCode = tuple[int, int]
"""The kind of a number and its bits."""


def _dtypes() -> dict[DTypeCode, np.dtype[Any]]:
    found: dict[DTypeCode, np.dtype[Any]] = {}
    for code, letter in ((0, "i"), (1, "u")):
        found |= {(code, 8 * size): np.dtype(f"{letter}{size}") for size in (1, 2, 4, 8)}
    found |= {(2, 8 * size): np.dtype(f"f{size}") for size in (2, 4, 8)}
    found |= {(5, 8 * size): np.dtype(f"c{size}") for size in (8, 16)}
    found |= {(4, 16): np.dtype(ml_dtypes.bfloat16), (6, 8): np.dtype(np.bool_)}
    eights = (
        "e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu",
    )  # fmt: skip
    for code, name in enumerate(eights, 7):
        kind = getattr(ml_dtypes, f"float8_{name}", None)
        found |= {(code, 8): np.dtype(kind)} if kind is not None else {}
    return found


DTYPES: Mapping[DTypeCode, np.dtype[Any]] = _dtypes()
CODES: Mapping[np.dtype[Any], DTypeCode] = {d: c for c, d in DTYPES.items()}


class ExchangeError(Error, BufferError):
    """An array that cannot be exchanged; consumers of DLPack expect a BufferError."""


class DLTensor(ctypes.Structure):
    """Where an array is, and what."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("tensor", DLTensor),
        ("holder", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("holder", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


class Described(NamedTuple):
    """An array as a struct describes it; strides count elements."""

    address: int
    device: tuple[int, int]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_FIELDS = struct.Struct("QiiiBBHQQQ")
"""DLTensor, as it is unpacked at once: its fields one by one would take longer than the rest."""
_INTEGERS: tuple[Any, ...] = tuple(ctypes.c_int64 * n for n in range(65))
"""Arrays of so many numbers; NumPy has at most 64 axes."""


def described(tensor: DLTensor) -> Described:
    """What a struct says."""
    data, kind, number, ndim, code, bits, lanes, shape, strides, offset = _FIELDS.unpack(tensor)
    dtype = DTYPES.get((code, bits))
    if dtype is None or lanes != 1:
        raise ExchangeError(
            f"an array of DLPack's type {code} of {bits} bits and {lanes} lanes has no dtype here. "
            "Cast it before."
        )
    integers = _INTEGERS[ndim]
    sizes = tuple(integers.from_address(shape)[:]) if ndim else ()
    steps = tuple(integers.from_address(strides)[:]) if strides and ndim else dense(sizes)
    return Described(data + offset, (kind, number), dtype, sizes, steps)


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous array, in elements."""
    found: list[int] = []
    step = 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


# -- capsules -------------------------------------------------------------------------------------


def _python(name: str, result: Any, *types: Any) -> Any:
    """A function of Python's C interface, with types of our own."""
    return ctypes.PYFUNCTYPE(result, *types)((name, ctypes.pythonapi))


_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_KINDS = (
    (VERSIONED, ctypes.c_char_p(VERSIONED_USED), ManagedVersioned),
    (NAME, ctypes.c_char_p(NAME_USED), Managed),
)
"""The names of a capsule, before and after it is consumed, and its struct. A capsule points to its
name, which is held here."""


class Consumed:
    """A struct that is ours now: it is released when this object goes."""

    def __init__(self, managed: Managed | ManagedVersioned) -> None:
        self._managed = managed
        self._deleter = _Deleter(managed.deleter) if managed.deleter else None

    def __del__(self) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter is not None:
            deleter(ctypes.addressof(self._managed))


def _opened(capsule: Any) -> tuple[Managed | ManagedVersioned, ctypes.c_char_p]:
    """The struct in a capsule, and the name of the capsule once it is consumed."""
    for name, used, kind in _KINDS:
        if _is_valid(capsule, name):
            return kind.from_address(_pointer(capsule, name)), used
    raise ExchangeError("no DLPack capsule, or one that was consumed before; ask for a new one.")


def consume(capsule: Any) -> tuple[Described, bool, Consumed]:
    """The array in a capsule, whether it may only be read, and what holds it."""
    managed, used = _opened(capsule)
    flags = managed.flags if isinstance(managed, ManagedVersioned) else 0
    if isinstance(managed, ManagedVersioned) and managed.major != VERSION[0]:
        raise ExchangeError(f"a capsule of DLPack {managed.major}.{managed.minor} is not known.")
    found = described(managed.tensor)
    _rename(capsule, ctypes.cast(used, ctypes.c_void_p).value)
    return found, bool(flags & READ_ONLY), Consumed(managed)


def numpy_array(capsule: Any) -> np.ndarray[Any, Any]:
    """The array in a capsule, which is in memory of the host, without a copy."""
    given, is_readonly, owner = consume(capsule)
    made = np.asarray(_Stand(given, owner)).view(given.dtype)
    if is_readonly:
        made.setflags(write=False)
    return made


class _Stand:
    """What NumPy makes an array of whose base this is: it never reads the memory."""

    def __init__(self, given: Described, owner: Any) -> None:
        self.owner = owner
        size = given.dtype.itemsize
        self.__array_interface__ = {
            "data": (given.address or ALIGN, False),
            "shape": given.shape,
            "strides": tuple(s * size for s in given.strides),
            "typestr": f"|u{size}" if size <= 8 else f"<c{size}",
            "version": 3,
        }


def produce(given: Described, owner: Any, *, is_versioned: bool, is_readonly: bool) -> Any:
    """A capsule of an array whose memory `owner` holds.

    It is NumPy's, of an array at the same address, with the device and the type replaced: its
    deleter is C, as others may call it without Python's lock, or while an exception is on its way,
    where no Python function can run.
    """
    if given.dtype not in CODES:
        raise ExchangeError(f"DLPack has no type for {given.dtype}. Cast the array before.")
    array = np.asarray(_Stand(given, owner))
    capsule = _versioned(array) if is_versioned else array.__dlpack__()
    managed, _ = _opened(capsule)
    tensor = managed.tensor
    tensor.device_type, tensor.device_id = given.device
    tensor.code, tensor.bits = CODES[given.dtype]
    if is_readonly and isinstance(managed, ManagedVersioned):
        managed.flags |= READ_ONLY
    return capsule


def _versioned(array: np.ndarray[Any, Any]) -> Any:
    try:
        return array.__dlpack__(max_version=VERSION)
    except TypeError:  # a NumPy before 2.1 knows the older struct alone
        return array.__dlpack__()
