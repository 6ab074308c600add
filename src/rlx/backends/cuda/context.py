"""One device's context: calls with it current, and its state after an error that is sticky.

The primary context is used, the one that other libraries of the process use, too. It is made
current for a call and the one before is current afterwards, so that nobody else notices. What
names a stream, or a graph, needs no current context of its own: it is called at once, and again
with the context where the driver asks for it (each thread has its own current context).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlx.backends.cuda.errors import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    LOST,
    LOST_ADVICE,
    LostDeviceError,
    lost_text,
)
from rlx.backends.cuda.library import Library
from rlx.core.errors import Error, UnsupportedError

NON_BLOCKING = 1
"""The flag of a stream that does not wait for the legacy default stream."""
ELSEWHERE = frozenset({INVALID_CONTEXT, INVALID_HANDLE})
"""What a call is answered whose stream is of a context that is not current."""


class Context:
    """The primary context of a device by number."""

    def __init__(self, library: Library, number: int = 0) -> None:
        self.library = library
        self.number = number
        self.lost = ""
        """Why it is lost; "" while it is not."""
        self.running: Callable[[], Sequence[str]] = tuple[str, ...]
        """The kernels that may be running, for errors."""
        self._captures, self._retaining = threading.Lock(), threading.Lock()
        self._handle: ctypes.c_void_p | None = None
        self.maps: dict[object, bytes] = {}
        """Tensor maps, by what they describe."""
        check(library, "cuInit", 0)
        self._check_number()
        self.device = integer(library, "cuDeviceGet", number)

    @property
    def handle(self) -> ctypes.c_void_p:
        """The context, which takes the driver about 0.1 s: facts of the device are known before."""
        found = self._handle
        return self._retained_once() if found is None else found

    def _retained_once(self) -> ctypes.c_void_p:
        with self._retaining:
            if self._handle is None:
                self._handle = self._retained()
            return self._handle

    def _retained(self) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        check(self.library, "cuDevicePrimaryCtxRetain", ctypes.byref(found), self.device)
        return found

    def _check_number(self) -> None:
        count = integer(self.library, "cuDeviceGetCount")
        if not 0 <= self.number < count:
            here = f"{count} here: 0 to {count - 1}" if count > 1 else f"{count or 'none'} here"
            raise UnsupportedError(
                f"there is no {self.library.product} device {self.number}; {here}. Choose another "
                "one, or use target='cpu'."
            )

    # -- calls -----------------------------------------------------------------------------------

    def __call__(self, name: str, *args: Any) -> None:
        """Call a function with this context current."""
        if self.lost:
            raise LostDeviceError(f"{self.lost} {LOST_ADVICE}")
        code = self._within(name, *args)
        if code:
            raise self.error(name, code)

    def made(self, name: str, *args: Any) -> int:
        """The handle or address that a function writes to its first argument."""
        found = ctypes.c_uint64()
        self(name, ctypes.byref(found), *args)
        return found.value

    def made_last(self, name: str, *args: Any) -> int:
        """The handle that a function writes to its last argument."""
        found = ctypes.c_uint64()
        self(name, *args, ctypes.byref(found))
        return found.value

    def failed(self, name: str, code: int, *args: Any) -> None:
        """What to do about a call on a stream that gave an error: call it again with the context
        current, if another one was; else raise."""
        if code in ELSEWHERE and not self.is_current:
            code = self._within(name, *args)
        if code:
            raise self.error(name, code)

    def streamed(self, name: str, *args: Any) -> None:
        """Call a function that names a stream, which needs the context seldom."""
        code = self.library[name](*args)
        if code:
            self.failed(name, code, *args)

    @contextmanager
    def capturing(self) -> Generator[int]:
        """The stream that graphs are captured from, one after the other: streams of queues are
        never captured, so that any thread may enqueue there at any time."""
        with self._captures:
            yield self._capture_stream

    @cached_property
    def _capture_stream(self) -> int:
        return self.made("cuStreamCreate", NON_BLOCKING)

    @contextmanager
    def idle(self) -> Generator[bool]:
        """True: the whole device has been waited for, and nothing is captured meanwhile. False:
        a thread is capturing a graph, during which nobody may wait for the device."""
        if not self._captures.acquire(blocking=False):
            yield False
            return
        try:
            self.quietly("cuCtxSynchronize")
            yield True
        finally:
            self._captures.release()

    def _within(self, name: str, *args: Any) -> int:
        library = self.library
        code = library["cuCtxPushCurrent_v2"](self.handle)
        if code:
            return code
        try:
            return library[name](*args)
        finally:
            library["cuCtxPopCurrent_v2"](ctypes.byref(ctypes.c_void_p()))

    @property
    def is_current(self) -> bool:
        found = ctypes.c_void_p()
        code = self.library["cuCtxGetCurrent"](ctypes.byref(found))
        return not code and found.value == self.handle.value

    # -- errors ----------------------------------------------------------------------------------

    def error(self, name: str, code: int) -> Error:
        """What a failed call is raised as; a sticky error is remembered."""
        if code in LOST:
            called, meaning = self.library.name_of(name), self.library.text(code)
            self.lost = self.lost or lost_text(called, meaning, self.running())
            return LostDeviceError(f"{self.lost} {LOST_ADVICE}")
        return self.library.error(name, code)

    def quietly(self, name: str, *args: Any) -> None:
        """Give something back; there is nothing to give where the context is lost."""
        if not self.lost:
            self._within(name, *args)

    # -- facts -----------------------------------------------------------------------------------

    def attribute(self, number: int) -> int:
        return integer(self.library, "cuDeviceGetAttribute", number, self.device)

    @property
    def name(self) -> str:
        return device_name(self.library, self.device)

    @property
    def capability(self) -> int:
        """90 for compute capability 9.0."""
        major, minor = map(self.attribute, CAPABILITY)
        return 10 * major + minor

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Free, and all there is."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


# -- what there is --------------------------------------------------------------------------------

CAPABILITY = 75, 76
"""Attributes of a device: the version of its architecture."""


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device of this machine, whether it can be used or not."""

    number: int
    name: str
    capability: int
    """90 for compute capability 9.0."""
    memory_bytes: int

    def __str__(self) -> str:
        major, minor = divmod(self.capability, 10)
        size = self.memory_bytes / 2**30
        return f"cuda:{self.number} {self.name}, capability {major}.{minor}, {size:.0f} GiB"


def found_devices(library: Library) -> tuple[FoundDevice, ...]:
    """All devices that the driver shows. No context is made."""
    check(library, "cuInit", 0)
    return tuple(_found(library, i) for i in range(integer(library, "cuDeviceGetCount")))


def _found(library: Library, number: int) -> FoundDevice:
    device = integer(library, "cuDeviceGet", number)
    major, minor = (integer(library, "cuDeviceGetAttribute", a, device) for a in CAPABILITY)
    size = ctypes.c_size_t()
    check(library, "cuDeviceTotalMem_v2", ctypes.byref(size), device)
    name = device_name(library, device)
    return FoundDevice(number, name, 10 * major + minor, size.value)


# -- calls that need no context -------------------------------------------------------------------


def check(library: Library, name: str, *args: Any) -> None:
    """Call a function that needs no context."""
    code = library[name](*args)
    if code:
        raise library.error(name, code)


def integer(library: Library, name: str, *args: Any) -> int:
    """The number that such a function writes to its first argument."""
    found = ctypes.c_int()
    check(library, name, ctypes.byref(found), *args)
    return found.value


def device_name(library: Library, device: int) -> str:
    text = ctypes.create_string_buffer(256)
    check(library, "cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")
