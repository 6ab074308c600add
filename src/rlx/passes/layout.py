"""Layout assignment: NHWC or NCHW for the images of convolutions.

    y[n, c, h, w] = conv(x, k)   →   y' = region(x, k){ transpose(conv(x, k)) },  y = transpose(y')

Elementwise ops, pooling and other layout-agnostic kernels behind a convolution take its layout, so
that nothing is transposed between two convolutions: `y` is a strided view of `y'`. Kernels that
need NCHW read through the strides, and graph outputs stay NCHW. Values and logical shapes do not
change.

Each kernel is put to the gate with the prices of `rlx.cost.layout_cost`: its own cost both ways,
its operands as already assigned, plus that of the convolutions that read its result, directly or
through layout-agnostic kernels, which are taken to choose for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rlx import ops
from rlx.core.dim import is_static, product
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.decision import Candidate
from rlx.cost.gate import FusionBenefit
from rlx.cost.layout_cost import (
    CONVOLUTIONS,
    LayoutCost,
    body_nodes,
    convolution_in,
    is_depthwise,
    is_nhwc,
    keeps_channels,
    layout_cost,
    nhwc_layout,
)
from rlx.cost.target import Target
from rlx.ir.mir import Graph, Node, users_of
from rlx.ops.op import Kind
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.plan.phases import is_view_kind

NHWC_LAYOUT = "nhwc_layout"
"""The decision's name."""
LAYOUT_AGNOSTIC = frozenset({
    "max_pool", "avg_pool", "lp_pool", "resize", "concat", "pad", "batch_norm", "reshape",
})  # fmt: skip
"""Ops that treat every channel the same way, or write elements in a new order anyway."""
MIN_CHANNELS = 8
"""Of fewer channels a vector is mostly idle: those are vectorised over the image."""
MAX_READERS = 64
"""Downstream kernels that are priced with a candidate."""


def choose_layouts(graph: Graph, ctx: Context) -> Graph:
    """The graph with NHWC images wherever the gate finds them cheaper."""
    if ctx.target.convolutions is None:
        return graph
    return with_bodies(graph, lambda each: _with_nhwc(each, ctx))


def _with_nhwc(graph: Graph, ctx: Context) -> Graph:
    chosen = _chosen(graph, ctx)
    if not chosen:
        return graph

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node in chosen:
            made = new.node("region", inputs, {"body": _nhwc_body(node)})
            new.add_origins(made, node.origins)
            return made if node.has_items else _to_nchw(made)
        if node.op == "item" and node.inputs[0] in chosen:
            return _to_nchw(new.node(node.decl, inputs, node.attrs))
        return None

    return graph.rebuild(make)


def _chosen(graph: Graph, ctx: Context) -> set[Node]:
    """The kernels whose results become NHWC."""
    chosen: set[Node] = set()
    state = _Layouts(graph, ctx)
    layouts = state.layouts
    for node in graph.order():
        view = _view(node, layouts, ctx.target)
        if view is not None:
            layouts[node] = view
        elif node.op == "item" and node.inputs[0] in chosen:
            layouts[node] = nhwc_layout(node.shape)
        elif node not in state.fixed and _is_image(node) and _is_chosen(node, state):
            chosen.add(node)
            layouts |= {} if node.has_items else {node: nhwc_layout(node.shape)}
    return chosen


@dataclass(slots=True)
class _Layouts:
    """The layouts assigned so far, and the readers of each value."""

    graph: Graph
    ctx: Context
    layouts: dict[Node, Layout] = field(default_factory=dict[Node, Layout])
    fixed: set[Node] = field(init=False)
    """Kernels of graph outputs, which stay NCHW."""
    users: Mapping[Node, list[Node]] = field(init=False)
    _nchw: dict[Node, list[Layout]] = field(default_factory=dict[Node, list[Layout]])
    _nhwc: dict[Node, list[Layout]] = field(default_factory=dict[Node, list[Layout]])

    def __post_init__(self) -> None:
        self.fixed = set(self.graph.results)
        self.fixed |= {n.inputs[0] for n in self.fixed if n.op == "item"}
        self.users = users_of(self.graph.order())

    def layout(self, node: Node) -> Layout:
        return self.layouts.get(node) or self.nchw(node)[0]

    def nchw(self, node: Node) -> list[Layout]:
        """The contiguous layouts of a kernel's results."""
        if node not in self._nchw:
            self._nchw[node] = [Layout.contiguous(s.dims) for s in node.shapes]
        return self._nchw[node]

    def nhwc(self, node: Node) -> list[Layout]:
        """The NHWC layouts of a kernel's results."""
        if node not in self._nhwc:
            self._nhwc[node] = [nhwc_layout(s) for s in node.shapes]
        return self._nhwc[node]

    def savings(self, node: Node) -> LayoutCost:
        """What NHWC results save, in the kernel and in the convolutions that read them."""
        terms, operands = self.ctx.terms, [self.layout(i) for i in node.inputs]
        now = layout_cost(node, operands, self.nchw(node), terms)
        then = layout_cost(node, operands, self.nhwc(node), terms)
        return sum((self._reader_savings(r, i) for r, i in self._readers(node)), now - then)

    def _reader_savings(self, reader: Node, number: int) -> LayoutCost:
        """What a kernel saves if operand `number` is NHWC: a convolution's image, a residual added
        to its sums, or an operand of a layout-agnostic kernel, which then becomes NHWC as well."""
        terms, operands = self.ctx.terms, [self.nchw(n)[0] for n in reader.inputs]
        now = self.nchw(reader)
        then = now if reader in self.fixed else self.nhwc(reader)
        if not _preserves_layout(reader):
            now = then = then if _is_image(reader) and _convolves(reader) else now
        seen = [self.nhwc(reader.inputs[i])[0] if i == number else o
                for i, o in enumerate(operands)]  # fmt: skip
        return layout_cost(reader, operands, now, terms) - layout_cost(reader, seen, then, terms)

    def _readers(self, node: Node) -> Iterator[tuple[Node, int]]:
        """Convolutions that read the kernel's result, with the operand it is: directly or through
        layout-agnostic kernels, depthwise convolutions among them."""
        found, stack = dict[Node, None](), [node]
        while stack and len(found) < MAX_READERS:
            value = stack.pop()
            for user in self.users[value]:
                if user in found:
                    continue
                found[user] = None
                if convolution_in(user) is not None:
                    yield from ((user, i) for i, x in enumerate(user.inputs) if x is value)
                if user.op == "item" or _preserves_layout(user):
                    stack.append(user)


def _preserves_layout(node: Node) -> bool:
    return _is_image(node) and all(_is_per_channel(n) for n in body_nodes(node))


def _is_chosen(node: Node, state: _Layouts) -> bool:
    why = _why(node, state.layouts)
    if why is None:
        return False
    near = state.ctx.terms.kernel(node).device_traffic_bytes
    return state.ctx.log.decide(Candidate(
        NHWC_LAYOUT, (node,), FusionBenefit(), 0, near, kind="layout", why=why,
        layout_savings=state.savings(node),
    )).verdict  # fmt: skip


def _why(node: Node, layouts: Mapping[Node, Layout]) -> str | None:
    """What NHWC is good for in this kernel; None if nothing."""
    if _convolves(node):
        return "NHWC vectorises the convolution over channels"
    return "layout-agnostic, and its operand is NHWC" if _has_nhwc_operand(node, layouts) else None


def _view(node: Node, layouts: Mapping[Node, Layout], target: Target) -> Layout | None:
    """The layout of a view; None of a value with a buffer of its own."""
    if node.op == "item" or not is_view_kind(node):
        return None
    base = node.inputs[0]
    return target.view(node, layouts.get(base) or Layout.contiguous(base.shape.dims))


def _is_image(node: Node) -> bool:
    """Are all its results images of at least `MIN_CHANNELS` channels and more than one pixel?"""
    return not node.is_leaf and node.op != "item" and all(map(_has_channels, node.shapes))


def _has_channels(shape: Shape) -> bool:
    if not 3 <= shape.rank <= 5 or shape.is_measured or shape.dtype.is_complex:
        return False
    channels = shape.dims[1]
    return is_static(channels) and channels >= MIN_CHANNELS and product(shape.dims[2:]) != 1


def _convolves(node: Node) -> bool:
    """Is it a convolution, perhaps fused with others, with wide groups and its own result?"""
    conv = convolution_in(node)
    if conv is None or not _has_wide_groups(conv):
        return False
    return conv.shape.dims in [s.dims for s in node.shapes]


def _has_wide_groups(conv: Node) -> bool:
    channels, groups = conv.shape.dims[1], conv.attrs["groups"]
    return is_static(channels) and channels // groups >= MIN_CHANNELS


def _has_nhwc_operand(node: Node, layouts: Mapping[Node, Layout]) -> bool:
    """Is it elementwise, windowed or per channel, with an NHWC image as operand?"""
    if not all(_is_per_channel(n) for n in body_nodes(node)):
        return False
    known = [i for i in node.inputs if i in layouts and is_nhwc(layouts[i])]
    if node.op == "reshape":
        return any(_has_channels(i.shape) or keeps_channels(i.shape, node.shape) for i in known)
    return any(i.shape.rank == node.shapes[0].rank and _has_channels(i.shape) for i in known)


def _is_per_channel(node: Node) -> bool:
    if node.op in LAYOUT_AGNOSTIC or node.decl.kind in (Kind.ELEMENTWISE, Kind.LEAF):
        return True
    return node.op in CONVOLUTIONS and is_depthwise(node)


def _nhwc_body(node: Node) -> Graph:
    """A region body that computes the node and transposes its results to NHWC."""
    if node.decl.kind is Kind.REGION:
        body: Graph = node.attrs["body"].rebuild()
    else:
        body = Graph(node.op)
        body.traces_lines = False
        inputs = tuple(body.input(f"v{i}", n.shape) for i, n in enumerate(node.inputs))
        made = body.node(node.decl, inputs, node.attrs)
        body.add_origins(made, node.origins)
        body.set_outputs([made])
    body.set_outputs([_to_nhwc(o) for o in body.outputs])
    return body


def _to_nhwc(node: Node) -> Node:
    rank = node.shape.rank
    return ops.transpose(node, perm=(0, *range(2, rank), 1))


def _to_nchw(node: Node) -> Node:
    rank = node.shape.rank
    return ops.transpose(node, perm=(0, rank - 1, *range(1, rank - 1)))
