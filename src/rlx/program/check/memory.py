"""Names, access rights and bounds of memory in SIMT programs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from rlx.program import nodes as ir
from rlx.program.nodes import Node, Region, Value, attr_names
from rlx.program.program import Program
from rlx.program.types import TileType

Fault = tuple[Node | None, str]
Range = tuple[int, int]
"""The least and the greatest value."""


def memory_faults(program: Program) -> Iterator[Fault]:
    """Accesses to what is not there, or not to be accessed so, or outside of it for sure."""
    yield from _duplicates(program)
    yield from _unfenced(program)
    ranges, names = Ranges(program).found, _names(program)
    for node in program.nodes:
        if not _naming(type(node)) and type(node) is not ir.WarpgroupMul:
            continue  # it has no memory
        why = _unknown(names, node) or _rights(program, node) or _bounds(program, node, ranges)
        if why:
            yield node, why


def _duplicates(program: Program) -> Iterator[Fault]:
    groups = (
        program.buffers,
        program.scalars,
        program.maps,
        program.shared,
        program.mbarriers,
        program.tables,
    )
    names = [item.name for group in groups for item in group]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield None, f"two arguments or arrays are called {name}; give each a name of its own."


def _unfenced(program: Program) -> Iterator[Fault]:
    """Products out of shared memory see what the copy engine wrote; what threads store there, they
    see only behind a fence between the two. Which words a fence is for, the interpreter checks."""
    products = [n for n in program.nodes if isinstance(n, ir.WarpgroupMul)]
    if not products or any(isinstance(n, ir.ProxyFence) for n in program.nodes):
        return
    operands = {name for n in products for name in (n.left, n.right) if name}
    writers = (ir.SharedStore, ir.TileStore, ir.AsyncCopy, ir.Push)
    for node in program.nodes:
        if isinstance(node, writers) and node.memory in operands:
            yield node, f"{node.memory} is an operand of products; add a proxy fence behind this."


def _names(program: Program) -> dict[str, set[str]]:
    """What nodes may name, by the attribute that does."""
    return {
        "buffer": {b.name for b in program.buffers},
        "memory": {s.name for s in program.shared},
        "mbarrier": {m.name for m in program.mbarriers},
        "map": {m.name for m in program.maps},
        "table": {t.name for t in program.tables},
    }


def _unknown(known: Mapping[str, set[str]], node: Node) -> str | None:
    if isinstance(node, ir.WarpgroupMul):
        missing = {node.left, node.right} - known["memory"] - {""}
        return f"the program has no memory {missing.pop()}; declare it." if missing else None
    for attr in _naming(type(node)):
        name = getattr(node, attr)
        if name is not None and name not in known[attr]:
            return f"the program has no {attr} {name}; declare it with the builder."
    return None


NAMING = ("buffer", "memory", "mbarrier", "map", "table")


@functools.cache
def _naming(kind: type[Node]) -> tuple[str, ...]:
    """The attributes of a node that name what a program declares."""
    return tuple(n for n in attr_names(kind) if n in NAMING)


def _rights(program: Program, node: Node) -> str | None:
    if not isinstance(node, ir.Load | ir.Store | ir.Atomic | ir.AsyncCopy):
        return None
    buffer = program.buffer(node.buffer)
    reads = isinstance(node, ir.Load | ir.AsyncCopy)
    if reads and buffer.access == "write":
        return f"buffer {buffer.name} is only written; declare it as update to read it, too."
    if not reads and not buffer.is_written:
        return f"buffer {buffer.name} is only read; declare it as write or update."
    if isinstance(node, ir.Atomic) and buffer.access != "update":
        return f"an atomic reads buffer {buffer.name}, too; declare it as update."
    return None


def _bounds(program: Program, node: Node, ranges: Mapping[Value, Range]) -> str | None:
    """Shared memory: is every thread that comes here outside of it?"""
    name = getattr(node, "memory", None)
    if name is None:
        return None
    count = program.memory(str(name)).count
    index = node.args[1] if isinstance(node, ir.Push) else node.args[0]
    low, high = ranges.get(index, (0, 0))
    width = _width(node)
    if high < 0 or low + width > count:
        return f"its index is {low} to {high}, and {name} has {count} elements; fix the index."
    if isinstance(node, ir.TileLoad | ir.TileStore) and _reach(node) > count:
        return f"its tile reaches {_reach(node)} elements, and {name} has {count}; fix the pitch."
    return None


def _width(node: Node) -> int:
    match node:
        case ir.SharedLoad():
            return len(node.results)
        case ir.SharedStore():
            return len(node.args) - 1 - node.has_mask
        case ir.AsyncCopy():
            return node.width
        case ir.Push():
            return len(node.args) - 3
        case _:
            return 1


def _reach(node: ir.TileLoad | ir.TileStore) -> int:
    tile = node.result.type if isinstance(node, ir.TileLoad) else node.args[1].type
    assert isinstance(tile, TileType)
    rows, columns = tile.rows, tile.columns
    if isinstance(node, ir.TileLoad) and node.is_transposed:
        rows, columns = columns, rows
    return (rows - 1) * node.pitch + columns


RANGED = frozenset((ir.Const, ir.Position, ir.Binary))
"""Nodes whose ranges are known."""


class Ranges:
    """Intervals of integers that follow from constants, positions and loop bounds."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: dict[Value, Range] = {}
        self._region(program.body)

    def _region(self, region: Region) -> None:
        for node in region.nodes:
            if node.regions:
                if isinstance(node, ir.For):
                    self._index(node)
                for inner in node.regions:
                    self._region(inner)
            elif type(node) in RANGED and (made := self._of(node)) is not None:
                self.found[node.results[0]] = made

    def _index(self, node: ir.For) -> None:
        low, high = (self.found.get(a) for a in node.args[:2])
        if low is not None and high is not None:
            self.found[node.regions[0].params[0]] = low[0], max(low[0], high[1] - 1)

    def _of(self, node: Node) -> Range | None:
        match node:
            case ir.Const(value=int() as number):
                return number, number
            case ir.Position(of=of):
                warps = max(1, self.program.block // max(1, self.program.warp))
                counts = {"thread": self.program.block, "lane": self.program.warp,
                          "warp": warps, "rank": self.program.cluster}  # fmt: skip
                return (0, counts[of] - 1) if of in counts else None
            case ir.Binary():
                return self._binary(node)
            case _:
                return None

    def _binary(self, node: ir.Binary) -> Range | None:
        left, right = node.args
        a, b = self.found.get(left), self.found.get(right)
        if a is None or b is None:
            return None
        match node.op:
            case "add":
                return a[0] + b[0], a[1] + b[1]
            case "sub":
                return a[0] - b[1], a[1] - b[0]
            case "mul":
                ends = [x * y for x in a for y in b]
                return min(ends), max(ends)
            case "div" if a[0] >= 0 and b[0] == b[1] > 0:
                return a[0] // b[0], a[1] // b[0]
            case "rem" if a[0] >= 0 and b[0] == b[1] > 0:
                return (a[0], a[1]) if a[1] < b[0] else (0, b[0] - 1)
            case _:
                return None
