"""What threads do together, in MSL: barriers, shuffles, and matrices of 8×8 that a simdgroup holds.

A tile is several such matrices, each a variable of its own. Which thread has which element Metal
does not say, so tiles go to and from threadgroup memory only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx.backends.metal.msl.memory import Memory, shared_name
from rlx.backends.metal.msl.types import BF16, BOOL, F16, F32
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value
from rlx.program.types import TileType, Type

SIDE = 8
MATRICES = {F16: "simdgroup_half8x8", BF16: "simdgroup_bfloat8x8", F32: "simdgroup_float8x8"}
PAIRS = {DType.I64: "long", DType.U64: "ulong"}


class Groups(Memory):
    """Collective nodes."""

    def barrier(self, node: ir.Barrier) -> None:
        if node.scope == "cluster":
            raise self.unsupported(node, "barrier of a cluster; lower it without.")
        if node.scope == "warp":
            self.do(f"simdgroup_barrier({self._flags});")
        else:
            self.do(f"threadgroup_barrier({self._flags});")

    @property
    def _flags(self) -> str:
        """Device memory, too, where threads of a block may read what others wrote there."""
        read = {n.buffer for n in self.program.nodes if isinstance(n, ir.Load)}
        is_shared = any(b.is_written and b.name in read for b in self.program.buffers)
        flag = "mem_flags::mem_threadgroup"
        return f"mem_flags::mem_device | {flag}" if is_shared else flag

    def shuffle(self, node: ir.Shuffle) -> None:
        """Under a name: inside of an expression, not all threads may come to it."""
        kind = self.type_name(node.result.dtype)
        self.held[node.result] = self.let(kind, self._shuffled(node))

    def _shuffled(self, node: ir.Shuffle) -> str:
        """Words; those of two, and truth values, go as what Metal shuffles."""
        dtype, x = node.result.dtype, self.one(node.args[0])
        mask = f"ushort({node.mask})"
        if dtype in PAIRS:
            return f"as_type<{PAIRS[dtype]}>(simd_shuffle_xor(as_type<uint2>({x}), {mask}))"
        if dtype is BOOL:
            return f"(simd_shuffle_xor(uint({x}), {mask}) != 0u)"
        return f"simd_shuffle_xor({x}, {mask})"

    # -- tiles -----------------------------------------------------------------------------------

    def own(self, values: Sequence[Value], given: Sequence[Value] | None) -> None:
        numbers = [i for i, v in enumerate(values) if not isinstance(v.type, TileType)]
        firsts = None if given is None else [given[i] for i in numbers]
        super().own([values[i] for i in numbers], firsts)
        for i, value in enumerate(values):
            if isinstance(value.type, TileType):
                source = None if given is None else self.one(given[i])
                self.held[value] = self._tile(value.type, source)

    def assign(self, values: Sequence[Value], given: Sequence[Value]) -> None:
        """Tiles that are exchanged with each other are copied first."""
        pairs = list(zip(values, given, strict=True))
        tiles = [(v, g) for v, g in pairs if isinstance(v.type, TileType)]
        sources = {v: self._source(g, tiles) for v, g in tiles}
        for value, _ in tiles:
            target, source = self.one(value), sources[value]
            for i in range(len(list(_places(value.type))) if target != source else 0):
                self.do(f"{target}_{i} = {source}_{i};")
        rest = [(v, g) for v, g in pairs if not isinstance(v.type, TileType)]
        super().assign([v for v, _ in rest], [g for _, g in rest])

    def _source(self, value: Value, tiles: Sequence[tuple[Value, Value]]) -> str:
        held = self.one(value)
        is_target = any(self.one(v) == held and v is not value for v, _ in tiles)
        if not is_target:
            return held
        assert isinstance(value.type, TileType)
        return self._tile(value.type, held)

    def _tile(self, tile: TileType, first: str | None = None) -> str:
        """Variables of a tile's matrices."""
        name = self.name("m")
        for i, _ in enumerate(_places(tile)):
            value = "" if first is None else f" = {first}_{i}"
            self.do(f"{MATRICES[tile.dtype]} {name}_{i}{value};")
        return name

    def tile_fill(self, node: ir.TileFill) -> None:
        tile = _tile_of(node.result)
        number = self.one(node.args[0])
        kind = {F16: "half", F32: "float"}.get(tile.dtype)
        if kind is None:
            raise self.unsupported(node, f"filled tile of {tile.dtype}; load it.")
        name = self.held[node.result] = self._tile(tile)
        for i, _ in enumerate(_places(tile)):
            made = f"make_filled_simdgroup_matrix<{kind}, {SIDE}, {SIDE}>({number})"
            self.do(f"{name}_{i} = {made};")

    def tile_load(self, node: ir.TileLoad) -> None:
        tile = _tile_of(node.result)
        name = self._tile(tile)
        kind = "bfloat" if tile.dtype is BF16 else ""
        for i, (row, column) in enumerate(_places(tile)):
            at = column * node.pitch + row if node.is_transposed else row * node.pitch + column
            place = self._tile_place(node.memory, node.args[0], at, kind)
            last = ", 0, true" if node.is_transposed else ""
            self.do(f"simdgroup_load({name}_{i}, {place}, {node.pitch}{last});")
        self.held[node.result] = name

    def tile_store(self, node: ir.TileStore) -> None:
        tile, name = _tile_of(node.args[1]), self.one(node.args[1])
        kind = "bfloat" if tile.dtype is BF16 else ""
        for i, (row, column) in enumerate(_places(tile)):
            place = self._tile_place(node.memory, node.args[0], row * node.pitch + column, kind)
            self.do(f"simdgroup_store({name}_{i}, {place}, {node.pitch});")

    def _tile_place(self, memory: str, index: Value, offset: int, kind: str) -> str:
        pointer = shared_name(memory)
        if kind:
            pointer = f"reinterpret_cast<threadgroup {kind}*>({pointer})"
        number = self.number(index)
        if number is not None:
            return f"{pointer} + {int(number) + offset}"
        at = f"uint({self.named(index)})"
        return f"{pointer} + ({at} + {offset})" if offset else f"{pointer} + {at}"

    def tile_mul(self, node: ir.TileMul) -> None:
        """Of rows of matrices and columns of matrices."""
        a, b, c = (_tile_of(v) for v in node.args)
        left, right, total = self.all(node.args)
        name = self._tile(c)
        across, inner = c.columns // SIDE, a.columns // SIDE
        for i in range(c.rows // SIDE):
            for j in range(across):
                at, before = i * across + j, total
                for k in range(inner):
                    x, y = i * inner + k, k * (b.columns // SIDE) + j
                    given = f"{left}_{x}, {right}_{y}, {before}_{at}"
                    self.do(f"simdgroup_multiply_accumulate({name}_{at}, {given});")
                    before = name
        self.held[node.result] = name


def _tile_of(value: Value) -> TileType:
    assert isinstance(value.type, TileType)
    return value.type


def _places(tile: Type) -> Iterator[tuple[int, int]]:
    """The first row and column of each matrix of a tile."""
    assert isinstance(tile, TileType)
    for row in range(0, tile.rows, SIDE):
        for column in range(0, tile.columns, SIDE):
            yield row, column
