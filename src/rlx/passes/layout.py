"""Layouts: which images have their channels side by side.

    y[n, c, h, w] = conv(x, k)   →   y' = region(x, k){ transpose(conv(x, k)) },  y = transpose(y')

What follows a convolution element by element or window by window is laid out as its operand is,
so that between two convolutions nothing is ever turned round: `y` is `y'` in place, through other
strides. What needs another order reads it through those, and outputs are written as they are asked
for. All values keep their meaning and their shape.

Each is put to the gate, by what `rlx.cost.layout_cost` says: the kernel's own work both ways, with
its operands where they lie by now, and that of the convolutions which look at its result, through
kernels that follow it. Those are taken to lie as they would by themselves.
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
    Added,
    added,
    convolution_in,
    is_by_itself,
    is_last,
    last,
    within,
)
from rlx.cost.target import Target
from rlx.ir.mir import Graph, Node, users_of
from rlx.ops.op import Kind
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.plan.phases import is_view_kind

WHAT = "channels_last"
FOLLOWERS = frozenset({
    "max_pool", "avg_pool", "lp_pool", "resize", "concat", "pad", "batch_norm", "reshape",
})  # fmt: skip
"""Ops that do the same to all channels, or to each by itself, or write elements down anew."""
LEAST_CHANNELS = 8
"""For fewer the lanes go along the image."""
MOST_READERS = 64
"""Kernels that are looked at behind one that may be laid out."""


def choose_layouts(graph: Graph, ctx: Context) -> Graph:
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
    lying = _Lying(graph, ctx)
    places = lying.places
    for node in graph.order():
        view = _view(node, places, ctx.target)
        if view is not None:
            places[node] = view
        elif node.op == "item" and node.inputs[0] in chosen:
            places[node] = last(node.shape)
        elif node not in lying.kept and _is_image(node) and _is_chosen(node, lying):
            chosen.add(node)
            places |= {} if node.has_items else {node: last(node.shape)}
    return chosen


@dataclass(slots=True)
class _Lying:
    """Where values lie, as far as that is settled, and who reads them."""

    graph: Graph
    ctx: Context
    places: dict[Node, Layout] = field(default_factory=dict[Node, Layout])
    kept: set[Node] = field(init=False)
    """Kernels of outputs, which are written as they are asked for."""
    users: Mapping[Node, list[Node]] = field(init=False)
    _plain: dict[Node, list[Layout]] = field(default_factory=dict[Node, list[Layout]])
    _turned: dict[Node, list[Layout]] = field(default_factory=dict[Node, list[Layout]])

    def __post_init__(self) -> None:
        self.kept = set(self.graph.outputs)
        self.kept |= {n.inputs[0] for n in self.kept if n.op == "item"}
        self.users = users_of(self.graph.order())

    def layout(self, node: Node) -> Layout:
        return self.places.get(node) or self.plain(node)[0]

    def plain(self, node: Node) -> list[Layout]:
        """The results of a kernel as they are by themselves."""
        if node not in self._plain:
            self._plain[node] = [Layout.contiguous(s.dims) for s in node.shapes]
        return self._plain[node]

    def turned(self, node: Node) -> list[Layout]:
        """The same with their channels side by side."""
        if node not in self._turned:
            self._turned[node] = [last(s) for s in node.shapes]
        return self._turned[node]

    def spared(self, node: Node) -> Added:
        """What it spares that a kernel writes its channels side by side."""
        terms, operands = self.ctx.terms, [self.layout(i) for i in node.inputs]
        plain, turned = (added(node, operands, r, terms)
                         for r in (self.plain(node), self.turned(node)))  # fmt: skip
        return sum((self._of_reader(r, i) for r, i in self._readers(node)), plain - turned)

    def _of_reader(self, reader: Node, number: int) -> Added:
        """What a kernel is spared if one of its operands has its channels side by side: the image
        of a convolution, what is added to its sums, or what a kernel goes along with that is then
        laid out alike."""
        terms, operands = self.ctx.terms, [self.plain(n)[0] for n in reader.inputs]
        apart = self.plain(reader)
        beside = apart if reader in self.kept else self.turned(reader)
        if not _passes_on(reader):
            apart = beside = beside if _is_image(reader) and _convolves(reader) else apart
        seen = [self.turned(reader.inputs[i])[0] if i == number else o
                for i, o in enumerate(operands)]  # fmt: skip
        return added(reader, operands, apart, terms) - added(reader, seen, beside, terms)

    def _readers(self, node: Node) -> Iterator[tuple[Node, int]]:
        """Convolutions that read what the kernel writes, and as which operand, directly or through
        kernels that are laid out as it is; and among those the ones of channels by themselves."""
        found, stack = dict[Node, None](), [node]
        while stack and len(found) < MOST_READERS:
            value = stack.pop()
            for user in self.users[value]:
                if user in found:
                    continue
                found[user] = None
                if convolution_in(user) is not None:
                    yield from ((user, i) for i, x in enumerate(user.inputs) if x is value)
                if user.op == "item" or _passes_on(user):
                    stack.append(user)


def _passes_on(node: Node) -> bool:
    return _is_image(node) and all(_is_by_channel(n) for n in within(node))


def _is_chosen(node: Node, lying: _Lying) -> bool:
    why = _why(node, lying.places)
    if why is None:
        return False
    near = lying.ctx.terms.kernel(node).device_traffic_bytes
    return lying.ctx.log.decide(Candidate(
        WHAT, (node,), FusionBenefit(), 0, near, spared=lying.spared(node), kind="layout", why=why
    )).verdict  # fmt: skip


def _why(node: Node, places: Mapping[Node, Layout]) -> str | None:
    """What channels side by side are good for in a kernel; None if nothing."""
    if _convolves(node):
        return "a convolution sums over channels: side by side they are lanes"
    return "it does to images what they are laid out for" if _follows(node, places) else None


def _view(node: Node, places: Mapping[Node, Layout], target: Target) -> Layout | None:
    """Where it lies, if it is another's in place."""
    if node.op == "item" or not is_view_kind(node):
        return None
    base = node.inputs[0]
    return target.view(node, places.get(base) or Layout.contiguous(base.shape.dims))


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
    conv = convolution_in(node)
    if conv is None or not _is_wide(conv):
        return False
    return conv.shape.dims in [s.dims for s in node.shapes]


def _is_wide(conv: Node) -> bool:
    channels, groups = conv.shape.dims[1], conv.attrs["groups"]
    return is_static(channels) and channels // groups >= LEAST_CHANNELS


def _follows(node: Node, places: Mapping[Node, Layout]) -> bool:
    """Is it work by element, by window or by channel on images that are laid out so?"""
    if not all(_is_by_channel(n) for n in within(node)):
        return False
    images = [i for i in node.inputs if i in places and (
        node.op == "reshape" or i.shape.rank == node.shapes[0].rank)]  # fmt: skip
    return any(_has_channels(i.shape) and is_last(places[i]) for i in images)


def _is_by_channel(node: Node) -> bool:
    if node.op in FOLLOWERS or node.decl.kind in (Kind.ELEMENTWISE, Kind.LEAF):
        return True
    return node.op in CONVOLUTIONS and is_by_itself(node)


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
