"""DLPack's C exchange interface: which classes have one that is known."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from rlx.core.exchange import ATTRIBUTE, NAME, array_class, described

_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_FROM_OBJECT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


class Boxed:
    """An array of another library: a class with an interface, at a version of DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.sizes: Any = None
        self.steps: Any = None


def struct(version: int, read: Any, previous: int = 0) -> Any:
    """Version, pointer to an older struct, five functions, of which two are asked for."""
    words = (ctypes.c_uint64 * 7)(version, previous, 1, 1, 1, 0, 1)
    words[5] = ctypes.cast(read, ctypes.c_void_p).value or 0
    return words


@_FROM_OBJECT
def read(value: Any, tensor: int) -> int:
    """It fills the struct as C would; other objects it refuses."""
    if not isinstance(value, Boxed):
        return -1
    array = value.array
    value.sizes = (ctypes.c_int64 * array.ndim)(*array.shape)
    value.steps = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
    words = (ctypes.c_uint64 * 6).from_address(tensor)
    words[0], words[1] = array.ctypes.data, 1
    words[2] = array.ndim | (2 | 32 << 8 | 1 << 16) << 32
    words[3], words[4] = ctypes.addressof(value.sizes), ctypes.addressof(value.steps)
    words[5] = 0
    return 0


KEPT: list[Any] = []
"""Structs that capsules point to."""


def with_interface(*versions: int, name: bytes = NAME) -> type:
    """A class whose structs are of these versions, the newest first."""
    previous = 0
    for version in reversed(versions):
        KEPT.append(struct(version, read, previous))
        previous = ctypes.addressof(KEPT[-1])
    KEPT.append(name)
    return type("Other", (Boxed,), {ATTRIBUTE: _new_capsule(previous, name, None)})


def test_objects_are_described_by_their_own_library() -> None:
    kind = with_interface(1)
    found = array_class((kind,))
    assert found is not None
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    got = described(found, kind(array))
    assert got is not None
    assert (got.shape, got.strides, got.address) == ((3, 2), (4, 2), array.ctypes.data)
    assert described(found, object()) is None


@pytest.mark.parametrize("versions", [(2, 1), (1,), (3, 2, 1)])
def test_an_older_version_is_found_behind_a_newer_one(versions: tuple[int, ...]) -> None:
    assert array_class((with_interface(*versions),)) is not None


@pytest.mark.parametrize(
    "kind",
    [Boxed, np.ndarray, with_interface(2), with_interface(0), with_interface(1, name=b"other")],
    ids=["none", "array", "newer", "older", "name"],
)
def test_other_classes_have_none(kind: type) -> None:
    assert array_class((kind,)) is None


def test_classes_share_an_interface() -> None:
    first, second = with_interface(1), with_interface(1)
    assert array_class((first, type("Derived", (first,), {}))) is not None
    assert array_class((first, second)) is not None
    assert array_class((first, Boxed)) is None
