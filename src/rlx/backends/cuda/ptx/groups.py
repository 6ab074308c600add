"""What threads do together, in PTX: barriers, shuffles, matrix tiles, asynchronous copies.

Tiles are those of mma.m16n8k16: a of 16x16; b and c of 16 rows and any number of eight columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.cuda.ptx.memory import HALVES, SWIZZLE_BYTES, Memory, SharedIndex
from rlx.backends.cuda.ptx.text import BF16, BOOL, F32, kind_of
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value
from rlx.program.types import TileType

I32 = DType.I32
ALL_LANES = "0xffffffff"
DESCRIPTOR = (64 << 32) | (1 << 62)
"""Of a wgmma operand: 64 · 16 bytes from 8 lines to the next 8, and the 128-byte swizzle."""


class Groups(Memory):
    """Collective nodes."""

    def barrier(self, node: ir.Barrier) -> None:
        match node.scope:
            case "block":
                self.do("bar.sync", "0")
            case "warp":
                self.do("bar.warp.sync", ALL_LANES)
            case "cluster":
                self.do("barrier.cluster.arrive")
                self.do("barrier.cluster.wait")

    def shuffle(self, node: ir.Shuffle) -> str:
        dtype, x = node.result.dtype, self.one(node.args[0])
        if dtype is BOOL or dtype in HALVES:
            raise self.unsupported(f"shuffle of {dtype}; convert it to a word")
        if dtype.itemsize < 8:
            return self._shuffled(dtype, x, node.mask)
        low, high = self.register(None), self.register(None)
        self.do("mov.b64", f"{{{low}, {high}}}", x)
        halves = [self._shuffled(None, h, node.mask) for h in (low, high)]
        return self.let(dtype, "mov.b64", f"{{{halves[0]}, {halves[1]}}}")

    def _shuffled(self, dtype: DType | None, x: str, mask: int) -> str:
        return self.let(dtype, "shfl.sync.bfly.b32", x, str(mask), "31", ALL_LANES)

    def word_reduction(self, node: ir.Reduce) -> str:
        """Of integers by a whole warp, as all architectures from sm_80 on have it."""
        dtype = node.result.dtype
        return self.let(
            dtype, f"redux.sync.{node.op}.{kind_of(dtype)}", self.one(node.args[0]), ALL_LANES
        )

    # -- tiles -----------------------------------------------------------------------------------

    def _tile(self, value: Value) -> TileType:
        tile = value.type
        assert isinstance(tile, TileType)
        columns = 16 if tile.role == "a" else tile.columns
        is_known = tile.rows == 16 and tile.columns == columns
        if not is_known or self.program.warp != 32:
            raise self.unsupported(f"tile {tile} in warps of {self.program.warp}")
        return tile

    def lane(self) -> str:
        return self.let(I32, "and.b32", self.let(I32, "mov.u32", "%tid.x"), "31")

    def tile_fill(self, node: ir.TileFill) -> list[str]:
        tile, value = self._tile(node.result), self.one(node.args[0])
        if self._is_replaced(node.result):
            return [self.register(F32) for _ in range(tile.columns // 2)]
        if tile.dtype is F32:
            return [self.let(F32, "mov.f32", value) for _ in range(tile.columns // 2)]
        word = self.let(None, "mov.b32", f"{{{value}, {value}}}")
        return [word] * (tile.rows * tile.columns // 64)

    def tile_load(self, node: ir.TileLoad) -> list[str]:
        tile = self._tile(node.result)
        if tile.role != "c":
            return self._matrices(node, tile)
        if node.is_transposed:
            raise self.unsupported(f"transposed load of tile {tile}; load its elements")
        starts = self._pieces(node.args[0], tile)
        return [r for start in starts for r in self._pairs(node.memory, start, node.pitch)]

    def _pieces(self, index: Value, tile: TileType) -> list[str]:
        """The indices of the accumulators of 16×8 in a wide one."""
        at = self.one(index)
        rest = [self.let(None, "add.u32", at, str(n)) for n in range(8, tile.columns, 8)]
        return [at, *rest]

    def _matrices(self, node: ir.TileLoad, tile: TileType) -> list[str]:
        """ldmatrix: lane 8i + r gives the address of row r of matrix i, 8 half floats. Four make
        operand a, and 16 columns of b: the matrices below each other first."""
        index = self.shared_index(node.memory, node.args[0])
        by_columns = node.is_transposed
        lane, words = self.lane(), list[str]()
        row, chunk = self._matrix_rows(lane, by_columns)
        at = self.let(None, "mad.lo.u32", row, str(node.pitch), index.at)
        at = self.let(None, "mad.lo.u32", chunk, "8", at)
        trans = ".trans" if (tile.role == "a") == by_columns else ""
        for first in range(0, tile.columns, 16):
            step = first * (node.pitch if by_columns else 1)
            address = self._moved(node.memory, at, step, index)
            count = min(4, (tile.columns - first) // 4)
            held = [self.register(None) for _ in range(count)]
            instruction = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            self.do(instruction, "{" + ", ".join(held) + "}", f"[{address}]")
            words += held
        return words

    def _store_matrices(self, node: ir.TileStore, held: Sequence[str]) -> None:
        """stmatrix: as ldmatrix of operand a."""
        index = self.shared_index(node.memory, node.args[0])
        row, chunk = self._matrix_rows(self.lane(), by_columns=False)
        at = self.let(None, "mad.lo.u32", row, str(node.pitch), index.at)
        at = self.let(None, "mad.lo.u32", chunk, "8", at)
        address = self.shared_place(node.memory, at, index)
        words = "{" + ", ".join(held) + "}"
        self.do("stmatrix.sync.aligned.m8n8.x4.shared.b16", f"[{address}]", words)

    def _matrix_rows(self, lane: str, by_columns: bool) -> tuple[str, str]:
        """Row and chunk of eight elements that a lane gives the address of."""
        if not by_columns:
            return self.let(None, "and.b32", lane, "15"), self.let(None, "shr.u32", lane, "4")
        upper = self.let(None, "and.b32", self.let(None, "shr.u32", lane, "1"), "8")
        row = self.let(None, "or.b32", self.let(None, "and.b32", lane, "7"), upper)
        return row, self.let(None, "and.b32", self.let(None, "shr.u32", lane, "3"), "1")

    def _moved(self, memory: str, at: str, step: int, index: SharedIndex) -> str:
        """The operand `step` elements behind an index."""
        array = self.array(memory)
        size = step * array.dtype.itemsize
        if array.is_swizzled and size % SWIZZLE_BYTES:
            at, size = self.let(None, "add.u32", at, str(step)), 0
        return self.shared_place(memory, at, replace(index, bytes=index.bytes + size))

    def _pairs(
        self, memory: str, index: str, pitch: int, values: list[str] | None = None
    ) -> list[str]:
        """Two neighbours of each 8×8 piece of an accumulator of 16×8, read, or written if given."""
        lane = self.lane()
        row = self.let(None, "shr.u32", lane, "2")
        column = self.let(None, "shl.b32", self.let(None, "and.b32", lane, "3"), "1")
        at = self.let(None, "add.u32", self.let(None, "mad.lo.u32", row, str(pitch), index), column)
        found: list[str] = []
        for piece in range(2):
            place = self.let(None, "add.u32", at, str(piece * 8 * pitch))
            address = self.shared_address(memory, place)
            if values is None:
                found += self.read("shared", address, F32, 2)
            else:
                self.write("shared", address, F32, values[2 * piece : 2 * piece + 2])
        return found

    def tile_store(self, node: ir.TileStore) -> None:
        tile = self._tile(node.args[1])
        held = self.held[node.args[1]]
        if tile.role == "a":
            self._store_matrices(node, held)
            return
        if tile.role != "c":
            raise self.unsupported(f"store of tile {tile}; store its elements")
        for i, start in enumerate(self._pieces(node.args[0], tile)):
            self._pairs(node.memory, start, node.pitch, held[4 * i : 4 * i + 4])

    def tile_mul(self, node: ir.TileMul) -> list[str]:
        """An instruction for every eight columns."""
        kind = "bf16" if self._tile(node.args[0]).dtype is BF16 else "f16"
        a, b, c = (self.held[v] for v in node.args)
        made = [self.register(F32) for _ in c]
        instruction = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
        for n in range(self._tile(node.args[2]).columns // 8):
            parts = made[4 * n : 4 * n + 4], a, b[2 * n : 2 * n + 2], c[4 * n : 4 * n + 4]
            self.do(instruction, *("{" + ", ".join(r) + "}" for r in parts))
        return made

    def warpgroup_mul(self, node: ir.WarpgroupMul) -> list[str]:
        """wgmma: each step of 16 takes 32 bytes of lines along the inner positions, or 16 lines
        across them: 2 or 128 in a descriptor's address. The sums of an asynchronous one stay in
        their registers, which nothing may touch while it is under way."""
        tile = self._tile(node.args[0])
        kind = "bf16" if self.array(node.right).dtype is BF16 else "f16"
        made = self._sums(node)
        left, right = self._left_steps(node), self._steps(node, node.right, -1, node.right_panel)
        turned = ([node.left_panel] if node.left else []) + [node.right_panel]
        instruction = f"wgmma.mma_async.sync.aligned.m64n{tile.columns}k16.f32.{kind}.{kind}"
        self.do("wgmma.fence.sync.aligned")
        for step, (a, b) in enumerate(zip(left, right)):
            adds = "0" if step == 0 and self._is_zero(node.args[0]) else "1"
            flags = [adds, "1", "1", *(str(int(p > 0)) for p in turned)]
            self.do(instruction, "{" + ", ".join(made) + "}", a, b, *flags)
        self.do("wgmma.commit_group.sync.aligned")
        if not node.is_async:
            self.do("wgmma.wait_group.sync.aligned", "0")
        return made

    def _sums(self, node: ir.WarpgroupMul) -> list[str]:
        """The registers that it adds to: its own, where it is waited for at once."""
        held = self.held[node.args[0]]
        if node.is_async:
            return held
        if self._is_zero(node.args[0]):
            return [self.register(F32) for _ in held]
        return [self.let(F32, "mov.f32", r) for r in held]

    def _left_steps(self, node: ir.WarpgroupMul) -> list[str]:
        """The left operand at each step: a descriptor, or the registers of a tile."""
        if node.left:
            return self._steps(node, node.left, 1, node.left_panel)
        return ["{" + ", ".join(self.held[a]) + "}" for a in node.args[1:-1]]

    def _steps(self, node: ir.WarpgroupMul, name: str, number: int, panel: int) -> list[str]:
        first = self._descriptor(name, node.args[number], panel)
        each = 128 if panel else 2
        return [
            self.let(DType.I64, "add.s64", first, str(each * s)) for s in range(node.depth // 16)
        ]

    def _is_replaced(self, sums: Value) -> bool:
        """Are they zeros that products replace, whatever was in their registers?"""
        if not self._is_zero(sums):
            return False
        users = [n for n in self.program.nodes if sums in n.args or _yields(n, sums)]
        return all(isinstance(n, ir.WarpgroupMul) and n.args[0] is sums for n in users)

    def _is_zero(self, sums: Value) -> bool:
        """Were the sums just set to 0? Then the first product replaces them."""
        node = self.maker.get(sums)
        number = self.maker.get(node.args[0]) if isinstance(node, ir.TileFill) else None
        return isinstance(number, ir.Const) and number.value == 0.0

    def warpgroup_wait(self, node: ir.WarpgroupWait) -> None:
        self.do("wgmma.wait_group.sync.aligned", str(node.pending))

    def register_limit(self, node: ir.RegisterLimit) -> None:
        way = "inc" if node.is_more else "dec"
        self.do(f"setmaxnreg.{way}.sync.aligned.u32", str(node.count))

    def _descriptor(self, name: str, index: Value, panel: int) -> str:
        """Of a swizzled matrix with lines of 128 bytes: its address, 1024 bytes from 8 lines to
        the next 8, and the distance of panels."""
        at = self.converted(self.one(index), index.dtype, I32)
        byte = self.let(None, "mul.lo.u32", at, str(self.array(name).dtype.itemsize))
        start = self.let(None, "add.u32", "%SMEM", str(self.offsets[name]))
        place = self.let(None, "and.b32", self.let(None, "add.u32", start, byte), "0x3ffff")
        wide = self.let(DType.I64, "cvt.u64.u32", self.let(None, "shr.u32", place, "4"))
        apart = max(1, panel * self.array(name).dtype.itemsize // 16) << 16
        return self.let(DType.I64, "or.b64", wide, str(DESCRIPTOR | apart))

    def tile_elements(self, node: ir.TileElements) -> list[str]:
        tile = self._tile(node.args[0])
        held = self.held[node.args[0]]
        if tile.dtype is F32:
            return held
        return [self._part(word, e, tile.dtype) for word in held for e in range(2)]

    def tile_pack(self, node: ir.TilePack) -> list[str]:
        tile = self._tile(node.result)
        return self.all(node.args) if tile.dtype is F32 else self.packed(node.args, tile.dtype)

    def tile_place(self, node: ir.TilePlace) -> list[str]:
        tile = self._tile(Value(node.tile))
        lane = self.lane()
        group = self.let(I32, "shr.u32", lane, "2")
        pair = self.let(None, "shl.b32", self.let(None, "and.b32", lane, "3"), "1")
        made: list[str] = []
        for piece in range(tile.rows * tile.columns // 64):
            row, column = 8 * (piece % (tile.rows // 8)), 8 * (piece // (tile.rows // 8))
            for e in range(2):
                down, across = (pair, group) if tile.role == "b" else (group, pair)
                more = (e, 0) if tile.role == "b" else (0, e)
                made.append(self.let(I32, "add.u32", down, str(row + more[0])))
                made.append(self.let(I32, "add.u32", across, str(column + more[1])))
        return made

    # -- asynchronous copies ---------------------------------------------------------------------

    def async_copy(self, node: ir.AsyncCopy) -> None:
        size = node.width * self.array(node.memory).dtype.itemsize
        there, here = node.args[:2]
        source = self.address(node.buffer, here)
        cache = "cg" if size == 16 else "ca"
        operands = [f"[{self.shared_operand(node.memory, there)}]", f"[{source}]", str(size)]
        if len(node.args) > 2:
            operands.append(self.let(None, "selp.b32", str(size), "0", self.one(node.args[2])))
        self.do(f"cp.async.{cache}.shared.global", *operands)

    def async_commit(self, node: ir.AsyncCommit) -> None:
        self.do("cp.async.commit_group")

    def async_wait(self, node: ir.AsyncWait) -> None:
        self.do("cp.async.wait_group", str(node.pending))

    def _mbarrier(self, name: str, which: Value) -> str:
        start = self.let(None, "add.u32", "%SMEM", str(self.offsets[name]))
        return self.let(None, "mad.lo.u32", self.one(which), "8", start)

    def mbarrier_init(self, node: ir.MbarrierInit) -> None:
        place = self._mbarrier(node.mbarrier, node.args[0])
        self.do("mbarrier.init.shared::cta.b64", f"[{place}]", str(node.arrivals))
        self.do("fence.mbarrier_init.release.cluster")

    def mbarrier_arrive(self, node: ir.MbarrierArrive) -> None:
        place = self._mbarrier(node.mbarrier, node.args[0])
        space = "shared::cta"
        if node.is_remote:
            place, space = self.of_rank(place, self.one(node.args[1])), "shared::cluster"
        if node.expected_bytes:
            expected = str(node.expected_bytes)
            self.do(f"mbarrier.arrive.expect_tx.{space}.b64 _,", f"[{place}]", expected)
        else:
            self.do(f"mbarrier.arrive.{space}.b64 _,", f"[{place}]")

    def mbarrier_wait(self, node: ir.MbarrierWait) -> None:
        place, parity = self._mbarrier(node.mbarrier, node.args[0]), self.one(node.args[1])
        label = self.label()
        self.mark(label)
        instruction = "mbarrier.try_wait.parity.shared::cta.b64"
        is_done = self.let(BOOL, instruction, f"[{place}]", parity)
        self.do("bra", label, when=f"!{is_done}")

    def bulk_copy(self, node: ir.BulkCopy) -> None:
        there, row, column, which, *rest = node.args
        (tensor,) = (m for m in self.program.maps if m.name == node.map)
        outer, taps = rest[: len(tensor.outer)], rest[len(tensor.outer) :]
        place = self.shared_address(node.memory, self.one(there), there.dtype)
        bar = self._mbarrier(node.mbarrier, which)
        places = self.all([column, row, *reversed(outer)])
        at = f"[%P_{node.map}, {{{', '.join(places)}}}]"
        kind = f"{'im2col.' if taps else ''}mbarrier::complete_tx::bytes"
        instruction = f"cp.async.bulk.tensor.{len(places)}d.shared::cluster.global.{kind}"
        steps = [self.let(DType.F16, "cvt.u16.u32", t) for t in self.all(taps[::-1])]
        moved = [f"{{{', '.join(steps)}}}"] if steps else []
        self.do(instruction, f"[{place}]", at, f"[{bar}]", *moved)

    def push(self, node: ir.Push) -> None:
        rank, index, which = node.args[:3]
        values = self.all(node.args[3:])
        if self.array(node.memory).dtype.itemsize < 4:
            raise self.unsupported("push of fewer than 32 bits")
        target = self.one(rank)
        place = self.shared_address(node.memory, self.one(index), index.dtype)
        place, bar = (
            self.of_rank(p, target) for p in (place, self._mbarrier(node.mbarrier, which))
        )
        count = len(values)
        vector = "" if count == 1 else f".v{count}"
        kind = f"b{self.array(node.memory).dtype.itemsize * 8}"
        held = values[0] if count == 1 else "{" + ", ".join(values) + "}"
        instruction = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
        self.do(f"{instruction}{vector}.{kind}", f"[{place}]", held, f"[{bar}]")


def _yields(node: ir.Node, value: Value) -> bool:
    return any(value in region.yields for region in node.regions)
