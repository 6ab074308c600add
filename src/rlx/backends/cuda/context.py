"""One device's context: calls with it current, and its state after an error that is sticky.

The primary context is used, the one that other libraries of the process use, too. It is made
current for a call and the one before is current afterwards, so that nobody else notices. What
names a stream, or a graph, needs no current context of its own: it is called at once, and again
with the context where the driver asks for it (each thread has its own current context).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from rlx.backends.cuda.errors import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    LOST,
    LOST_ADVICE,
    LostDeviceError,
    error_of,
    lost_text,
)
from rlx.backends.cuda.library import Library
from rlx.core.errors import Error, UnsupportedError

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
        self._plain("cuInit", 0)
        self._check_number()
        self.device = self._int("cuDeviceGet", number)
        self.handle = ctypes.c_void_p()
        self._plain("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), self.device)

    def _check_number(self) -> None:
        count = self._int("cuDeviceGetCount")
        if not 0 <= self.number < count:
            here = f"{count} here: 0 to {count - 1}" if count > 1 else f"{count or 'none'} here"
            raise UnsupportedError(
                f"there is no CUDA device {self.number}; {here}. Choose another one, or use "
                "target='cpu'."
            )

    def _plain(self, name: str, *args: Any) -> None:
        """A call that needs no context."""
        code = self.library[name](*args)
        if code:
            raise error_of(name, code, self.library.text(code))

    def _int(self, name: str, *args: Any) -> int:
        """The number that such a call writes to its first argument."""
        found = ctypes.c_int()
        self._plain(name, ctypes.byref(found), *args)
        return found.value

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
        meaning = self.library.text(code)
        if code in LOST:
            self.lost = self.lost or lost_text(name, meaning, self.running())
            return LostDeviceError(f"{self.lost} {LOST_ADVICE}")
        return error_of(name, code, meaning)

    def quietly(self, name: str, *args: Any) -> None:
        """Give something back; there is nothing to give where the context is lost."""
        if not self.lost:
            self._within(name, *args)

    # -- facts -----------------------------------------------------------------------------------

    def attribute(self, number: int) -> int:
        return self._int("cuDeviceGetAttribute", number, self.device)

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self._plain("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode(errors="replace")

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Free, and all there is."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value
