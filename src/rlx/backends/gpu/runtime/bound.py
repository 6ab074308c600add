"""A call that is bound to its arrays: nothing is checked or looked up when it runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.device import Array
from rlx.backends.gpu.runtime.call import Call, Loaded, Outgrown, Segment
from rlx.backends.gpu.runtime.memory import Block, Context
from rlx.core.shape import Shape


@dataclass(frozen=True, slots=True)
class Begun:
    """A call at certain capacities: all addresses that it takes, and the memory of its outputs."""

    call: Call
    externals: Sequence[int]
    outputs: Mapping[str, tuple[Block, Shape]]
    sizes: Mapping[str, int]


Begin: TypeAlias = Callable[[Outgrown | None], Begun]
"""The call at the capacities that there are, grown first by what was found."""


class BoundCall:
    """A program on inputs and outputs that stay where they are, in a context of its own; outputs
    move only where a call finds more than their capacity holds."""

    def __init__(
        self,
        loaded: Loaded,
        context: Context,
        begin: Begin,
        check: Callable[[], None],
        inputs: Sequence[DeviceArray],
        weights: object,
    ) -> None:
        self._weights = weights  # memory that the work reads
        self.inputs = tuple(inputs)
        """Where it reads them: what is written there, the next call reads."""
        self._loaded, self._context = loaded, context
        self._begin, self._check = begin, check
        self._begun = begin(None)
        parts = loaded.bodies[loaded.artefact.main]
        self._is_one_segment = len(parts) == 1 and isinstance(parts[0], Segment)
        self._replay: Callable[[], None] | None = None

    @property
    def _call(self) -> Call:
        return self._begun.call

    def __call__(self) -> None:
        """Enqueue the work."""
        if self._replay is not None:
            self._replay()
            return
        while True:
            begun = self._begun
            begun.call.begin(begun.sizes)
            try:
                begun.call.run(self._loaded.artefact.main, begun.externals)
                break
            except Outgrown as error:
                self._begun = self._begin(error)
            except BaseException:
                self._context.abandon()
                raise
        if self._is_one_segment and self._call.replayed is not None:
            self._replay = self._call.replayed.replay

    def wait(self) -> None:
        """Until what was enqueued is done; what a kernel found wrong is raised."""
        self._check()

    def time_ns(self) -> float:
        """What the device takes for one call."""
        return self._context.queue.time_ns(self)

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The results of the last call, on the host."""
        made: list[Array] = []
        for block, shape in self._begun.outputs.values():
            bound = shape.bind(self._call.sizes)
            array = np.empty(bound.static_dims, bound.dtype.numpy)
            if array.nbytes:
                self._context.queue.read(block.address, array)
            made.append(array)
        self.wait()
        return tuple(made)

    @property
    def device_outputs(self) -> tuple[DeviceArray, ...]:
        """The results where they are: the next call writes them again."""
        queue, made = self._context.queue, list[DeviceArray]()
        for block, shape in self._begun.outputs.values():
            bound = shape.bind(self._call.sizes)
            where = block.address, tuple(bound.static_dims), bound.dtype.numpy
            made.append(DeviceArray(*where, queue.device_id, queue, block))
        return tuple(made)

    @property
    def num_launches(self) -> int:
        """Kernels of the main routine."""
        parts = self._loaded.bodies[self._loaded.artefact.main]
        return sum(1 for _ in self._call.launches(parts))

    def kernel_times(self, repeats: int = 20) -> Iterator[tuple[str, float]]:
        """Each kernel by itself, in microseconds, many times in a row."""
        parts = self._loaded.bodies[self._loaded.artefact.main]
        yield from self._call.segment_times(parts, self._begun.externals, repeats)
