"""Memory of states: where a program keeps what a session holds from call to call.

A session passes what it holds to every call, and knows nothing else of it: an array of NumPy that
native code writes, memory of a device, or an array that an engine replaces by a new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.memory_limits import require_memory
from rlx.core.pages import zeroed
from rlx.core.shape import Shape
from rlx.ops.op import Array

ALIGNMENT = 64
Region = tuple[slice, ...]
"""A part of a state: a range of each of its first axes."""


class StateMemory(ABC):
    """What a session asks of a program. What holds a state says how large it is, as `nbytes`."""

    @abstractmethod
    def filled(self, shape: Shape, value: float) -> Any:
        """A new state with this value in every element."""

    @abstractmethod
    def copied(self, held: Any) -> Any:
        """Another one, which calls write without changing this one."""

    @abstractmethod
    def copy(self, source: Any, target: Any) -> None:
        """Give a state the value of another."""

    @abstractmethod
    def read(self, held: Any) -> Array:
        """Its value on the host, which nobody writes: the memory itself, or a copy."""

    @abstractmethod
    def write(self, held: Any, value: Array) -> None:
        """Give it a value of its dtype and dims."""

    @abstractmethod
    def copy_rows(self, held: Any, source: int, target: int, count: int) -> None:
        """The first rows of an entry of the first axis to another entry."""

    def shift_rows(self, held: Any, entry: int, first: int, count: int) -> None:
        """Rows of an entry, from one on, to its beginning."""
        value = np.array(self.read(held))
        value[entry, :count] = value[entry, first : first + count]
        self.write(held, value)

    def part(self, held: Any, region: Region) -> Array:
        """A copy of the value of a part of it, on the host."""
        return np.array(self.read(held)[region])

    def set_part(self, held: Any, region: Region, value: Array) -> None:
        """Give a part of it a value."""
        whole = np.array(self.read(held))
        whole[region] = value
        self.write(held, whole)


class HostStates(StateMemory):
    """Arrays of NumPy, written where they are."""

    def filled(self, shape: Shape, value: float) -> Array:
        """Zeros are pages that take no memory before they are written."""
        made = _aligned(shape)
        if value != 0:
            made.fill(value)
        return made

    def copied(self, held: Array) -> Array:
        made = _aligned(Shape(held.shape, DType.of(held.dtype)))
        made[...] = held
        return made

    def copy(self, source: Array, target: Array) -> None:
        target[...] = source

    def read(self, held: Array) -> Array:
        return held.view()

    def write(self, held: Array, value: Array) -> None:
        held[...] = value

    def copy_rows(self, held: Array, source: int, target: int, count: int) -> None:
        held[target, :count] = held[source, :count]

    def shift_rows(self, held: Array, entry: int, first: int, count: int) -> None:
        held[entry, :count] = held[entry, first : first + count]  # NumPy copies what overlaps

    def set_part(self, held: Array, region: Region, value: Array) -> None:
        held[region] = value


def _aligned(shape: Shape) -> Array:
    """Zeroed memory for a state, whose address is a multiple of a cache line."""
    size = int(shape.size_bytes)
    require_memory(size + ALIGNMENT, f"a state of {shape}")
    return zeroed(size, ALIGNMENT).view(shape.dtype.numpy).reshape(shape.static_dims)
