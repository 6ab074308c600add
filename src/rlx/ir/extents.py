"""The sizes that a graph measures: how they are named, and which nodes know them.

A measured size is known once the node that measures it has run. So whoever uses it must read,
directly or through others, what that node made: order follows from edges alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx import attrs as attributes
from rlx.dim import Dim, Symbol
from rlx.dtype import DType
from rlx.errors import GraphError
from rlx.extent import measured_in

if TYPE_CHECKING:
    from rlx.ir.mir import Node
    from rlx.op import Op


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a node and all it reads have to do with measured sizes."""

    measured: frozenset[str] = frozenset()
    """Those that it or something it reads measures."""
    free: frozenset[str] = frozenset()
    """Those that it or something it reads uses, and that nothing read there measures."""


NONE = Sizes()
_PLAIN = frozenset({int, float, str, bool, type(None), DType, attributes.Data})


def sizes_of(node: Node, given: Mapping[str, Dim]) -> Sizes:
    """The sizes of a new node in a graph whose inputs have the dims `given`."""
    used = frozenset(s.name for s in symbols_used(node))
    known = dict.fromkeys(i.sizes for i in node.inputs if i.sizes is not NONE)
    if not used and len(known) <= 1:
        return next(iter(known), NONE)
    own = frozenset((node.attrs["extent"],) if node.decl.measures else ())
    measured = own.union(*(s.measured for s in known))
    new = {name for name in used if name not in measured and name not in given}
    free = frozenset(new).union(*(s.free for s in known))
    return Sizes(measured, free) if measured or free else NONE


def _is_plain(node: Node) -> bool:
    """Can it be told at a glance that no size is involved? So it is of most nodes."""
    return all(type(d) is int for s in node.shapes for d in s.dims) and all(
        type(v) in _PLAIN or (type(v) is tuple and all(type(e) is int for e in v))
        for v in node.attrs.values()
    )


def symbols_used(node: Node) -> Iterator[Symbol]:
    """The measured sizes in a node's shapes and attributes, and those its bodies do not know."""
    values = () if _is_plain(node) else (*node.shapes, *node.attrs.values())
    for value in values:
        yield from measured_in(attributes.dims_in(value))
        if hasattr(value, "seal"):
            yield from free_symbols(value)


def free_symbols(body: Any) -> Iterator[Symbol]:
    """The measured sizes that a body uses and does not know by itself."""
    free = frozenset[str]().union(*(o.sizes.free for o in body.outputs))
    if free:
        found = {s.name: s for n in body.order() for s in symbols_used(n) if s.name in free}
        yield from (found[name] for name in sorted(found))


class Extents:
    """The names of the sizes that one graph measures; its inputs' dims have other names."""

    def __init__(self, given: Mapping[str, Dim]) -> None:
        self._given = given
        self._names: dict[tuple[object, ...], str] = {}
        self._taken: set[str] = set()
        self._tried: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def add(self, decl: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> None:
        """Remember what an application of `decl` calls the size it measures."""
        name = attrs["extent"]
        if name in self._given:
            raise GraphError(f"extent {name!r} is the name of an input's dim. Choose another")
        self._taken.add(name)
        self._names.setdefault(_key(decl, inputs, attrs), name)

    def named(
        self, decl: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """`attrs`, with a name for what `decl` measures where they give none: that of an equal
        application, or a new one. Attributes that are wrong come back as they are."""
        if not decl.measures or attrs.get("extent"):
            return attrs
        try:
            canonical = decl.canonical(attrs, decl.operand_shapes(inputs))
        except GraphError:
            return attrs
        known = self._names.get(_key(decl, inputs, canonical))
        return {**attrs, "extent": known or self._fresh(decl.name)}

    def _fresh(self, op: str) -> str:
        number = self._tried.get(op, 0)
        while (name := f"{op}_{number}") in self._taken or name in self._given:
            number += 1
        self._tried[op] = number
        return name


def _key(decl: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[object, ...]:
    rest = (attributes.key(value) for name, value in attrs.items() if name != "extent")
    return (decl.name, *map(id, inputs), *rest)
