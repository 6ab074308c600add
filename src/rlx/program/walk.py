"""All nodes of a region, for checks and printers."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from rlx.program.nodes import Node, Region


def walk(region: Region) -> Iterator[Node]:
    """Every node, those of regions behind the node that holds them."""
    return iter(_nodes_within(region))


@functools.lru_cache(maxsize=16)
def _nodes_within(region: Region) -> tuple[Node, ...]:
    """Kept for the program that is being checked and printed: each check goes over all nodes."""
    found: list[Node] = []
    _collect(region, found)
    return tuple(found)


def _collect(region: Region, found: list[Node]) -> None:
    for node in region.nodes:
        found.append(node)
        for inner in node.regions:
            _collect(inner, found)
