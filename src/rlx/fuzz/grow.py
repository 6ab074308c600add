"""Growing random valid graphs out of the op table.

Ops are dealt round like cards, so that all occur alike. An operand is, where it can be, a node
that is there already, moved and cast into the shape the op asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import op as table
from rlx import ops
from rlx.draw import Draw, Spec
from rlx.dtype import DType
from rlx.ir.mir import Graph, Node
from rlx.op import Array, Kind, Op
from rlx.shape import Shape


@dataclass(frozen=True, slots=True)
class Grown:
    """A random graph and values for its inputs and params."""

    graph: Graph
    values: dict[str, Array]


def grow(seed: int, steps: int = 12) -> Grown:
    """The graph of `seed`; the same on every machine."""
    grower = _Grower(Draw([0x5EED, seed]))
    deck = [o for o in table.table().values() if not o.why_no_cases]
    start = seed * steps
    for i in range(start, start + steps):
        grower.add(deck[_shuffled(len(deck), i // len(deck))[i % len(deck)]])
    return grower.finish()


def _shuffled(count: int, deal: int) -> Sequence[int]:
    return np.random.default_rng([0xDECC, deal]).permutation(count).tolist()


class _Grower:
    def __init__(self, draw: Draw) -> None:
        self.draw, self.graph = draw, Graph("fuzz")
        self.values: dict[str, Array] = {}
        self.pool: list[Node] = []
        self.exact: set[Node] = set()

    def add(self, op: Op) -> None:
        """Apply `op` once, to what is there or to new leaves."""
        case = self.draw.case(op)
        shapes = [Shape(s.dims, s.dtype) for s in case.specs]
        results = op.infer(shapes, op.canonical(case.attrs, shapes))
        jumps = op.jumps(shapes, results)
        operands = [self.supply(s, jumps) for s in case.specs]
        node = self.graph.node(op, operands, case.attrs)
        made = [node] if not node.has_items else [
            self.graph.node("item", (node,), {"index": i}) for i in range(len(node.shapes))
        ]
        is_exact = all(i in self.exact for i in operands)
        for n in made:
            if is_exact and (op.kind is Kind.MOVEMENT or not _is_inexact(n.shape.dtype)):
                self.exact.add(n)
        self.pool += made

    def supply(self, spec: Spec, must_be_exact: bool) -> Node:
        """A node of the spec's shape: an old one fitted, or a new leaf."""
        if spec.domain in ("any", "plain") and self.draw.coin(0.8):
            usable = [n for n in self.pool[-12:] if self._can_fit(n, spec, must_be_exact)]
            if usable:
                return self._fit(self.draw.choice(usable), spec)
        return self._leaf(spec)

    def _can_fit(self, node: Node, spec: Spec, must_be_exact: bool) -> bool:
        """Rounded numbers may not decide whole numbers: two right programs could then differ."""
        if node not in self.exact and (must_be_exact or not _is_inexact(spec.dtype)):
            return False
        count = int(np.prod(spec.dims))
        return count == node.shape.num_elements or (count > 0 and node.shape.num_elements > 0)

    def _fit(self, node: Node, spec: Spec) -> Node:
        if node.shape.dtype is not spec.dtype:
            node = self._mark(node, ops.cast(node, to=spec.dtype))
        if node.shape.dims == spec.dims:
            return node
        have, need = node.shape.num_elements, int(np.prod(spec.dims))
        flat = self._mark(node, ops.reshape(node, dims=(have,)))
        if have < need:
            flat = self._mark(flat, ops.tile(flat, repeats=(-(-need // have),)))
        start = self.draw.integer(0, flat.shape.dims[0] - need)
        cut = self._mark(flat, ops.narrow(flat, axis=0, start=start, length=need))
        return self._mark(cut, ops.reshape(cut, dims=spec.dims))

    def _mark(self, source: Node, made: Any) -> Node:
        narrows = _is_inexact(made.shape.dtype) and made.shape.dtype is not source.shape.dtype
        if source in self.exact and not narrows:
            self.exact.add(made)
        return made

    def _leaf(self, spec: Spec) -> Node:
        domain = "plain" if spec.domain == "any" and self.draw.coin(0.9) else spec.domain
        array = self.draw.values(Spec(spec.dims, spec.dtype, domain))
        kind = self.draw.choice(("input", "input", "param", "constant"))
        if kind == "constant":
            node = self.graph.constant(array)
        else:
            name = f"{kind[0]}{len(self.values)}"
            self.values[name] = array
            node = self.graph.node(kind, (), {"name": name, "shape": Shape(spec.dims, spec.dtype)})
        self.exact.add(node)
        self.pool.append(node)
        return node

    def finish(self) -> Grown:
        """Outputs: all that nothing reads, and a few in between."""
        read = {i for n in self.graph.nodes for i in n.inputs}
        ends = [n for n in self.graph.nodes
                if n not in read and not n.has_items and n.op not in ("input", "param")]
        between = [n for n in self.pool if n in read and self.draw.coin(0.1)]
        self.graph.set_outputs(list(dict.fromkeys([*ends, *between])) or self.pool[:1])
        return Grown(self.graph, self.values)


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex
