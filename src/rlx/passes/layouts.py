"""Layouts: which images have their channels side by side.

    y[n, c, h, w] = conv(x, k)   →   y' = region(x, k){ transpose(conv(x, k)) },  y = transpose(y')

What follows a convolution element by element or window by window is laid out as its operand is,
so that between two convolutions nothing is ever turned round: `y` is `y'` in place, through other
strides. What needs another order reads it through those, and outputs are written as they are asked
for. All values keep their meaning and their shape.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlx import ops
from rlx.cost.target import Target
from rlx.dim import is_static, product
from rlx.ir.layout import Layout
from rlx.ir.mir import Graph, Node
from rlx.op import Kind
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.plan.phases import is_view_kind
from rlx.shape import Shape

WHAT = "channels_last"
CONVOLUTIONS = frozenset({"conv", "conv_transpose", "fused_conv_bias_act"})
FOLLOWERS = frozenset({
    "max_pool", "avg_pool", "lp_pool", "resize", "concat", "pad", "batch_norm", "reshape",
})  # fmt: skip
"""Ops that do the same to all channels, or to each by itself, or write elements down anew."""
LEAST_CHANNELS = 8
"""For fewer the lanes go along the image."""


def lay_out(graph: Graph, ctx: Context) -> Graph:
    """The graph with its images laid out as the target's kernels want them."""
    if not ctx.target.wants_channels_last:
        return graph
    return with_bodies(graph, lambda each: _laid_out(each, ctx))


def _laid_out(graph: Graph, ctx: Context) -> Graph:
    chosen = _chosen(graph, ctx)
    if not chosen:
        return graph

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node in chosen:
            turned = new.node("region", inputs, {"body": _turned(node)})
            new.add_origins(turned, node.origins)
            return turned if node.has_items else _back(turned)
        if node.op == "item" and node.inputs[0] in chosen:
            return _back(new.node(node.decl, inputs, node.attrs))
        return None

    return graph.rebuild(make)


def _chosen(graph: Graph, ctx: Context) -> set[Node]:
    """The kernels that are to write their channels side by side."""
    chosen: set[Node] = set()
    places: dict[Node, Layout] = {}
    kept = set(graph.outputs)
    kept |= {n.inputs[0] for n in kept if n.op == "item"}
    for node in graph.order():
        view = _view(node, places, ctx.target)
        if view is not None:
            places[node] = view
        elif node.op == "item" and node.inputs[0] in chosen:
            places[node] = _last(node.shape)
        elif node not in kept and _is_image(node) and _is_chosen(node, places, ctx):
            chosen.add(node)
            places |= {} if node.has_items else {node: _last(node.shape)}
    return chosen


def _is_chosen(node: Node, places: Mapping[Node, Layout], ctx: Context) -> bool:
    reason = _why(node, places)
    return reason is not None and bool(
        ctx.log.choose(WHAT, (node,), True, reason, kind="layout").verdict
    )


def _why(node: Node, places: Mapping[Node, Layout]) -> str | None:
    """Why a kernel is to write its channels side by side; None if it is not."""
    if _convolves(node):
        return "a convolution sums over channels: side by side they are lanes"
    return "it does to images what they are laid out for" if _follows(node, places) else None


def _view(node: Node, places: Mapping[Node, Layout], target: Target) -> Layout | None:
    """Where it lies, if it is another's in place."""
    if node.op == "item" or not is_view_kind(node):
        return None
    base = node.inputs[0]
    return target.view(node, places.get(base) or Layout.contiguous(base.shape.dims))


def _last(shape: Shape) -> Layout:
    rank = shape.rank
    plain = Layout.contiguous([shape.dims[i] for i in (0, *range(2, rank), 1)])
    return plain.permuted((0, rank - 1, *range(1, rank - 1)))


def _is_image(node: Node) -> bool:
    """Are all its results images of enough channels, and more than points?"""
    return not node.is_leaf and node.op != "item" and all(map(_has_channels, node.shapes))


def _has_channels(shape: Shape) -> bool:
    if not 3 <= shape.rank <= 5 or shape.is_measured or shape.dtype.is_complex:
        return False
    channels = shape.dims[1]
    return is_static(channels) and channels >= LEAST_CHANNELS and product(shape.dims[2:]) != 1


def _convolves(node: Node) -> bool:
    """Is it a convolution, perhaps with more around it, that sums over the lanes of a result?"""
    found = [n for n in _within(node) if n.op in CONVOLUTIONS]
    return len(found) == 1 and _is_wide(found[0]) and found[0].shape in node.shapes


def _is_wide(conv: Node) -> bool:
    channels, groups = conv.shape.dims[1], conv.attrs["groups"]
    return is_static(channels) and channels // groups >= LEAST_CHANNELS


def _follows(node: Node, places: Mapping[Node, Layout]) -> bool:
    """Is it work by element, by window or by channel on images that are laid out so?"""
    if not all(_is_by_channel(n) for n in _within(node)):
        return False
    images = [i for i in node.inputs if i in places and (
        node.op == "reshape" or i.shape.rank == node.shapes[0].rank)]  # fmt: skip
    return any(_is_last(places[i], i.shape) for i in images)


def _is_last(layout: Layout, shape: Shape) -> bool:
    return _has_channels(shape) and layout.strides[1] == 1


def _is_by_channel(node: Node) -> bool:
    if node.op in FOLLOWERS or node.decl.kind in (Kind.ELEMENTWISE, Kind.LEAF):
        return True
    return node.op in CONVOLUTIONS and _is_by_itself(node)


def _is_by_itself(conv: Node) -> bool:
    """Has every channel a kernel of its own?"""
    return conv.attrs["groups"] == conv.inputs[0].shape.dims[1] == conv.shape.dims[1]


def _within(node: Node) -> list[Node]:
    if node.decl.kind is Kind.REGION:
        return list(node.attrs["body"].order())
    return [node]


def _turned(node: Node) -> Graph:
    """The work of a node, its results with the channels last."""
    if node.decl.kind is Kind.REGION:
        body: Graph = node.attrs["body"].rebuild()
    else:
        body = Graph(node.op)
        body.traces_lines = False
        inputs = tuple(body.input(f"v{i}", n.shape) for i, n in enumerate(node.inputs))
        made = body.node(node.decl, inputs, node.attrs)
        body.add_origins(made, node.origins)
        body.set_outputs([made])
    body.set_outputs([_forth(o) for o in body.outputs])
    return body


def _forth(node: Node) -> Node:
    rank = node.shape.rank
    return ops.transpose(node, perm=(0, *range(2, rank), 1))


def _back(node: Node) -> Node:
    rank = node.shape.rank
    return ops.transpose(node, perm=(0, rank - 1, *range(1, rank - 1)))
