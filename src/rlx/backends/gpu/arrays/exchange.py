"""DLPack's table of C functions, for calls whose overhead counts.

A library may state a table of functions on its array type. Its arrays are then described without a
capsule: about 1.5 µs, against 6 for `__dlpack__`. Nothing is ordered and nothing held: whoever
calls this holds the array, and works on the library's current stream or waits for it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from rlx.core.dlpack import Described, DLTensor, described

NAME = b"dlpack_exchange_api"
ATTRIBUTE = "__dlpack_c_exchange_api__"
MAJOR = 1


class _Table(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_of_object", ctypes.c_void_p),
        ("object_of_managed", ctypes.c_void_p),
        ("tensor_of_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_TensorOf = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_StreamOf = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)


class Exchange:
    """The functions of one array type."""

    def __init__(self, table: _Table) -> None:
        self._tensor = _TensorOf(table.tensor_of_object)
        self._stream = _StreamOf(table.current_stream)

    @classmethod
    def of(cls, kind: type) -> Exchange | None:
        """Those of a type; None where it has none that are known here."""
        capsule: Any = getattr(kind, ATTRIBUTE, None)
        if capsule is None:
            return None
        table = _Table.from_address(_pointer(capsule, NAME))
        is_known = table.major == MAJOR and table.tensor_of_object and table.current_stream
        return cls(table) if is_known else None

    def described(self, value: Any) -> Described:
        """Where an array of the type is, and what, while somebody holds it."""
        found = DLTensor()
        self._tensor(value, ctypes.addressof(found))
        return described(found)

    def stream(self, device: tuple[int, int]) -> int:
        """The library's current stream on a device."""
        found = ctypes.c_void_p()
        self._stream(*device, ctypes.addressof(found))
        return found.value or 0
