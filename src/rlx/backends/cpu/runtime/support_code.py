"""The native code that every model shares: the thread pool and the way in from Python.

It is a function of the machine's architecture, of Python and of NumPy, and of nothing else; its
key says which, so that it can be kept.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import RLock, Thread

from rlx.backends.cpu.runtime.binder_code import binder_text
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.thread_pool import Pool
from rlx.backends.cpu.runtime.thread_pool_code import pool_text
from rlx.backends.cpu.system.base import System
from rlx.backends.cpu.system.current import hold_over_fork, this_system

ATTRIBUTES = "attributes #0 = { nounwind }"


def support_text(system: System) -> str:
    return "\n".join([pool_text(system), binder_text(), ATTRIBUTES, ""])


def support_key() -> str:
    """What the shared code depends on, as one name."""
    system = this_system()
    return hashlib.sha256(f"{system.abi}\n{support_text(system)}".encode()).hexdigest()


def compiled_support(system: System | None = None) -> Blob:
    """For any processor of the architecture. This needs LLVM."""
    from rlx.backends.cpu.isa import baseline
    from rlx.backends.cpu.llvm.compile import compiled

    system = this_system() if system is None else system
    return compiled(support_text(system), baseline(system))


class Support:
    """The shared code, loaded, and the pool."""

    def __init__(self, blob: Blob, system: System | None = None) -> None:
        self.blob, self.code = blob, Loaded(blob, system)
        self.pool = Pool(self.code, system)
        self._stays = False

    def stay(self) -> None:
        """Keep the code mapped until the process ends: other libraries call `release` when they
        drop a result, which may be after the interpreter dropped this object."""
        if not self._stays:
            self._stays = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.code))


_loading = RLock()
hold_over_fork(_loading)
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
