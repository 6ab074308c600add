"""The memory available to this process, against which allocations are checked."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlx.core.errors import OutOfMemoryError

TABLE_SHARE = 16
"""A table that a compile makes may take one part in so many of the machine's memory."""
_CGROUP = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The least of physical memory, the limit of the container, and the limits of the process."""
    return min([_of_machine(), *_of_process()])


def require_memory(size: int, what: str) -> None:
    """Refuse what the machine has no memory for, before it is allocated: Linux promises memory that
    it has not, and ends the process that uses it."""
    if size > memory_bytes():
        raise OutOfMemoryError(
            f"{what} takes {size:,} bytes, and this machine has {memory_bytes():,}."
        )


def require_table(size: int, what: str) -> None:
    """The same of what a compile computes once and keeps, such as the weights of a resize."""
    most = memory_bytes() // TABLE_SHARE
    if size > most:
        raise OutOfMemoryError(
            f"{what} takes {size:,} bytes while compiling; {most:,} is the most on this machine, a "
            f"{TABLE_SHARE}th of its memory."
        )


def _of_process() -> Iterator[int]:
    """Systems without such limits have no module for them."""
    try:
        import resource
    except ImportError:
        return
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        yield soft if soft != resource.RLIM_INFINITY else 1 << 63


@functools.cache
def _of_machine() -> int:
    return min([physical_bytes(), *_of_container()])


def physical_bytes() -> int:
    """All memory of the machine."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _by_windows(ctypes)


def _by_windows(library: Any) -> int:
    """GlobalMemoryStatusEx writes 64 bytes, the first 4 of which say so; the physical memory is in
    those from the eighth on."""
    status = (ctypes.c_uint64 * 8)(64)
    is_known = library.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return status[1] if is_known else 1 << 63


def _of_container() -> Iterator[int]:
    """The limits of the process's control groups, of either version."""
    for folder in _groups():
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                text = (folder / name).read_text().strip()
            except (OSError, ValueError):
                continue
            if text.isdecimal():
                yield int(text)


def _groups() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            inner = _CGROUP / kinds / path.lstrip("/")
            yield from (f for f in (inner, *inner.parents) if f.is_relative_to(_CGROUP))
