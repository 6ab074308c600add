"""Signatures of arithmetic: what the checks of such a node depend on.

Unrolled kernels have thousands of nodes that compute, of a few dozen kinds, attributes and types.
Whether one is well-formed follows from these alone, so that one of each is checked for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from operator import attrgetter

from rlx.program import nodes as ir
from rlx.program.nodes import Node, Region
from rlx.program.walk import walk


def _nothing(node: Node) -> None:
    return None


ATTRIBUTES: Mapping[type[Node], Callable[[Node], object]] = {
    ir.Binary: attrgetter("op"),
    ir.Compare: attrgetter("op"),
    ir.Unary: attrgetter("op"),
    ir.Call: attrgetter("function", "accuracy"),
    ir.Fma: _nothing,
    ir.Select: _nothing,
    ir.Convert: _nothing,
    ir.Bitcast: _nothing,
}
"""All attributes of each kind of node that has a signature."""


@functools.lru_cache(maxsize=4)
def distinct_nodes(region: Region) -> tuple[Node, ...]:
    """The nodes of a program, of those with equal signatures the first; kept for the program that
    is being checked."""
    found: list[Node] = []
    known: set[object] = set()
    for node in walk(region):
        attributes = ATTRIBUTES.get(type(node))
        if attributes is not None:
            types = tuple([v.type for v in (*node.args, *node.results)])
            counts = len(node.args), len(node.regions)
            signature = type(node), attributes(node), types, counts
            if signature in known:
                continue
            known.add(signature)
        found.append(node)
    return tuple(found)
