"""Where Python and NumPy keep what the binder reads, and whether they do so here.

The binder reads arrays from memory, as C code compiled against NumPy's headers would. The places
have been the same for many years; still they are looked up in known arrays before they are used,
and an interpreter without a global lock, or another than CPython, is not trusted.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from enum import IntEnum
from importlib import import_module
from typing import Any

import numpy as np

from rlx.ops.op import Array


class Field(IntEnum):
    """Bytes from the start of an object."""

    COUNT = 0
    TYPE = 8
    DATA = 16
    RANK = 24
    DIMS = 32
    DESCR = 56
    FLAGS = 64


CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400
_TYPE, _NEW, _SET_BASE = 2, 94, 282
"""Numbers of PyArray_Type, PyArray_NewFromDescr and PyArray_SetBaseObject in NumPy's table."""
PYTHON = (
    "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "Py_DecRef",
    "PyObject_Vectorcall", "PyTuple_New", "PyTuple_SetItem", "PyLong_FromLongLong",
)  # fmt: skip


EXCHANGE = (
    "PyMem_RawMalloc", "PyMem_RawFree", "Py_IsInitialized", "PyGILState_Ensure",
    "PyGILState_Release", "PyErr_Clear", "PyErr_NoMemory",
)  # fmt: skip


SLOW_CALLS = "calls are bound in Python, which takes some 80 µs each instead of 0.3"


@functools.cache
def why_not_bound() -> str | None:
    """Why the binder cannot read arrays here; None where objects are laid out as it expects."""
    python = f"{sys.implementation.name} {platform.python_version()}"
    if sys.implementation.name != "cpython":
        return f"{python} is not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{python} is a free-threaded build, whose objects have another header"
    if hasattr(sys, "gettotalrefcount") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return f"{python} is a debug build or has no 64-bit pointers"
    if not _has_table():
        return f"NumPy {np.__version__} has no table of C functions where it is expected"
    if not _counts_references():
        return f"{python} counts references in another way"
    made = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    known = [made, made.T, np.zeros((), np.int64), np.zeros((0, 5), np.int8), made[:, ::2]]
    is_known = all(_is_as_expected(a) for a in known)
    return None if is_known else f"arrays of NumPy {np.__version__} have another memory layout"


def can_bind() -> bool:
    """Are objects laid out as the binder reads them?"""
    return why_not_bound() is None


@functools.cache
def warn_slow_calls() -> None:
    """Once a process: calls take the slow path."""
    warnings.warn(f"rlx: {SLOW_CALLS}: {why_not_bound()}.", stacklevel=2)


def references(address: int) -> int:
    """How many references an object has, as its header says."""
    return _int32(address + Field.COUNT)


def _counts_references() -> bool:
    """Only references from containers are counted on: whether a local variable or an argument
    counts differs (CPython 3.14 borrows those that outlive their use)."""
    held = [np.zeros(3)]
    at = id(held[0])
    alone = references(at)
    held *= 5
    return (alone, references(at)) == (1, 5)


def _is_as_expected(array: Array) -> bool:
    at = id(array)
    flags = array.flags
    expected = CONTIGUOUS * flags.c_contiguous | ALIGNED * flags.aligned
    expected |= WRITEABLE * flags.writeable
    found = _int32(at + Field.FLAGS) & (CONTIGUOUS | ALIGNED | WRITEABLE)
    dims = _word(at + Field.DIMS)
    return (
        _word(at + Field.TYPE) == id(np.ndarray)
        and _word(at + Field.DATA) == array.ctypes.data
        and _int32(at + Field.RANK) == array.ndim
        and _word(at + Field.DESCR) == id(array.dtype)
        and found == expected
        and all(_word(dims + 8 * i) == n for i, n in enumerate(array.shape))
    )


def _has_table() -> bool:
    try:
        return numpy_function(_TYPE) == id(np.ndarray)
    except (ImportError, AttributeError, ValueError):
        return False


def array_functions() -> tuple[int, int]:
    """The addresses of PyArray_NewFromDescr and PyArray_SetBaseObject."""
    return numpy_function(_NEW), numpy_function(_SET_BASE)


@functools.cache
def python_functions() -> tuple[int, ...]:
    """The addresses of what the binder calls, in the order of `PYTHON`."""
    return _addresses(PYTHON)


@functools.cache
def exchange_functions() -> tuple[int, ...]:
    """The addresses of what calls on objects of other libraries need, in the order of
    `EXCHANGE`."""
    return _addresses(EXCHANGE)


def _addresses(names: Sequence[str]) -> tuple[int, ...]:
    found = (getattr(ctypes.pythonapi, name) for name in names)
    return tuple(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found)


def numpy_function(number: int) -> int:
    return _word(_numpy_table() + 8 * number)


@functools.cache
def _numpy_table() -> int:
    package = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    capsule: Any = import_module(f"{package}._multiarray_umath")._ARRAY_API
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, None)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _int32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value
