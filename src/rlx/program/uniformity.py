"""Which values of a program are the same in all threads of a warp, a block, a cluster, the grid.

Threads may wait for each other only where all of them come: a barrier in a branch that some of
them do not take never ends. So the conditions and bounds around it must be the same in all threads
of its scope. The analysis goes through regions in order and repeats loops until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from rlx.program import nodes as ir
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program


class Varies(IntEnum):
    """The smallest group of threads in which a value is the same for all."""

    GRID = 0
    CLUSTER = 1
    BLOCK = 2
    WARP = 3
    THREAD = 4


POSITIONS = {
    "thread": Varies.THREAD,
    "lane": Varies.THREAD,
    "warp": Varies.WARP,
    "block": Varies.BLOCK,
    "blocks": Varies.GRID,
    "rank": Varies.BLOCK,
}
SCOPES = {"warp": Varies.WARP, "block": Varies.BLOCK, "cluster": Varies.CLUSTER}


MAKERS = frozenset((
    ir.Position, ir.Reduce, ir.Scan, ir.ReduceScatter, ir.Shuffle, ir.TilePlace, ir.TileElements,
    ir.TileLoad, ir.TileMul, ir.TileFill, ir.TilePack, ir.WarpgroupMul, ir.SharedLoad,
))  # fmt: skip
"""Nodes whose results do not vary just as their arguments do."""


LOADS = (ir.Load, ir.SharedLoad)


class Uniformity:
    """The analysis of one program: of its values, and of the control flow around its nodes. Where
    memory is not trusted, as compilers do not, what is loaded differs between threads."""

    def __init__(self, program: Program, *, trusts_memory: bool = True) -> None:
        self.program = program
        self._trusts_memory = trusts_memory
        self.values: dict[Value, Varies] = {s.value: Varies.GRID for s in program.scalars}
        self.control: dict[Node, Varies] = {}
        """How far threads agree whether, and how often, they execute a node."""
        self._region(program.body, Varies.GRID)

    def of(self, values: Iterable[Value]) -> Varies:
        most, known = Varies.GRID, self.values
        for value in values:
            level = known.get(value, most)
            if level > most:
                most = level
        return most

    def _region(self, region: Region, control: Varies) -> None:
        values = self.values
        for node in region.nodes:
            self.control[node] = control
            if not node.regions:
                made = self._made(node) if type(node) in MAKERS else self.of(node.args)
                if not self._trusts_memory and isinstance(node, LOADS):
                    made = Varies.THREAD
                for value in node.results:
                    values[value] = made
                continue
            match node:
                case ir.For():
                    self._for(node, control)
                case ir.While():
                    self._while(node, control)
                case ir.If():
                    self._if(node, control)
                case _:
                    raise AssertionError(f"{type(node).__name__} has regions")

    def _made(self, node: Node) -> Varies:
        given = self.of(node.args)
        match node:
            case ir.Position():
                return POSITIONS[node.of]
            case ir.Reduce() | ir.Scan() | ir.ReduceScatter() | ir.Shuffle():
                return self._together(node, given)
            case ir.TilePlace() | ir.TileElements():
                return Varies.THREAD
            case ir.TileLoad() | ir.TileMul() | ir.TileFill() | ir.TilePack() | ir.WarpgroupMul():
                return max(given, Varies.WARP)
            case ir.SharedLoad():
                # blocks have memory of their own
                return max(given, Varies.BLOCK)
            case _:
                return given

    def _together(self, node: Node, given: Varies) -> Varies:
        """A reduction is the same in its whole group, if what it combines was not so before."""
        if not isinstance(node, ir.Reduce):
            return Varies.THREAD
        is_warp = node.scope == "warp" and node.width == self.program.warp
        group = Varies.BLOCK if node.scope == "block" else Varies.WARP
        return min(given, group) if is_warp or node.scope == "block" else given

    def _carried(self, params: Iterable[Value], given: Iterable[Value]) -> None:
        for param, value in zip(params, given):
            self.values[param] = self.of([value])

    def _raise(self, params: Iterable[Value], values: Iterable[Value], least: Varies) -> bool:
        """Params at least as varying as what they become; has one changed?"""
        changed = False
        for param, value in zip(params, values):
            level = max(self.of([value]), least, self.values[param])
            changed |= level != self.values[param]
            self.values[param] = level
        return changed

    def _for(self, node: ir.For, control: Varies) -> None:
        (body,) = node.regions
        bounds = self.of(node.args[:3])
        index, *params = body.params
        self.values[index] = bounds
        self._carried(params, node.args[3:])
        inside = max(control, bounds)
        self._region(body, inside)
        while self._raise(params, body.yields, Varies.GRID):
            self._region(body, inside)
        # threads that leave the loop at different steps keep different values
        for result, param, value in zip(node.results, params, body.yields):
            self.values[result] = max(self.of([param, value]), bounds)

    def _while(self, node: ir.While, control: Varies) -> None:
        test, body = node.regions
        self._carried(test.params, node.args)
        self._carried(body.params, test.params)
        inside = control
        while True:
            self._region(test, inside)
            level = max(control, self.of(test.yields))
            self._carried(body.params, test.params)
            self._region(body, level)
            if not self._raise(test.params, body.yields, Varies.GRID) and level == inside:
                break
            inside = level
        for result, param in zip(node.results, test.params):
            self.values[result] = max(self.of([param]), self.of(test.yields))

    def _if(self, node: ir.If, control: Varies) -> None:
        condition = self.of(node.args)
        for region in node.regions:
            self._region(region, max(control, condition))
        for i, result in enumerate(node.results):
            sides = self.of([r.yields[i] for r in node.regions])
            self.values[result] = max(sides, condition)
