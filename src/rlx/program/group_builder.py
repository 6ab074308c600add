"""What threads do together, as a builder makes it: barriers, reductions, tiles, async copies."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.program import nodes as ir
from rlx.program.nodes import Number, Value
from rlx.program.thread_builder import I32, ThreadBuilder, values_of
from rlx.program.types import TileType, Type
from rlx.program.values import BufferRef, SharedRef, Var


class GroupBuilder(ThreadBuilder):
    """Nodes of threads of a warp, block or cluster together."""

    # -- threads together ------------------------------------------------------------------------

    def barrier(self, scope: ir.Scope = "block") -> None:
        """A thread that is a warp of its own waits for nobody."""
        if scope != "warp" or self.made.warp > 1:
            self.add(ir.Barrier(scope=scope))

    def block_reduce(self, op: ir.ReduceOp, x: Var) -> Var:
        return self.value(ir.Reduce(op=op, scope="block", args=(x.value,), results=_like(x)))

    def warp_reduce(self, op: ir.ReduceOp, x: Var, width: int = 0) -> Var:
        size = width or self.made.warp
        if size == 1:
            return x
        made = ir.Reduce(op=op, scope="warp", width=size, args=(x.value,), results=_like(x))
        return self.value(made)

    def reduce_scatter(self, op: ir.ReduceOp, values: Sequence[Var], width: int = 0) -> Var:
        size = width or self.made.warp
        made = ir.ReduceScatter(op=op, width=size, args=values_of(values), results=_like(values[0]))
        return self.value(made)

    def block_scan(self, op: ir.ReduceOp, x: Var, *, is_inclusive: bool = True) -> Var:
        made = ir.Scan(
            op=op, scope="block", is_inclusive=is_inclusive, args=(x.value,), results=_like(x)
        )
        return self.value(made)

    def shuffle(self, x: Var, mask: int) -> Var:
        return self.value(ir.Shuffle(mask=mask, args=(x.value,), results=_like(x)))

    # -- tiles -----------------------------------------------------------------------------------

    def tile_fill(self, tile: TileType, number: Number = 0.0) -> Var:
        given = self.const(number, tile.dtype)
        return self.value(ir.TileFill(args=(given.value,), results=(Value(tile),)))

    def tile_load(
        self,
        tile: TileType,
        memory: SharedRef,
        index: Var | int,
        pitch: int,
        *,
        is_transposed: bool = False,
    ) -> Var:
        node = ir.TileLoad(
            memory=memory.name,
            pitch=pitch,
            is_transposed=is_transposed,
            args=(self.index(index).value,),
            results=(Value(tile),),
        )
        return self.value(node)

    def tile_mul(self, a: Var, b: Var, c: Var) -> Var:
        return self.value(ir.TileMul(args=values_of((a, b, c)), results=(Value(c.value.type),)))

    def warpgroup_mul(
        self,
        c: Var,
        left: SharedRef,
        left_index: Var | int,
        right: SharedRef,
        right_index: Var | int,
        depth: int,
        *,
        panels: tuple[int, int] = (0, 0),
        is_async: bool = False,
    ) -> Var:
        args = (c.value, self.index(left_index).value, self.index(right_index).value)
        node = ir.WarpgroupMul(
            left=left.name,
            right=right.name,
            depth=depth,
            left_panel=panels[0],
            right_panel=panels[1],
            is_async=is_async,
            args=args,
            results=(Value(c.value.type),),
        )
        return self.value(node)

    def warpgroup_mul_tiles(
        self,
        c: Var,
        left: Sequence[Var],
        right: SharedRef,
        right_index: Var | int,
        *,
        panel: int = 0,
        is_async: bool = False,
    ) -> Var:
        """The left operand in registers, sixteen inner positions a tile."""
        node = ir.WarpgroupMul(
            left="",
            right=right.name,
            depth=16 * len(left),
            right_panel=panel,
            is_async=is_async,
            args=(c.value, *values_of(left), self.index(right_index).value),
            results=(Value(c.value.type),),
        )
        return self.value(node)

    def warpgroup_wait(self, pending: int = 0) -> None:
        self.add(ir.WarpgroupWait(pending=pending))

    def proxy_fence(self) -> None:
        self.add(ir.ProxyFence())

    def register_limit(self, count: int, *, is_more: bool) -> None:
        self.add(ir.RegisterLimit(count=count, is_more=is_more))

    def tile_store(self, tile: Var, memory: SharedRef, index: Var | int, pitch: int) -> None:
        args = (self.index(index).value, tile.value)
        self.add(ir.TileStore(memory=memory.name, pitch=pitch, args=args))

    def tile_elements(self, tile: Var) -> list[Var]:
        results = tuple(Value(tile.dtype) for _ in range(self._held(tile.value.type)))
        return self.values(ir.TileElements(args=(tile.value,), results=results))

    def tile_pack(self, tile: TileType, elements: Sequence[Var]) -> Var:
        return self.value(ir.TilePack(args=values_of(elements), results=(Value(tile),)))

    def tile_place(self, tile: TileType) -> list[tuple[Var, Var]]:
        """Row and column of each element that this thread holds."""
        results = tuple(Value(I32) for _ in range(2 * self._held(tile)))
        made = self.values(ir.TilePlace(tile=tile, results=results))
        return list(zip(made[::2], made[1::2]))

    def _held(self, tile: Type) -> int:
        assert isinstance(tile, TileType)
        return tile.rows * tile.columns // self.made.warp

    # -- asynchronous copies ---------------------------------------------------------------------

    def async_copy(
        self,
        memory: SharedRef,
        at: Var | int,
        buffer: BufferRef,
        index: Var | int,
        width: int,
        mask: Var | None = None,
    ) -> None:
        args = [self.index(at), self.index(index), *([] if mask is None else [mask])]
        node = ir.AsyncCopy(
            memory=memory.name, buffer=buffer.name, width=width, args=values_of(args)
        )
        self.add(node)

    def async_commit(self) -> None:
        self.add(ir.AsyncCommit())

    def async_wait(self, pending: int = 0) -> None:
        self.add(ir.AsyncWait(pending=pending))

    def mbarrier_init(self, mbarrier: str, arrivals: int, which: Var | int = 0) -> None:
        args = (self.index(which).value,)
        self.add(ir.MbarrierInit(mbarrier=mbarrier, arrivals=arrivals, args=args))

    def mbarrier_arrive(
        self,
        mbarrier: str,
        which: Var | int = 0,
        expected_bytes: int = 0,
        rank: Var | int | None = None,
    ) -> None:
        args = [self.index(which), *([] if rank is None else [self.index(rank)])]
        node = ir.MbarrierArrive(
            mbarrier=mbarrier,
            expected_bytes=expected_bytes,
            is_remote=rank is not None,
            args=values_of(args),
        )
        self.add(node)

    def mbarrier_wait(self, mbarrier: str, parity: Var | int, which: Var | int = 0) -> None:
        args = (self.index(which).value, self.index(parity).value)
        self.add(ir.MbarrierWait(mbarrier=mbarrier, args=args))

    def bulk_copy(
        self,
        memory: SharedRef,
        at: Var | int,
        tensor_map: str,
        row: Var | int,
        column: Var | int,
        mbarrier: str,
        which: Var | int = 0,
        outer: Sequence[Var | int] = (),
        tap: Sequence[Var | int] = (),
    ) -> None:
        args = tuple(self.index(v).value for v in (at, row, column, which, *outer, *tap))
        node = ir.BulkCopy(memory=memory.name, map=tensor_map, mbarrier=mbarrier, args=args)
        self.add(node)

    def push(
        self,
        memory: SharedRef,
        index: Var | int,
        values: Sequence[Var | Number],
        rank: Var | int,
        mbarrier: str,
        which: Var | int = 0,
    ) -> None:
        where = [self.index(v) for v in (rank, index, which)]
        given = [v if isinstance(v, Var) else self.const(v, memory.dtype) for v in values]
        self.add(ir.Push(memory=memory.name, mbarrier=mbarrier, args=values_of([*where, *given])))

    def release_dependents(self) -> None:
        self.add(ir.ReleaseDependents())

    def wait_dependencies(self) -> None:
        self.add(ir.WaitDependencies())


def _like(x: Var) -> tuple[Value, ...]:
    return (Value(x.value.type),)
