"""The native code that every model shares: the thread pool and the way in from Python.

It is a function of the machine's architecture, of Python and of NumPy, and of nothing else; its
key says which, so that it can be kept.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import RLock, Thread

from rlx.backends.cpu.runtime.binder_code import binder_text
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.thread_pool import Pool
from rlx.backends.cpu.runtime.thread_pool_code import pool_text
from rlx.core.errors import UnsupportedError

ATTRIBUTES = "attributes #0 = { nounwind }"


def support_text(arch: str) -> str:
    return "\n".join([pool_text(arch), binder_text(), ATTRIBUTES, ""])


def support_key() -> str:
    """What the shared code depends on, as one name."""
    return hashlib.sha256(support_text(platform.machine()).encode()).hexdigest()


def compiled_support() -> Blob:
    """For any processor of the architecture. This needs LLVM."""
    from rlx.backends.cpu.isa import NEON, SSE2
    from rlx.backends.cpu.llvm.compile import compiled

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


@contextmanager
def support_under_way(blob: Callable[[], Blob]) -> Generator[None]:
    """Code beside which it is made, if there is none yet: LLVM lets other threads run, and a
    compiler begins with what LLVM has no part in."""
    thread = None if _loaded else Thread(target=_attempted, args=(blob,))
    try:
        if thread is not None:
            thread.start()
    except RuntimeError:  # no thread can be started: it is made when it is asked for
        thread = None
    try:
        yield
    finally:
        if thread is not None:
            thread.join()


def _attempted(blob: Callable[[], Blob]) -> None:
    """What goes wrong is said where it is asked for."""
    with suppress(Exception):
        support(blob)


def support(blob: Callable[[], Blob] = compiled_support) -> Support:
    """The one of this process; the blob is asked for once."""
    with _loading:
        if not _loaded:
            _loaded.append(Support(blob()))
        return _loaded[0]
