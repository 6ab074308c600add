"""Forming convolutions: contractions in which one operand's index moves with two axes at a time.

    acc[n, g, o, y, x] = Σ_{i, u, v} w[g·O + o, i, u, v] · image[n, g·I + i, y·s + u·d, x·s + v·d]

The kernels are the rows, the last axis of the image the columns. Where the image has a border, or
is not contiguous along the columns, it is written down first, once, with its border; what
precedes the convolution is done there. With a stride along the columns each tap has a run of its
own. So no loop of the contraction tests where it is, and no window is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, dim_max, exact_div
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract, collapsed
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Load, Store
from rlx.kernel.lower.contract import (
    Digit,
    Refined,
    digits_of,
    load_of,
    operand_of,
    refuse_folds,
    region_of,
    stride_of,
)
from rlx.kernel.lower.loop import body_of, in_primitives, loop_kernel
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.kernel.rewrite import Rewriter, substitution
from rlx.ops.nn.window_geometry import Windows

ANCHOR = "conv"


def has_conv(node: Node) -> bool:
    """Does the step contain a convolution, once composite ops are decomposed?"""
    body = attempt(lambda: in_primitives(body_of(node), (ANCHOR, "matmul")))
    return not isinstance(body, Refusal) and any(n.op == ANCHOR for n in body.order())


def lower_conv(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout]
) -> tuple[Kernel | None, Contract] | Refusal:
    """The contraction of a step with one convolution, and the kernel that stages its padded image
    if one must: it is then one more operand, behind the others."""
    return attempt(lambda: Conv.of(node, operands, results).lowered(node.op))


def prepared(node: Node) -> Graph:
    """A bias is added after the convolution, and the last axis has windows to go along. Sums of
    half floats are rounded once, behind the bias: it is added to their cast to f32, which
    `Conv.totals` takes for the sums themselves."""
    graph = in_primitives(body_of(node), (ANCHOR,))
    new = graph.successor()
    mapped: dict[Node, Node] = {}
    for node in graph.order():
        inputs = [mapped[i] for i in node.inputs]
        if node.op != ANCHOR:
            mapped[node] = new.copy(node, tuple(inputs))
            continue
        x, w, *bias = inputs
        made = _along_windows(x, w, node)
        mapped[node] = _plus(made, bias[0]) if bias else made
    new.set_outputs([mapped[o] for o in graph.outputs])
    return new


def _plus(made: Node, bias: Node) -> Node:
    """The sums and the bias, rounded once."""
    dtype = made.shape.dtype
    across = ops.expand_dims(bias, axes=tuple(range(1, made.shape.rank - 1)))
    if dtype.compute is dtype:
        return ops.add(made, across)
    total = ops.add(*(ops.cast(x, to=dtype.compute) for x in (made, across)))
    return ops.cast(total, to=dtype)


def _has_bias(node: Node) -> bool:
    anchors = (n for n in in_primitives(body_of(node), (ANCHOR,)).order() if n.op == ANCHOR)
    return any(len(n.inputs) > 2 for n in anchors)


def _along_windows(x: Node, w: Node, node: Node) -> Node:
    """The convolution with the last axis that has more than one window behind all others."""
    counts = node.shape.dims[2:]
    longest = max((j for j, c in enumerate(counts) if c != 1), default=len(counts) - 1)
    if longest == len(counts) - 1:
        return x.graph.node(ANCHOR, (x, w), node.attrs)
    order = [j for j in range(len(counts)) if j != longest] + [longest]
    perm = (0, 1, *(2 + j for j in order))

    def picked(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(numbers[j] for j in order)

    attrs = node.attrs
    half = len(order)
    padding = (*picked(attrs["padding"][:half]), *picked(attrs["padding"][half:]))
    made = ops.conv(
        ops.transpose(x, perm=perm), ops.transpose(w, perm=perm), groups=attrs["groups"],
        stride=picked(attrs["stride"]), padding=padding, dilation=picked(attrs["dilation"]),
    )  # fmt: skip
    return ops.transpose(made, perm=tuple(perm.index(i) for i in range(len(perm))))


@dataclass(frozen=True, slots=True)
class Conv:
    """The body, cut at its convolution."""

    anchor: Node
    windows: Windows
    image: Kernel
    kernels: Kernel
    after: Kernel
    load: Load
    """The sums, as the kernel after them reads them."""
    has_bias: bool

    @classmethod
    def of(cls, node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> Conv:
        body = prepared(node)
        anchors = [n for n in body.order() if n.op == ANCHOR]
        if len(anchors) != 1:
            raise NotLowered(f"{body.name}: it has {len(anchors)} convolutions, not one")
        (anchor,) = anchors
        attrs = {k: v for k, v in anchor.attrs.items() if k != "groups"}
        windows = Windows(anchor.inputs[1].shape.dims[2:], **attrs)
        image, kernels = (operand_of(body, x, given) for x in anchor.inputs)
        dims = anchor.shape.dims
        unknown = Layout(dims, tuple(stride_of(i) for i in range(len(dims))))
        after = loop_kernel(region_of(body, body.outputs, anchor), [*given, unknown], made)
        for kernel in (image, kernels, after):
            refuse_folds(kernel, anchor)
        load = load_of(after, anchor)
        return cls(anchor, windows, image, kernels, after, load, _has_bias(node))

    def totals(self, axes: Iterable[Axis]) -> dict[Expr, Expr]:
        """The finished sums in the place of what reads them: rounded to the dtype, or, under a bias
        in half floats, as they are."""
        dtype, free = self.anchor.shape.dtype, frozenset(axes)
        if dtype.compute is dtype or not self.has_bias:
            return {self.load: Accumulator(dtype, free=free)}
        wide = Accumulator(dtype.compute, free=free)
        readers = [n for n in self.after.nodes if self.load in n.args]
        return dict.fromkeys(readers, wide)

    @property
    def groups(self) -> int:
        return self.anchor.attrs["groups"]

    def lowered(self, name: str) -> tuple[Kernel | None, Contract]:
        axes = self.refined()
        inner = _inner(self.anchor.inputs[1].shape.dims[1:])
        writing, image = self._image()
        contract = self._contract(name, axes, inner, image)
        if writing is not None:
            contract = with_operand(contract, writing.results[0])
        return writing, collapsed(contract)

    # -- axes -----------------------------------------------------------------------------------

    def refined(self) -> list[Refined]:
        """The dims of the result, in pieces that what follows and the groups are made of."""
        found: list[Refined] = []
        for i, dim in enumerate(self.anchor.shape.dims):
            parts = [digits_of(self.load.at, stride_of(i), dim, self.anchor)] if dim != 1 else []
            if i == 1 and self.groups > 1 and dim != 0:
                size = exact_div(dim, self.groups)
                assert size is not None
                cut = Digit(Axis("g", self.groups), size), Digit(Axis("o", size), 1)
                parts.append(cut)
            found.append(Refined.of(("b", i), dim, parts, self.anchor))
        return found

    def moves(self, axes: Sequence[Refined]) -> dict[Axis, Affine]:
        """Where the axes of the kernel after it are."""
        moves: dict[Axis, Affine] = {}
        for i, (dim, refined) in enumerate(zip(self.anchor.shape.dims, axes)):
            if dim != 1:
                digits = digits_of(self.load.at, stride_of(i), dim, self.anchor)
                moves |= {d.axis: refined.position(d) for d in digits}
        more = [a for a in self.after.axes if a not in moves]
        if any(a.extent != 1 for a in more):
            raise NotLowered(f"{self.anchor.label}: what follows repeats the sums")
        return moves | {a: Affine() for a in more}

    # -- the image ------------------------------------------------------------------------------

    def _image(self) -> tuple[Kernel | None, _Image]:
        """What the windows look at: as it is, or written down."""
        image = self.image
        value, dims = image.stores[0].value, self.anchor.inputs[0].shape.dims
        axes = one_axis_each(image, self.anchor)
        is_whole = all(r == 0 for r in self.windows.reach(dims[2:]))
        is_side_by_side = is_whole and self.windows.stride[-1] == 1
        if isinstance(value, Load) and not value.args and is_side_by_side:
            strides = tuple(value.at.coefficient(a) for a in axes)
            if strides[-1] == 1 or dims[-1] == 1:
                return None, _Image(value.operand, value.at.offset, strides, is_by_tap=False)
        return self._written(axes, value)

    def _written(self, axes: Sequence[Axis], value: Expr) -> tuple[Kernel, _Image]:
        windows, shape = self.windows, self.anchor.inputs[0].shape
        exprs, counts = Exprs(), self.anchor.shape.dims[2:]
        new, places = [Axis("n", shape.dims[0]), Axis("c", shape.dims[1])], list[Affine]()
        *_, step = windows.stride
        for j, (count, size) in enumerate(zip(counts, windows.kernel)):
            is_by_tap = j == len(counts) - 1 and step > 1
            if is_by_tap:
                tap, at = Axis("tap", size), Axis(f"t{j}", count)
                new += [tap, at]
                place = Affine.of(at) * step + Affine.of(tap) * windows.dilation[j]
            else:
                room = (count - 1) * windows.stride[j] + windows.spans[j]
                new.append(Axis(f"t{j}", dim_max(0, room)))
                place = Affine.of(new[-1])
            places.append(place + -windows.before[j])
        moves = dict(zip(axes, (Affine.of(new[0]), Affine.of(new[1]), *places)))
        seen = Rewriter(exprs, substitution(moves))(value)
        seen = self.bordered(exprs, seen, places)
        layout = Layout.contiguous([a.extent for a in new])
        made = Shape(layout.dims, shape.dtype)
        store = Store(0, flat(map(Affine.of, new), layout.strides), seen)
        kernel = Kernel("image", tuple(new), (store,), self.image.operands, (made,))
        return kernel, _Image(len(self.image.operands), 0, layout.strides, is_by_tap=step > 1)

    def bordered(self, exprs: Exprs, seen: Expr, places: Sequence[Affine]) -> Expr:
        """Zero outside of the image."""
        dims = self.anchor.inputs[0].shape.dims[2:]
        reach = self.windows.reach(dims)
        zero = exprs.const(np.zeros((), seen.dtype.numpy), seen.dtype)
        for j, (place, dim) in enumerate(zip(places, dims)):
            if reach[j] != 0 or reach[j + len(dims)] != 0:
                seen = exprs.choose(exprs.inside(place, 0, dim), seen, zero)
        return seen

    # -- the contraction ------------------------------------------------------------------------

    def _contract(
        self, name: str, axes: Sequence[Refined], inner: Sequence[Affine], image: _Image
    ) -> Contract:
        shape, moves = self.anchor.shape, self.moves(axes)
        exprs = Exprs()
        batch, channel, *places = (position(r) for r in axes)
        group, size = self.group(axes[1]), self.anchor.inputs[1].shape.dims[1]
        seen = (batch, group * size + inner[0], *self._places(places, inner, image))
        at = flat(seen, image.strides) + image.offset
        right = exprs.load(image.operand, at, shape.dtype)
        of_kernels = one_axis_each(self.kernels, self.anchor)
        where = dict(zip(of_kernels, (channel, *inner)))
        left = Rewriter(exprs, substitution(where))(self.kernels.stores[0].value)
        *outer, columns = (a for r in (axes[0], *axes[2:]) for a in r.axes)
        *more, rows = self.channels(axes[1])
        totals = self.totals((*outer, *more, rows, columns))
        rewriter = Rewriter(exprs, substitution(moves), totals)
        steps = tuple(a for at in inner for a in at.axes)
        return Contract(
            name, (*outer, *more), rows, columns, steps, left, right, shape.dtype.compute,
            tuple(map(rewriter.store, self.after.stores)),
            self.image.operands, self.after.results,
        )  # fmt: skip

    def channels(self, channels: Refined) -> tuple[Axis, ...]:
        """The output channels, those of one group last."""
        is_alone = self.groups > 1 and self.anchor.shape.dims[1] == self.groups
        return (*channels.axes, Axis("o", 1)) if is_alone else channels.axes

    def group(self, channels: Refined) -> Affine:
        """The group of an output channel: its more significant pieces."""
        if self.groups == 1:
            return Affine()
        size = exact_div(self.anchor.shape.dims[1], self.groups)
        assert size is not None
        group = Affine()
        for axis, weight in zip(reversed(channels.axes), channels.weights):
            step = exact_div(weight, size) if size != 0 else None
            if step is not None:
                group = group + Affine.of(axis) * step
        return group

    def _places(
        self, places: Sequence[Affine], inner: Sequence[Affine], image: _Image
    ) -> list[Affine]:
        """Where a tap of a window is in the image, along its axes."""
        windows = self.windows
        taps = inner[1:]
        found = [
            p * s + t * d for p, s, t, d in zip(places, windows.stride, taps, windows.dilation)
        ]
        return [*found[:-1], taps[-1], places[-1]] if image.is_by_tap else found


@dataclass(frozen=True, slots=True)
class _Image:
    """Where the image lies: batch, channels, its axes; by tap, the last one is two."""

    operand: int
    offset: DimLike
    strides: tuple[DimLike, ...]
    is_by_tap: bool


def flat(places: Iterable[Affine], strides: Iterable[DimLike]) -> Affine:
    total = Affine()
    for place, stride in zip(places, strides):
        total = total + place * stride
    return total


def position(refined: Refined) -> Affine:
    total = Affine()
    for axis, weight in zip(reversed(refined.axes), refined.weights):
        total = total + Affine.of(axis) * weight
    return total


def _inner(dims: Sequence[DimLike]) -> list[Affine]:
    """The channel of a group and the taps: axes where there is more than one, at least one."""
    found = [Affine.of(Axis(f"k{i}", d)) if d != 1 else Affine() for i, d in enumerate(dims)]
    return found if any(f.terms for f in found) else [Affine.of(Axis("k0", 1)), *found[1:]]


def one_axis_each(kernel: Kernel, anchor: Node) -> tuple[Axis, ...]:
    names = [a.name for a in kernel.axes]
    if names != [f"d{i}" for i in range(len(names))]:
        raise NotLowered(f"{anchor.label}: a reshape before it cuts an axis")
    return kernel.axes


def with_operand(contract: Contract, shape: Shape) -> Contract:
    return replace(contract, operands=(*contract.operands, shape))
