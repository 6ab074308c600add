"""What threads do together: reductions and scans in the stated order, shuffles, matrix tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.program import nodes as ir
from rlx.program.interpret.arithmetic import BINARIES
from rlx.program.interpret.threads import Mask, Threads
from rlx.program.nodes import Node
from rlx.program.types import TileType, Type

Array = np.ndarray[Any, Any]
TILE_ROW_BYTES = 16
GROUP = 128
"""Threads of the four warps that multiply together."""


@dataclass(frozen=True, eq=False, slots=True)
class _Product:
    """A product that some groups of four warps have under way."""

    node: ir.WarpgroupMul
    leaders: Array
    args: Sequence[Array]
    operands: tuple[Array, Array]


class Groups(Threads):
    """Collective nodes."""

    products: list[_Product]

    def all_there(self, node: Node, mask: Mask, group: int) -> None:
        """Groups of threads come as a whole or not at all."""
        if mask is None:
            return
        here = mask.reshape(-1, group)
        some = here.any(axis=1) & ~here.all(axis=1)
        if some.any():
            at = int(np.flatnonzero(some)[0])
            absent = at * group + int(np.flatnonzero(~here[at])[0])
            present = at * group + int(np.flatnonzero(here[at])[0])
            raise self.accesses.error(
                node,
                f"{self.accesses.who(int(self.ids[present]))} comes here and "
                f"{self.accesses.who(int(self.ids[absent]))} does not; threads wait for each other "
                "here, so move it out of the branch.",
            )

    def groups_there(self, node: Node, mask: Mask) -> None:
        """Groups of four warps, too; those behind the last one have no part in it."""
        block = self.program.block
        rest = block % GROUP
        lines = (np.ones(self.count, bool) if mask is None else mask).reshape(-1, block)
        if rest and lines[:, -rest:].any():
            why = f"the last {rest} threads of a block are no group of {GROUP}; leave them out."
            raise self.accesses.error(node, why)
        for first in range(0, block - rest, GROUP):
            here = lines[:, first : first + GROUP]
            if (here.any(axis=1) & ~here.all(axis=1)).any():
                self.all_there(node, mask, self.program.warp)
                raise self.accesses.error(node, "a warp of four that multiply is not there.")

    def barrier(self, node: ir.Barrier, mask: Mask) -> None:
        program = self.program
        sizes = {"warp": program.warp, "block": program.block}
        group = sizes.get(node.scope, program.block * program.cluster)
        self.all_there(node, mask, group)
        self.order.barrier(self.there(mask)[::group], group)

    def _group(self, node: ir.Reduce | ir.Scan) -> int:
        return self.program.block if node.scope == "block" else node.width

    def _gathered(self, node: ir.Reduce | ir.Scan, mask: Mask) -> Array:
        whole = self.program.block if node.scope == "block" else self.program.warp
        self.all_there(node, mask, whole)
        return self.wide(node.args[0]).reshape(-1, self._group(node))

    def reduce(self, node: ir.Reduce, mask: Mask) -> None:
        rows = self._gathered(node, mask)
        total = tree(node.op, rows)
        whole = np.broadcast_to(total[:, None], rows.shape)
        self.values[node.result] = whole.reshape(-1)

    def scan(self, node: ir.Scan, mask: Mask) -> None:
        rows = self._gathered(node, mask).copy()
        if not node.is_inclusive:
            rows[:, 1:] = rows[:, :-1].copy()
            rows[:, 0] = identity(node.op, rows.dtype)
        step = 1
        while step < rows.shape[1]:
            rows[:, step:] = combine(node.op, rows[:, :-step].copy(), rows[:, step:])
            step *= 2
        self.values[node.result] = rows.reshape(-1)

    def reduce_scatter(self, node: ir.ReduceScatter, mask: Mask) -> None:
        """Exchanges with the farther half first: each step halves the values a thread holds."""
        self.all_there(node, mask, self.program.warp)
        held = [self.wide(a) for a in node.args]
        distance = node.width // 2
        while distance:
            partner = self.slots ^ distance
            is_upper = (self.slots & distance) != 0
            half = len(held) // 2
            if half:
                low, high = held[:half], held[half:]
                kept = [np.where(is_upper, h, l) for l, h in zip(low, high)]
                sent = [np.where(is_upper, l, h) for l, h in zip(low, high)]
                held = [combine(node.op, k, s[partner]) for k, s in zip(kept, sent)]
            else:
                held = [combine(node.op, held[0], held[0][partner])]
            distance //= 2
        self.values[node.result] = held[0]

    def shuffle(self, node: ir.Shuffle, mask: Mask) -> None:
        self.all_there(node, mask, self.program.warp)
        self.values[node.result] = self.wide(node.args[0])[self.slots ^ node.mask]

    # -- tiles -----------------------------------------------------------------------------------

    def tile_fill(self, node: ir.TileFill, mask: Mask) -> None:
        tile = _tile(node.result.type)
        value = self.wide(node.args[0])[:: self.program.warp, None, None]
        shape = (len(value), tile.rows, tile.columns)
        self.values[node.result] = np.broadcast_to(value, shape)

    def tile_mul(self, node: ir.TileMul, mask: Mask) -> None:
        self.all_there(node, mask, self.program.warp)
        a, b, c = self.args(node)
        with np.errstate(all="ignore"):
            self.values[node.result] = a.astype(np.float32) @ b.astype(np.float32) + c

    def warpgroup_mul(self, node: ir.WarpgroupMul, mask: Mask) -> None:
        self.groups_there(node, mask)
        leaders = self.there(mask)[::GROUP]
        c = self.values[node.args[0]]
        columns = c.shape[2]
        made = np.array(c)
        if len(leaders):
            left, right = (self._operand(node, side, leaders) for side in (0, 1))
            with np.errstate(all="ignore"):
                product = left.astype(np.float32) @ right.astype(np.float32).swapaxes(1, 2)
            warps = (leaders // self.program.warp)[:, None] + np.arange(4)
            made[warps] = made[warps] + product.reshape(-1, 4, 16, columns)
            if node.is_async:
                self.products.append(_Product(node, leaders, self.args(node), (left, right)))
        self.values[node.result] = made

    def warpgroup_wait(self, node: ir.WarpgroupWait, mask: Mask) -> None:
        """The operands are read until here: nobody may have changed them since the product."""
        self.groups_there(node, mask)
        waiting = set(self.there(mask)[::GROUP].tolist())
        mine = [p for p in self.products if waiting & set(p.leaders.tolist())]
        done = mine[: max(0, len(mine) - node.pending)]
        for product in done:
            for side in (0, 1):
                found = self._operand(product.node, side, product.leaders, product.args)
                if not np.array_equal(found, product.operands[side], equal_nan=True):
                    why = "an operand changed while its product was under way; wait for it before."
                    raise self.accesses.error(product.node, why)
        self.products = [p for p in self.products if p not in done]
        if done:
            self.order.barrier(self.there(mask)[::GROUP], GROUP)

    def _operand(
        self,
        node: ir.WarpgroupMul,
        side: int,
        leaders: Array,
        args: Sequence[Array] | None = None,
    ) -> Array:
        """The rows of an operand as far as they are multiplied."""
        name, panel = ((node.left, node.left_panel), (node.right, node.right_panel))[side]
        tile = _tile(node.args[0].type)
        given = self.args(node) if args is None else args
        if not name:
            warps = (leaders // self.program.warp)[:, None] + np.arange(4)
            whole = np.concatenate([np.asarray(a)[warps] for a in given[1:-1]], axis=3)
            return whole.reshape(len(leaders), 64, node.depth)
        values = given[1] if side == 0 else given[-1]
        index = np.broadcast_to(values, (self.count,)).astype(np.int64)[leaders]
        rows = 64 if side == 0 else tile.columns
        return self._rows(node, name, index, leaders, (rows, node.depth), panel)

    def _rows(
        self,
        node: ir.WarpgroupMul,
        name: str,
        index: Array,
        leaders: Array,
        shape: tuple[int, int],
        panel: int,
    ) -> Array:
        """Out of lines of 128 bytes, which go along the inner positions or along the rows."""
        memory, (rows, depth) = self.shared[name], shape
        pitch = 128 // memory.data.itemsize
        if (index % (8 * pitch)).any():
            why = f"an operand in {name} does not start at a multiple of 8 lines; align it."
            raise self.accesses.error(node, why)
        row, column = np.mgrid[:rows, :depth].reshape(2, -1)
        at = row // pitch * panel + column * pitch + row % pitch if panel else row * pitch + column
        where = (index[:, None] + at).reshape(-1)
        ids = (self.ids[leaders][:, None] + np.arange(rows * depth) % GROUP).reshape(-1)
        base = np.repeat(self.block_slot[leaders] * memory.count, rows * depth)
        words = self.accesses.words(memory, node, where, base, ids, 1)
        self.accesses.fenced(memory, node, words)
        return self.accesses.read(memory, node, words, ids).reshape(len(leaders), rows, depth)

    def proxy_fence(self, node: ir.ProxyFence, mask: Mask) -> None:
        ids = self.ids[self.there(mask)] + 1
        for memory in self.shared.values():
            if memory.unfenced is not None:
                memory.unfenced[np.isin(memory.unfenced, ids)] = 0

    def tile_load(self, node: ir.TileLoad, mask: Mask) -> None:
        tile = _tile(node.result.type)
        warps, words, ids = self._tile_words(node, tile, mask, node.is_transposed)
        shape = (self.count // self.program.warp, tile.rows, tile.columns)
        made = np.zeros(shape, tile.dtype.numpy)
        if len(warps):
            read = self.accesses.read(self.shared[node.memory], node, words, ids)
            made[warps] = read.reshape(len(warps), tile.rows, tile.columns)
        self.values[node.result] = made

    def tile_store(self, node: ir.TileStore, mask: Mask) -> None:
        tile = _tile(node.args[1].type)
        warps, words, ids = self._tile_words(node, tile, mask, is_transposed=False)
        if len(warps):
            given = self.values[node.args[1]][warps].reshape(-1, 1)
            self.accesses.write(self.shared[node.memory], node, words, ids, given)

    def _tile_words(
        self, node: ir.TileLoad | ir.TileStore, tile: TileType, mask: Mask, is_transposed: bool
    ) -> tuple[Array, Array, Array]:
        """The warps that are there, the words of their tiles, and a thread of each for each."""
        warp, memory = self.program.warp, self.shared[node.memory]
        self.all_there(node, mask, warp)
        leaders = self.there(mask)[::warp]
        rows, columns = np.mgrid[: tile.rows, : tile.columns].reshape(2, -1)
        at = columns * node.pitch + rows if is_transposed else rows * node.pitch + columns
        starts = self.number(node.args[0])[leaders]
        self._aligned(node, tile, starts)
        index = (starts[:, None] + at).reshape(-1)
        lanes = np.arange(tile.rows * tile.columns) % warp
        ids = (self.ids[leaders][:, None] + lanes).reshape(-1)
        base = np.repeat(self.block_slot[leaders] * memory.count, tile.rows * tile.columns)
        return leaders // warp, self.accesses.words(memory, node, index, base, ids, 1), ids

    def _aligned(self, node: ir.TileLoad | ir.TileStore, tile: TileType, starts: Array) -> None:
        """Rows of operands are read 16 bytes at a time."""
        row = TILE_ROW_BYTES // tile.dtype.itemsize
        if tile.role != "c" and (node.pitch % row or (starts % row).any()):
            why = f"a row of a tile in {node.memory} starts at no multiple of {row}; align it."
            raise self.accesses.error(node, why)

    def tile_elements(self, node: ir.TileElements, mask: Mask) -> None:
        tile = _tile(node.args[0].type)
        rows, columns = places(tile, self.program.warp)
        held = self.values[node.args[0]][:, rows, columns]
        for i, result in enumerate(node.results):
            self.values[result] = held[:, :, i].reshape(-1)

    def tile_pack(self, node: ir.TilePack, mask: Mask) -> None:
        tile = _tile(node.result.type)
        rows, columns = places(tile, self.program.warp)
        given = np.stack([self.wide(a) for a in node.args], axis=1)
        made = np.zeros((self.count // self.program.warp, tile.rows, tile.columns), given.dtype)
        made[:, rows, columns] = given.reshape(len(made), self.program.warp, -1)
        self.values[node.result] = made

    def tile_place(self, node: ir.TilePlace, mask: Mask) -> None:
        found = places(node.tile, self.program.warp)
        warps = self.count // self.program.warp
        for i, result in enumerate(node.results):
            self.values[result] = np.tile(found[i % 2][:, i // 2], warps).astype(np.int32)


def _tile(kind: Type) -> TileType:
    assert isinstance(kind, TileType)
    return kind


def places(tile: TileType, warp: int) -> tuple[Array, Array]:
    """Row and column of each element of each lane.

    Of a warp of 32: the fragments of NVIDIA's mma.m16n8k16, two neighbours of each 8×8 piece, the
    pieces of a column first. Elsewhere in the order of rows.
    """
    lane = np.arange(warp)[:, None]
    count = tile.rows * tile.columns // warp
    if warp != 32:
        index = lane + warp * np.arange(count)
        return index // tile.columns, index % tile.columns
    piece, e = np.arange(count)[None] // 2, np.arange(count)[None] % 2
    down = tile.rows // 8
    row, column = 8 * (piece % down), 8 * (piece // down)
    group, pair = lane // 4, 2 * (lane % 4) + e
    if tile.role == "b":
        return row + pair, column + group
    return row + group, column + pair


def combine(op: str, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(BINARIES[op](a, b)).astype(a.dtype, copy=False)


def identity(op: str, dtype: np.dtype[Any]) -> Any:
    """What changes nothing; a scan's first value without the own one."""
    if op in ("add", "mul"):
        return dtype.type({"add": 0, "mul": 1}[op])
    if dtype == np.bool_:
        return op == "min"
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max
    return dtype.type(-np.inf if op == "max" else np.inf)


def tree(op: str, rows: Array) -> Array:
    """Neighbours first: 1 apart, 2 apart, and so on; what has no partner goes on alone."""
    while rows.shape[1] > 1:
        even = rows.shape[1] // 2 * 2
        paired = combine(op, rows[:, 0:even:2], rows[:, 1:even:2])
        rows = np.concatenate([paired, rows[:, even:]], axis=1)
    return rows[:, 0]
