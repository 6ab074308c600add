"""Verifier of SIMT programs: what can be seen without running them.

Values are made before they are used, types fit, names are those of the program's arguments and
memory, and buffers are accessed as they were declared. Threads wait for each other only in control
flow that they share. Shared memory fits the block, and no access is outside of it for sure. What
is copied asynchronously is waited for. What only data decides, the interpreter finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlx.core.dim import is_static
from rlx.program import nodes as ir
from rlx.program.check.form import form_faults
from rlx.program.check.memory import memory_faults
from rlx.program.check.phases import phase_faults
from rlx.program.check.types import structure_faults, type_faults
from rlx.program.errors import ProgramError, located
from rlx.program.nodes import Node
from rlx.program.program import Program
from rlx.program.uniformity import SCOPES, Uniformity, Varies

Fault = tuple[Node | None, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a target has; these are Hopper's."""

    threads: int = 1024
    shared_bytes: int = 232_448
    cluster: int = 16


def verify(program: Program, limits: Limits | None = None) -> Program:
    """The program, if there is nothing wrong with it."""
    return without_faults(program, faults(program, limits or Limits()))


def without_faults(program: Program, found: Iterable[Fault]) -> Program:
    """The program, if there are none; else the first is an error that shows where it is."""
    for fault in found:
        raise ProgramError(located(program, *fault))
    return program


def faults(program: Program, limits: Limits) -> Iterator[Fault]:
    """Everything that is wrong; later checks count on what earlier ones found right."""
    checks = (form_faults, structure_faults, type_faults, lambda p: _sizes(p, limits))
    for check in checks:
        found = list(check(program))
        yield from found
        if found:
            return
    yield from memory_faults(program)
    yield from _divergence(program)
    yield from phase_faults(program)


def _sizes(program: Program, limits: Limits) -> Iterator[Fault]:
    if not 1 <= program.block <= limits.threads:
        yield None, f"a block has {program.block} threads; give it 1 to {limits.threads}."
    if not 1 <= program.cluster <= limits.cluster:
        yield None, f"a cluster has {program.cluster} blocks; give it 1 to {limits.cluster}."
    x = program.grid[0]
    if is_static(x) and program.cluster > 0 and x % program.cluster:
        yield None, f"{x} blocks are no clusters of {program.cluster}; round the grid up."
    if program.shared_bytes > limits.shared_bytes:
        has, needs = limits.shared_bytes, program.shared_bytes
        yield None, f"shared memory of {needs} bytes, and a block has {has}; use smaller tiles."
    used = next((n for n in program.nodes if type(n) in GROUP_NODES and _needs_warps(n)), None)
    if used is not None and (program.warp < 2 or program.block % program.warp):
        yield (
            used,
            (
                f"it needs whole warps, and a block has {program.block} threads in warps of "
                f"{program.warp}; make the block a multiple."
            ),
        )


def _needs_warps(node: Node) -> bool:
    is_warp = isinstance(node, ir.Reduce | ir.Scan | ir.Barrier) and node.scope == "warp"
    return is_warp or isinstance(node, WARP_NODES)


WARP_NODES = (
    ir.ReduceScatter, ir.Shuffle, ir.TileLoad, ir.TileMul, ir.WarpgroupMul, ir.TileStore,
    ir.WarpgroupWait, ir.RegisterLimit, ir.TilePack, ir.TileElements, ir.TilePlace,
)  # fmt: skip
GROUP_NODES = frozenset((ir.Barrier, ir.Reduce, ir.Scan, *WARP_NODES))
ALONE = (ir.TileElements, ir.TilePlace)
"""Of those, what a thread does by itself."""


def _divergence(program: Program) -> Iterator[Fault]:
    found = Uniformity(program)
    for node in program.nodes:
        needed = _scope_of(node) if type(node) in GROUP_NODES else None
        if needed is not None and found.control[node] > needed:
            group = needed.name.lower()
            yield (
                node,
                (
                    f"threads of a {group} must all come here, and the control flow around it "
                    f"differs between {_who(found.control[node])}; move it out of the branch or "
                    f"loop, or make the condition the same for the {group}."
                ),
            )


def _scope_of(node: Node) -> Varies | None:
    if isinstance(node, ir.Barrier | ir.Reduce | ir.Scan):
        return SCOPES[node.scope]
    return Varies.WARP if isinstance(node, WARP_NODES) and not isinstance(node, ALONE) else None


def _who(level: Varies) -> str:
    names = {Varies.THREAD: "threads", Varies.WARP: "warps", Varies.BLOCK: "blocks"}
    return names.get(level, "clusters")
