"""What a program asks of a machine: threads, shared memory, and nodes that not every GPU has."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Node
from rlx.program.program import Program
from rlx.program.verify import Fault, verify, without_faults

TILES = (
    ir.TileFill, ir.TileLoad, ir.TileMul, ir.TileStore, ir.TileElements, ir.TilePack, ir.TilePlace,
)  # fmt: skip
WARPGROUPS = (ir.WarpgroupMul, ir.WarpgroupWait, ir.RegisterLimit, ir.ProxyFence)
COPIES = (ir.AsyncCopy, ir.AsyncCommit, ir.AsyncWait)
BULK_COPIES = (ir.BulkCopy, ir.MbarrierInit, ir.MbarrierArrive, ir.MbarrierWait)
DEPENDENT = (ir.ReleaseDependents, ir.WaitDependencies)


def verify_on(program: Program, machine: GpuMachine) -> Program:
    """The program, if there is nothing wrong with it, nor anything that the machine does not
    have."""
    return without_faults(verify(program), capability_faults(program, machine))


def capability_faults(program: Program, machine: GpuMachine) -> Iterator[Fault]:
    """Everything that the machine does not have."""
    if program.block > machine.max_block:
        yield None, f"{program.block} threads, and a block has at most {machine.max_block}."
    if program.shared_bytes > machine.shared_bytes:
        has, needs = machine.shared_bytes, program.shared_bytes
        yield None, f"{needs} bytes of shared memory, and a block has {has}."
    if program.cluster > 1 and not machine.has_clusters:
        yield None, "a cluster, and the machine has none."
    if not machine.has_f64 and any(b.dtype is DType.F64 for b in program.buffers):
        yield None, "a buffer of f64, and the machine has none."
    for node in program.nodes:
        why = _missing(node, machine)
        if why is not None:
            yield node, f"the machine has no {why}."


def _missing(node: Node, machine: GpuMachine) -> str | None:
    wanting = (
        (TILES, bool(machine.tiles), "matrix tiles"),
        (WARPGROUPS, "wgmma" in machine.tiles, "products of four warps"),
        (COPIES, machine.has_async_copy, "asynchronous copies"),
        (BULK_COPIES, machine.has_bulk_copy, "copy engine"),
        ((ir.Push,), machine.has_clusters, "clusters"),
        (DEPENDENT, machine.has_dependent_launch, "dependent launches"),
    )
    for kinds, is_there, what in wanting:
        if isinstance(node, kinds) and not is_there:
            return what
    if not machine.has_f64 and any(v.dtype is DType.F64 for v in node.results):
        return "f64"
    if machine.warp == 1 and _is_of_warp(node):
        return "warps"
    if machine.index_bits == 32 and _is_wide_index(node):
        return "index of 64 bits"
    return None


def _is_of_warp(node: Node) -> bool:
    if isinstance(node, ir.Position):
        return node.of in ("lane", "warp")
    if isinstance(node, ir.Reduce | ir.Scan | ir.Barrier):
        return node.scope == "warp"
    return isinstance(node, ir.ReduceScatter | ir.Shuffle)


INDEXED = (ir.Load, ir.Store, ir.Atomic, ir.SharedLoad, ir.SharedStore, ir.TableLoad)


def _is_wide_index(node: Node) -> bool:
    return isinstance(node, INDEXED) and node.args[0].type not in (DType.I32, DType.U32)
