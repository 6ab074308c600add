"""Code in memory, ready to be called."""

from __future__ import annotations

import ctypes
import mmap
import platform

from rlx.backends.cpu.runtime.blob import Blob
from rlx.core.errors import Error

_libc = ctypes.CDLL(None, use_errno=True)


class Loaded:
    """A blob in memory of its own, written and then made executable, never both. The memory goes
    when this does: keep it as long as its functions are called."""

    def __init__(self, blob: Blob) -> None:
        if blob.arch != platform.machine():
            raise Error(
                f"this code is for {blob.arch} and the machine is {platform.machine()}. "
                "Compile the model here."
            )
        self.exports = blob.exports
        self._memory = mmap.mmap(-1, len(blob.code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.write(blob.code)
        self._view = ctypes.c_char.from_buffer(self._memory)
        self._base = ctypes.addressof(self._view)
        self._seal()

    def _seal(self) -> None:
        """On aarch64 Linux makes the instruction cache agree when a page becomes executable."""
        size, flags = ctypes.c_size_t(len(self._memory)), mmap.PROT_READ | mmap.PROT_EXEC
        if _libc.mprotect(ctypes.c_void_p(self._base), size, flags):
            raise Error(
                f"the system refuses memory for native code (mprotect, errno "
                f"{ctypes.get_errno()}). Allow executable memory, or compile with target="
                f"'reference'."
            )

    def address(self, name: str) -> int:
        if name not in self.exports:
            raise Error(f"native code has no function {name!r}; it has {sorted(self.exports)}.")
        return self._base + self.exports[name]
