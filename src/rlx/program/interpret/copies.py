"""Asynchronous copies: groups of a thread, mbarriers that count arrivals and bytes, pushes.

A group's copy changes memory when its thread waits for it: until then nobody may touch the words.
The copy engine and pushes change memory at once, and what tells threads so is the mbarrier's
phase, which the order of accesses knows about.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.core.dim import evaluate
from rlx.program import nodes as ir
from rlx.program.interpret.groups import Groups
from rlx.program.interpret.order import ThreadOrder
from rlx.program.interpret.threads import Mask
from rlx.program.nodes import Node, Value
from rlx.program.tensor_map import TensorMap

Array = np.ndarray[Any, Any]
MAP_ALIGN = 16
"""Bytes that the rows of a tensor map start at multiples of."""


@dataclass(slots=True)
class _Copy:
    """A copy that each of some threads has under way."""

    node: ir.AsyncCopy
    slots: Array
    words: Array
    values: Array
    groups: Array


class Copies(Groups):
    """Nodes of asynchronous copies."""

    def prepare(self) -> None:
        self.copies: list[_Copy] = []
        self.splits, self.may_split = 0, False
        self.products = []
        self.committed = np.zeros(self.count, np.int64)
        marks, start = {}, 0
        for barrier in self.program.mbarriers:
            marks[barrier.name] = start
            start += barrier.count
        self.marks: dict[str, int] = marks
        self.per_block = start
        shape = (self.blocks, start)
        self.needed, self.missing = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.bytes, self.phase = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.made_by, self.made_at = np.full(shape, -1, np.int64), np.zeros(shape, np.int32)
        columns = self.order.known.shape[1] if isinstance(self.order, ThreadOrder) else 0
        self.arrived = np.zeros((*shape, columns), np.int32)
        self.passed = np.zeros((*shape, columns), np.int32)

    # -- groups ----------------------------------------------------------------------------------

    def async_copy(self, node: ir.AsyncCopy, mask: Mask) -> None:
        there = self.there(mask)
        memory, source = self.shared[node.memory], self.buffers[node.buffer]
        base = self.block_slot[there] * memory.count
        index = self.number(node.args[0])[there]
        words = self.accesses.words(memory, node, index, base, self.ids[there], node.width)
        reads = self.masked(None, *node.args[2:])
        inside = np.flatnonzero(reads[there]) if reads is not None else np.arange(len(there))
        values = np.zeros((len(there), node.width), source.data.dtype)
        ids = self.ids[there][inside]
        where = self.number(node.args[1])[there][inside]
        given = self.accesses.words(source, node, where, 0, ids, node.width)
        if len(inside):
            values[inside] = self.accesses.read(source, node, given, ids)
        self.accesses.begin(memory, node, words, self.ids[there])
        self.copies.append(_Copy(node, there, words, values, self.committed[there]))

    def async_commit(self, node: ir.AsyncCommit, mask: Mask) -> None:
        self.committed[self.there(mask)] += 1

    def async_wait(self, node: ir.AsyncWait, mask: Mask) -> None:
        waits = np.zeros(self.count, bool)
        waits[self.there(mask)] = True
        left: list[_Copy] = []
        for copy in self.copies:
            done = waits[copy.slots] & (copy.groups < self.committed[copy.slots] - node.pending)
            ids, memory = self.ids[copy.slots[done]], self.shared[copy.node.memory]
            self.accesses.end(memory, copy.words[done], ids, copy.values[done], copy.node)
            rest = ~done
            if rest.any():
                fields = (copy.slots, copy.words, copy.values, copy.groups)
                left.append(_Copy(copy.node, *(f[rest] for f in fields)))
        self.copies = left

    def finish(self) -> None:
        """Nothing may be under way when the threads end."""
        for product in self.products:
            why = "threads end while this product is under way; wait for it."
            raise self.accesses.error(product.node, why)
        for copy in self.copies:
            thread = self.accesses.who(int(self.ids[copy.slots[0]]))
            why = f"{thread} ends while this copy is under way; commit it and wait for its group."
            raise self.accesses.error(copy.node, why)

    # -- mbarriers -------------------------------------------------------------------------------

    def _which(self, node: Node, name: str, value: Value, there: Array) -> Array:
        count = next(m.count for m in self.program.mbarriers if m.name == name)
        which = self.number(value)[there]
        if ((which < 0) | (which >= count)).any():
            why = f"mbarrier {name} has {count} and no number {int(which.max())}; fix the index."
            raise self.accesses.error(node, why)
        return which + self.marks[name]

    def mbarrier_init(self, node: ir.MbarrierInit, mask: Mask) -> None:
        there = self.there(mask)
        at = self.block_slot[there], self._which(node, node.mbarrier, node.args[0], there)
        self.needed[at] = self.missing[at] = node.arrivals
        self.bytes[at] = self.phase[at] = 0
        self.made_by[at], self.made_at[at] = self.ids[there], self.order.clock(self.ids[there])
        self.progress += 1

    def _ready(self, node: Node, at: tuple[Array, Array], there: Array) -> None:
        unmade = self.needed[at] == 0
        unseen = self.order.is_concurrent(self.ids[there], self.made_by[at], self.made_at[at])
        if (unmade | unseen).any():
            first = int(np.flatnonzero(unmade | unseen)[0])
            raise self.accesses.error(
                node,
                f"{self.accesses.who(int(self.ids[there[first]]))} uses the mbarrier, and nothing "
                "orders that behind its initialisation; initialise it in one thread, then use a "
                "barrier.",
            )

    def mbarrier_arrive(self, node: ir.MbarrierArrive, mask: Mask) -> None:
        there = self.there(mask)
        if not len(there):
            return
        block = self.block_slot[there]
        if node.is_remote:
            block = self.remote(node, node.args[-1], there)
        at = block, self._which(node, node.mbarrier, node.args[0], there)
        self._ready(node, at, there)
        self._learned(at, there)
        np.subtract.at(self.missing, at, 1)
        np.add.at(self.bytes, at, node.expected_bytes)
        self._completed(node, at)

    def _learned(self, at: tuple[Array, Array], there: Array) -> None:
        assert isinstance(self.order, ThreadOrder)
        np.maximum.at(self.arrived, at, self.order.released(there))

    def _completed(self, node: Node, at: tuple[Array, Array]) -> None:
        """Barriers whose arrivals and bytes are all there start the next phase."""
        self.progress += 1
        if (self.missing[at] < 0).any():
            raise self.accesses.error(node, "more arrivals than its mbarrier was initialised for.")
        done = np.zeros(self.missing.shape, bool)
        done[at] = (self.missing[at] == 0) & (self.bytes[at] == 0)
        self.passed[done] = self.arrived[done]
        self.phase[done] += 1
        self.missing[done] = self.needed[done]

    def mbarrier_wait(
        self, node: ir.MbarrierWait, mask: Mask
    ) -> Generator[Node, None, Array | None]:
        """Gives the threads that must be left behind, if only others of them bring their phase."""
        there = self.there(mask)
        at = self.block_slot[there], self._which(node, node.mbarrier, node.args[0], there)
        self._ready(node, at, there)
        parity = self.number(node.args[1])[there] & 1
        while len(there) and (waits := (self.phase[at] & 1) == parity).any():
            if self.may_split and not waits.all():
                behind = np.zeros(self.count, bool)
                behind[there[waits]] = True
                return behind
            yield node
        order = self.order
        assert isinstance(order, ThreadOrder)
        rows = self.passed[at].copy()
        rank = self.block_slot[there] % self.program.cluster
        engine = order.size + rank * self.per_block + at[1]
        rows[np.arange(len(there)), engine] = self.phase[at]
        order.learn(there, rows)
        self.progress += 1
        return None

    def _counted(self, node: Node, at: tuple[Array, Array], size_bytes: int) -> None:
        np.subtract.at(self.bytes, at, size_bytes)
        self._completed(node, at)

    def _engine(self, at: tuple[Array, Array]) -> tuple[Array, Array]:
        """Who writes, and when: the barrier's engine, in the phase under way."""
        order = self.order
        assert isinstance(order, ThreadOrder)
        column = order.size + at[0] % self.program.cluster * self.per_block + at[1]
        return -2 - column, self.phase[at] + 1

    def bulk_copy(self, node: ir.BulkCopy, mask: Mask) -> None:
        there = self.there(mask)
        if not len(there):
            return
        at = self.block_slot[there], self._which(node, node.mbarrier, node.args[3], there)
        self._ready(node, at, there)
        memory = self.shared[node.memory]
        values = self._boxes(node, there)
        base, index = self.block_slot[there] * memory.count, self.number(node.args[0])[there]
        ids, size = self.ids[there], values.shape[1]
        if ((index < 0) | (index + size > memory.count)).any():
            why = f"its box of {size} elements does not fit {memory.name}; fix the index."
            raise self.accesses.error(node, why)
        words = (index + base)[:, None] + np.arange(size)
        self.accesses.write_by_engine(memory, node, words, ids, *self._engine(at), values)
        self._counted(node, at, size * memory.data.itemsize)

    def _boxes(self, node: ir.BulkCopy, there: Array) -> Array:
        """The box of each thread, with zeros outside of the tensor."""
        tensor = next(m for m in self.program.maps if m.name == node.map)
        number = lambda d: evaluate(d, self.sizes)
        counts = [*(number(o.count) for o in tensor.outer), *map(number, tensor.dims)]
        steps = [*(number(o.stride) for o in tensor.outer), number(tensor.row_stride), 1]
        offset, flat = number(tensor.offset), self.buffers[tensor.buffer].data
        self._inside(node, tensor, counts, steps, offset)
        if tensor.windows:
            return self._windows(node, there, tensor, counts, steps)
        box = (*(o.box for o in tensor.outer), *tensor.box)
        firsts = [*node.args[4:], *node.args[1:3]]
        index, inside = np.full((1,) * (1 + len(box)), offset), np.ones((1,) * (1 + len(box)), bool)
        for axis, (first, count, step, size) in enumerate(zip(firsts, counts, steps, box)):
            shape = [len(there)] + [1] * len(box)
            shape[1 + axis] = size
            at = (self.number(first)[there][:, None] + np.arange(size)).reshape(shape)
            inside = inside & (at >= 0) & (at < count)
            index = index + np.clip(at, 0, max(0, count - 1)) * step
        found = flat[index] if 0 not in counts else np.zeros(index.shape, flat.dtype)
        return np.where(inside, found, np.zeros((), flat.dtype)).reshape(len(there), -1)

    def _windows(
        self,
        node: ir.BulkCopy,
        there: Array,
        tensor: TensorMap,
        counts: list[int],
        steps: list[int],
    ) -> Array:
        """Neighbouring windows at a tap, in the order of their places, of each thread."""
        _, row, column, _, *rest = (self.number(a)[there] for a in node.args)
        outer, taps = rest[: len(tensor.outer)], rest[len(tensor.outer) :]
        image, *starts = (*outer, row)
        along = [(w.first, w.step, evaluate(w.count, self.sizes)) for w in tensor.windows]
        flat = image
        for start, (first, step, count) in zip(starts, along):
            number = (start - first) // step
            if ((start - first) % step).any() or (number < 0).any() or (number >= count).any():
                why = f"no window of map {tensor.name} starts there; fix the place."
                raise self.accesses.error(node, why)
            flat = flat * count + number
        left = flat[:, None] + np.arange(tensor.box[0])
        index, inside = np.full(left.shape, evaluate(tensor.offset, self.sizes)), left >= 0
        extents = list(zip(counts, steps))
        for (extent, stride), (first, step, count), tap in zip(
            extents[-2:0:-1], along[::-1], taps[::-1]
        ):
            at = first + left % count * step + tap[:, None]
            inside = inside & (at >= 0) & (at < extent)
            index, left = index + np.clip(at, 0, extent - 1) * stride, left // count
        inside = inside & (left < counts[0])
        index = index + np.clip(left, 0, counts[0] - 1) * steps[0]
        channel = column[:, None] + np.arange(tensor.box[1])
        inside = inside[:, :, None] & ((channel >= 0) & (channel < counts[-1]))[:, None]
        index = index[:, :, None] + np.clip(channel, 0, counts[-1] - 1)[:, None]
        data = self.buffers[tensor.buffer].data
        found = data[index] if 0 not in counts else np.zeros(index.shape, data.dtype)
        return np.where(inside, found, np.zeros((), data.dtype)).reshape(len(there), -1)

    def _inside(
        self,
        node: ir.BulkCopy,
        tensor: TensorMap,
        counts: list[int],
        steps: list[int],
        offset: int,
    ) -> None:
        """The tensor is one of the buffer, and its rows start where the copy engine can read."""
        data, span = self.buffers[tensor.buffer].data, self.buffers[tensor.buffer].span
        last = offset + sum((c - 1) * s for c, s in zip(counts, steps))
        end = last + 1 if 0 not in counts else 0
        if end > data.size or (end and offset < span.first) or min(steps) < 0:
            why = f"map {tensor.name} reaches element {end} of {data.size}; fix its dims."
            raise self.accesses.error(node, why)
        size = data.itemsize
        apart = [s for c, s in zip(counts[:-1], steps) if c > 1]
        if span.address % MAP_ALIGN or any((d * size) % MAP_ALIGN for d in (offset, *apart)):
            why = f"rows of map {tensor.name} start at no multiples of {MAP_ALIGN} bytes; align it."
            raise self.accesses.error(node, why)

    sizes: dict[str, int]
    """Of the program's dims."""

    def push(self, node: ir.Push, mask: Mask) -> None:
        there = self.there(mask)
        if not len(there):
            return
        memory, values = self.shared[node.memory], node.args[3:]
        block = self.remote(node, node.args[0], there)
        at = block, self._which(node, node.mbarrier, node.args[2], there)
        self._ready(node, at, there)
        index, ids = self.number(node.args[1])[there], self.ids[there]
        base = block * memory.count
        words = self.accesses.words(memory, node, index, base, ids, len(values))
        given = np.stack([self.wide(v)[there] for v in values], axis=1)
        self.accesses.write_by_engine(memory, node, words, ids, *self._engine(at), given)
        self._counted(node, at, len(values) * memory.data.itemsize)
