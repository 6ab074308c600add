"""The process's threads for computing: started when first asked for, asleep when idle.

Workers are daemon threads of Python that stay in native code for ever; so their code and memory
are never given back, not even when the interpreter ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.thread_count import allowed_cpus
from rlx.backends.cpu.runtime.thread_pool_layout import MASK_WORDS, MAX_THREADS, POOL_WORDS, Place
from rlx.backends.cpu.system.base import System, address_of
from rlx.backends.cpu.system.current import after_fork, this_system
from rlx.core.pages import anonymous_memory

_OF_PYTHON = {
    Place.ENSURE: "PyGILState_Ensure", Place.RELEASE: "PyGILState_Release",
    Place.CHECK_SIGNALS: "PyErr_CheckSignals", Place.SAVE_THREAD: "PyEval_SaveThread",
    Place.RESTORE_THREAD: "PyEval_RestoreThread",
}  # fmt: skip
_CALL = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
"""With Python's lock, which the function itself lets go of; an exception that it sets is raised."""
_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class Limits:
    """The thread counts that blocks of the caller's allow, of which the least holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[int] = []
        self._pools: list[Pool] = []

    @property
    def most(self) -> int:
        return min(self._active, default=MAX_THREADS)

    def attach(self, pool: Pool) -> None:
        self._pools.append(pool)

    @contextmanager
    def limited(self, threads: int) -> Generator[None]:
        """Calls of any thread of the process use at most so many while the block runs."""
        self._change(lambda: self._active.append(threads))
        try:
            yield
        finally:
            self._change(lambda: self._active.remove(threads))

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            change()
            for pool in self._pools:
                pool.count()


limits = Limits()


class Pool:
    """Threads that take part in the regions of one call at a time; the others run alone."""

    def __init__(self, code: Loaded, system: System | None = None) -> None:
        self._system = this_system() if system is None else system
        self._memory = _immortal_words(POOL_WORDS)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
        self._worker = _WORKER(code.address("worker"))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._worker))
        self.call_address = code.address("call")
        self._call = _CALL(code.address("call_python"))
        for place, address in self._system.functions().items():
            self._memory[place] = address
        for place, name in _OF_PYTHON.items():
            self._memory[place] = address_of(getattr(ctypes.pythonapi, name))
        self._reset()
        limits.attach(self)
        after_fork(self._reset)

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
        self.count()

    def count(self) -> None:
        """State how many threads take part: those there are, as far as limits allow."""
        self._memory[Place.COUNT] = min(len(self._threads) + 1, limits.most)

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
        self.count()

    def _settle(self, threads: int) -> None:
        """Workers keep off the caller's processor only where there is one for each of them."""
        if not self._system.pins_threads:
            return
        cpus = [n for n in allowed_cpus() if n < 64 * MASK_WORDS]
        for word in range(MASK_WORDS):
            bits = sum(1 << (n % 64) for n in cpus if n // 64 == word)
            self._memory[Place.ALLOWED + word] = ctypes.c_int64(bits).value
        self._memory[Place.PINS] = int(threads <= len(cpus))
        if threads > len(cpus):
            for thread in self._threads:
                os.sched_setaffinity(thread.native_id or 0, cpus)


def _immortal_words(count: int) -> ctypes.Array[ctypes.c_int64]:
    """Words on the boundary of a page, that nobody ever frees."""
    memory = anonymous_memory(8 * count)
    words = (ctypes.c_int64 * count).from_buffer(memory)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
    return words
