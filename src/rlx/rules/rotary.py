"""Recognition of rotary position embeddings in rotate-half form."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, exact_div, provably_le
from rlx.core.dtype import FLOATS
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.op import Kind
from rlx.rules.engine import rule
from rlx.rules.match import scalar_of


def half_of(table: Node) -> Node | None:
    """The first half of a table whose last axis holds everything twice; None if that is not seen.

    Seen through ops that act on both halves the same way: elementwise functions, scalar factors,
    axes of size 1, broadcasting, and row lookups.
    """
    path: list[Node] = []
    node, half = table, None
    while half is None:
        half = _halved(node)
        if half is None:
            if not _preserves_halves(node):
                return None
            path.append(node)
            node = node.inputs[0] if scalar_of(node.inputs[0]) is None else node.inputs[1]
    for step in reversed(path):
        half = _replayed(step, half)
    return half


def _halved(node: Node) -> Node | None:
    last = node.rank - 1
    if node.op == "concat" and len(node.inputs) == 2 and node.attrs["axis"] == last:
        return node.inputs[0] if node.inputs[0] is node.inputs[1] else None
    if node.op != "constant" or node.rank == 0 or node.shape.dims[-1] % 2:
        return None
    first, second = np.split(node.attrs["value"].array, 2, axis=-1)
    return node.graph.constant(first) if first.tobytes() == second.tobytes() else None


def _preserves_halves(node: Node) -> bool:
    if node.decl.kind is Kind.ELEMENTWISE:
        numbers = sum(scalar_of(i) is not None for i in node.inputs)
        return len(node.inputs) - numbers == 1 and any(
            i.shape.dims == node.shape.dims for i in node.inputs
        )
    x = node.inputs[0] if node.inputs else node
    if node.op in ("reshape", "expand"):
        return x.rank > 0 and x.shape.dims[-1] == node.shape.dims[-1] != 1
    if node.op in ("gather", "narrow"):
        return node.attrs["axis"] != x.rank - 1
    return node.op == "embedding"


def _replayed(step: Node, half: Node) -> Node:
    """`step` on half of the last axis."""
    if step.op in ("reshape", "expand"):
        return step.graph.node(step.decl, (half,), {"dims": _halved_dims(step)})
    if step.op in ("gather", "embedding", "narrow"):
        return step.graph.node(step.decl, (half, *step.inputs[1:]), step.attrs)
    inputs = [i if (v := scalar_of(i)) is None else step.graph.constant(v) for i in step.inputs]
    operands = [i if scalar_of(i) is not None else half for i in inputs]
    return step.graph.node(step.decl, operands, step.attrs)


def _halved_dims(node: Node) -> tuple[DimLike, ...]:
    return (*node.shape.dims[:-1], node.shape.dims[-1] // 2)


def _is_part(part: Node, x: Node, start: DimLike, length: DimLike) -> bool:
    """Is `part` that run of x's last axis? A slice of a slice is canonically one of the whole."""
    if x.op == "narrow" and x.attrs["axis"] == x.rank - 1:
        x, start = x.inputs[0], x.attrs["start"] + start
    wanted = {"axis": x.rank - 1, "start": start, "length": length}
    return part.op == "narrow" and part.inputs[0] is x and dict(part.attrs) == wanted


def _is_rotate_half(rotated: Node, x: Node) -> bool:
    """Is `rotated` the second half of x, negated, before its first half?"""
    if rotated.op != "concat" or len(rotated.inputs) != 2 or rotated.attrs["axis"] != x.rank - 1:
        return False
    half = exact_div(x.shape.dims[-1], 2)
    if half is None or rotated.inputs[0].op != "neg":
        return False
    return _is_part(rotated.inputs[0].inputs[0], x, half, half) and _is_part(
        rotated.inputs[1], x, 0, half
    )


# -- rules ----------------------------------------------------------------------------------------


def _drawn(draw: Draw) -> tuple[Node, Node, Node, int]:
    graph, dtype = Graph("sample"), draw.choice(sorted(FLOATS, key=str))
    lead, length, half = draw.dims(0, 2, 1), draw.integer(1, 3), draw.integer(1, 3)
    x = graph.input("x", Shape((*lead, length, 2 * half), dtype))
    cos, sin = (graph.input(n, Shape((length, half), dtype)) for n in ("c", "s"))
    return x, cos, sin, half


def _parts(x: Node, half: int) -> tuple[Node, Node]:
    axis = x.rank - 1
    a, b = (ops.narrow(x, axis=axis, start=start, length=half) for start in (0, half))
    return a, b


def _sample_rotate_half(draw: Draw) -> Node:
    x, cos, sin, half = _drawn(draw)
    a, b = _parts(x, half)
    rotated = ops.concat([ops.neg(b), a], axis=x.rank - 1)
    twice = [ops.concat([t, t], axis=1) for t in (cos, sin)]
    if draw.coin():
        both = ops.concat([cos, cos], axis=1)
        twice = [ops.reshape(ops.cos(both), dims=(*[1] * (x.rank - 2), *both.shape.dims)),
                 ops.mul(ops.sin(both), 0.5)]  # fmt: skip
    return ops.add(ops.mul(x, twice[0]), ops.mul(rotated, twice[1]))


_HALF_PRECISION = "in half precision the decomposition rounds each product"


@rule(
    lambda x, c, t, s: ops.add(ops.mul(x, c), ops.mul(t, s)),
    sample=_sample_rotate_half,
    slack=4.0,
    domain="plain",
    why=_HALF_PRECISION,
)
def rope_from_rotate_half(x: Node, c: Node, t: Node, s: Node, node: Node) -> Any:
    """x · cos + (-second half, first half) · sin is rope, where cos and sin repeat themselves."""
    if x.rank < 2 or x.shape != node.shape or not _is_rotate_half(t, x):
        return None
    cos, sin = half_of(c), half_of(s)
    if cos is None or sin is None or min(cos.rank, sin.rank) < 2:
        return None
    return ops.rope(x, cos, sin)


def _sample_halves(draw: Draw) -> Node:
    x, cos, sin, half = _drawn(draw)
    a, b = _parts(x, half)
    first = ops.sub(ops.mul(a, cos), ops.mul(b, sin))
    second = ops.add(ops.mul(b, cos), ops.mul(a, sin))
    return ops.concat([first, second], axis=x.rank - 1)


@rule(
    lambda a, b, c, s: ops.concat(
        ops.sub(ops.mul(a, c), ops.mul(b, s)), ops.add(ops.mul(b, c), ops.mul(a, s))
    ),
    sample=_sample_halves,
    slack=4.0,
    domain="plain",
    why=_HALF_PRECISION,
)
def rope_from_halves(a: Node, b: Node, c: Node, s: Node, node: Node) -> Any:
    """(a·cos - b·sin, b·cos + a·sin) of the two halves of x is rope."""
    if a.op != "narrow" or a.rank < 2 or node.attrs["axis"] != a.rank - 1:
        return None
    half = a.shape.dims[-1]
    x = _both(a, half)
    if x is None or x.shape != node.shape or not _is_part(b, x, half, half):
        return None
    if min(c.rank, s.rank) < 2 or any(t.shape.dims[-1] != half for t in (c, s)):
        return None
    return ops.rope(x, c, s)


def _both(a: Node, half: DimLike) -> Node | None:
    """The run of twice `half` that begins with `a`."""
    whole, start = a.inputs[0], a.attrs["start"]
    if a.attrs["axis"] != a.rank - 1 or not provably_le(start + half * 2, whole.shape.dims[-1]):
        return None
    if whole.shape.dims[-1] == half * 2:
        return whole
    return ops.narrow(whole, axis=a.rank - 1, start=start, length=half * 2)


def _sample_partial(draw: Draw) -> Node:
    x, cos, sin, half = _drawn(draw)
    wide = x.graph.input("w", x.shape.with_dim(-1, 2 * half + draw.integer(1, 2)))
    axis, size = wide.rank - 1, wide.shape.dims[-1]
    front = ops.narrow(wide, axis=axis, start=0, length=2 * half)
    rest = ops.narrow(wide, axis=axis, start=2 * half, length=size - 2 * half)
    return ops.concat([ops.rope(front, cos, sin), rest], axis=axis)


@rule(
    lambda x, c, s, r: ops.concat(
        ops.rope(x, c, s, head_dim=None, n_rot=None), r
    ),
    sample=_sample_partial,
)  # fmt: skip
def partial_rope(x: Node, c: Node, s: Node, r: Node, node: Node) -> Any:
    """Rope of the leading part of x, concatenated with the rest, is partial rope of x."""
    if x.op != "narrow" or r.op != "narrow" or x.inputs[0].shape != node.shape:
        return None
    whole, rotated = x.inputs[0], x.shape.dims[-1]
    rest = whole.shape.dims[-1] - rotated
    if not (_is_part(x, whole, 0, rotated) and _is_part(r, whole, rotated, rest)):
        return None
    interleaved = node.inputs[0].attrs["interleaved"]
    return ops.rope(whole, c, s, n_rot=rotated, interleaved=interleaved)
