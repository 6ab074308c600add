"""Generation of random valid graphs from the op table.

Ops are drawn without replacement from a shuffled deck, so that all occur equally often. An
operand is, where possible, an existing node, moved and cast into the shape that the op asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.extent import measured_in
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops import op as table
from rlx.ops.custom_ops import custom_op
from rlx.ops.draw import Case, Draw, Spec
from rlx.ops.op import Array, Kind, Op


@dataclass(frozen=True, slots=True)
class Grown:
    """A random graph and values for its inputs and params."""

    graph: Graph
    values: dict[str, Array]


WIDE = frozenset({DType.F64, DType.C128})
"""Dtypes that some targets lack: three graphs in four do without them."""


def grow(
    seed: int, steps: int = 12, without: Collection[str] = (), *, is_large: bool = False
) -> Grown:
    """The graph of `seed`; the same on every machine. Ops `without` which to do are left out."""
    missing = frozenset[DType]() if seed % 4 == 0 else WIDE
    grower = Grower(Draw([0x5EED, seed], missing, is_large=is_large))
    deck = [o for o in table.table().values() if not o.why_no_cases]
    start = seed * steps
    for i in range(start, start + steps):
        dealt = deck[shuffled(len(deck), i // len(deck))[i % len(deck)]]
        if dealt.name not in without:
            grower.add(dealt)
        if grower.draw.coin(0.25):
            grower.draw.choice(MOTIFS)(grower)
    return grower.finish()


def shuffled(count: int, deal: int) -> Sequence[int]:
    """The order of the cards of a deal."""
    return np.random.default_rng([0xDECC, deal]).permutation(count).tolist()


class Grower:
    def __init__(self, draw: Draw) -> None:
        self.draw, self.graph = draw, Graph("fuzz")
        self.values: dict[str, Array] = {}
        self.pool: list[Node] = []
        self.exact: set[Node] = set()

    def add(self, op: Op) -> None:
        """Apply `op` once, to what is there or to new leaves."""
        case = self._case(op)
        shapes = [Shape(s.dims, s.dtype) for s in case.specs]
        results = op.infer(shapes, op.canonical(case.attrs, shapes))
        jumps = op.jumps(shapes, results)
        operands = [self.supply(s, jumps) for s in case.specs]
        unnamed = {k: v for k, v in case.attrs.items() if k != "extent"}
        node = self.graph.node(op, operands, self.graph.extents.named(op, operands, unnamed))
        made = (
            [node]
            if not node.has_items
            else [self.graph.node("item", (node,), {"index": i}) for i in range(len(node.shapes))]
        )
        is_exact = all(i in self.exact for i in operands)
        for n in made:
            if is_exact and (op.kind is Kind.MOVEMENT or not _is_inexact(n.shape.dtype)):
                self.exact.add(n)
        self.pool += [n for n in made if not n.shape.is_measured]

    def _case(self, op: Op) -> Case:
        """An application of `op`, without the dtypes to be left out if that can be had, and of
        results that memory can be planned for."""
        case = self.draw.case(op)
        for _ in range(8):
            if not any(s.dtype in self.draw.without for s in case.specs) and is_bounded(case):
                break
            case = self.draw.case(op)
        return case

    def keep(self, *nodes: Node) -> None:
        """Rounded results of a motif, for later operands."""
        self.pool += nodes

    def supply(self, spec: Spec, must_be_exact: bool) -> Node:
        """A node of the spec's shape: an old one fitted, or a new leaf."""
        if spec.domain in ("any", "plain") and self.draw.coin(0.8):
            usable = [n for n in self.pool[-12:] if self._can_fit(n, spec, must_be_exact)]
            if usable:
                return self._fit(self.draw.choice(usable), spec)
        return self.leaf(spec)

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

    def leaf(self, spec: Spec) -> Node:
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
        ends = [
            n
            for n in self.graph.nodes
            if n not in read and not n.has_items and n.op not in ("input", "param")
        ]
        between = [n for n in self.pool if n in read and self.draw.coin(0.1)]
        self.graph.set_outputs(list(dict.fromkeys([*ends, *between])) or self.pool[:1])
        return Grown(self.graph, self.values)


UNARY = ("relu", "tanh", "sigmoid", "neg", "abs", "silu", "gelu", "exp", "square")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


def _chain(g: Grower) -> None:
    """A tree of elementwise ops over one shape and what broadcasts to it."""
    dtype, dims = g.draw.dtype("f"), g.draw.dims(1, 3, 1)
    x = g.supply(Spec(dims, dtype, "plain"), False)
    for _ in range(g.draw.integer(2, 6)):
        if g.draw.coin():
            x = ops.tanh(table.lookup(g.draw.choice(UNARY))(x))
        else:
            other = tuple(1 if g.draw.coin(0.3) else d for d in dims)
            y = g.supply(Spec(other, dtype, "plain"), False)
            x = table.lookup(g.draw.choice(BINARY))(x, y)
        if g.draw.coin(0.2):
            g.keep(x)
    g.keep(x)


def _linear(g: Grower) -> None:
    """A product with bias and activation; sometimes its parts are read elsewhere too."""
    dtype, (m, k, n) = g.draw.dtype("f"), g.draw.dims(3, 3, 1)
    x, w = (g.supply(Spec(d, dtype, "plain"), False) for d in ((m, k), (k, n)))
    product = ops.matmul(x, w)
    y = ops.add(product, g.supply(Spec((n,), dtype, "plain"), False))
    g.keep(table.lookup(g.draw.choice(UNARY[:7]))(y))
    if g.draw.coin(0.2):
        g.keep(product if g.draw.coin() else y)


def _swiglu(g: Grower) -> None:
    """A gated product in either operand order."""
    dtype, (m, k, n) = g.draw.dtype("f"), g.draw.dims(3, 3, 1)
    x = g.supply(Spec((m, k), dtype, "plain"), False)
    gate, up = (ops.matmul(x, g.leaf(Spec((k, n), dtype, "plain"))) for _ in range(2))
    gated = ops.silu(gate)
    g.keep(ops.mul(gated, up) if g.draw.coin() else ops.mul(up, gated))
    if g.draw.coin(0.2):
        g.keep(gate)


def _residual(g: Grower) -> None:
    """A sum, normalised; the sum is often read again."""
    dtype, dims = g.draw.dtype("f"), g.draw.dims(2, 3, 2)
    x, y, scale, bias = (
        g.supply(Spec(d, dtype, "plain"), False) for d in (dims, dims, dims[-1:], dims[-1:])
    )
    total = ops.add(x, y)
    norm = ops.layer_norm if g.draw.coin() else ops.rms_norm
    g.keep(norm(total, scale, bias, eps=1e-5))
    if g.draw.coin():
        g.keep(total)


def _moves(g: Grower) -> None:
    """A run of movements, and arithmetic on what they give."""
    dtype, dims = g.draw.dtype("n"), g.draw.dims(2, 3, 1)
    x = g.supply(Spec(dims, dtype, "plain"), False)
    was_exact = x in g.exact
    for _ in range(g.draw.integer(2, 5)):
        x = _move(g, x)
    if was_exact:
        g.exact.add(x)
    g.keep(x)


def _move(g: Grower, x: Node) -> Node:
    rank, axis = x.shape.rank, g.draw.integer(0, x.shape.rank - 1)
    size = x.shape.dims[axis]
    start = g.draw.integer(0, size - 1)
    perm = tuple(g.draw.rng.permutation(rank).tolist())
    options = (
        lambda: ops.transpose(x, perm=perm),
        lambda: ops.reshape(x, dims=(x.shape.num_elements, 1)),
        lambda: ops.narrow(x, axis=axis, start=start, length=size - start),
        lambda: ops.flip(x, axes=(axis,)),
        lambda: ops.concat([x, x], axis=axis),
        lambda: ops.expand_dims(x, axes=(0,)) if rank < 4 else x,
    )
    return g.draw.choice(options)()


_HALVE = custom_op("rlx.fuzz.halve", lambda x, by: x / by, lambda x, by: x)


def _custom(g: Grower) -> None:
    """An op that the program brings along."""
    x = g.supply(Spec(g.draw.dims(1, 3), g.draw.dtype("f"), "plain"), False)
    g.keep(_HALVE(x, by=2.0))


def _found(g: Grower) -> None:
    """What is found by a condition, computed with, and folded to a size that is known."""
    dtype, dims = g.draw.dtype("n"), g.draw.dims(1, 3, 1)
    x = g.supply(Spec(dims, dtype, "plain"), False)
    where = ops.nonzero(g.supply(Spec(dims[:1], DType.BOOL), False))
    rows = ops.gather(x, ops.reshape(where, dims=where.shape.dims[1:]), axis=0)
    for _ in range(g.draw.integer(0, 3)):
        other = g.supply(Spec(dims[1:], dtype, "plain"), False)
        rows = table.lookup(g.draw.choice(BINARY))(rows, other)
    if g.draw.coin():
        rows = ops.concat([rows, x] if g.draw.coin() else [x, rows], axis=0)
    g.keep(ops.sum(rows, axes=(0,)))


MOTIFS = (_chain, _chain, _linear, _swiglu, _residual, _moves, _custom, _found)
"""Shapes that models are made of, which chance alone would seldom build."""


def is_bounded(case: Case) -> bool:
    """Can memory be planned for the results?"""
    shapes = [Shape(s.dims, s.dtype) for s in case.specs]
    results = case.op.infer(shapes, case.op.canonical(case.attrs, shapes))
    return all(s.max is not None for r in results for s in measured_in(r.dims))


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex
