"""How far streams have come, and handles that are destroyed only when they have come far enough.

What is enqueued on a stream is counted, and events tell how much of it is done. The device holds
that of each queue, not the queue: where the garbage collector finds a queue together with memory
and graphs of it, these are freed behind its work all the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from rlx.backends.cuda.context import Context
from rlx.backends.cuda.errors import NOT_READY
from rlx.backends.cuda.staging import NO_TIMING

NAMED = 16
"""Kernels that an error names at most."""
MAX_RETIRED = 64
"""Handles that wait for their work, beyond which the oldest are waited for."""


class Progress:
    """Of a stream of ours: an event is recorded behind all that is enqueued when somebody asks."""

    def __init__(self, context: Context, stream: int) -> None:
        self.context, self.stream = context, stream
        self.count = self.done = self.marked = 0
        """What was enqueued; of that, what is known to be done, and what the event is behind."""
        self.is_closed = False
        self.running: deque[str] = deque(maxlen=NAMED)
        """The last kernels and graphs that were enqueued since the last wait."""
        self.lock = threading.Lock()

    @cached_property
    def mark(self) -> int:
        """The event."""
        return self.context.made("cuEventCreate", NO_TIMING)

    @property
    def tick(self) -> int:
        """The number of the last thing that was enqueued; 0 where all is known to be done."""
        return 0 if self.count == self.done or self.is_closed else self.count

    def has_reached(self, tick: int) -> bool:
        """Is it known to be done? An event is recorded, unless one is on its way."""
        if tick <= self.done or self.is_closed:
            return True
        with self.lock:
            if self.is_closed:
                return True
            if self.marked > self.done and not self._is_marked_done():
                return False
            if tick <= self.done:
                return True
            self.put_mark()
            return self._is_marked_done()

    def put_mark(self) -> None:
        """An event behind all that is enqueued."""
        now = self.count
        self.context.streamed("cuEventRecord", self.mark, self.stream)
        self.marked = now

    def _is_marked_done(self) -> bool:
        """What is marked while the event is queried is not known to be done."""
        marked = self.marked
        code = self.context.library["cuEventQuery"](self.mark)
        if code == NOT_READY:
            return False
        if code:
            self.context.failed("cuEventQuery", code, self.mark)
        self.done = max(self.done, marked)
        return True

    def wait(self) -> None:
        """Until all that is enqueued is done."""
        tick = self.count
        self.context.streamed("cuStreamSynchronize", self.stream)
        self.done = max(self.done, tick)

    def close(self) -> None:
        """Nothing is asked of the stream any more, whose work is done."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        self.running.clear()
        if "mark" in self.__dict__:
            self.context.quietly("cuEventDestroy_v2", self.mark)
        self._close_stream()

    def _close_stream(self) -> None:
        self.context.quietly("cuStreamDestroy_v2", self.stream)


class DefaultProgress(Progress):
    """Of the default stream of all libraries, which never ends."""

    def wait(self) -> None:
        """For an event, which is of this device: the stream is that of the current one."""
        tick = self.count
        if tick > self.done:
            with self.lock:
                self.put_mark()
            self.context.streamed("cuEventSynchronize", self.mark)
        self.done = max(self.done, tick)

    def _close_stream(self) -> None:
        """It is everybody's."""


class ForeignProgress(Progress):
    """Of a stream that may end at any time after a call, and of which nothing can be asked then:
    events are recorded with the work."""

    def has_reached(self, tick: int) -> bool:
        with self.lock:
            if self.marked > self.done and not self.is_closed:
                self._is_marked_done()
            return tick <= self.done or self.is_closed

    def wait(self) -> None:
        """Until the last event, behind which nothing of ours is."""
        marked = self.marked
        if marked > self.done:
            self.context.streamed("cuEventSynchronize", self.mark)
        self.done = max(self.done, marked)

    def _close_stream(self) -> None:
        """It is not ours."""


# -- handles that nobody uses any more ------------------------------------------------------------


class Retired(NamedTuple):
    """A handle, and the work that may still use it."""

    progress: Progress
    tick: int
    destroy: Callable[[], None]
    """It holds all that the handle refers to."""

    @property
    def is_ready(self) -> bool:
        progress = self.progress
        return bool(progress.context.lost) or progress.has_reached(self.tick)


class Retirement:
    """Handles that are destroyed once their work is done.

    The driver lets a graph be destroyed while it runs. But where it has programmatic edges, kernels
    of every stream may never end then (seen on an H200, threads with a stream each; not without
    such edges). Handles come from finalizers as well, which the garbage collector calls anywhere,
    also where a lock is held: `add` only appends. They are destroyed where others are made.
    """

    def __init__(self) -> None:
        self._waiting: deque[Retired] = deque()
        self._lock = threading.Lock()

    def add(self, progress: Progress, destroy: Callable[[], None]) -> None:
        """Destroy it behind all that was enqueued by now."""
        self._waiting.append(Retired(progress, progress.tick, destroy))

    def collect(self) -> None:
        """Destroy what is not used any more, unless another thread does."""
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def make_room(self) -> None:
        """The same, and wait for the oldest where too many are left."""
        self.collect()
        if len(self._waiting) > MAX_RETIRED and self._lock.acquire(blocking=False):
            try:
                self._waiting[0].progress.wait()
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """Those that are not ready stay, in order, before what is added meanwhile."""
        given = [self._waiting.popleft() for _ in range(len(self._waiting))]
        left: list[Retired] = []
        try:
            while given:
                retired = given.pop(0)
                if retired.is_ready:
                    retired.destroy()
                else:
                    left.append(retired)
        finally:
            self._waiting.extendleft(reversed([*left, *given]))
