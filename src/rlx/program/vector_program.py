"""A function for a vector unit as a program: one task's part of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlx.core.dtype import DType
from rlx.program.nodes import Node, Number, Region, Value
from rlx.program.vector_nodes import is_typed

Table = tuple[DType, tuple[Number, ...]]


@dataclass(frozen=True, slots=True)
class PureFunction:
    """A pure function that others of its module call."""

    region: Region
    constants: Mapping[Value, Number]
    tables: Mapping[str, Value]
    """Its own values for the addresses of tables."""


@dataclass(frozen=True, slots=True)
class VectorProgram:
    """The entry block makes local variables and reads arguments; the body does the work."""

    name: str
    lanes: int
    entry: tuple[Node, ...]
    body: tuple[Node, ...]
    constants: Mapping[Value, Number]
    arguments: Mapping[str, Value]
    """What the caller gives, and what the entry block or the module names."""
    tables: Mapping[str, Table]
    outlines: Mapping[str, PureFunction]

    @property
    def nodes(self) -> Iterator[Node]:
        yield from self.entry
        yield from self.body

    @property
    def is_typed(self) -> bool:
        """Is there no line that an emitter wrote in its target's language?"""
        regions = (*self.entry, *self.body), *(o.region.nodes for o in self.outlines.values())
        return all(is_typed(node) for nodes in regions for node in nodes)
