"""The form of nodes: how many arguments, results and regions, and which attributes.

A program may come from a file, so this is checked before anything counts on it.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any

from rlx.program import nodes as ir
from rlx.program.check.signatures import distinct_nodes
from rlx.program.nodes import Node, attr_names
from rlx.program.program import Program
from rlx.program.types import TileType

Fault = tuple[Node | None, str]
MANY = 1 << 20
Count = tuple[int, int]
"""The least and the most."""
NONE, ONE, SOME = (0, 0), (1, 1), (1, MANY)

FORMS: dict[type[Node], tuple[Count, Count]] = {
    ir.Const: (NONE, ONE), ir.Position: (NONE, ONE), ir.Binary: ((2, 2), ONE),
    ir.Compare: ((2, 2), ONE), ir.Unary: (ONE, ONE), ir.Call: ((1, 2), ONE),
    ir.Fma: ((3, 3), ONE), ir.Select: ((3, 3), ONE), ir.Convert: (ONE, ONE),
    ir.Bitcast: (ONE, ONE), ir.Load: ((1, 2), SOME), ir.Store: ((2, MANY), NONE),
    ir.Atomic: ((2, 3), NONE), ir.SharedLoad: ((1, 3), SOME), ir.SharedStore: ((2, MANY), NONE),
    ir.TableLoad: (ONE, ONE), ir.For: ((3, MANY), (0, MANY)), ir.If: (ONE, (0, MANY)),
    ir.While: (SOME, SOME), ir.Barrier: (NONE, NONE), ir.Reduce: (ONE, ONE),
    ir.ReduceScatter: (SOME, ONE), ir.Scan: (ONE, ONE), ir.Shuffle: (ONE, ONE),
    ir.TileFill: (ONE, ONE), ir.TileLoad: (ONE, ONE), ir.TileMul: ((3, 3), ONE),
    ir.WarpgroupMul: ((3, MANY), ONE), ir.WarpgroupWait: (NONE, NONE),
    ir.RegisterLimit: (NONE, NONE), ir.ProxyFence: (NONE, NONE), ir.TileStore: ((2, 2), NONE),
    ir.TileElements: (ONE, SOME), ir.TilePack: (SOME, ONE),
    ir.TilePlace: (NONE, SOME), ir.AsyncCopy: ((2, 3), NONE), ir.AsyncCommit: (NONE, NONE),
    ir.AsyncWait: (NONE, NONE), ir.MbarrierInit: (ONE, NONE), ir.MbarrierArrive: ((1, 2), NONE),
    ir.MbarrierWait: ((2, 2), NONE), ir.BulkCopy: ((4, 10), NONE), ir.Push: ((4, MANY), NONE),
    ir.ReleaseDependents: (NONE, NONE), ir.WaitDependencies: (NONE, NONE),
}  # fmt: skip
"""Arguments and results of each kind of node."""
REGIONS: dict[type[Node], int] = {ir.For: 1, ir.If: 2, ir.While: 2}


def form_faults(program: Program) -> Iterator[Fault]:
    for node in distinct_nodes(program.body):
        why = _counts(node) or _attributes(node)
        if why is None and type(node) in FLAGGED:
            why = _flags(node)
        if why:
            yield node, why


def _counts(node: Node) -> str | None:
    args, results = FORMS[type(node)]
    if not args[0] <= len(node.args) <= args[1]:
        return _miscounted("arguments", len(node.args), args)
    if not results[0] <= len(node.results) <= results[1]:
        return _miscounted("results", len(node.results), results)
    if len(node.regions) != REGIONS.get(type(node), 0):
        return f"it has {len(node.regions)} regions; give it {REGIONS.get(type(node), 0)}."
    return None


def _miscounted(what: str, found: int, allowed: Count) -> str:
    least, most = allowed
    return f"it has {found} {what}; give it {least if least == most else f'{least} or more'}."


@functools.cache
def _hints(kind: type[Node]) -> tuple[tuple[str, Any, tuple[object, ...] | None], ...]:
    """Of each attribute: its type, and the words that it may be, if it is one of some."""
    hints = typing.get_type_hints(kind)
    return tuple((n, hints[n], _words(hints[n])) for n in attr_names(kind))


def _words(hint: Any) -> tuple[object, ...] | None:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else None


def _attributes(node: Node) -> str | None:
    """Each is one of the words, or of the type, that its class declares."""
    for name, hint, words in _hints(type(node)):
        value = getattr(node, name)
        if words is not None:
            if value not in words:
                return f"its {name} is {value!r}; use one of: {', '.join(map(repr, words))}."
        elif not _is_of(value, hint):
            return f"its {name} is {value!r}, which is none of its type."
    return None


def _is_of(value: object, hint: Any) -> bool:
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, TileType):
        return isinstance(value, hint)
    return isinstance(value, bool | int | float)


FLAGGED = frozenset((
    ir.Store, ir.SharedStore, ir.SharedLoad, ir.MbarrierArrive, ir.Position, ir.TileLoad,
    ir.TileStore, ir.AsyncWait, ir.MbarrierInit,
))  # fmt: skip
"""Kinds whose attributes say how many arguments they have, or have a range."""


def _flags(node: Node) -> str | None:
    """Are there as many arguments as masks and ranks ask for?"""
    match node:
        case ir.Store() | ir.SharedStore() if len(node.args) < 2 + node.has_mask:
            return "it stores no value; give it an index, its mask and the values."
        case ir.SharedLoad() if len(node.args) != 1 + node.has_mask + node.is_remote:
            return "its arguments are the index, its mask and its rank, as far as it has them."
        case ir.MbarrierArrive() if len(node.args) != 1 + node.is_remote:
            return "its arguments are which barrier, and the rank if it is remote."
        case ir.Position() if node.dim not in (0, 1, 2):
            return f"a grid has no dimension {node.dim}."
        case ir.TileLoad() | ir.TileStore() if node.pitch < 1:
            return f"its pitch is {node.pitch}; give it the elements of a row."
        case ir.AsyncWait() if node.pending < 0:
            return f"{node.pending} groups cannot be pending."
        case ir.MbarrierInit() if node.arrivals < 1:
            return f"a phase of {node.arrivals} arrivals never completes; use 1 or more."
        case _:
            return None
