"""Which logical axes of a graph are split over which axes of a mesh, and why.

"data" splits the batch: each device has some rows of every input that has them. "model" splits
products: where the columns of some weights (the heads of attention, the units of an MLP, the words
of a vocabulary) are a logical axis that nothing needs whole, each device has some of these columns,
and of the weights that are multiplied by them next, the same rows; it adds its partial sums to
those of the others. That is Megatron's scheme for transformers, found from who consumes whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from rlx.backends.tpu.mesh.axes import LogicalAxes, LogicalAxis
from rlx.core.dim import Dim, evaluate, symbols_of
from rlx.cost.decision import Decision
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Kind

DATA, MODEL = "data", "model"
Spec: TypeAlias = "tuple[str | None, ...]"
"""By axis of a value: the mesh axis that it is split over."""
SHOWN = 4
"""Weights that a reason names."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the values of a graph lie on a mesh, and the decisions that led to it."""

    mesh: Mapping[str, int]
    specs: Mapping[Node, Spec]
    """Of values that are split; all others are whole on every device."""
    decisions: tuple[tuple[Node, Decision], ...]

    def spec(self, node: Node) -> Spec:
        """By axis of a value, what it is split over."""
        return self.specs.get(node) or (None,) * node.shape.rank

    def parts(self, node: Node) -> int:
        """How many different parts a value has."""
        return prod(self.mesh[name] for name in self.specs.get(node, ()) if name is not None)


def shard(graph: Graph, mesh: Mapping[str, int], sizes: Mapping[str, int]) -> Sharding:
    """How a graph is split over a mesh, at these sizes of named dims."""
    chosen = _Choice(LogicalAxes(graph), dict(mesh), dict(sizes), {}, [])
    if mesh.get(DATA, 1) > 1:
        chosen.split_batch(graph.inputs)
    if mesh.get(MODEL, 1) > 1:
        chosen.split_products()
    specs = {node: tuple(named) for node, named in chosen.specs.items()}
    return Sharding(dict(mesh), specs, tuple(chosen.decisions))


def is_placed(node: Node) -> bool:
    """Is the value one whose place is stated, so that what follows from it does as well? Products
    are where sums of parts become whole again."""
    return not node.has_items and node.decl.kind in (Kind.CONTRACTION, Kind.ATTENTION)


@dataclass(slots=True)
class _Choice:
    axes: LogicalAxes
    mesh: dict[str, int]
    sizes: dict[str, int]
    specs: dict[Node, list[str | None]]
    decisions: list[tuple[Node, Decision]]

    # -- data ----------------------------------------------------------------------------------

    def split_batch(self, inputs: Sequence[Node]) -> None:
        """The first axis of the first input that has two or more, and all that is tied to it."""
        ranked = sorted(inputs, key=lambda n: n.shape.rank < 2)
        first = next((n for n in ranked if n.shape.rank), None)
        if first is None:
            return
        axis, count = self.axes.of(first, 0), self.mesh[DATA]
        why = self._why_not(axis, count, DATA)
        if why is None:
            self._take(axis, DATA)
            split = [n.attrs["name"] for n in inputs if DATA in self.specs.get(n, ())]
            reason = f"the batch of {_listed(split)} over {DATA}={count}"
        else:
            reason = f"the batch is whole on every device: {why}"
        self._decide("split_batch", first, why is None, reason)

    # -- model ---------------------------------------------------------------------------------

    def split_products(self) -> None:
        """Classes in the order of their first product: columns, then the rows that follow."""
        count, weights = self.mesh[MODEL], _weights(self.axes.nodes)
        products = [n for n in self.axes.nodes if _is_product(n, weights)]
        refused: dict[int, str] = {}
        taken: set[int] = set()
        for product in products:
            axis = self._columns(product)
            if axis is None or id(axis) in refused or id(axis) in taken:
                continue
            why = _why_reduced(axis, products) or self._why_not(axis, count, MODEL)
            if why is None:
                taken.add(id(axis))
                self._take(axis, MODEL)
            else:
                refused[id(axis)] = why
        for product in products:
            self._explain(product, taken, refused)

    def _columns(self, product: Node) -> LogicalAxis | None:
        weight = product.inputs[1]
        found = (self.axes.of(weight, a) for a in reversed(range(weight.shape.rank)))
        return next((a for a in found if product in a.columns), None)

    def _rows(self, product: Node) -> LogicalAxis | None:
        x = product.inputs[0]
        found = (self.axes.of(x, a) for a in reversed(range(x.shape.rank)))
        return next((a for a in found if product in a.summed), None)

    def _explain(self, product: Node, taken: set[int], refused: Mapping[int, str]) -> None:
        columns, rows = self._columns(product), self._rows(product)
        size, count = self._bytes(product.inputs[1]), self.mesh[MODEL]
        held = f"{size // count:,} of {size:,} bytes of weights per device"
        if columns is not None and id(columns) in taken:
            why = f"columns over {MODEL}={count}, {_class(columns)}: {held}"
            self._decide("split_columns", product, True, why)
        elif rows is not None and id(rows) in taken:
            summed = self._bytes(product) // self._parts(product)
            why = f"rows over {MODEL}={count}: {held}; an all-reduce of {summed:,} bytes per call"
            self._decide("split_rows", product, True, why)
        else:
            why = refused.get(id(columns), "it has no columns of its own")
            self._decide("split_product", product, False, f"whole on every device: {why}")

    # -- what is common ------------------------------------------------------------------------

    def _why_not(self, axis: LogicalAxis, count: int, name: str) -> str | None:
        if axis.blocks:
            first = axis.blocks[0]
            return f"{first.reason} ({first.at[0].label})"
        size = axis.indivisible(count, self.sizes)
        if size is not None:
            return f"{size} of it are not divisible by {name}={count}"
        for node, _ in axis.places:
            if name in self.specs.get(node, ()):
                return f"another axis of {node.label} is split over {name} already"
        return None

    def _take(self, axis: LogicalAxis, name: str) -> None:
        for node, place in axis.places:
            self.specs.setdefault(node, [None] * node.shape.rank)[place] = name

    def _parts(self, node: Node) -> int:
        return prod(self.mesh[name] for name in self.specs.get(node, ()) if name is not None)

    def _bytes(self, node: Node) -> int:
        count = node.shape.num_elements
        if any(d.name not in self.sizes for d in symbols_of([count])):
            return 0  # nobody reads decisions for sizes that are not known
        known = evaluate(count, self.sizes) if isinstance(count, Dim) else count
        return known * node.shape.dtype.itemsize

    def _decide(self, what: str, node: Node, verdict: bool, reason: str) -> None:
        made = Decision("", what, (), verdict, reason, is_reversible=False, kind="sharding")
        self.decisions.append((node, made))


def _why_reduced(axis: LogicalAxis, products: Sequence[Node]) -> str | None:
    """Products by weights reduce over units that they split; a mean or a norm would wait for all
    devices once more."""
    other = next((n for n in axis.summed if n not in products), None)
    return None if other is None else f"{other.op} reduces over it ({other.label})"


def _class(axis: LogicalAxis) -> str:
    """The other weights that are split with it, by how."""
    columns = list(dict.fromkeys(p.inputs[1] for p in axis.columns))
    rows = list(dict.fromkeys(p.inputs[1] for p in axis.summed if len(p.inputs) > 1))
    parts = [f"with columns of {_listed(map(_name, columns))}"]
    if rows:
        parts.append(f"then rows of {_listed(map(_name, rows))}")
    return ", ".join(parts)


def _name(weight: Node) -> str:
    """A weight by the name of the param that it is made of."""
    node = weight
    while node.inputs:
        node = node.inputs[0]
    return str(node.attrs.get("name", node.op))


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    given = list(names)
    more = f" and {len(given) - SHOWN} more" if len(given) > SHOWN else ""
    return ", ".join(given[:SHOWN]) + more


def _weights(nodes: Sequence[Node]) -> set[Node]:
    """The values that no input has a part in."""
    found: set[Node] = set()
    for node in nodes:
        if node.op != "input" and all(i in found for i in node.inputs):
            found.add(node)
    return found


def _is_product(node: Node, weights: set[Node]) -> bool:
    is_contraction = node.decl.kind is Kind.CONTRACTION and len(node.inputs) >= 2
    return is_contraction and node not in weights and all(i in weights for i in node.inputs[1:2])
