"""Pages of memory that were written since they were last asked for, as Linux counts them.

The kernel protects pages of private memory against writes, lets a write through at the price of one
fault, and says which pages had one (userfaultfd with asynchronous write protection, PAGEMAP_SCAN:
Linux 6.7). 45 MB are asked for in 5 µs, where reading them takes 5 ms.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Span = tuple[int, int]
"""Where memory begins, and how many bytes it has."""
LEAST = 1 << 16
"""Bytes that are read about as fast as the kernel is asked."""
MOST = 2000
"""Ranges: each may make two more of the mappings that a process has, of 65,530 at most."""
SCAN_REQUEST = 0xC0606610
SCAN_WORDS = 12
"""Of the record that a scan takes: size, flags, start, end, end of the walk, regions, how many,
pages at most, and categories: inverted, all of, any of, returned."""
_SIZE, _FLAGS, _REGIONS, _NUM_REGIONS = 0, 1, 5, 6
_WRITTEN, _PROTECT = 2, 3
"""A category of pages; the flags that protect those that match, where this can be."""
_SYSCALL = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_API, _REGISTER = 0xC018AA3F, 0xC020AA00
_FEATURES = 1 << 13 | 1 << 15
"""Write protection of pages that are not mapped yet, and asynchronous: no fault is reported."""
_live: weakref.WeakSet[PageWrites] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Kernel:
    """What asks the kernel: two files, and the address of the C library's ioctl."""

    faults: int
    pages: int
    ioctl: int

    def call(self, file: int, request: int, record: Any) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        return function(self.ioctl)(file, request, record)

    def protects(self, begin: int, size: int) -> bool:
        """Have writes to these pages counted."""
        record = (ctypes.c_uint64 * 4)(begin, size, 2, 0)
        return self.call(self.faults, _REGISTER, record) == 0


class PageWrites:
    """Whole pages of private memory. Whoever has them sees to it that the memory stays."""

    def __init__(self, kernel: Kernel, ranges: Sequence[Span]) -> None:
        self.kernel, self._region = kernel, np.zeros(3, np.int64)
        self.scans = np.zeros((len(ranges), SCAN_WORDS), np.int64)
        """A record for each range, which native code reads, too."""
        for scan, (begin, size) in zip(self.scans, ranges):
            region = self._region.ctypes.data
            scan[:] = [8 * SCAN_WORDS, 0, begin, begin + size, 0, region, 1, 1, 0, _WRITTEN, 0, 2]
        _live.add(self)

    def any_written(self) -> bool:
        """Was a page written since the last `clear`? True where the kernel does not say."""
        return any(self._scan(row) != 0 for row in self.scans)

    def clear(self) -> bool:
        """Forget what was written; False where this cannot be."""
        rows = self.scans.copy()
        rows[:, _FLAGS] = _PROTECT
        rows[:, [_REGIONS, _NUM_REGIONS, 7]] = 0
        return all(self._scan(row) == 0 for row in rows)

    def forget(self) -> None:
        """Of another process, whose pages these are not: every page counts as written."""
        self.scans[:, _SIZE] = 0

    def _scan(self, row: np.ndarray[Any, Any]) -> int:
        return self.kernel.call(self.kernel.pages, SCAN_REQUEST, row.ctypes.data)


def page_writes(spans: Sequence[Span]) -> PageWrites | None:
    """The whole pages of some memory, protected from now on, as far as they are worth asking for;
    None where there are none, or where the system does not count writes."""
    ranges = [r for s in spans if (r := whole_pages(s))[1] >= LEAST]
    kernel = _kernel() if ranges else None
    if kernel is None:
        return None
    private = _private_memory()
    ranges = [r for r in ranges if _is_inside(r, private)][:MOST]
    made = PageWrites(kernel, [r for r in ranges if kernel.protects(*r)])
    return made if len(made.scans) and made.clear() else None


def whole_pages(span: Span) -> Span:
    """The pages of which no byte is of other memory."""
    page = mmap.PAGESIZE
    begin, end = -(-span[0] // page) * page, (span[0] + span[1]) // page * page
    return begin, max(0, end - begin)


def _private_memory() -> list[Span]:
    """Memory that no file and no other process changes; neighbours are one."""
    found: list[Span] = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        where, access, _, _, inode, *_ = line.split()
        low, high = (int(a, 16) for a in where.split("-"))
        if access != "rw-p" or inode != "0":
            continue
        if found and sum(found[-1]) == low:
            low = found.pop()[0]
        found.append((low, high - low))
    return found


def _is_inside(span: Span, others: Sequence[Span]) -> bool:
    return any(o[0] <= span[0] and sum(span) <= sum(o) for o in others)


@functools.cache
def _kernel() -> Kernel | None:
    """The files that ask this system, tried on a page; None where it is another, or refuses."""
    number = _SYSCALL.get(os.uname().machine) if sys.platform == "linux" else None
    if number is None:
        return None
    with suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL(None, use_errno=True)
        faults = library.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        address = ctypes.cast(library.ioctl, ctypes.c_void_p).value or 0
        kernel = Kernel(faults, pages, address)
        record = ctypes.create_string_buffer(struct.pack("QQQ", 0xAA, _FEATURES, 0))
        if faults >= 0 and kernel.call(faults, _API, record) == 0 and _counts(kernel):
            os.register_at_fork(after_in_child=_forget)
            return kernel
    return None


def _counts(kernel: Kernel) -> bool:
    """Does it say of a page that it was written, and of another that it was not?"""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(len(memory))
    data = np.frombuffer(memory, np.uint8)
    begin = data.ctypes.data
    if not kernel.protects(begin, len(memory)):
        return False
    halves = [PageWrites(kernel, [(begin + i * mmap.PAGESIZE, mmap.PAGESIZE)]) for i in range(2)]
    if not all(h.clear() for h in halves) or any(h.any_written() for h in halves):
        return False
    memory[0] = 1
    return [h.any_written() for h in halves] == [True, False]


def _forget() -> None:
    """In a forked process: what was opened before asks for the pages of the other one."""
    _kernel.cache_clear()
    for each in _live:
        each.forget()
