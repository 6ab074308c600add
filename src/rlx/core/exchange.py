"""DLPack's C exchange interface: arrays of another library read and made by its own C functions.

A class that takes part has `__dlpack_c_exchange_api__`, a capsule with a struct of functions. One
of them fills a DLTensor on the caller's stack from an object, another makes an object of a managed
tensor; neither needs Python. Native code calls them by address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.core import dlpack
from rlx.core.memory_digests import MemoryDigests

Array = np.ndarray[Any, Any]
ATTRIBUTE = "__dlpack_c_exchange_api__"
NAME = b"dlpack_exchange_api"


class _Header(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
    )


class _Functions(ctypes.Structure):
    _fields_ = (
        ("header", _Header),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Guard:
    """A word of bits behind a pointer of an object: objects that have others than `allowed` are not
    what their DLTensor says, such as values that are stored negated. Offsets are in bytes."""

    pointer: int
    word: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Versions:
    """Where objects of a class keep what changes with their memory, in bytes: behind `pointer` a
    pointer to a storage, which has the address of the data, an offset into it, and a pointer to a
    32-bit number of changes, or null where they are not counted."""

    pointer: int
    storage: int
    data: int
    offset: int
    counter: int
    number: int


@dataclass(frozen=True, slots=True)
class ArrayClass:
    """Classes whose objects native code reads and makes: these alone, no subclass of theirs."""

    types: tuple[type, ...]
    tensor_from_object: int
    managed_to_object: int
    guard: Guard | None = None
    versions: Versions | None = None


MAX_ORDERED = 8
"""Axes of an input that is read in another order."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input that is an argument of the call. Its axes are those of the argument in an order, if
    there is one."""

    place: int
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """An object that calls do not give, but which each of them reads."""

    value: Any


@dataclass(frozen=True, slots=True)
class Watched:
    """An object that a call may rely on while it is what it was, as `state` says: the words of its
    storage, data, offset and number of changes; -1 where those are not counted. `place` is the
    argument that must be the object; None where calls do not give it."""

    value: Any
    place: int | None
    state: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ExchangeCall:
    """Calls of a program on objects of a class, as native code makes them."""

    kind: ArrayClass
    num_arguments: int
    sources: tuple[Given | Held, ...]
    """For each input the argument that it is, or the object."""
    results: tuple[tuple[int, tuple[int, ...] | None], ...]
    """For each result its output, and the output's axis that each axis of it is, or None where they
    are in order. Each output is one result."""
    watched: tuple[Watched, ...] = ()
    is_tuple: bool = False
    """Is one result a tuple, too?"""
    written: Array | None = None
    """For each input that calls write its number, and where the memory begins and ends of which the
    caller has found that neither weights nor others that are written share it: what it writes here
    counts from the next call on."""
    digests: MemoryDigests | None = None
    """Memory that calls have copies of, and which must be what it was."""


def array_class(types: Sequence[type]) -> ArrayClass | None:
    """Classes that share an exchange interface of DLPack 1; None where they have none."""
    found = {_functions(kind) for kind in types}
    if len(found) != 1 or (known := found.pop()) is None:
        return None
    return ArrayClass(tuple(types), *known)


def _functions(kind: type) -> tuple[int, int] | None:
    capsule = getattr(kind, ATTRIBUTE, None)
    if capsule is None or not _is_valid(capsule, NAME):
        return None
    at: int | None = _pointer(capsule, NAME)
    while at and _Header.from_address(at).major != dlpack.VERSION[0]:
        at = _Header.from_address(at).previous
    if not at:
        return None
    table = _Functions.from_address(at)
    known = table.tensor_from_object or 0, table.managed_to_object or 0
    return known if all(known) else None


def described(kind: ArrayClass, value: Any) -> dlpack.Described | None:
    """What the class's own function says of an object; None where it refuses."""
    tensor = dlpack.DLTensor()
    try:
        code = _FROM_OBJECT(kind.tensor_from_object)(value, ctypes.addressof(tensor))
    except Exception:
        return None
    return None if code else dlpack.described(tensor)
