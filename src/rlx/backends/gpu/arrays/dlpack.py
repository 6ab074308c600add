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
NAME, NAME_USED = b"dltensor", b"used_dltensor"
VERSIONED, VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"
CPU, CUDA, CUDA_HOST, ROCM, CUDA_MANAGED = 1, 2, 3, 10, 13
"""Kinds of devices."""
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


_new = _python("PyCapsule_New", ctypes.py_object, *[ctypes.c_void_p] * 3)
_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_hold = _python("Py_IncRef", None, ctypes.c_void_p)
_release = _python("Py_DecRef", None, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_KINDS = (
    (VERSIONED, ctypes.c_char_p(VERSIONED_USED), ManagedVersioned),
    (NAME, ctypes.c_char_p(NAME_USED), Managed),
)
"""The names of a capsule, before and after it is consumed, and its struct. Capsules point to their
names, which are held here."""
_NEW_NAMES = {VERSIONED: ctypes.c_char_p(VERSIONED), NAME: ctypes.c_char_p(NAME)}


def _address(name: ctypes.c_char_p) -> int | None:
    return ctypes.cast(name, ctypes.c_void_p).value


class Consumed:
    """A struct that is ours now: it is released when this object goes."""

    def __init__(self, managed: Managed | ManagedVersioned) -> None:
        self._managed = managed
        self._deleter = _Deleter(managed.deleter) if managed.deleter else None

    def __del__(self) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter is not None:
            deleter(ctypes.addressof(self._managed))


def consume(capsule: Any) -> tuple[Described, bool, Consumed]:
    """The array in a capsule, whether it may only be read, and what holds it."""
    for name, used, kind in _KINDS:
        if not _is_valid(id(capsule), name):
            continue
        managed = kind.from_address(_pointer(id(capsule), name))
        flags = managed.flags if isinstance(managed, ManagedVersioned) else 0
        if isinstance(managed, ManagedVersioned) and managed.major != VERSION[0]:
            raise ExchangeError(
                f"a capsule of DLPack {managed.major}.{managed.minor} is not known."
            )
        found = described(managed.tensor)
        _rename(id(capsule), _address(used))
        return found, bool(flags & READ_ONLY), Consumed(managed)
    raise ExchangeError("no DLPack capsule, or one that was consumed before; ask for a new one.")


class _Holder:
    """All that a struct points to, and what holds its memory."""

    def __init__(self, given: Described, owner: Any, is_versioned: bool, is_readonly: bool) -> None:
        count = max(1, len(given.shape))
        self.owner = owner
        self.shape = (ctypes.c_int64 * count)(*given.shape)
        self.strides = (ctypes.c_int64 * count)(*given.strides)
        self.managed = ManagedVersioned() if is_versioned else Managed()
        code, bits = CODES[given.dtype]
        self.managed.tensor = DLTensor(
            given.address, *given.device, len(given.shape), code, bits, 1,
            ctypes.addressof(self.shape), ctypes.addressof(self.strides), 0,
        )  # fmt: skip
        self.managed.holder = id(self)
        self.managed.deleter = ctypes.cast(_DELETERS[is_versioned], ctypes.c_void_p).value
        if isinstance(self.managed, ManagedVersioned):
            self.managed.major, self.managed.minor = VERSION
            self.managed.flags = READ_ONLY if is_readonly else 0


def _delete(address: int) -> None:
    _release(Managed.from_address(address).holder)


def _delete_versioned(address: int) -> None:
    _release(ManagedVersioned.from_address(address).holder)


def _destroy(capsule: int) -> None:
    """A capsule that nobody consumed."""
    for name, _, kind in _KINDS:
        if _is_valid(capsule, name):
            _release(kind.from_address(_pointer(capsule, name)).holder)


_DELETERS = _Deleter(_delete), _Deleter(_delete_versioned)
_DESTRUCTOR = _Destructor(_destroy)
for _callback in (*_DELETERS, _DESTRUCTOR):
    _hold(id(_callback))  # other libraries may call them while the interpreter shuts down


def produce(given: Described, owner: Any, *, is_versioned: bool, is_readonly: bool) -> Any:
    """A capsule of an array whose memory `owner` holds."""
    if given.dtype not in CODES:
        raise ExchangeError(f"DLPack has no type for {given.dtype}. Cast the array before.")
    holder = _Holder(given, owner, is_versioned, is_readonly)
    name = _NEW_NAMES[VERSIONED if is_versioned else NAME]
    _hold(id(holder))
    destructor = ctypes.cast(_DESTRUCTOR, ctypes.c_void_p)
    return _new(ctypes.addressof(holder.managed), _address(name), destructor)
