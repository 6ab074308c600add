"""Data-dependent sizes of a graph: their names, and the nodes that await them.

A measured size is known once the node that measures it has run. Whoever uses it comes after that
node, whether it reads what the node makes or not: a node awaits what measures its sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.core import attrs as attributes
from rlx.core.dim import Dim, Symbol
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.extent import has_capacity, measured_in

if TYPE_CHECKING:
    from rlx.ir.mir import Node
    from rlx.ops.op import Op


_PLAIN = frozenset({int, float, str, bool, type(None), DType, attributes.Data})


def _is_plain(node: Node) -> bool:
    """Can it be told at a glance that no size is involved? So it is of most nodes."""
    return all(type(d) is int for s in node.shapes for d in s.dims) and all(
        type(v) in _PLAIN or (type(v) is tuple and all(type(e) is int for e in v))
        for v in node.attrs.values()
    )


def symbols_used(node: Node) -> Iterator[Symbol]:
    """The measured sizes in a node's shapes and attributes, and those its bodies do not know."""
    if _is_plain(node):
        return
    for value in (*node.shapes, *node.attrs.values()):
        yield from measured_in(attributes.dims_in(value))
    for body in _bodies(node):
        yield from body.extents.free.values()


def measured_by(node: Node) -> tuple[Symbol, ...]:
    """The sizes that a node finds out."""
    own = node.attrs.get("extent")
    if not own:
        return ()
    symbols = measured_in(d for s in node.shapes for d in s.dims)
    return tuple(s for s in symbols if s.name == own or s.name.startswith(f"{own}."))


def growing(node: Node) -> tuple[str, ...]:
    """The sizes that a node finds out and nothing bounds."""
    return tuple(s.name for s in measured_by(node) if has_capacity(s))


def _bodies(node: Node) -> list[Any]:
    return [value for value in node.attrs.values() if isinstance(value, attributes.HeldGraph)]


class Extents:
    """The names of the sizes that one graph measures; its inputs' dims have other names."""

    def __init__(self, given: Mapping[str, Dim]) -> None:
        self._given = given
        self._names: dict[tuple[object, ...], str] = {}
        self._measuring: dict[str, Node] = {}
        self._tried: dict[str, int] = {}
        self._taken: set[str] = set()
        """The names of sizes that are measured here or known outside, and what they begin with."""
        self.prefix = ""
        """Of the names that it makes: graphs that are later put into one another have different
        ones."""
        self.free: dict[str, Symbol] = {}
        """Used here, but neither measured here nor a dim of an input: known outside of a body."""

    def __contains__(self, name: str) -> bool:
        return name in self._measuring

    @property
    def measured(self) -> dict[str, Symbol]:
        """The sizes that nodes of the graph measure, by name."""
        nodes = dict.fromkeys(self._measuring.values())
        found = (s for n in nodes for s in measured_in(d for x in n.shapes for d in x.dims))
        return {s.name: s for s in found if s.name in self}

    def check(self, decl: Op, attrs: Mapping[str, Any]) -> None:
        """A size that is measured is not one that an input brings along."""
        own = attrs.get("extent")
        if own and (own in self._given or any(n.startswith(f"{own}.") for n in self._given)):
            raise GraphError(f"extent {attrs['extent']!r} is an input's dim. Choose another name")

    def add(self, node: Node) -> tuple[Node, ...]:
        """Remember what a new node measures; who measures what it uses."""
        if _is_plain(node) and not node.decl.measures:
            return ()
        self._check_results(node)
        own = {s.name for s in measured_by(node)}
        awaited: dict[Node, None] = {}
        for symbol in symbols_used(node):
            found = self._measuring.get(symbol.name)
            if found is None and symbol.name not in self._given and symbol.name not in own:
                self.free[symbol.name] = symbol
                self._taken.update(_heads(symbol.name))
            elif found is not None and symbol.name not in own:
                awaited[found] = None
        self._measuring |= dict.fromkeys(own, node)
        self._taken.update(head for name in own for head in _heads(name))
        if node.decl.measures:
            name = node.attrs["extent"]
            self._names.setdefault(_key(node.decl, node.inputs, node.attrs), name)
        given = set(node.inputs)  # by identity: == of nodes that are traced is an op
        return tuple(n for n in awaited if n not in given)

    def _check_results(self, node: Node) -> None:
        """What a body measures is known in that body only."""
        bodies = _bodies(node)
        for symbol in measured_in(d for s in node.shapes for d in s.dims) if bodies else ():
            if any(symbol.name in body.extents for body in bodies):
                raise GraphError(
                    f"a result has the size {symbol.name}, which is measured in a body and not "
                    "known outside. Pad it to a size that is"
                )

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
        return {**attrs, "extent": known or self.fresh(decl.name)}

    def fresh(self, op: str) -> str:
        """A name that no size here has, nor begins with."""
        number = self._tried.get(op, 0)
        given = {head for name in self._given for head in _heads(name)}
        while (name := f"{self.prefix}{op}_{number}") in self._taken or name in given:
            number += 1
        self._tried[op] = number
        return name


def _heads(name: str) -> tuple[str, str]:
    """A size's name, and that of the node whose size with a number it is."""
    return name, name.rpartition(".")[0]


def _key(decl: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[object, ...]:
    rest = (attributes.key(value) for name, value in attrs.items() if name != "extent")
    return (decl.name, *map(id, inputs), *rest)
