"""Loops: what their bodies hand on as they got it is no carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.rules.engine import rule


def _spell_scan(draw: Draw) -> Node:
    """A running sum of products with a factor that is handed on from step to step."""
    graph, dims, dtype = Graph("spelled"), draw.dims(0, 2), draw.dtype("t")
    length, one = draw.integer(0, 4), Shape(dims, dtype)
    body = Graph("body")
    factor, total, x = (body.input(f"x{i}", one) for i in range(3))
    total = ops.add(total, ops.mul(factor, x))
    body.set_outputs([factor, total, ops.sub(total, x)])
    given = [graph.input(f"x{i}", one) for i in range(2)]
    xs = graph.input("xs", Shape((length, *dims), dtype))
    made = ops.scan(*given, xs, body=body, length=length, num_carries=2)
    return draw.choice(made)


def _spell_while(draw: Draw) -> Node:
    """The same loop with a condition that reads what is handed on."""
    graph, dims, dtype = Graph("spelled"), draw.dims(0, 2), draw.dtype("t")
    shapes = [Shape((), "i32"), Shape((), "i32"), Shape(dims, dtype)]
    cond, body = Graph("cond"), Graph("body")
    count, most, _ = (cond.input(f"x{i}", s) for i, s in enumerate(shapes))
    cond.set_outputs([ops.less(count, most)])
    count, most, x = (body.input(f"x{i}", s) for i, s in enumerate(shapes))
    body.set_outputs([ops.add(count, 1), most, ops.add(x, x)])
    count, most = (graph.constant(np.int32(draw.integer(-3, 3))) for _ in range(2))
    x = graph.input("x", shapes[2])
    return draw.choice(ops.while_(count, most, x, cond=cond, body=body, max_iterations=5))


def _spell(draw: Draw) -> Node:
    return _spell_scan(draw) if draw.coin() else _spell_while(draw)


@rule(lambda x, i: ops.item(x, index=i), sample=_spell)
def invariant_carry(x: Node, i: int) -> Any:
    """A carry that a loop's body returns as it got it is the same for every step: it comes out as
    it went in, and is broadcast to the steps, so that what follows from weights is prepared once
    instead of in each step."""
    if x.op not in ("scan", "while") or x.attrs.get("extent"):
        return None
    carries = _num_carries(x)
    body: Graph = x.attrs["body"]
    fixed = [n for n in range(carries) if body.outputs[n] is body.inputs[n]]
    if not fixed or (x.op == "while" and len(fixed) == carries):
        return None  # a while loop that changes nothing does not run, or never ends: that stays
    if i in fixed:
        return x.inputs[i]
    kept = [n for n in range(len(body.outputs)) if n not in fixed]
    made = _with_broadcasts(x, fixed, kept)
    return x.graph.node("item", (made,), {"index": kept.index(i)})


def _num_carries(node: Node) -> int:
    if node.op == "scan":
        return node.attrs["num_carries"]
    return len(node.inputs) - node.attrs["num_bcasts"]


def _with_broadcasts(node: Node, fixed: Sequence[int], kept: Sequence[int]) -> Node:
    """The loop with these carries as broadcasts, the first ones, and the other results."""
    carries = _num_carries(node)
    changing = [n for n in range(carries) if n not in fixed]
    order = [*changing, *fixed, *range(carries, len(node.inputs))]
    attrs = dict(node.attrs)
    attrs["num_bcasts"] += len(fixed)
    attrs["body"] = _reordered(attrs["body"], order, kept)
    if node.op == "scan":
        attrs["num_carries"] = len(changing)
    else:
        attrs["cond"] = _reordered(attrs["cond"], order, (0,))
    return node.graph.node(node.decl, [node.inputs[n] for n in order], attrs)


def _reordered(body: Graph, order: Sequence[int], kept: Sequence[int]) -> Graph:
    """The body with its inputs in this order, and these results."""
    new = Graph(body.name)
    new.traces_lines = False
    given = {n: new.input(f"x{i}", body.inputs[n].shape) for i, n in enumerate(order)}
    made = new.inline(body, [given[n] for n in range(len(order))])
    new.set_outputs([made[n] for n in kept])
    return new
