"""Per-node cost terms on a target, memoised: launches, syncs, traffic, flops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlx.core import attrs as attributes
from rlx.core.attrs import is_symbolic
from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.core.representative import typical_size
from rlx.core.shape import Shape
from rlx.cost.gate import GraphIoProfile
from rlx.cost.target import Target, with_bodies
from rlx.ir.mir import Graph, Node
from rlx.ir.states import is_state_update
from rlx.ops.cost import work_of
from rlx.ops.op import Kind

READS_ROWS = frozenset({"embedding", "gather", "gather_nd", "take_along_axis"})
"""Ops that read of their first operand only as much as they write."""
CACHES = (1, 2, 5, 6)
"""Operands of cached attention that are caches: keys and values, and their scales."""
_FREE = GraphIoProfile()


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """Arithmetic and working set, which the I/O profile does not have."""

    peak_flops: int = 0
    """Flops at the machine's peak rate that take as long: see `Machine.peak_flops`."""
    working_set_bytes: int = 0


class Terms:
    """The cost terms of nodes on one target, memoised: at the sizes given for named dims, or else
    at representative ones; over caches that hold so many rows before a call, or else are full."""

    def __init__(
        self,
        target: Target,
        syncs: frozenset[str] = frozenset(),
        sizes: Mapping[str, int] | None = None,
        cached_rows: int | None = None,
    ) -> None:
        self.target, self._known, self._cached_rows = target, sizes, cached_rows
        self._syncs = target.syncs | syncs
        self._per_call: dict[Node, bool] = {}
        self._layouts: dict[Node, Layout | None] = {}
        self._sizes: dict[Shape, int] = {}
        self._flops: dict[tuple[object, ...], int] = {}
        self._peak: dict[tuple[object, ...], int] = {}
        self._terms: dict[Node, GraphIoProfile] = {}
        self._waits: dict[Node, bool] = {}
        self.conv_layout_costs: dict[object, Any] = {}
        """Memo of `rlx.cost.layout_cost`: convolution and layouts → their cost."""

    def of(self, node: Node) -> GraphIoProfile:
        """What `node` adds on every call: nothing if it is a view or depends on weights alone."""
        found = self._terms.get(node)
        if found is None:
            is_free = node.is_leaf or not self.is_per_call(node) or self.is_view(node)
            found = self._terms[node] = _FREE if is_free else self.kernel(node)
        return found

    def kernel(self, node: Node) -> GraphIoProfile:
        """What `node` costs where it runs as a kernel."""
        made = (node.inputs[1].shape,) if is_state_update(node) else node.shapes
        written = sum(map(self.bytes_of, made))
        return GraphIoProfile(1, int(self.waits(node)), 0, written + self.read_bytes(node))

    def waits(self, node: Node) -> bool:
        """Does the device wait for the host, for the node or for what is inside it?"""
        found = self._waits.get(node)
        if found is None:
            inside = with_bodies(node)
            found = self._waits[node] = any(n.op in self._syncs for n in inside)
        return found

    def readback(self, outputs: Iterable[Node]) -> GraphIoProfile:
        """The readback of `outputs`: their bytes, and a copy of those without a buffer of their
        own."""
        host = copies = copied = 0
        lent: set[Node] = set()
        for node in dict.fromkeys(outputs):
            size = self.bytes_of(node.shape)
            host += size
            root = self._output_producer(node)
            if root is None or root in lent:
                copies, copied = copies + 1, copied + size
            else:
                lent.add(root)
        return GraphIoProfile(copies, 0, host, 2 * copied)

    def compute(self, nodes: Iterable[Node]) -> ComputeProfile:
        """Arithmetic per call, and the bytes of every value that `nodes` touch, each once."""
        flops, touched = 0, dict[Node, None]()
        for node in nodes:
            if node.is_leaf or self.is_view(node) or not self.is_per_call(node):
                continue
            flops += self.peak_flops(node)
            touched |= dict.fromkeys((node, *map(self.root, node.inputs)))
        sizes = (self.bytes_of(s) for node in touched for s in node.shapes)
        return ComputeProfile(flops, sum(sizes))

    def flops_of(self, node: Node) -> int:
        """The flops of one application, as its op counts them."""
        return self._counted(self._flops, node, lambda *facts: node.decl.flops(*facts))

    def peak_flops(self, node: Node) -> int:
        """What the arithmetic of one application takes, in flops at the machine's peak rate."""
        peak = self.target.machine.peak_flops
        return self._counted(self._peak, node, lambda *facts: peak(work_of(node.decl, *facts)))

    def _counted(
        self, known: dict[tuple[object, ...], int], node: Node, count: Callable[..., DimLike]
    ) -> int:
        """A count of operands, results and attributes, memoised over equal layers."""
        shapes = tuple(s for i in node.inputs for s in i.shapes)
        if node.op == "cached_attention":
            shapes = tuple(self._held(node, s) if i in CACHES else s for i, s in enumerate(shapes))
        key = (node.op, shapes, *map(attributes.key, node.attrs.values()))
        found = known.get(key)
        if found is None:
            counted = count(shapes, node.shapes, node.attrs)
            found = known[key] = typical_size(counted, self._known)
        return found

    def size_of(self, dim: DimLike) -> int:
        """A dim, at representative sizes of what is named."""
        return typical_size(dim, self._known)

    # -- facts about values ------------------------------------------------------------------------

    def bytes_of(self, shape: Shape) -> int:
        """The size of a value, at representative sizes of its dims."""
        found = self._sizes.get(shape)
        if found is None:
            found = self._sizes[shape] = typical_size(shape.size_bytes, self._known)
        return found

    def is_per_call(self, node: Node) -> bool:
        """Does it depend on an input or a named dim? All else runs when parameters are set."""
        known, stack = self._per_call, [node]
        while stack:
            top = stack[-1]
            missing = [i for i in top.inputs if i not in known]
            if top in known or not missing:
                known[top] = _varies(top) or any(known[i] for i in top.inputs)
                stack.pop()
            else:
                stack += missing
        return known[node]

    def is_view(self, node: Node) -> bool:
        """Does the value own no bytes on this target?"""
        return self.view_layout(node) is not None

    def view_layout(self, node: Node) -> Layout | None:
        """The layout of the value in its root's buffer; None where it is a root itself."""
        chain = [node]
        while chain[-1] not in self._layouts and _may_be_view(chain[-1]):
            chain.append(chain[-1].inputs[0])
        for each in reversed(chain):
            if each not in self._layouts:
                self._layouts[each] = self._view(each) if _may_be_view(each) else None
        return self._layouts[node]

    def root(self, node: Node) -> Node:
        """The node whose buffer holds the value."""
        while self.is_view(node):
            node = node.inputs[0]
        return node

    def _view(self, node: Node) -> Layout | None:
        if node.op == "item":
            return Layout.contiguous(node.shape.dims)
        base = node.inputs[0]
        return self.target.view(node, self._layouts[base] or Layout.contiguous(base.shape.dims))

    def _output_producer(self, node: Node) -> Node | None:
        """The kernel that can write output `node` directly: the whole of its result."""
        if not self.is_per_call(node):
            return None
        layout, root = self.view_layout(node), self.root(node)
        is_whole = layout is None or (
            layout.is_contiguous
            and layout.offset == 0
            and node.shape.num_elements == self._item(node).shape.num_elements
        )
        return self._item(node) if is_whole and not root.is_leaf else None

    def _item(self, node: Node) -> Node:
        """The root, or the item that is one result of it."""
        while self.is_view(node) and node.op != "item":
            node = node.inputs[0]
        return node

    # -- what is read ------------------------------------------------------------------------------

    def read_bytes(self, node: Node) -> int:
        """What the node's kernel reads: each distinct operand once, and only the part it needs."""
        return sum(self.reads(node).values())

    def reads(self, node: Node) -> dict[Node, int]:
        """The same, operand by operand."""
        if node.decl.kind is Kind.REGION:
            return self._region_reads(node)
        return {i: self._part(node, i, self.view_layout(i)) for i in node.inputs}

    def _part(self, user: Node, operand: Node, layout: Layout | None) -> int:
        """The bytes of `operand` that `user` reads; `layout` is that of a view. An update reads
        nothing of its state, attention an entry of a cache for each row of its batch."""
        if operand is user.inputs[0] and is_state_update(user):
            return 0
        if user.op == "cached_attention" and user.inputs.index(operand) in CACHES:
            rows = self._held(user, operand.shape).with_dim(0, user.shape.dims[0])
            return min(self.bytes_of(operand.shape), self.bytes_of(rows))
        if user.op in READS_ROWS and operand is user.inputs[0]:
            return min(self.bytes_of(operand.shape), sum(map(self.bytes_of, user.shapes)))
        if layout is None or operand.op == "item":
            return sum(map(self.bytes_of, operand.shapes))
        dims = [d for d, s in zip(layout.dims, layout.strides) if s != 0]
        return self.bytes_of(Shape(dims, operand.shape.dtype))

    def _held(self, user: Node, cache: Shape) -> Shape:
        """The part of a cache that attention reads of each entry: rows up to its last query, and
        no more than its window has."""
        window = user.attrs["window"]
        if self._cached_rows is None and window is None:
            return cache
        capacity, queries = self.size_of(cache.dims[1]), self.size_of(user.shape.dims[1])
        held = capacity if self._cached_rows is None else self._cached_rows + queries
        seen = held if window is None else window + queries
        return cache.with_dim(1, min(capacity, held, seen))

    def _region_reads(self, node: Node) -> dict[Node, int]:
        """What a region's body reads of each distinct value from outside."""
        reads = dict[Node, int]()
        for inside, size in self._body_reads(node.attrs["body"]):
            outside = node.inputs[inside]
            reads[outside] = reads.get(outside, 0) + size
        return {outside: min(n, self.bytes_of(outside.shape)) for outside, n in reads.items()}

    def _body_reads(self, body: Graph) -> Iterator[tuple[int, int]]:
        """(body input, bytes) of every read inside. A region kernel reads any layout in place."""
        number = {node: i for i, node in enumerate(body.inputs)}
        located: dict[Node, tuple[Node, Layout | None]] = {}
        for node in body.order():
            base = node.inputs[0] if node.inputs else node
            root, layout = located.get(base, (base, None))
            view = _inner_view(node, layout)
            located[node] = (root, view) if view is not None else (node, None)
            if view is None:
                for operand in dict.fromkeys(node.inputs):
                    root, layout = located[operand]
                    if root in number:
                        yield number[root], self._part(node, operand, layout)
        for output in dict.fromkeys(body.outputs):
            root, layout = located[output]
            if root in number:
                yield number[root], self._part(output, output, layout)


def _varies(node: Node) -> bool:
    """Does the node itself bring in what only a call knows? A param's dims come with the param."""
    if node.is_leaf:
        return node.is_given
    return any(map(is_symbolic, node.shapes)) or any(map(is_symbolic, node.attrs.values()))


def _may_be_view(node: Node) -> bool:
    return node.op in ("item", "cast") or node.decl.view_rule is not None


def _inner_view(node: Node, layout: Layout | None) -> Layout | None:
    rule = node.decl.view_rule
    if rule is None or node.op == "item":
        return None
    return rule(layout or Layout.contiguous(node.inputs[0].shape.dims), **node.attrs)
