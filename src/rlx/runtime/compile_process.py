"""A compile in a child process: what LLVM and the compiler take of memory is given back when the
child ends, and a process that only runs programs never loads either.

The child is begun with the target, before there is a model, so that it imports the compiler while
the parent reads the model. A request is one line of JSON on its standard input, and the answer is
the program's file on its standard output. The child ends when its standard input does: with the
parent, however that ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any, cast

from rlx.core.errors import Error
from rlx.core.sections import Sections

GREETING = b"rlx compiles\n"
"""What a child writes first: that it is Python, and finds rlx."""
START_SECONDS, ANSWER_SECONDS = 60.0, 600.0
"""Until it has greeted, and until the program is there, at most."""
_END_SECONDS = 5.0
"""Until a process that was killed is gone."""
_POLL_SECONDS = 0.2
"""Waits are this long at most: on Windows, nothing interrupts one."""
_MAX_ANSWER_BYTES, _MAX_REASON_BYTES, _MAX_REASON_LETTERS = 1 << 30, 1 << 16, 200
_MAIN = (
    "import sys; sys.path[:] = sys.argv[2:]; from rlx.runtime.compile_worker import main; "
    "main(sys.argv[1])"
)
"""The child imports from where the parent does, and from nowhere else."""


class ChildFailure(Exception):
    """Why there is no answer."""


class CompileProcess:
    """A child that answers one request."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Begin a child for a target. Why that fails is stated when an answer is asked for."""
        self._child: subprocess.Popen[bytes] | None = None
        self._failure = ""
        self._answer, self._stderr = b"", b""
        self._greeted, self._answered = Event(), Event()
        self._threads: list[Thread] = []
        self._began = time.monotonic()
        try:
            self._child = _started(json.dumps(asked))
            self._run(self._read_stderr, self._child.stderr)
        except (ChildFailure, OSError, RuntimeError, ValueError) as why:
            self._failure = f"no child process can be started: {why}"
            self.end()

    def answer(self, request: Mapping[str, Any], meanwhile: Callable[[], object]) -> Sections:
        """What the child makes of a request, while `meanwhile` is called. The child is ended."""
        try:
            self._ask((json.dumps(request) + "\n").encode())
            meanwhile()
            self._wait(self._greeted, self._began + START_SECONDS, "started")
            self._wait(self._answered, time.monotonic() + ANSWER_SECONDS, "answered")
            return self._checked()
        finally:
            self.end()

    def end(self) -> None:
        """End the child, if it has not, and leave nothing of it."""
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(OSError):
            child.kill()
        with suppress(OSError):
            _pipe(child.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
        for thread in self._threads:
            thread.join(_END_SECONDS)
        _pipe(child.stdout).close()  # which nobody reads, where nothing was asked

    # -- the pipes, each read by a thread ----------------------------------------------------------

    def _ask(self, request: bytes) -> None:
        if self._child is None:
            raise ChildFailure(self._failure)
        try:
            self._run(self._write, self._child.stdin, request)
            self._run(self._read_answer, self._child.stdout)
        except RuntimeError as why:
            raise ChildFailure(f"no thread can be started: {why}") from None

    def _run(self, work: Callable[..., None], pipe: IO[bytes] | None, *given: bytes) -> None:
        thread = Thread(target=work, args=(_pipe(pipe), *given), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _write(self, pipe: IO[bytes], request: bytes) -> None:
        """The pipe stays open: its end is that of the parent."""
        rest = memoryview(request)
        with suppress(OSError, ValueError):  # a child that is gone shows in what it answers
            while rest:
                rest = rest[pipe.write(rest) :]

    def _read_answer(self, pipe: IO[bytes]) -> None:
        try:
            with BufferedReader(cast(FileIO, pipe)) as whole:
                if whole.readline(len(GREETING)) == GREETING:
                    self._greeted.set()
                    self._answer = whole.read(_MAX_ANSWER_BYTES)
        finally:
            self._greeted.set()
            self._answered.set()

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        """The end of it: the reason of an exception is the last line."""
        with pipe:
            while found := pipe.read(_MAX_REASON_BYTES):
                self._stderr = (self._stderr + found)[-_MAX_REASON_BYTES:]

    def _wait(self, event: Event, until: float, what: str) -> None:
        while not event.wait(_POLL_SECONDS):
            if time.monotonic() > until:
                raise ChildFailure(f"the child process has not {what} in time")

    def _checked(self) -> Sections:
        """The answer, or how a child that gave none ended."""
        if not self._answer and self._child is not None:
            child = self._child
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_SECONDS)
            self.end()
            *_, last = "no reason", *self._stderr.decode(errors="replace").strip().splitlines()
            code, why = child.returncode, last[:_MAX_REASON_LETTERS]
            raise ChildFailure(f"the child process ended with code {code}: {why}")
        try:
            return Sections.of("the answer of the child process", memoryview(self._answer))
        except Error as why:
            raise ChildFailure(str(why)) from None


def _started(asked: str) -> subprocess.Popen[bytes]:
    if why := why_not_python(sys.executable):
        raise ChildFailure(why)
    isolated = "-I" if sys.flags.isolated else "-P"
    return subprocess.Popen(
        [sys.executable, isolated, "-c", _MAIN, asked, *map(str, sys.path)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def why_not_python(executable: str | None) -> str | None:
    """Why `sys.executable` is not to be started: of a program that embeds Python, or was made of
    one, it is that program."""
    if getattr(sys, "frozen", False) or not executable:
        return "this program is not run by a Python of its own"
    name = Path(executable).name
    return None if name.lower().startswith("python") else f"{name} is not called python"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # all three are asked for
    return pipe
