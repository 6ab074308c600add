"""States of sessions in memory of a device: blocks outside of arenas, which kernels write."""

from __future__ import annotations

import threading

import numpy as np

from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.device import Array, Device, Queue
from rlx.backends.gpu.runtime.memory import Block
from rlx.backends.gpu.runtime.routine import as_bytes
from rlx.backends.state_memory import StateMemory
from rlx.core.dtype import DType
from rlx.core.shape import Shape


class DeviceState(DeviceArray):
    """A state. Its queue is the one of the call that wrote it last."""

    __slots__ = ()


class DeviceStates(StateMemory):
    """What is done to states between calls is done when a method returns, so that any queue may go
    on with them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._queue: Queue | None = None

    def filled(self, shape: Shape, value: float) -> DeviceState:
        made = self._room(shape)
        with self._lock:
            if value == 0:
                self._ready(made).fill(made.address, max(1, made.nbytes), 0)
                self._ready().wait()
                return made
        self.write(made, np.full(made.shape, value, made.dtype))
        return made

    def copied(self, held: DeviceState) -> DeviceState:
        made = self._room(Shape(held.shape, DType.of(held.dtype)))
        self.copy(held, made)
        return made

    def copy(self, source: DeviceState, target: DeviceState) -> None:
        with self._lock:
            if source.nbytes:
                self._ready(source, target).copy(target.address, source.address, source.nbytes)
                self._ready().wait()

    def read(self, held: DeviceState) -> Array:
        with self._lock:
            return held.numpy(self._ready(held))

    def write(self, held: DeviceState, value: Array) -> None:
        with self._lock:
            if held.nbytes:
                self._ready(held).write(held.address, as_bytes(value))
                self._ready().wait()

    def copy_rows(self, held: DeviceState, source: int, target: int, count: int) -> None:
        row = held.dtype.itemsize * int(np.prod(held.shape[2:], dtype=np.int64))
        size, entry = count * row, held.shape[1] * row
        with self._lock:
            if size and source != target:
                first = held.address
                self._ready(held).copy(first + target * entry, first + source * entry, size)
                self._ready().wait()

    def _room(self, shape: Shape) -> DeviceState:
        queue, dtype = self._ready(), np.dtype(shape.dtype.numpy)
        block = Block(self._device, max(1, int(shape.size_bytes)))
        return DeviceState(block.address, shape.static_dims, dtype, queue.device_id, None, block)

    def _ready(self, *held: DeviceState) -> Queue:
        """The queue, when calls that write these states are done."""
        for state in held:
            if state.queue is not None:
                state.queue.wait()
                state.queue = None
        if self._queue is None:
            self._queue = self._device.queue()
        return self._queue
