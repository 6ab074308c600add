"""What the thread pool calls of a system, in LLVM text: a few functions, the same for every system.

    now(pool)                      nanoseconds of a clock that takes a few nanoseconds to read
    sleep(pool, word, seen, bit)   until woken, unless the i32 at `word` is no longer `seen`
    wake(pool, word, bits)         those that sleep there: at least those of the bits
    yield(pool)                    let another thread have the processor
    processor(pool)                the number of the processor, or -1
    pin(pool, mask)                the processors that this thread may use from now on

Addresses of functions come from the pool's words, so that code is free of symbols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rlx.backends.cpu.runtime.control_code import Function
from rlx.backends.cpu.runtime.thread_pool_layout import MASK_WORDS, Place
from rlx.backends.cpu.system.base import System
from rlx.backends.cpu.system.darwin import Darwin
from rlx.backends.cpu.system.linux import Linux
from rlx.backends.cpu.system.windows import Windows
from rlx.core.errors import UnsupportedError


def waiting_text(system: System) -> str:
    """All functions, for a system."""
    kind = next((k for known, k in _KINDS.items() if isinstance(system, known)), None)
    if kind is None:
        raise UnsupportedError(f"{system.why_not()}. Use target='reference'.")
    return kind(system.machine).text()


class _Waiting(ABC):
    def __init__(self, machine: str) -> None:
        self._machine = machine

    def text(self) -> str:
        made = [self.now, self.sleep, self.wake, self.give_way, self.processor, self.pin]
        return "\n".join(_function(head, make) for head, make in zip(_HEADS, made, strict=True))

    @abstractmethod
    def now(self, f: Function) -> None: ...

    @abstractmethod
    def sleep(self, f: Function) -> None: ...

    @abstractmethod
    def wake(self, f: Function) -> None: ...

    def give_way(self, f: Function) -> None:
        f.call("i32", f.address("%pool", Place.YIELD))
        f.give()

    def processor(self, f: Function) -> None:
        f.give("i64 -1")

    def pin(self, f: Function) -> None:
        f.give()


_HEADS = (
    "i64 @now(ptr %pool)",
    "void @sleep(ptr %pool, ptr %word, i32 %seen, i32 %bit)",
    "void @wake(ptr %pool, ptr %word, i32 %bits)",
    "void @yield(ptr %pool)",
    "i64 @processor(ptr %pool)",
    "void @pin(ptr %pool, ptr %mask)",
)


def _function(head: str, make: Callable[[Function], None]) -> str:
    f = Function(f"define internal {head}")
    make(f)
    return f.text()


# -- Linux ----------------------------------------------------------------------------------------

_FUTEX = {"x86_64": 202, "aarch64": 98}
"""The number of the system call."""
# FUTEX_WAIT_BITSET and FUTEX_WAKE_BITSET, private to the process
_WAIT, _WAKE = 9 | 128, 10 | 128
_EVERYONE = (1 << 31) - 1
_MONOTONIC_COARSE = 6
"""The time of the last tick."""


class _Linux(_Waiting):
    def _futex(self, f: Function, place: Place, operation: int, value: str, bits: str) -> None:
        number = f"i64 {_FUTEX[self._machine]}"
        given = "ptr %word", f"i32 {operation}", f"i32 {value}", "ptr null", "ptr null"
        f.call("i64 (i64, ...)", f.address("%pool", place), number, *given, f"i32 {bits}")
        f.give()

    def now(self, f: Function) -> None:
        time = f.slot("[2 x i64]", 16)
        f.call("i32", f.address("%pool", Place.CLOCK), f"i32 {_MONOTONIC_COARSE}", f"ptr {time}")
        seconds = f.let(f"mul i64 {f.word(time)}, 1000000000")
        f.give(f"i64 {f.add(seconds, f.word(time, 1))}")

    def sleep(self, f: Function) -> None:
        self._futex(f, Place.WAIT, _WAIT, "%seen", "%bit")

    def wake(self, f: Function) -> None:
        self._futex(f, Place.WAKE, _WAKE, str(_EVERYONE), "%bits")

    def processor(self, f: Function) -> None:
        here = f.call("i32", f.address("%pool", Place.GETCPU))
        f.give(f"i64 {f.let(f'sext i32 {here} to i64')}")

    def pin(self, f: Function) -> None:
        given = "i32 0", f"i64 {8 * MASK_WORDS}", "ptr %mask"
        f.call("i32", f.address("%pool", Place.PIN), *given)
        f.give()


# -- macOS ----------------------------------------------------------------------------------------

_COMPARE_AND_WAIT, _WAKE_ALL = 1, 0x100
"""UL_COMPARE_AND_WAIT, of 32 bits, and ULF_WAKE_ALL."""
_RAW_APPROXIMATE = 5
"""CLOCK_MONOTONIC_RAW_APPROX: as of the last switch between threads."""


class _Darwin(_Waiting):
    def now(self, f: Function) -> None:
        f.give(f"i64 {f.call('i64', f.address('%pool', Place.CLOCK), f'i32 {_RAW_APPROXIMATE}')}")

    def sleep(self, f: Function) -> None:
        value = f.let("zext i32 %seen to i64")
        given = f"i32 {_COMPARE_AND_WAIT}", "ptr %word", f"i64 {value}", "i32 0"
        f.call("i32", f.address("%pool", Place.WAIT), *given)
        f.give()

    def wake(self, f: Function) -> None:
        given = f"i32 {_COMPARE_AND_WAIT | _WAKE_ALL}", "ptr %word", "i64 0"
        f.call("i32", f.address("%pool", Place.WAKE), *given)
        f.give()


# -- Windows --------------------------------------------------------------------------------------

_FOR_EVER = -1
"""INFINITE, in milliseconds."""


class _Windows(_Waiting):
    def now(self, f: Function) -> None:
        milliseconds = f.call("i64", f.address("%pool", Place.CLOCK))
        f.give(f"i64 {f.let(f'mul i64 {milliseconds}, 1000000')}")

    def sleep(self, f: Function) -> None:
        seen = f.slot("i32", 4)
        f.do(f"store i32 %seen, ptr {seen}")
        given = "ptr %word", f"ptr {seen}", "i64 4", f"i32 {_FOR_EVER}"
        f.call("i32", f.address("%pool", Place.WAIT), *given)
        f.give()

    def wake(self, f: Function) -> None:
        f.call("void", f.address("%pool", Place.WAKE), "ptr %word")
        f.give()


_KINDS: dict[type[System], type[_Waiting]] = {Linux: _Linux, Darwin: _Darwin, Windows: _Windows}
