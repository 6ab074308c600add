"""What it costs that values lie one way or another: vectors that are not full, and copies.

    results with their channels side by side    lanes along the output channels; windows are read
                                                where they lie, if the image's channels are beside
                                                each other, too, else the image is turned first
    results with their channels apart           lanes along the last axis of the image, which is
                                                written down first if it has a border, if windows
                                                take steps, or if its channels are side by side

A vector that is not full takes as long as one that is: sums over e lanes of v cost ⌈e/v⌉·v/e of
their arithmetic. What is turned is read and written once, at the rate of a copy with its axes
exchanged. Other kernels turn what does not lie along their results.

A register tile of r sums by some vectors reads those vectors at every step: flops / 2r numbers in
all. Kernels in panels lie in one line, which is there before it is asked for. Rows of an image do
not: the next step of a sum is another channel, somewhere else, and costs what a near cache takes.
Along channels, on the other hand, each place of a window and each of its taps is an address to be
found, which few channels do not outweigh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlx.core.dim import Dim, DimLike, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.ir.mir import Graph, Node
from rlx.ops.nn.window_geometry import Windows
from rlx.ops.op import Kind

CONVOLUTIONS = frozenset({"conv", "wide_conv", "conv_integer", "fused_conv_bias_act"})
TILES = {4: 6, 3: 8, 2: 12, 1: 12}
"""Vectors of a register tile, and sums one below the other: as many as the registers hold. The
widest that leaves no vector over is taken."""
OF_A_PLACE, OF_A_TAP = 40, 4
"""Instructions to find where a window lies, to keep that and to write its sums; and where a tap of
it is, in the image or outside."""
TILES_BYTES = 1 << 17
"""What a row of tiles reads, roughly: the vectors of some hundred steps, past the first cache."""
ALONG = frozenset({"max_pool", "avg_pool", "lp_pool", "resize", "batch_norm"})
"""Ops, beside elementwise ones and movements, whose lanes go along their results."""


@dataclass(frozen=True, slots=True)
class Added:
    """Work that lying so adds to what a kernel does anyway."""

    flops: int = 0
    straight_bytes: int = 0
    """Read and written in order."""
    turned_bytes: int = 0
    """Read and written with axes exchanged."""
    again_bytes: int = 0
    """Read again for every tile of registers, out of a cache near by and not in order, so that
    nothing can fetch it ahead."""

    def __add__(self, other: Added) -> Added:
        return Added(
            self.flops + other.flops,
            self.straight_bytes + other.straight_bytes,
            self.turned_bytes + other.turned_bytes,
            self.again_bytes + other.again_bytes,
        )

    def __sub__(self, other: Added) -> Added:
        return self + Added(
            -other.flops, -other.straight_bytes, -other.turned_bytes, -other.again_bytes
        )

    def ns(self, target: Target, near_bytes: int, dtype: DType) -> float:
        """What it takes in a kernel that touches so much."""
        return (
            self.flops / target.gflops(dtype)
            + self.straight_bytes / target.memory_gb_s(near_bytes)
            + self.turned_bytes / target.turning_gb_s(near_bytes)
            + self.again_bytes / target.memory_gb_s(TILES_BYTES)
        )


NOTHING = Added()


def within(node: Node) -> list[Node]:
    """The nodes of a region's body, or the node."""
    return list(_body(node).order()) if node.decl.kind is Kind.REGION else [node]


def convolution_in(node: Node) -> Node | None:
    """The one convolution of a kernel, if it has one."""
    found = [n for n in within(node) if n.op in CONVOLUTIONS]
    return found[0] if len(found) == 1 else None


def is_by_itself(conv: Node) -> bool:
    """Has every channel a kernel of its own?"""
    return conv.attrs["groups"] == conv.inputs[0].shape.dims[1] == conv.shape.dims[1]


def image_of(node: Node, conv: Node) -> int | None:
    """Which operand the windows of the kernel's convolution look at; None if it is computed."""
    if conv is node:
        return 0
    seen = conv.inputs[0]
    while seen.op == "transpose":
        (seen,) = seen.inputs
    inputs = _body(node).inputs
    return inputs.index(seen) if seen in inputs else None


def last(shape: Shape) -> Layout:
    """Channels side by side, one pixel after the other."""
    rank = shape.rank
    plain = Layout.contiguous([shape.dims[i] for i in (0, *range(2, rank), 1)])
    return plain.permuted((0, rank - 1, *range(1, rank - 1)))


def is_last(layout: Layout) -> bool:
    """Are the channels side by side, and are there several, of more than a point?"""
    dims, rank = layout.dims, len(layout.dims)
    return rank > 2 and layout.strides[1] == 1 and dims[1] != 1 and product(dims[2:]) != 1


def added(node: Node, operands: Sequence[Layout], results: Sequence[Layout], terms: Terms) -> Added:
    """What it adds to a kernel that its values lie so. Results are those of the work inside, before
    a region turns them round."""
    conv = convolution_in(node)
    if conv is None:
        return _of_others(node, operands, results, terms)
    number, along = image_of(node, conv), is_last(results[0])
    seen = operands[number] if number is not None else None
    more = _of_others(node, operands, results, terms)
    if product(conv.shape.dims[2:]) == 1:  # a plain product, whose channels are all there is
        return more
    key = conv, along, seen and is_last(seen)
    if key not in terms.lying:
        terms.lying[key] = (_by_channel if along else _by_image)(conv, key[2], terms)
    return more + terms.lying[key]


def inner_results(node: Node, layouts: Sequence[Layout]) -> list[Layout]:
    """Where the work inside a region writes, if its results lie like `layouts`: what is turned
    round at the end is not turned by anything but writing it so."""
    if node.decl.kind is not Kind.REGION:
        return list(layouts)
    found: list[Layout] = []
    for output, layout in zip(_body(node).outputs, layouts):
        while output.op == "transpose":
            perm = output.attrs["perm"]
            layout = layout.permuted([perm.index(axis) for axis in range(len(perm))])
            (output,) = output.inputs
        found.append(layout)
    return found


# -- convolutions ----------------------------------------------------------------------------------


def _by_channel(conv: Node, is_beside: bool | None, terms: Terms) -> Added:
    """Lanes along output channels: those of a group, or of all that have a kernel of their own. Are
    the channels of the image side by side? None: it is computed."""
    channels, groups = conv.shape.dims[1], conv.attrs["groups"]
    waste = _waste(conv, channels if is_by_itself(conv) else channels // groups, terms)
    image, windows = conv.inputs[0].shape, _windows(conv)
    more = Added(waste + (0 if _is_flat(windows) else _finding(conv, windows, terms)))
    if is_beside is not False or image.dims[1] == 1:
        return more
    return more + Added(turned_bytes=2 * terms.bytes_of(image))


def _finding(conv: Node, windows: Windows, terms: Terms) -> int:
    """The arithmetic that could be done while windows are found: instructions on addresses, each in
    the time of a vector's multiply-adds."""
    places = terms.size_of(conv.shape.dims[0] * product(conv.shape.dims[2:]))
    steps = OF_A_PLACE + OF_A_TAP * terms.size_of(windows.area)
    return places * steps * 2 * _lanes(conv.shape.dtype, terms)


def _by_image(conv: Node, is_beside: bool | None, terms: Terms) -> Added:
    """Lanes along the last axis of the image; or along all of it, where no window leaves its pixel:
    a plain product, whose right operand is packed."""
    image, windows = conv.inputs[0].shape, _windows(conv)
    counts = [c for c in conv.shape.dims[2:] if c != 1]
    if _is_flat(windows):
        work, moved = Added(_waste(conv, product(counts), terms)), 2 * terms.bytes_of(image)
        return work + (Added(turned_bytes=moved) if is_beside else Added(straight_bytes=moved))
    tiles = _tiles(conv, (counts or [1])[-1], terms) + _one_by_one(conv, terms)
    has_border = any(r != 0 for r in windows.reach(image.dims[2:]))
    if not has_border and windows.stride[-1] == 1 and not is_beside:
        return tiles
    moved = terms.bytes_of(image) + terms.bytes_of(_written(conv, windows))
    is_turned = is_beside or windows.stride[-1] > 1  # a run of every s-th number
    return tiles + (Added(turned_bytes=moved) if is_turned else Added(straight_bytes=moved))


def _one_by_one(conv: Node, terms: Terms) -> Added:
    """Instructions take several products of bytes where they are summed over channels side by side.
    Elsewhere each is multiplied, and then added, in 32 bits."""
    is_of_bytes = conv.op == "conv_integer" and not is_by_itself(conv)
    return Added(2 * terms.flops_of(conv)) if is_of_bytes else NOTHING


def _tiles(conv: Node, extent: DimLike, terms: Terms) -> Added:
    """What register tiles of rows of an image take beyond their arithmetic. A step of one vector by
    12 sums is 12 multiply-adds, for which 12 numbers are loaded, and two lines that it lies across.
    Tiles of a length that only a call knows are wide, and half of one is empty on average."""
    lanes, size = _lanes(conv.shape.dtype, terms), max(1, terms.size_of(extent))
    width, rows = _tile(conv, extent, -(-size // lanes))
    waste = _waste(conv, extent, terms)
    if isinstance(extent, Dim):
        waste = terms.flops_of(conv) * width * lanes // (2 * size)
    flops = terms.flops_of(conv) + waste
    loads = max(0, rows + 2 * width - rows * width)
    again = flops // (2 * rows) * conv.inputs[0].shape.dtype.itemsize
    return Added(waste + flops * loads // (rows * width), again_bytes=again)


def _tile(conv: Node, extent: DimLike, vectors: int) -> tuple[int, int]:
    """Vectors and sums of a tile. A channel by itself has one kernel, and so one sum."""
    if is_by_itself(conv):
        return 1, 1
    return next((v, r) for v, r in TILES.items() if isinstance(extent, Dim) or vectors % v == 0)


def _is_flat(windows: Windows) -> bool:
    """Does no window leave its pixel?"""
    return all(k == 1 for k in windows.kernel) and all(s == 1 for s in windows.stride)


def _windows(conv: Node) -> Windows:
    """Attributes that are left out of an op that is composed are the convolution's own."""
    axes, attrs = conv.shape.rank - 2, conv.attrs
    ones, zeros = (1,) * axes, (0,) * 2 * axes
    stride, dilation = attrs["stride"] or ones, attrs["dilation"] or ones
    return Windows(conv.inputs[1].shape.dims[2:], stride, attrs["padding"] or zeros, dilation)


def _written(conv: Node, windows: Windows) -> Shape:
    """The image with its border; windows that take steps along the last axis have each tap as a
    run of its own."""
    image = conv.inputs[0].shape
    counts = conv.shape.dims[2:]
    rooms: list[DimLike] = [
        (c - 1) * s + span for c, s, span in zip(counts, windows.stride, windows.spans)
    ]
    if windows.stride[-1] > 1:
        rooms[-1] = counts[-1] * windows.kernel[-1]
    return Shape([*image.dims[:2], *rooms], image.dtype)


def _waste(conv: Node, extent: DimLike, terms: Terms) -> int:
    """The arithmetic of lanes that are not there."""
    lanes = _lanes(conv.shape.dtype, terms)
    used = max(1, terms.size_of(extent))
    return terms.flops_of(conv) * (-used % lanes) // used


def _lanes(dtype: DType, terms: Terms) -> int:
    return max(1, terms.target.vector_bytes // dtype.compute.itemsize)


# -- other kernels ---------------------------------------------------------------------------------


def _of_others(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout], terms: Terms
) -> Added:
    """Operands, those of a convolution apart, that do not lie along the results. They are read in
    any case, and something is written: what is added is that both go across each other."""
    if not _runs_along(node):
        return NOTHING
    lanes, along = _lanes(node.shapes[0].dtype, terms), _fastest(results[0])
    turned = {
        i: None
        for i, seen in _seen(node, operands)
        if _is_turned(seen, results[0], along) or _is_in_pieces(seen, lanes)
    }
    size = 2 * sum(terms.bytes_of(node.inputs[i].shape) for i in turned)
    return Added(straight_bytes=-size, turned_bytes=size)


def _seen(node: Node, operands: Sequence[Layout]) -> Iterator[tuple[int, Layout]]:
    """Where operands lie for the work that reads them, behind movements that only rename axes."""
    if node.op in CONVOLUTIONS:
        return
    if node.decl.kind is not Kind.REGION:
        yield from ((i, _moved(node, layout) or layout) for i, layout in enumerate(operands))
        return
    body = _body(node)
    places = {n: (i, layout) for i, (n, layout) in enumerate(zip(body.inputs, operands))}
    for inner in body.order():
        place = places.get(inner.inputs[0]) if inner.inputs else None
        moved = _moved(inner, place[1]) if place else None
        if place and moved:
            places[inner] = place[0], moved
        elif inner.op not in CONVOLUTIONS:
            yield from (places[i] for i in inner.inputs if i in places)
    yield from (places[o] for o in map(_unturned, body.outputs) if o in places)


def _moved(node: Node, layout: Layout) -> Layout | None:
    rule = node.decl.view_rule
    return rule(layout, **node.attrs) if rule and node.op != "item" else None


def _unturned(output: Node) -> Node:
    while output.op == "transpose":
        (output,) = output.inputs
    return output


def _runs_along(node: Node) -> bool:
    return all(
        n.decl.kind in (Kind.ELEMENTWISE, Kind.LEAF, Kind.MOVEMENT)
        or n.op in ALONG
        or n.op in CONVOLUTIONS
        for n in within(node)
    )


def _is_turned(layout: Layout, result: Layout, along: int | None) -> bool:
    """Is it read across the direction in which the results are written?"""
    fastest = _fastest(layout)
    if fastest is None or along is None:
        return False
    if len(layout.dims) == len(result.dims):
        return layout.dims[along] != 1 and fastest != along and layout.strides[along] != 0
    return len(layout.dims) > 1 and fastest != _last_axis(layout)


def _is_in_pieces(layout: Layout, lanes: int) -> bool:
    """Are there fewer elements side by side than a vector has lanes, and gaps between them?"""
    left = {i for i, d in enumerate(layout.dims) if d != 1}
    if any(layout.strides[i] == 0 for i in left):
        return False
    size: DimLike = 1
    while found := [i for i in left if layout.strides[i] == size]:
        size = size * layout.dims[found[0]]
        left.remove(found[0])
    return bool(left) and not isinstance(size, Dim) and size < lanes


def _fastest(layout: Layout) -> int | None:
    """The axis whose elements are side by side."""
    return next(
        (i for i, (d, s) in reversed(list(enumerate(zip(layout.dims, layout.strides))))
         if d != 1 and s == 1), None,
    )  # fmt: skip


def _last_axis(layout: Layout) -> int | None:
    return next((i for i in reversed(range(len(layout.dims))) if layout.dims[i] != 1), None)


def _body(node: Node) -> Graph:
    return node.attrs["body"]
