"""File access: checked copies instead of mappings, and atomic writes.

A mapped file is not a value: whoever overwrites it changes results, and whoever cuts it short ends
the process with SIGBUS at the next read. So bytes that are used after a file was opened are copies,
made range by range and checked: a file that changed meanwhile is an error, not other weights.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from rlx.core.arguments import PATH
from rlx.core.errors import Error, InputError
from rlx.core.memory_limits import require_memory
from rlx.core.pages import zeroed

_ALIGNMENT = 64
_MAX_READ_BYTES = 1 << 30
"""Linux reads at most 2 GiB - 4 KiB at a time."""
READING = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags by which files are opened for their bytes, on any system."""
NOT_WAITING, NO_LINKS = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)
WRITING = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_LIVE = ("/dev/", "/proc/")
"""Where a path may be a name of an open file: one must not be renamed over."""


def path_of(path: Any) -> Path:
    """A path that a caller gave."""
    PATH.check("the path", path)
    return Path(path)


_turn = Lock()

# -- reading ---------------------------------------------------------------------------------------


class HeldFile:
    """A regular file that is open: slices of it are its bytes, read into memory of our own."""

    __slots__ = ("__weakref__", "_descriptor", "name", "size", "stamp")

    def __init__(self, name: str, descriptor: int) -> None:
        """Of a descriptor, which is kept; the caller closes its own."""
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("it is no plain file")
        self.name, self.size = name, info.st_size
        self.stamp = [*_stamp(info), info.st_ctime_ns]
        """By which one can see later that nobody touched the file."""
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: slice) -> memoryview:
        start, stop, _ = at.indices(self.size)
        return self.read(start, stop)

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes from `start` to `stop`, aligned, read-only, and nobody else's."""
        made = _memory(max(0, stop - start), self.name)
        at = 0
        while at < len(made):
            got = self._read_into(made[at : at + _MAX_READ_BYTES], start + at)
            if got == 0:
                break
            at += got
        if at < len(made) or _stamp(os.fstat(self._descriptor)) != self.stamp[:3]:
            raise Error(f"{self.name} has changed since it was opened. Load the model again.")
        return made.toreadonly()

    def _read_into(self, part: memoryview, start: int) -> int:
        """Threads read beside each other; a system without `preadv` moves a place that they share,
        so that they take turns."""
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [part], start)
        with _turn:
            os.lseek(self._descriptor, start, os.SEEK_SET)
            data = os.read(self._descriptor, len(part))
        part[: len(data)] = data
        return len(data)


def opened(path: str | os.PathLike[str]) -> HeldFile:
    """The file at `path`, which must be a regular one; a pipe that nobody writes to is not waited
    for."""
    name = os.fspath(path)
    try:
        descriptor = os.open(name, READING | NOT_WAITING)
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {reason(error)}.") from None
    try:
        return HeldFile(name, descriptor)
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {reason(error)}.") from None
    finally:
        os.close(descriptor)


def _memory(size: int, name: str) -> memoryview:
    require_memory(size, f"{name}: what is read of it")
    return zeroed(size, _ALIGNMENT).data


def _stamp(info: os.stat_result) -> list[int]:
    """By which one can see that a file is the same, and was not written to meanwhile."""
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# -- writing ---------------------------------------------------------------------------------------


@contextmanager
def writing(path: Any) -> Generator[BinaryIO]:
    """A file to write to.

    What is a regular file, or nothing yet, is replaced at the end, all of it or not at all: one
    that is open somewhere stays as it was, there. A link stays, and what it points to is written.
    A device, a pipe or a socket is written through.
    """
    given = path_of(path)
    try:
        with _through(given) if _is_live(given) else _replacing(given) as file:
            yield file
    except (OSError, ValueError) as error:
        raise InputError(f"{given} cannot be written: {reason(error)}.") from None


def _is_live(path: Path) -> bool:
    """Is there something at the path that must not be replaced by a file?"""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "it is a folder")
    return not stat.S_ISREG(mode) or os.path.abspath(path).startswith(_LIVE)


@contextmanager
def _through(path: Path) -> Generator[BinaryIO]:
    flags = WRITING | (os.O_TRUNC if path.is_file() else 0)
    with os.fdopen(os.open(path, flags), "wb") as file:
        yield file


@contextmanager
def _replacing(path: Path) -> Generator[BinaryIO]:
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            with contextlib.suppress(OSError):
                os.chmod(beside, stat.S_IMODE(target.stat().st_mode))
            yield file
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError, ValueError):
            beside.unlink(missing_ok=True)
        raise
