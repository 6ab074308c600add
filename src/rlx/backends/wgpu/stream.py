"""All work of a device, in the one order in which it is enqueued.

WebGPU has one queue a device, so what all queues of rlx enqueue is encoded into one command
encoder, one compute pass after the other, and submitted when somebody waits or enough has come
together. That order is why memory may be given out again as soon as it is freed: whatever used it
was enqueued before. A write of the host's bytes is ordered by its call, so all before it is
submitted first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rlx.backends.wgpu.errors import LostDeviceError, error_of
from rlx.core.errors import Error

SUBMITTED = 32
"""Dispatches that are worth a submission of their own: the device begins while more are encoded."""


class Dispatch(NamedTuple):
    """A kernel on its bindings, ready to be encoded."""

    pipeline: Any
    group: Any
    offsets: Sequence[int]
    """Where its params are in their buffer."""
    counts: tuple[int, int, int]


class Transfer(NamedTuple):
    """Whole words of one GPU buffer that become those of another."""

    source: Any
    start: int
    to: Any
    at: int
    size: int


Command = Dispatch | Transfer


class Stamps(NamedTuple):
    """Where a compute pass notes when it begins and ends."""

    queries: Any
    first: int


class Stream:
    """The work of one device. Its methods may be called by several threads."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.lost = ""
        """Why the device is lost; "" while it is not."""
        self.before_submit: Callable[[], None] = lambda: None
        """Writes what launches that are encoded will read."""
        self._lock = threading.RLock()
        self._encoder: Any = None
        self._pass: Any = None
        self._last: Any = None
        """The pipeline that the pass has."""
        self._count = 0
        self._held = 0
        """Nested requests that nothing be submitted."""

    @contextmanager
    def calls(self, what: str) -> Generator[Any]:
        """Calls of wgpu by this thread alone, on the device; what fails becomes an error of
        rlx, and what was encoded with it is dropped."""
        with self._lock, self._guarded(what, self.failed) as device:
            yield device

    @contextmanager
    def beside(self, what: str) -> Generator[Any]:
        """Calls that are in no order with others, by several threads at a time."""
        with self._guarded(what, self._error) as device:
            yield device

    @contextmanager
    def _guarded(self, what: str, failed: Callable[[str, Exception], Error]) -> Generator[Any]:
        if self.lost:
            raise LostDeviceError(self.lost)
        try:
            yield self.device
        except Error:
            raise
        except Exception as error:
            raise failed(what, error) from None

    def failed(self, what: str, error: Exception) -> Error:
        """The error of a call that failed; a lost device is remembered."""
        self._encoder = self._pass = self._last = None
        self._count = 0
        return self._error(what, error)

    def _error(self, what: str, error: Exception) -> Error:
        made = error_of(what, error)
        if isinstance(made, LostDeviceError):
            self.lost = self.lost or f"the wgpu device is lost: {made}"
        return made

    # -- encoding --------------------------------------------------------------------------------

    def run(self, commands: Sequence[Command]) -> None:
        """Enqueue commands in order."""
        with self.calls("enqueueing work"):
            for command in commands:
                if isinstance(command, Dispatch):
                    self._dispatch(command)
                else:
                    self._outside().copy_buffer_to_buffer(*command)
            self._count += len(commands)
            if self._count >= SUBMITTED and not self._held:
                self.submit()

    def _dispatch(self, command: Dispatch) -> None:
        pipeline, group, offsets, counts = command
        inside = self._pass
        if inside is None:
            inside = self._begin()
        if pipeline is not self._last:
            inside.set_pipeline(pipeline)
            self._last = pipeline
        inside.set_bind_group(0, group, offsets)
        inside.dispatch_workgroups(*counts)

    def _begin(self, stamps: Stamps | None = None) -> Any:
        """A new compute pass."""
        encoder = self._outside()
        if stamps is None:
            self._pass = encoder.begin_compute_pass()
        else:
            self._pass = encoder.begin_compute_pass(
                timestamp_writes={
                    "query_set": stamps.queries,
                    "beginning_of_pass_write_index": stamps.first,
                    "end_of_pass_write_index": stamps.first + 1,
                }
            )
        return self._pass

    def _outside(self) -> Any:
        """The encoder, with no pass open."""
        if self._encoder is None:
            self._encoder = self.device.create_command_encoder()
        if self._pass is not None:
            self._pass.end()
            self._pass = self._last = None
        return self._encoder

    def stamped(self, work: Sequence[Command], stamps: Stamps) -> None:
        """Commands in a compute pass of their own that is timed."""
        with self.calls("enqueueing timed work"):
            self._begin(stamps)
            self.run(work)
            self._outside()

    @contextmanager
    def timed(self, stamps: Stamps) -> Generator[None]:
        """What is enqueued meanwhile is one compute pass that is timed; other threads wait."""
        with self.calls("enqueueing timed work"):
            self.submit()
            self._held += 1
            try:
                self._begin(stamps)
                yield
                self._outside()
            finally:
                self._held -= 1

    def resolve(self, queries: Any, count: int, to: Any) -> None:
        """The stamps of passes, as numbers in a buffer."""
        with self.calls("reading time stamps"):
            self._outside().resolve_query_set(queries, 0, count, to, 0)

    # -- order -----------------------------------------------------------------------------------

    def submit(self) -> None:
        """Begin what was encoded, if anything was."""
        with self.calls("submitting work"):
            if self._encoder is None:
                return
            encoder = self._outside()
            self._encoder, self._count = None, 0
            self.before_submit()
            self.device.queue.submit([encoder.finish()])

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        """Bytes of the host, whole words, behind all that was enqueued."""
        with self.calls("writing to a buffer"):
            self.submit()
            self.device.queue.write_buffer(buffer, offset, data)

    def copy(self, command: Transfer) -> None:
        """Behind all that was enqueued, for a host that will wait."""
        self.run([command])
