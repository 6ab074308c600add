"""States of sessions in memory of a device: blocks outside of arenas, which kernels write."""

from __future__ import annotations

import threading

import numpy as np

from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.device import Array, Device, Queue
from rlx.backends.gpu.runtime.memory import Block
from rlx.backends.gpu.runtime.routine import as_bytes
from rlx.backends.state_memory import Region, StateMemory
from rlx.core.dtype import DType
from rlx.core.shape import Shape

COPY_ALIGNMENT = 4
"""Bytes that WebGPU's copies are multiples of."""


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

    def part(self, held: DeviceState, region: Region) -> Array:
        rows = _contiguous(held, region)
        return super().part(held, region) if rows is None else np.array(self.read(rows))

    def set_part(self, held: DeviceState, region: Region, value: Array) -> None:
        rows = _contiguous(held, region)
        super().set_part(held, region, value) if rows is None else self.write(rows, value)

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


def _contiguous(held: DeviceState, region: Region) -> DeviceState | None:
    """A part of a state as one block of memory, at the addresses that every queue copies to and
    from; None where it is strided, or not of whole words."""
    counts = tuple(part.stop - part.start if part.stop is not None else size
                   for part, size in zip(region, held.shape))  # fmt: skip
    dims = (*counts, *held.shape[len(region) :])
    first = sum((p.start or 0) * stride for p, stride in zip(region, held.strides))
    offset, size = first * held.dtype.itemsize, int(np.prod(dims)) * held.dtype.itemsize
    is_whole = size > 0 and offset % COPY_ALIGNMENT == size % COPY_ALIGNMENT == 0
    inner = next((a for a, count in enumerate(dims) if count > 1), 0)
    if not is_whole or dims[inner + 1 :] != held.shape[inner + 1 :]:
        return None
    place, owner = held.address + offset, held.owner
    return DeviceState(place, dims, held.dtype, held.device, held.queue, owner)
