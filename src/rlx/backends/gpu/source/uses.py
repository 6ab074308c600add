"""Which values of a program are written where they are used, instead of under a name.

A result that is used once, by a node of the same region, is an expression inside of that one; one
that is used nowhere is not written. What is used twice, or in an inner region, which may be a loop,
has a name. What must stay in order, as loads do, is given a name by whoever writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program


def inlined(program: Program) -> frozenset[Value]:
    """The values that are written where they are used, or nowhere."""
    uses: Counter[Value] = Counter()
    local: set[Value] = set()
    made: set[Value] = set()
    for region in _regions(program.body):
        here = {r for n in region.nodes for r in n.results}
        made |= here
        for value in _used(region):
            uses[value] += 1
            if value in here:
                local.add(value)
    return frozenset(v for v in made if not uses[v] or (uses[v] == 1 and v in local))


def _used(region: Region) -> Iterator[Value]:
    for node in region.nodes:
        yield from node.args
    yield from region.yields


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for node in region.nodes:
        for inner in node.regions:
            yield from _regions(inner)


def makers(program: Program) -> dict[Value, Node]:
    """The node of each value that one makes."""
    return {r: node for node in program.nodes for r in node.results}
