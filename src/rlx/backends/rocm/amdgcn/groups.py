"""What threads do together, in LLVM IR: barriers, shuffles, matrix tiles."""

from __future__ import annotations

from rlx.backends.rocm.amdgcn.fragments import SIDE
from rlx.backends.rocm.amdgcn.memory import LOCAL, Memory
from rlx.backends.rocm.amdgcn.text import F32, I32, kind_of
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value
from rlx.program.types import TileType

QUAD_PERMUTE = {1: 0xB1, 2: 0x4E, 3: 0x1B}
"""DPP controls: lanes of a group of four exchanged by xor."""
ROW_MIRROR = {15: 0x140, 7: 0x141}
"""Lanes of a row of 16, or of half of one, in reverse order: the same as xor."""
ROW_XMASK = 0x160
CHUNK = 8
"""Half floats of 16 bytes, which a swizzle leaves together: rows of tiles begin at such a chunk."""
WORD = 0xFFFFFFFF
Place = tuple[str, str]


class Groups(Memory):
    """Collective nodes."""

    def barrier(self, node: ir.Barrier) -> None:
        """What threads wrote is seen behind it: the fences keep memory accesses on their side."""
        if node.scope == "cluster":
            raise self.unsupported("barrier of a cluster (Barrier)")
        self.finish_copies()
        scope = "workgroup" if node.scope == "block" else "wavefront"
        wait = "llvm.amdgcn.s.barrier" if node.scope == "block" else "llvm.amdgcn.wave.barrier"
        self.do(f'fence syncscope("{scope}") release')
        self.call("void", wait)
        self.do(f'fence syncscope("{scope}") acquire')

    # -- shuffles --------------------------------------------------------------------------------

    def shuffle(self, node: ir.Shuffle) -> str:
        dtype, x = node.result.dtype, self.one(node.args[0])
        kind, bits = kind_of(dtype), 1 if dtype is DType.BOOL else dtype.itemsize * 8
        if bits == 64:
            pair = self.let(f"bitcast {kind} {x} to <2 x i32>")
            halves = [self.let(f"extractelement <2 x i32> {pair}, i32 {i}") for i in range(2)]
            made = self.vector(I32, [self._shuffled(h, node.mask) for h in halves])
            return self.let(f"bitcast <2 x i32> {made} to {kind}")
        word = self.let(f"bitcast {kind} {x} to i{bits}") if dtype.is_float else x
        word = word if bits == 32 else self.let(f"zext i{bits} {word} to i32")
        moved = self._shuffled(word, node.mask)
        moved = moved if bits == 32 else self.let(f"trunc i32 {moved} to i{bits}")
        return self.let(f"bitcast i{bits} {moved} to {kind}") if dtype.is_float else moved

    def _shuffled(self, word: str, mask: int) -> str:
        """A word of the lane that differs by the mask, by the cheapest instruction that reaches
        it: an operand's permutation (DPP), a swizzle of 32 lanes, or any permutation."""
        if mask in QUAD_PERMUTE:
            return self._permuted(word, QUAD_PERMUTE[mask])
        if mask < SIDE and self.target.has_row_permute:
            return self._permuted(word, ROW_XMASK + mask)
        if mask in ROW_MIRROR:
            return self._permuted(word, ROW_MIRROR[mask])
        if mask < 2 * SIDE and self.target.has_row_permute:
            return self._of_other_row(word, mask % SIDE)
        if mask < 32:
            return self.call(
                I32, "llvm.amdgcn.ds.swizzle", (I32, word), (I32, str(mask << 10 | 31))
            )
        place = self.let(f"shl i32 {self.let(f'xor i32 {self.lane()}, {mask}')}, 2")
        return self.call(I32, "llvm.amdgcn.ds.bpermute", (I32, place), (I32, word))

    def _of_other_row(self, word: str, mask: int) -> str:
        """permlanex16: any lane of the other row of 16, four bits for each."""
        which = sum((lane ^ mask) << 4 * lane for lane in range(SIDE))
        lanes = [(I32, str(_signed(part))) for part in (which & WORD, which >> 32)]
        name, flags = "llvm.amdgcn.permlanex16.i32", [("i1", "false")] * 2
        return self.call(I32, name, (I32, word), (I32, word), *lanes, *flags)

    def _permuted(self, word: str, control: int) -> str:
        """DPP in all rows and banks."""
        given = [(I32, "poison"), (I32, word), (I32, str(control)), (I32, "15"), (I32, "15")]
        return self.call(I32, "llvm.amdgcn.update.dpp.i32", *given, ("i1", "true"))

    # -- tiles -----------------------------------------------------------------------------------

    def _tile(self, value: Value) -> TileType:
        assert isinstance(value.type, TileType)
        return self.tile(value.type)

    def _splat(self, kind: str, count: int, value: str) -> str:
        return self.vector(kind, [value] * count)

    def tile_fill(self, node: ir.TileFill) -> str:
        tile = self._tile(node.result)
        count = self.fragments.registers(tile)
        return self._splat(kind_of(tile.dtype), count, self.one(node.args[0]))

    def _places(self, tile: TileType) -> list[Place]:
        """Row and column of each element that the lane holds."""
        lane = self.lane()
        along = self.let(f"and i32 {lane}, {SIDE - 1}")
        group = self.let(f"lshr i32 {lane}, {SIDE.bit_length() - 1}")
        of_group, of_element = self.fragments.step(tile)
        start = self.let(f"mul i32 {group}, {of_group}")
        shared = [
            self.let(f"add i32 {start}, {of_element * e}") for e in range(self.fragments.held)
        ]
        return [(along, s) if tile.role == "a" else (s, along) for s in shared]

    def tile_place(self, node: ir.TilePlace) -> list[str]:
        tile = self.tile(node.tile)
        return [name for place in self._places(tile) for name in place]

    def tile_elements(self, node: ir.TileElements) -> list[str]:
        """Of a doubled operand, the half that is the lane's own."""
        tile = self._tile(node.args[0])
        kind, held = self.type_of(tile), self.fragments.held
        count, vector = self.fragments.registers(tile), self.one(node.args[0])
        every = [self.let(f"extractelement {kind} {vector}, i32 {i}") for i in range(count)]
        if count == held:
            return every
        is_upper, one = self._is_upper(), kind_of(tile.dtype)
        pairs = zip(every[:held], every[held:])
        return [self.let(f"select i1 {is_upper}, {one} {h}, {one} {l}") for l, h in pairs]

    def _is_upper(self) -> str:
        return self.let(f"icmp ne i32 {self.let(f'and i32 {self.lane()}, {SIDE}')}, 0")

    def tile_pack(self, node: ir.TilePack) -> str:
        tile, given = self._tile(node.result), self.all(node.args)
        kind, held = kind_of(tile.dtype), self.fragments.held
        if self.fragments.registers(tile) == held:
            return self.vector(kind, given)
        return self._doubled(kind, given)

    def _doubled(self, kind: str, own: list[str]) -> str:
        """The elements of both lanes of a pair in each of them, the lower lane's first."""
        words = len(own) // 2
        packed = self.let(
            f"bitcast <{len(own)} x {kind}> {self.vector(kind, own)} to <{words} x i32>"
        )
        mine = [self.let(f"extractelement <{words} x i32> {packed}, i32 {i}") for i in range(words)]
        other = [self._shuffled(word, SIDE) for word in mine]
        is_upper = self._is_upper()
        pairs = list(zip(mine, other))
        low = [self.let(f"select i1 {is_upper}, i32 {o}, i32 {m}") for m, o in pairs]
        high = [self.let(f"select i1 {is_upper}, i32 {m}, i32 {o}") for m, o in pairs]
        every = self.vector(I32, [*low, *high])
        return self.let(f"bitcast <{2 * words} x i32> {every} to <{2 * len(own)} x {kind}>")

    # -- tiles in memory -------------------------------------------------------------------------

    def tile_load(self, node: ir.TileLoad) -> str:
        """Along contiguous elements by chunks, else element by element."""
        tile, index = self._tile(node.result), self.narrow(node.args[0])
        is_along = (tile.role == "b") == node.is_transposed and tile.role != "c"
        if is_along:
            return self._chunks(node, tile, index)
        values = [self._element(node, tile, index, place) for place in self._every(tile)]
        return self.vector(kind_of(tile.dtype), values)

    def _every(self, tile: TileType) -> list[Place]:
        """The places of all elements in the lane's registers."""
        if self.fragments.registers(tile) == self.fragments.held:
            return self._places(tile)
        along = self.let(f"and i32 {self.lane()}, {SIDE - 1}")
        return [(along, str(k)) if tile.role == "a" else (str(k), along) for k in range(SIDE)]

    def _chunks(self, node: ir.TileLoad, tile: TileType, index: str) -> str:
        """A lane's elements along the depth, which are contiguous here."""
        kind, count = kind_of(tile.dtype), self.fragments.registers(tile)
        first, size = self._every(tile)[0], min(count, CHUNK)
        along, depth = first if tile.role == "a" else first[::-1]
        start = self.let(f"add i32 {self.let(f'mul i32 {along}, {node.pitch}')}, {index}")
        start = self.let(f"add i32 {start}, {depth}")
        parts: list[str] = []
        for at in range(0, count, size):
            place = self.shared_address(node.memory, self.let(f"add i32 {start}, {at}"))
            read = self.read_vector(f"{LOCAL} {place}", tile.dtype, size, "")
            parts.append(read)
        if len(parts) == 1:
            return parts[0]
        both = ", ".join(f"<{size} x {kind}> {p}" for p in parts)
        order = ", ".join(f"i32 {i}" for i in range(count))
        return self.let(f"shufflevector {both}, <{count} x i32> <{order}>")

    def _offset(self, index: str, place: Place, pitch: int) -> str:
        row = self.let(f"mul i32 {place[0]}, {pitch}")
        return self.let(f"add i32 {index}, {self.let(f'add i32 {row}, {place[1]}')}")

    def _element(self, node: ir.TileLoad, tile: TileType, index: str, place: Place) -> str:
        row, column = place
        place = (column, row) if node.is_transposed else place
        at = self.shared_address(node.memory, self._offset(index, place, node.pitch))
        return self.read_vector(f"{LOCAL} {at}", tile.dtype, 1, "")

    def tile_store(self, node: ir.TileStore) -> None:
        """Each lane its own elements."""
        tile, index = self._tile(node.args[1]), self.narrow(node.args[0])
        held = ir.TileElements(args=(node.args[1],))
        for value, place in zip(self.tile_elements(held), self._places(tile), strict=True):
            at = self.shared_address(node.memory, self._offset(index, place, node.pitch))
            self.write_vector(f"{LOCAL} {at}", tile.dtype, [value], "")

    # -- products --------------------------------------------------------------------------------

    def tile_mul(self, node: ir.TileMul) -> str:
        """mfma or wmma of 16×16×16; bf16 goes by as bits."""
        a, _, c = (self._tile(v) for v in node.args)
        left, right, total = self.all(node.args)
        kind, count = self.type_of(a), self.fragments.registers(a)
        is_f16 = a.dtype is DType.F16
        if not is_f16:
            bits = f"<{count} x i16>"
            left, right = (self.let(f"bitcast {kind} {v} to {bits}") for v in (left, right))
            kind = bits
        assert c.dtype is F32
        given = [(kind, left), (kind, right), (self.type_of(c), total)]
        if self.target.tiles == "mfma":
            name = "16x16x16f16" if is_f16 else "16x16x16bf16.1k"
            flags = [(I32, "0")] * 3
            return self.call(self.type_of(c), f"llvm.amdgcn.mfma.f32.{name}", *given, *flags)
        name = f"{'f16' if is_f16 else 'bf16'}.v{self.fragments.held}f32.v{count}"
        suffix = "f16" if is_f16 else "i16"
        return self.call(self.type_of(c), f"llvm.amdgcn.wmma.f32.16x16x16.{name}{suffix}", *given)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
