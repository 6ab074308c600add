"""Forming loop kernels: a node, or a region's body, becomes expressions over an index space.

Composite ops of the body are spelled out until only elementwise ops, folds, movements, gathered
rows and positions are left. A value is then a function from positions to an expression. Movements
change positions only: their view rules say how, one fact in one place. A reshape needs both sides
to be affine, so an axis that it cuts is replaced by two finer ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.dim import Dim, DimLike, exact_div, product
from rlx.core.errors import UnsupportedError
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Store
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.ops.op import Kind

FOLDS = ("sum", "prod", "max", "min")
MAX_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of a position: `at` counts below `extent`."""

    at: Affine
    extent: DimLike


Position = tuple[Digit, ...]
"""Digits of a mixed radix number, the most significant first."""
Positions = tuple[Position, ...]
Read = tuple[Node, Positions]
ZERO: Position = ()
"""The only position of a dim of size 1."""


@dataclass(frozen=True, slots=True)
class Cut(Exception):
    """An axis must be replaced by two finer ones; the inner one has `inner` steps."""

    axis: Axis
    inner: DimLike


def lower_loop(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> Kernel | Refusal:
    """The loop kernel of a step, or why it is no loop nest with affine index maps."""
    return attempt(lambda: loop_kernel(node, operands, results))


def loop_kernel(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> Kernel:
    """The loop kernel of one plan step: a region, or a single op.

    Layouts give the strides of operands and results in their buffers; without them, contiguous.
    """
    body = body_of(node)
    given = operands or [Layout.contiguous(i.shape.dims) for i in node.inputs]
    made = results or [Layout.contiguous(o.shape.dims) for o in body.outputs]
    simple = _nothing(node, body) or _reshaping(node, body, given, made)
    if simple is not None:
        return simple
    body = in_primitives(body)
    cuts: dict[str, list[DimLike]] = {}
    for _ in range(MAX_ROUNDS):
        try:
            return _Former(body, cuts, given, made).kernel(node)
        except Cut as cut:
            name = cut.axis.name.split(".")[0]
            cuts.setdefault(name, []).append(cut.inner)
    raise NotLowered(f"{node.label}: its reshapes do not nest")


def _nothing(node: Node, body: Graph) -> Kernel | None:
    """What has no elements has no loops."""
    shapes = tuple(o.shape for o in body.outputs)
    if any(s.num_elements != 0 for s in shapes):
        return None
    return Kernel(node.op, (), (), tuple(n.shape for n in node.inputs), shapes)


def _reshaping(
    node: Node, body: Graph, given: Sequence[Layout], made: Sequence[Layout]
) -> Kernel | None:
    """A reshape by itself copies in the order of memory: over the dims of the one side under
    which the other has a layout, nested or not."""
    output = body.outputs[0]
    if len(body.outputs) != 1 or output.op != "reshape" or output.inputs[0].op != "input":
        return None
    operand = output.inputs[0]
    number = body.inputs.index(operand)
    read: Layout | None = given[number].reshaped(output.shape.dims)
    write: Layout | None = made[0]
    if read is None:
        read, write = given[number], made[0].reshaped(operand.shape.dims)
    if write is None:
        return None
    axes = tuple(Axis(f"d{i}", d) for i, d in enumerate(read.dims))
    at = tuple((Digit(Affine.of(a), a.extent),) if a.extent != 1 else ZERO for a in axes)
    value = Exprs().load(number, flat_index(at, read), operand.shape.dtype)
    store = Store(0, flat_index(at, write), value)
    return Kernel(node.op, axes, (store,), tuple(n.shape for n in node.inputs), (output.shape,))


def body_of(node: Node) -> Graph:
    """The step as a graph whose inputs are its operands, by position."""
    if node.decl.kind is Kind.REGION:
        return node.attrs["body"]
    graph = Graph(node.op)
    graph.traces_lines = False
    inputs = [graph.input(f"v{i}", n.shape) for i, n in enumerate(node.inputs)]
    made = graph.node(node.decl, inputs, node.attrs)
    items = range(len(made.shapes)) if made.has_items else ()
    graph.set_outputs([graph.node("item", (made,), {"index": i}) for i in items] or [made])
    return graph


def is_primitive(node: Node) -> bool:
    """Can the node be an expression as it is?"""
    kind, op = node.decl.kind, node.op
    if kind in (Kind.LEAF, Kind.ELEMENTWISE) or op in FOLDS:
        return True
    return (
        op in ("reshape", "concat", "gather", "iota", "extent") or node.decl.view_rule is not None
    )


def in_primitives(graph: Graph, kept: Collection[str] = ()) -> Graph:
    """The graph in primitives and `kept` ops only, by lowerings."""
    left = {"item", *kept}
    for _ in range(MAX_ROUNDS):
        todo = [n for n in graph.order() if not is_primitive(n) and n.op not in left]
        if not todo:
            return graph
        for node in todo:
            if node.decl.lower is None:
                why = node.decl.why_no_lowering
                raise NotLowered(f"{node.op} is no loop nest of affine index maps ({why})")
        try:
            graph = _lowered_once(graph, set(todo))
        except UnsupportedError as why:
            raise NotLowered(str(why)) from why
    raise NotLowered(f"{graph.name}: lowering does not end")


def _lowered_once(graph: Graph, todo: set[Node]) -> Graph:
    new = graph.successor()
    mapped: dict[Node, Any] = {}
    for node in graph.order():
        inputs = [mapped[i] for i in node.inputs]
        if node.op == "item" and isinstance(inputs[0], tuple):
            mapped[node] = inputs[0][node.attrs["index"]]
        elif node in todo:
            made = node.decl.lowered(inputs, node.attrs)
            mapped[node] = made if node.has_items else made[0]
        else:
            mapped[node] = new.copy(node, tuple(inputs))
    new.set_outputs([mapped[o] for o in graph.outputs])
    return new


class _Former:
    """One attempt with a given set of cut axes."""

    def __init__(
        self,
        body: Graph,
        cuts: dict[str, list[DimLike]],
        operands: Sequence[Layout],
        results: Sequence[Layout],
    ) -> None:
        self.body, self.cuts, self.operands, self.results = body, cuts, operands, results
        self.exprs = Exprs()
        self.number = {n: i for i, n in enumerate(body.inputs)}
        self.memo: dict[Read, Expr] = {}
        self.reads: dict[Read, list[Read]] = {}
        self.fold_axes: dict[tuple[Node, int], Position] = {}
        filled = (o.shape for o in body.outputs if o.shape.num_elements != 0)
        self.main = max(filled, key=lambda s: s.rank)
        self.space = [self.axis(f"d{i}", d) for i, d in enumerate(self.main.dims)]

    def axis(self, name: str, extent: DimLike) -> Position:
        """A new axis, in the finer pieces that reshapes have asked for."""
        digits: list[Digit] = []
        for i, inner in enumerate(self.cuts.get(name, ())):
            outer = exact_div(extent, inner)
            if outer is None:
                raise NotLowered(f"{self.body.name}: {extent} is not a multiple of {inner}")
            digits.append(Digit(Affine.of(Axis(f"{name}.{i}", outer)), outer))
            extent = inner
        last = f"{name}.{len(digits)}" if digits else name
        return (*digits, Digit(Affine.of(Axis(last, extent)), extent))

    def kernel(self, node: Node) -> Kernel:
        outputs = [o for o in enumerate(self.body.outputs) if o[1].shape.num_elements != 0]
        stores = tuple(self._store(i, o) for i, o in outputs)
        axes = tuple(d.at.terms[0][0] for p in self.space for d in p)
        shapes = tuple(n.shape for n in node.inputs)
        return Kernel(node.op, axes, stores, shapes, tuple(o.shape for o in self.body.outputs))

    def _store(self, number: int, output: Node) -> Store:
        where = self._aligned(output.shape)
        at = flat_index(where, self.results[number])
        return Store(number, at, self._value(output, where))

    def _aligned(self, shape: Shape) -> Positions:
        """The main axes as a result of the same rank, or of leading dims only, sees them."""
        if any(d not in (1, m) for d, m in zip(shape.dims, self.main.dims)):
            raise NotLowered(f"{self.body.name}: results {shape} and {self.main} share no loops")
        return tuple(
            ZERO if d == 1 and m != 1 else p
            for d, m, p in zip(shape.dims, self.main.dims, self.space)
        )

    def _value(self, root: Node, where: Positions) -> Expr:
        """The expression of a node at positions; works on a stack, as bodies may be long chains."""
        stack = [(root, where)]
        while stack:
            node, at = stack[-1]
            if (node, at) in self.memo:
                stack.pop()
                continue
            if (node, at) not in self.reads:
                self.reads[node, at] = self._reads(node, at)
            needs = self.reads[node, at]
            missing = [n for n in needs if n not in self.memo]
            if missing:
                stack += missing
                continue
            self.memo[node, at] = self._expr(node, at, [self.memo[n] for n in needs])
            stack.pop()
        return self.memo[root, where]

    # -- what a node reads, and what it makes of it ---------------------------------------------

    def _reads(self, node: Node, at: Positions) -> list[Read]:
        op = node.op
        if node.is_leaf or op in ("iota", "extent"):
            return []
        if op in FOLDS:
            return [(node.inputs[0], self._folded(node, at))]
        if op == "concat":
            return self._parts(node, at)
        if op == "gather":
            return [(node.inputs[1], self._rows(node, at))]
        if op == "reshape":
            return [(node.inputs[0], regrouped(at, node.inputs[0].shape.dims, node))]
        if node.decl.kind is Kind.ELEMENTWISE:
            return [(i, _broadcast(i.shape, at)) for i in node.inputs]
        return [(node.inputs[0], _moved(node, at))]

    def _expr(self, node: Node, at: Positions, args: list[Expr]) -> Expr:
        op, exprs = node.op, self.exprs
        if op == "input":
            number = self.number[node]
            return exprs.load(number, flat_index(at, self.operands[number]), node.shape.dtype)
        if op == "constant":
            return self._constant(node, at)
        if op == "extent":
            return exprs.size(node.attrs["dim"], node.shape.dtype)
        if op == "iota":
            return self._iota(node, at)
        if op in FOLDS:
            return self._fold(node, at, args[0])
        if op == "concat":
            return self._joined(node, at, args)
        if op == "gather":
            return self._gathered(node, at, args[0])
        if node.decl.kind is Kind.ELEMENTWISE:
            return exprs.apply(node.decl, args, dict(node.attrs), node.shape.dtype)
        return args[0]

    def _constant(self, node: Node, at: Positions) -> Expr:
        array = node.attrs["value"].array
        if array.size != 1:
            raise NotLowered(f"{node.label}: a constant of {array.size} elements is an operand")
        return self.exprs.const(array.reshape(()), node.shape.dtype)

    def _iota(self, node: Node, at: Positions) -> Expr:
        return self.exprs.cast(self.exprs.index(total(at[node.attrs["axis"]])), node.shape.dtype)

    # -- folds -----------------------------------------------------------------------------------

    def _folded(self, node: Node, at: Positions) -> Positions:
        """The operand's positions: the folded axes are the kernel's own where the rows are, so
        that a value read in two passes is one expression."""
        dims, axes = node.inputs[0].shape.dims, node.attrs["axes"]
        kept = list(at)
        if not node.attrs["keepdims"]:
            for axis in axes:
                kept.insert(axis, ZERO)
        own = dims == self.main.dims and self._is_apart(axes, kept)
        return tuple(
            (self.space[i] if own else self._fold_axis(node, i, d)) if i in axes else p
            for i, (d, p) in enumerate(zip(dims, kept))
        )

    def _is_apart(self, axes: Collection[int], at: Sequence[Position]) -> bool:
        """Do positions vary with none of these main axes? A square's columns lie along the rows."""
        folded = {a for i in axes for d in self.space[i] for a, _ in d.at.terms}
        kept = (p for i, p in enumerate(at) if i not in axes)
        return not any(a in folded for p in kept for d in p for a, _ in d.at.terms)

    def _fold_axis(self, node: Node, i: int, extent: DimLike) -> Position:
        if (node, i) not in self.fold_axes:
            self.fold_axes[node, i] = self.axis(f"r{node.index}_{i}", extent)
        return self.fold_axes[node, i]

    def _fold(self, node: Node, at: Positions, body: Expr) -> Expr:
        """The body folded over every digit of the folded axes, the innermost first. Sums of half
        floats are f32 until they are whole."""
        ((_, inner),) = self.reads[node, at]
        digits = [d for i in node.attrs["axes"] for d in inner[i]]
        body = self.exprs.widened(body) if node.op in ("sum", "prod") else body
        for digit in reversed(digits):
            axis = digit.at.axis
            assert axis is not None
            body = self.exprs.reduce(node.op, axis, body)
        return self.exprs.cast(body, node.shape.dtype)

    # -- joins and gathers -----------------------------------------------------------------------

    def _parts(self, node: Node, at: Positions) -> list[Read]:
        """Each operand at the position behind those before it."""
        axis, start = node.attrs["axis"], 0
        reads: list[Read] = []
        for operand in node.inputs:
            size = operand.shape.dims[axis]
            moved = (Digit(total(at[axis]) + (-1 * start), size),)
            reads.append((operand, (*at[:axis], moved, *at[axis + 1 :])))
            start = start + size
        return reads

    def _joined(self, node: Node, at: Positions, args: list[Expr]) -> Expr:
        """The last part, unless the position is inside an earlier one."""
        axis, end = node.attrs["axis"], node.shape.dims[node.attrs["axis"]]
        value: Expr | None = None
        for operand, arg in reversed(list(zip(node.inputs, args))):
            start = end - operand.shape.dims[axis]
            inside = self.exprs.inside(total(at[axis]), start, end)
            value = arg if value is None else self.exprs.choose(inside, arg, value)
            end = start
        assert value is not None
        return value

    def _rows(self, node: Node, at: Positions) -> Positions:
        axis, rank = node.attrs["axis"], node.inputs[1].shape.rank
        return at[axis : axis + rank]

    def _gathered(self, node: Node, at: Positions, row: Expr) -> Expr:
        """A row of an operand, chosen by a value."""
        table, rows = node.inputs
        if table.op != "input":
            raise NotLowered(f"{node.label}: it gathers from a value that is not in memory")
        axis = node.attrs["axis"]
        rest = (*at[:axis], ZERO, *at[axis + rows.shape.rank :])
        number = self.number[table]
        layout = self.operands[number]
        return self.exprs.gather(
            number,
            flat_index(rest, layout),
            table.shape.dtype,
            row,
            layout.strides[axis],
            table.shape.dims[axis],
        )


# -- positions ------------------------------------------------------------------------------------


def total(position: Position) -> Affine:
    """The position as one number."""
    at, weight = Affine(), 1
    for digit in reversed(position):
        at, weight = at + digit.at * weight, weight * digit.extent
    return at


def flat_index(at: Positions, layout: Layout) -> Affine:
    """Where the element at these positions lies."""
    index = Affine((), layout.offset)
    for position, stride in zip(at, layout.strides):
        index = index + total(position) * stride
    return index


def _broadcast(shape: Shape, at: Positions) -> Positions:
    """An operand's positions: missing dims are left out, dims of 1 are read at 0."""
    own = at[len(at) - shape.rank :]
    return tuple(ZERO if d == 1 else p for d, p in zip(shape.dims, own))


def _moved(node: Node, at: Positions) -> Positions:
    """The operand's positions, read off the op's view rule: strides are kept as unknowns, and
    the coefficient of an unknown is that axis' position."""
    dims = node.inputs[0].shape.dims
    unknown = [Dim(f"stride.{i}") for i in range(len(dims))]
    rule = node.decl.view_rule
    layout = rule(Layout(dims, tuple(unknown)), **node.attrs) if rule else None
    if layout is None:
        raise NotLowered(f"{node.label}: its index map is not affine")
    found: list[Position] = []
    for size, symbol in zip(dims, unknown):
        position = [(p, exact_div(s, symbol)) for p, s in zip(at, layout.strides) if s != 0]
        whole = [p for p, c in position if c == 1]
        offset = _coefficient(layout.offset, symbol)
        alone = len(whole) == 1 and sum(c is not None for _, c in position) == 1
        if alone and offset == 0 and product(d.extent for d in whole[0]) == size:
            found.append(whole[0])
            continue
        index = Affine((), offset)
        for p, c in position:
            index = index + total(p) * c if c is not None else index
        found.append((Digit(index, size),))
    return tuple(ZERO if d == 1 else p for d, p in zip(dims, found))


def _coefficient(dim: DimLike, symbol: Dim) -> DimLike:
    """What `symbol` is multiplied by in a sum."""
    if not isinstance(dim, Dim):
        return 0
    found: DimLike = 0
    for part in dim.addends():
        quotient = exact_div(part, symbol)
        found = found if quotient is None else found + quotient
    return found


def regrouped(at: Positions, dims: Sequence[DimLike], node: Node) -> Positions:
    """The positions of the same element under other dims: digits are dealt out anew.

    A digit that a dim's boundary cuts is replaced by two, if it is an axis of its own.
    """
    digits = [d for p in at for d in p if d.extent != 1]
    found: list[Position] = []
    for size in dims:
        if size == 1:
            found.append(ZERO)
            continue
        run: list[Digit] = []
        while product(d.extent for d in run) != size:
            if not digits:
                raise NotLowered(f"{node.label}: its dims do not nest with those it is read under")
            rest = exact_div(size, product(d.extent for d in run))
            if rest is None or (exact_div(rest, digits[0].extent) is None):
                raise _cut(digits[0], rest, node)
            run.append(digits.pop(0))
        found.append(tuple(run))
    return tuple(found)


def _cut(digit: Digit, rest: DimLike | None, node: Node) -> Exception:
    """The finer axes that a boundary inside `digit` asks for."""
    inner = exact_div(digit.extent, rest) if rest is not None else None
    axis = digit.at.axis
    if inner is None or axis is None:
        return NotLowered(f"{node.label}: its dims do not nest with those it is read under")
    return Cut(axis, inner)
