"""The native code that every model shares: the thread pool and the way in from Python.

It is a function of the machine's architecture, of Python and of NumPy, and of nothing else; its
key says which, so that it can be kept.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from threading import RLock

from rlx.backends.cpu.native.binder_text import binder_text
from rlx.backends.cpu.native.blob import Blob
from rlx.backends.cpu.native.code import Loaded
from rlx.backends.cpu.native.pool import Pool
from rlx.backends.cpu.native.pool_text import pool_text
from rlx.errors import UnsupportedError

ATTRIBUTES = "attributes #0 = { nounwind }"


def support_text(arch: str) -> str:
    return "\n".join([pool_text(arch), binder_text(), ATTRIBUTES, ""])


def support_key() -> str:
    """What the shared code depends on, as one name."""
    return hashlib.sha256(support_text(platform.machine()).encode()).hexdigest()


def compiled_support() -> Blob:
    """For any processor of the architecture. This needs LLVM."""
    from rlx.backends.cpu.isa import NEON, SSE2
    from rlx.backends.cpu.jit import compiled

    arch = platform.machine()
    return compiled(support_text(arch), SSE2 if arch == "x86_64" else NEON)


class Support:
    """The shared code, loaded, and the pool."""

    def __init__(self, blob: Blob) -> None:
        if sys.platform != "linux":
            raise UnsupportedError(
                f"native code runs on Linux so far, and this is {sys.platform}. "
                "Use target='reference'."
            )
        self.blob, self.code = blob, Loaded(blob)
        self.pool = Pool(self.code)


_loading = RLock()
os.register_at_fork(
    before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
)
_loaded: list[Support] = []


def support(blob: Callable[[], Blob] = compiled_support) -> Support:
    """The one of this process; the blob is asked for once."""
    with _loading:
        if not _loaded:
            _loaded.append(Support(blob()))
        return _loaded[0]
