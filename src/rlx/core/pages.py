"""Memory in whole pages of the system, which are no process's memory before they are written to,
and are given back when the memory goes."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np

MIN_BYTES = 1 << 16
"""Below it memory of the allocator is cheaper, and what a freed piece of it leaves is small."""


def anonymous_memory(size: int) -> mmap.mmap:
    """Memory that is no file's, cleared, on the boundary of a page."""
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def zeroed(size: int, alignment: int = 64) -> np.ndarray[Any, Any]:
    """Bytes of zeros at a multiple of `alignment`, at most a page's. NumPy asks for pages of 2 MiB
    for large arrays, of which one byte that is written makes all resident; these are small."""
    if size >= MIN_BYTES:
        return np.frombuffer(anonymous_memory(size), np.uint8)
    whole = np.zeros(size + alignment, np.uint8)
    start = -whole.ctypes.data % alignment
    return whole[start : start + size]


def return_freed_memory() -> None:
    """Give pages that the C library keeps of what was freed back to the system; glibc does so by
    itself at the end of its heap only."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
