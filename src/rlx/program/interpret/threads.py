"""The threads that run at once: some whole clusters of a launch, and the values they hold.

A value is an array over all threads, or a single number where it is the same for all; a tile is an
array of matrices, one for each warp. Threads that a branch leaves out compute along, and their
results are not used; only memory is accessed by those that are really there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.program import nodes as ir
from rlx.program.interpret.memory import Accesses, Memory
from rlx.program.interpret.order import BlockOrder, Order, ThreadOrder
from rlx.program.interpret.shadow import Shadow
from rlx.program.nodes import Node, Value
from rlx.program.program import Program
from rlx.program.types import TileType

Array = np.ndarray[Any, Any]
Mask = Array | None
"""Which threads are there; all, if None."""


class Threads:
    """Blocks `first` to `first + blocks` of a grid."""

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int, int],
        first: int,
        blocks: int,
        buffers: Mapping[str, Memory],
        scalars: Mapping[Value, Array],
    ) -> None:
        self.program, self.grid, self.first, self.blocks = program, grid, first, blocks
        self.count = blocks * program.block
        self.slots = np.arange(self.count)
        """Of threads: numbers from 0 on."""
        self.ids = self.slots + first * program.block
        """Numbers over the whole grid."""
        self.block_slot = self.slots // program.block
        self.values: dict[Value, Array] = dict(scalars)
        self.buffers = buffers
        self.order = self._order()
        self.accesses = Accesses(program, self.order)
        self.shared = {s.name: self._shared(s.name, s.count, s.dtype.numpy) for s in program.shared}
        self.progress = 0
        """Changes of what threads may wait for."""

    def _order(self) -> Order:
        program = self.program
        first = self.first * program.block
        warps = any(isinstance(n, ir.Barrier) and n.scope == "warp" for n in program.nodes)
        if program.cluster == 1 and not program.mbarriers and not warps:
            return BlockOrder(first, self.blocks, program.block)
        engines = program.cluster * sum(m.count for m in program.mbarriers)
        return ThreadOrder(first, self.count, program.cluster * program.block, engines)

    def _shared(self, name: str, count: int, dtype: np.dtype[Any]) -> Memory:
        words = count * self.blocks
        shadow = Shadow(words, self.program.warp)
        unset = np.zeros(words, bool)
        products = [n for n in self.program.nodes if isinstance(n, ir.WarpgroupMul)]
        is_operand = any(name in (n.left, n.right) for n in products)
        unfenced = np.zeros(words, np.int64) if is_operand else None
        pending = np.zeros(words, np.int32)
        return Memory(name, np.zeros(words, dtype), count, shadow, unset, pending, unfenced)

    # -- values ----------------------------------------------------------------------------------

    def args(self, node: Node) -> list[Array]:
        return [self.values[a] for a in node.args]

    def wide(self, value: Value) -> Array:
        """One number for each thread."""
        return np.broadcast_to(self.values[value], (self.count,))

    def number(self, value: Value) -> Array:
        """An index for each thread, in 64 bits."""
        return self.wide(value).astype(np.int64)

    def there(self, mask: Mask) -> Array:
        """The slots of the threads that are there."""
        return self.slots if mask is None else np.flatnonzero(mask)

    def masked(self, mask: Mask, *more: Value) -> Mask:
        """The mask and further conditions."""
        for value in more:
            condition = self.wide(value)
            mask = condition if mask is None else mask & condition
        return mask

    def chosen(self, mask: Array, yes: Array, no: Array, value: Value) -> Array:
        """By thread, or by warp where the value is a tile."""
        if isinstance(value.type, TileType):
            return np.where(mask[:: self.program.warp, None, None], yes, no)
        return np.where(mask, yes, no)

    def position(self, node: ir.Position) -> Array:
        program = self.program
        block = self.block_slot + self.first
        x, y, _ = self.grid
        per_dim = (block % x, block // x % max(1, y), block // (x * max(1, y)))
        found = {
            "thread": lambda: self.slots % program.block,
            "lane": lambda: self.slots % program.block % program.warp,
            "warp": lambda: self.slots % program.block // program.warp,
            "block": lambda: per_dim[node.dim],
            "blocks": lambda: np.asarray(self.grid[node.dim]),
            "rank": lambda: block % program.cluster,
        }[node.of]()
        return found.astype(np.int32)

    # -- memory ----------------------------------------------------------------------------------

    def load(self, node: ir.Load, mask: Mask) -> None:
        there = self.there(self.masked(mask, *node.args[1:]))
        memory = self.buffers[node.buffer]
        self._loaded(node, memory, there, 0)

    def shared_load(self, node: ir.SharedLoad, mask: Mask) -> None:
        there = self.there(self.masked(mask, *node.args[1 : 1 + node.has_mask]))
        memory = self.shared[node.memory]
        slot = self.block_slot[there]
        if node.is_remote:
            slot = self.remote(node, node.args[-1], there)
        self._loaded(node, memory, there, slot * memory.count)

    def remote(self, node: Node, rank: Value, there: Array) -> Array:
        """The slot of a block of the thread's cluster."""
        ranks, cluster = self.number(rank)[there], self.program.cluster
        if ((ranks < 0) | (ranks >= cluster)).any():
            why = f"a cluster of {cluster} blocks has no rank {int(ranks.max())}; fix the rank."
            raise self.accesses.error(node, why)
        return self.block_slot[there] // cluster * cluster + ranks

    def _loaded(self, node: Node, memory: Memory, there: Array, base: Array | int) -> None:
        width = len(node.results)
        made = np.zeros((self.count, width), memory.data.dtype)
        if len(there):
            index, ids = self.number(node.args[0])[there], self.ids[there]
            words = self.accesses.words(memory, node, index, base, ids, width)
            made[there] = self.accesses.read(memory, node, words, ids)
        for i, result in enumerate(node.results):
            self.values[result] = made[:, i]

    def table_load(self, node: ir.TableLoad, mask: Mask) -> None:
        table = self.program.table(node.table)
        index = self.number(node.args[0])
        outside = np.zeros(self.count, bool)
        outside[self.there(mask)] = True
        outside &= (index < 0) | (index >= len(table.values))
        if outside.any():
            why = f"table {table.name} has {len(table.values)} numbers; fix the index."
            raise self.accesses.error(node, why)
        values = np.asarray(table.values, table.dtype.numpy)
        self.values[node.result] = values[np.clip(index, 0, len(values) - 1)]

    def store(self, node: ir.Store, mask: Mask) -> None:
        there = self.there(self.masked(mask, *node.args[1 : 1 + node.has_mask]))
        memory = self.buffers[node.buffer]
        self._stored(node, memory, there, 0, node.args[1 + node.has_mask :])

    def shared_store(self, node: ir.SharedStore, mask: Mask) -> None:
        there = self.there(self.masked(mask, *node.args[1 : 1 + node.has_mask]))
        memory = self.shared[node.memory]
        base = self.block_slot[there] * memory.count
        self._stored(node, memory, there, base, node.args[1 + node.has_mask :])

    def _stored(
        self,
        node: Node,
        memory: Memory,
        there: Array,
        base: Array | int,
        values: Sequence[Value],
    ) -> None:
        if not len(there):
            return
        index, ids = self.number(node.args[0])[there], self.ids[there]
        words = self.accesses.words(memory, node, index, base, ids, len(values))
        given = np.stack([self.wide(v)[there] for v in values], axis=1)
        self.accesses.write(memory, node, words, ids, given)

    def atomic(self, node: ir.Atomic, mask: Mask) -> None:
        there = self.there(self.masked(mask, *node.args[2:]))
        if not len(there):
            return
        memory = self.buffers[node.buffer]
        index = self.number(node.args[0])[there]
        words = self.accesses.words(memory, node, index, 0, self.ids[there], 1)[:, 0]
        ATOMICS[node.op].at(memory.data, words, self.wide(node.args[1])[there])


ATOMICS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
}
