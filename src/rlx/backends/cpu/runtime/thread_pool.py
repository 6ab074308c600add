"""The process's threads for computing: started when first asked for, asleep when idle.

Workers are daemon threads of Python that stay in native code for ever; so their code and memory
are never given back, not even when the interpreter ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from typing import Any

from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.thread_count import allowed_cpus
from rlx.backends.cpu.runtime.thread_pool_layout import MASK_WORDS, MAX_THREADS, POOL_WORDS, Place

_libc = ctypes.CDLL(None, use_errno=True)
_OF_PYTHON = {
    Place.ENSURE: "PyGILState_Ensure", Place.RELEASE: "PyGILState_Release",
    Place.CHECK_SIGNALS: "PyErr_CheckSignals", Place.SAVE_THREAD: "PyEval_SaveThread",
    Place.RESTORE_THREAD: "PyEval_RestoreThread",
}  # fmt: skip
_CALL = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
"""With Python's lock, which the function itself lets go of; an exception that it sets is raised."""
_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class Pool:
    """Threads that take part in the regions of one call at a time; the others run alone."""

    def __init__(self, code: Loaded) -> None:
        self._memory = _immortal_words(POOL_WORDS)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
        self._worker = _WORKER(code.address("worker"))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._worker))
        self.call_address = code.address("call")
        self._call = _CALL(code.address("call_python"))
        self._memory[Place.SYSCALL] = _function("syscall")
        self._memory[Place.GETCPU] = _function("sched_getcpu")
        self._memory[Place.CLOCK] = _function("clock_gettime")
        for place, name in _OF_PYTHON.items():
            self._memory[place] = _address(getattr(ctypes.pythonapi, name))
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._memory)

    def call(self, context: int, run: int) -> int:
        """Run a model without Python's lock: the code it gives. A signal whose handler raises
        ends it."""
        return self._call(self.address, context, run)

    def _reset(self) -> None:
        """No workers, nobody inside, not locked: also the state of things in a forked child."""
        self._threads: list[threading.Thread] = []
        self._growing = threading.Lock()
        for place in (Place.STATE, Place.ASLEEP, Place.LOCK, Place.ASKED, Place.PINS):
            self._memory[place] = 0
        self._memory[Place.COUNT] = 1

    def grow(self, threads: int) -> None:
        """Have at least so many threads, the caller's own among them."""
        with self._growing:
            if threads <= self._memory[Place.ASKED]:
                return
            self._settle(min(threads, MAX_THREADS))
            self._memory[Place.ASKED] = threads
            with suppress(RuntimeError):  # the system gives no more: those there are do the work
                while len(self._threads) + 1 < min(threads, MAX_THREADS):
                    self._start()

    def _start(self) -> None:
        number = len(self._threads) + 1
        given = self.address, number
        thread = threading.Thread(target=self._worker, args=given, name="rlx", daemon=True)
        thread.start()
        self._threads.append(thread)
        self._memory[Place.COUNT] = number + 1

    def _settle(self, threads: int) -> None:
        """Workers keep off the caller's processor only where there is one for each of them."""
        cpus = [n for n in allowed_cpus() if n < 64 * MASK_WORDS]
        for word in range(MASK_WORDS):
            bits = sum(1 << (n % 64) for n in cpus if n // 64 == word)
            self._memory[Place.ALLOWED + word] = ctypes.c_int64(bits).value
        self._memory[Place.PINS] = int(threads <= len(cpus))
        if threads > len(cpus):
            for thread in self._threads:
                os.sched_setaffinity(thread.native_id or 0, cpus)


def _function(name: str) -> int:
    return _address(getattr(_libc, name))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _immortal_words(count: int) -> ctypes.Array[ctypes.c_int64]:
    """Words on the boundary of a page, that nobody ever frees."""
    memory = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words = (ctypes.c_int64 * count).from_buffer(memory)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
    return words
