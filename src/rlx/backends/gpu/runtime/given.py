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

MAX_SIGNATURES = 256
"""Where shapes keep changing, all are checked anew."""


class Given(NamedTuple):
    """The inputs of a call."""

    addresses: list[int]
    sizes: dict[str, int]
    """Of named dims."""
    held: tuple[Any, ...]
    """What must stay while the call runs."""
    streams: tuple[int, ...]
    """Of other libraries, which may write the inputs again: they wait for the call."""


class Signatures:
    """What follows from the shapes and dtypes of inputs alone: their checks, and the sizes of named
    dims. A step of a language model has an input for each state, which are checked once."""

    def __init__(self, interface: Interface, params: Any) -> None:
        self._interface, self._params = interface, params
        self._known: dict[object, dict[str, int]] = {}

    def sizes(self, arrays: Sequence[DeviceArray | Array]) -> dict[str, int]:
        """The sizes of named dims; an error names the input that is wrong."""
        key = tuple([(a.shape, a.dtype) for a in arrays])
        found = self._known.get(key)
        if found is None:
            found = self._checked(arrays)
            if len(self._known) < MAX_SIGNATURES:
                self._known[key] = found
        return dict(found)

    def _checked(self, arrays: Sequence[DeviceArray | Array]) -> dict[str, int]:
        interface = self._interface
        shapes = [a.stand if isinstance(a, DeviceArray) else a for a in arrays]
        sizes = interface.bind(self._params, shapes)
        for leaf, array, shape in zip(interface.inputs, arrays, shapes):
            if isinstance(array, DeviceArray) and array.dtype != leaf.shape.dtype.numpy:
                raise mismatch(leaf, shape)
        interface.checked(shapes, sizes)
        return sizes


def placed(
    interface: Interface,
    signatures: Signatures,
    context: Context,
    values: Sequence[Any],
    *,
    anew: bool,
) -> Given:
    """Inputs in order. Host arrays are copied to memory of the context, or with `anew` to memory
    that only this call has."""
    queue = context.queue
    found = [_array(v, queue, n.name) for v, n in zip(values, interface.inputs, strict=True)]
    sizes = signatures.sizes(found)
    addresses: list[int] = []
    held: list[Any] = [*values, *found]
    for number, array in enumerate(found):
        if isinstance(array, DeviceArray) and is_usable(array):
            addresses.append(array.address)
            continue
        raw = array.numpy(queue) if isinstance(array, DeviceArray) else array
        block = context.room(raw.nbytes) if anew else context.staging("input", number, raw.nbytes)
        if raw.nbytes:
            queue.write(block.address, np.ascontiguousarray(raw))
        addresses.append(block.address)
        held.append(block)
    streams = {stream_of(v, queue.device_id) for v in values if _is_foreign(v)}
    return Given(addresses, sizes, tuple(held), tuple(sorted(streams)))


def _is_foreign(value: Any) -> bool:
    return not isinstance(value, DeviceArray) and is_on_device(value)


def _array(value: Any, queue: Queue, name: str) -> DeviceArray | Array:
    if isinstance(value, DeviceArray) or is_on_device(value):
        return device_array(value, queue, f"input {name!r}")
    return as_array(value, f"input {name!r}")


def is_usable(array: DeviceArray) -> bool:
    """Can kernels read it where it is?"""
    return array.is_contiguous and array.address % VECTOR_BYTES == 0
