"""Arrays that end where memory does: reading or writing past them stops the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy, side by side, whose last byte is the last before a page that may not be touched."""
    pages = -(-array.nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    fence = whole.ctypes.data + pages * PAGE
    if _libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    end = pages * PAGE
    copy = whole[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def addresses(arrays: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    return [a.ctypes.data for a in arrays]
