"""Memory for code on POSIX systems: written, then made executable, never both."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

from rlx.backends.cpu.system.base import CodeMemory, refused
from rlx.core.pages import anonymous_memory


@functools.cache
def c_library() -> Any:
    """The functions that the process has loaded already. Each such object has a class of its own,
    which only the collector would free."""
    return ctypes.CDLL(None, use_errno=True)


def sealed_code(code: bytes, library: Any) -> CodeMemory:
    """On aarch64 Linux makes the instruction cache agree when a page becomes executable."""
    memory = anonymous_memory(len(code))
    memory.write(code)
    made = held(memory)
    flags = mmap.PROT_READ | mmap.PROT_EXEC
    if library.mprotect(ctypes.c_void_p(made.base), ctypes.c_size_t(len(code)), flags):
        raise refused("mprotect", ctypes.get_errno())
    return made


def held(memory: mmap.mmap) -> CodeMemory:
    """A mapping that stays as long as the result does, whose view holds it."""
    view = ctypes.c_char.from_buffer(memory)
    return CodeMemory(ctypes.addressof(view), view)
