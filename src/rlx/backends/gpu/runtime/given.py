"""What a call is given, as addresses: arrays on the device where they are, others copied there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.gpu.arrays.device_array import (
    DeviceArray,
    device_array,
    is_on_device,
    stream_of,
)
from rlx.backends.gpu.device import VECTOR_BYTES, Array, Queue
from rlx.backends.gpu.runtime.memory import Context
from rlx.core.arrays import as_array
from rlx.ir.interface import Interface
from rlx.ir.interpret import mismatch


class Given(NamedTuple):
    """The inputs of a call."""

    addresses: list[int]
    sizes: dict[str, int]
    """Of named dims."""
    held: tuple[Any, ...]
    """What must stay while the call runs."""
    streams: tuple[int, ...]
    """Of other libraries, which may write the inputs again: they wait for the call."""


def placed(
    interface: Interface, params: Any, context: Context, values: Sequence[Any], *, anew: bool
) -> Given:
    """Inputs in order. Host arrays are copied to memory of the context, or with `anew` to memory
    that only this call has."""
    queue = context.queue
    found = [_array(v, queue, n.name) for v, n in zip(values, interface.inputs, strict=True)]
    shapes = [_like(a) if isinstance(a, DeviceArray) else a for a in found]
    sizes = interface.bind(params, shapes)
    for leaf, array, shape in zip(interface.inputs, found, shapes):
        if isinstance(array, DeviceArray) and array.dtype != leaf.shape.dtype.numpy:
            raise mismatch(leaf, shape)
    checked = interface.checked(shapes, sizes)
    addresses: list[int] = []
    held: list[Any] = [*values, *found]
    for number, (array, host) in enumerate(zip(found, checked)):
        if isinstance(array, DeviceArray) and is_usable(array):
            addresses.append(array.address)
            continue
        raw = array.numpy(queue) if isinstance(array, DeviceArray) else host
        block = context.room(raw.nbytes) if anew else context.staging("input", number, raw.nbytes)
        if raw.nbytes:
            queue.write(block.address, np.ascontiguousarray(raw))
        addresses.append(block.address)
        held.append(block)
    streams = {stream_of(v, queue.device_id) for v in values if _is_foreign(v)}
    return Given(addresses, sizes, tuple(held), tuple(sorted(streams)))


def _is_foreign(value: Any) -> bool:
    return is_on_device(value) and not isinstance(value, DeviceArray)


def _array(value: Any, queue: Queue, name: str) -> DeviceArray | Array:
    if is_on_device(value):
        return device_array(value, queue, f"input {name!r}")
    return as_array(value, f"input {name!r}")


def _like(array: DeviceArray) -> Array:
    """A host array of the same dims that takes no memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def is_usable(array: DeviceArray) -> bool:
    """Can kernels read it where it is?"""
    return array.is_contiguous and array.address % VECTOR_BYTES == 0
