"""Layout cost model: what NCHW or NHWC operands and results add to a kernel's time.

    NHWC results    vectorised over output channels; an NHWC image is read in place through gather
                    offsets, an NCHW one is transposed first
    NCHW results    vectorised over the image's last axis; the image is first copied with its
                    padding if it has any, if the stride along that axis is not 1, or if it is NHWC

A partly filled vector takes as long as a full one: e elements in vectors of v lanes cost ⌈e/v⌉·v/e
of their arithmetic. A transposed operand is read and written once, at a transposing copy's
bandwidth. Other kernels transpose operands whose unit-stride axis is not that of their results.

A register tile of r accumulator rows reads its vectors at every step of the sum: flops / 2r numbers
in all. Packed weights are contiguous, so hardware prefetch hides their loads. Rows of an NCHW image
are not: the next step of the sum is another channel, a plane away, and costs the bandwidth of the
second-level cache. NHWC, in turn, computes an address per window and per tap of it, which few
channels do not amortise.

Lanes, register tiles and bandwidths are the machine's; what addresses take is stated by the target
(`ConvolutionPrices`). Convolutions on matrix instructions (`ImplicitGemm`) read windows as runs of
channels: what an NCHW image costs is a transposing copy. A target without such prices has other
convolution kernels than these, and only strided operands are priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlx.core.dim import Dim, DimLike, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.machine import Machine
from rlx.cost.target import ConvolutionPrices, ImplicitGemm
from rlx.cost.terms import Terms
from rlx.ir.mir import Graph, Node
from rlx.ops.nn.window_geometry import Windows
from rlx.ops.op import Kind

CONVOLUTIONS = frozenset({"conv", "wide_conv", "conv_integer", "fused_conv_bias_act"})
VECTORISED_OVER_RESULT = frozenset({"max_pool", "avg_pool", "lp_pool", "resize", "batch_norm"})
"""Ops, beside elementwise ones and movements, vectorised over their results' unit-stride axis."""


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """What layouts add to a kernel's own arithmetic and traffic."""

    flops: int = 0
    sequential_bytes: int = 0
    """Read and written in memory order."""
    transposed_bytes: int = 0
    """Read and written by a transposing copy."""
    reload_bytes: int = 0
    """Reloaded for every register tile from a near cache, strided: prefetch does not help."""
    launches: int = 0
    """Of kernels that only transpose."""

    def __add__(self, other: LayoutCost) -> LayoutCost:
        return LayoutCost(
            self.flops + other.flops,
            self.sequential_bytes + other.sequential_bytes,
            self.transposed_bytes + other.transposed_bytes,
            self.reload_bytes + other.reload_bytes,
            self.launches + other.launches,
        )

    def __sub__(self, other: LayoutCost) -> LayoutCost:
        return self + LayoutCost(
            -other.flops,
            -other.sequential_bytes,
            -other.transposed_bytes,
            -other.reload_bytes,
            -other.launches,
        )

    def ns(self, machine: Machine, near_bytes: int, dtype: DType) -> float:
        """Its time in a kernel whose working set is `near_bytes`. A row of register tiles reads the
        vectors of some hundred steps, which exceeds the nearest cache."""
        return (
            self.flops / machine.gflops(dtype)
            + self.sequential_bytes / machine.memory_gb_s(near_bytes)
            + self.transposed_bytes / machine.transpose_gb_s_for(near_bytes)
            + self.reload_bytes / machine.second_level_gb_s
            + self.launches * machine.gate.dispatch_ns
        )


NO_COST = LayoutCost()


def _sequential(bytes_: int) -> LayoutCost:
    return LayoutCost(sequential_bytes=bytes_)


def body_nodes(node: Node) -> list[Node]:
    """The nodes of a region's body, or the node."""
    return list(_body(node).order()) if node.decl.kind is Kind.REGION else [node]


def convolution_in(node: Node) -> Node | None:
    """The one convolution of a kernel, if it has one."""
    found = [n for n in body_nodes(node) if n.op in CONVOLUTIONS]
    return found[0] if len(found) == 1 else None


def is_depthwise(conv: Node) -> bool:
    """Is it depthwise: one group, and one filter, per channel?"""
    return conv.attrs["groups"] == conv.inputs[0].shape.dims[1] == conv.shape.dims[1]


def image_operand(node: Node, conv: Node) -> int | None:
    """Which operand is the convolution's image; None if the region computes the image itself."""
    if conv is node:
        return 0
    seen = conv.inputs[0]
    while seen.op == "transpose":
        (seen,) = seen.inputs
    inputs = _body(node).inputs
    return inputs.index(seen) if seen in inputs else None


def nhwc_layout(shape: Shape) -> Layout:
    """The NHWC layout of an NCHW shape: channels have unit stride."""
    rank = shape.rank
    plain = Layout.contiguous([shape.dims[i] for i in (0, *range(2, rank), 1)])
    return plain.permuted((0, rank - 1, *range(1, rank - 1)))


def is_nhwc(layout: Layout) -> bool:
    """Have the channels unit stride, with several channels and more than one pixel?"""
    dims, rank = layout.dims, len(layout.dims)
    return rank > 2 and layout.strides[1] == 1 and dims[1] != 1 and product(dims[2:]) != 1


def keeps_channels(before: Shape, after: Shape) -> bool:
    """Does a reshape split or merge spatial axes alone, such as those of an upsampled image?"""
    return _same_channels(before.dims, after.dims)


def _same_channels(before: Sequence[DimLike], after: Sequence[DimLike]) -> bool:
    return len(before) > 2 < len(after) and tuple(before[:2]) == tuple(after[:2])


def layout_cost(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout], terms: Terms
) -> LayoutCost:
    """What these layouts add to a kernel. `results` are those of the computation inside a region,
    before its final transposes: see `inner_results`."""
    conv = convolution_in(node)
    if conv is None:
        return _strided_operands(node, operands, results, terms)
    number, writes_nhwc = image_operand(node, conv), is_nhwc(results[0])
    seen = operands[number] if number is not None else None
    more = _strided_operands(node, operands, results, terms)
    is_matmul = product(conv.shape.dims[2:]) == 1  # over channels, with no spatial axes
    if is_matmul or terms.target.convolutions is None:
        return more
    key = conv, writes_nhwc, seen and is_nhwc(seen)
    if key not in terms.conv_layout_costs:
        terms.conv_layout_costs[key] = _convolution(*key, terms)
    return more + terms.conv_layout_costs[key]


def inner_results(node: Node, layouts: Sequence[Layout]) -> list[Layout]:
    """The layouts in which the computation inside a region stores, if its results have `layouts`:
    a transpose at the end of a body only permutes the strides of the store."""
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


def _convolution(
    conv: Node, writes_nhwc: bool, is_image_nhwc: bool | None, terms: Terms
) -> LayoutCost:
    """By the target's kernels. `is_image_nhwc` is None where the region computes the image."""
    prices = terms.target.convolutions
    if isinstance(prices, ImplicitGemm):
        is_product = conv.inputs[0].shape.dtype in prices.dtypes and not is_depthwise(conv)
        price = _by_matrix_tiles if is_product else _by_loops
        return price(conv, writes_nhwc, is_image_nhwc, terms)
    price = _vectorised_over_channels if writes_nhwc else _vectorised_over_width
    return price(conv, is_image_nhwc, terms)


def _by_matrix_tiles(
    conv: Node, writes_nhwc: bool, is_image_nhwc: bool | None, terms: Terms
) -> LayoutCost:
    """On matrix instructions: an NCHW image is transposed by a kernel of its own."""
    del writes_nhwc
    image = conv.inputs[0].shape
    if is_image_nhwc is not False or image.dims[1] == 1:
        return NO_COST
    return LayoutCost(transposed_bytes=2 * terms.bytes_of(image), launches=1)


def _by_loops(
    conv: Node, writes_nhwc: bool, is_image_nhwc: bool | None, terms: Terms
) -> LayoutCost:
    """Neighbouring threads do neighbours of a row of the image, or of the channels of a depthwise
    convolution in NHWC: other operands and results are accessed with strides."""
    image = LayoutCost(transposed_bytes=2 * terms.bytes_of(conv.inputs[0].shape))
    result = LayoutCost(transposed_bytes=2 * terms.bytes_of(conv.shape))
    if is_depthwise(conv):
        return image if is_image_nhwc is (not writes_nhwc) else NO_COST
    return (image if is_image_nhwc else NO_COST) + (result if writes_nhwc else NO_COST)


def _vectorised_over_channels(conv: Node, is_image_nhwc: bool | None, terms: Terms) -> LayoutCost:
    """Vectorised over output channels: those of a group, or all of a depthwise one. `is_image_nhwc`
    is None where the region computes the image itself."""
    channels, groups = conv.shape.dims[1], conv.attrs["groups"]
    waste = _idle_lane_flops(conv, channels if is_depthwise(conv) else channels // groups, terms)
    image, windows = conv.inputs[0].shape, _windows(conv)
    addresses = 0 if _is_pointwise(windows) else _address_flops(conv, windows, terms)
    more = LayoutCost(waste + addresses)
    if is_image_nhwc is not False or image.dims[1] == 1:
        return more
    return more + LayoutCost(transposed_bytes=2 * terms.bytes_of(image))


def _address_flops(conv: Node, windows: Windows, terms: Terms) -> int:
    """Address computation as flops: each scalar instruction takes the time of one vector FMA."""
    prices = terms.target.convolutions
    if not isinstance(prices, ConvolutionPrices):
        return 0
    pixels = terms.size_of(conv.shape.dims[0] * product(conv.shape.dims[2:]))
    taps = terms.size_of(windows.area)
    steps = prices.instructions_per_window + prices.instructions_per_tap * taps
    return pixels * steps * 2 * _lanes(conv.shape.dtype, terms)


def _vectorised_over_width(conv: Node, is_image_nhwc: bool | None, terms: Terms) -> LayoutCost:
    """Vectorised over the image's last axis; or over all pixels of a pointwise convolution, a GEMM
    whose packed right operand is the image."""
    image, windows = conv.inputs[0].shape, _windows(conv)
    counts = [c for c in conv.shape.dims[2:] if c != 1]
    if _is_pointwise(windows):
        moved = 2 * terms.bytes_of(image)
        pack = LayoutCost(transposed_bytes=moved) if is_image_nhwc else _sequential(moved)
        return LayoutCost(_idle_lane_flops(conv, product(counts), terms)) + pack
    tiles = _register_tiles(conv, (counts or [1])[-1], terms) + _widened_products(conv, terms)
    is_padded = any(r != 0 for r in windows.reach(image.dims[2:]))
    if not is_padded and windows.stride[-1] == 1 and not is_image_nhwc:
        return tiles
    moved = terms.bytes_of(image) + terms.bytes_of(_padded_image(conv, windows))
    is_strided = is_image_nhwc or windows.stride[-1] > 1
    return tiles + (LayoutCost(transposed_bytes=moved) if is_strided else _sequential(moved))


def _widened_products(conv: Node, terms: Terms) -> LayoutCost:
    """int8 products of NCHW images: dot-product instructions sum over unit-stride channels only.
    Elsewhere each product is widened, multiplied and added in 32 bits."""
    is_int8 = conv.op == "conv_integer" and not is_depthwise(conv)
    is_slower = is_int8 and terms.target.machine.has_dot_products
    return LayoutCost(2 * terms.flops_of(conv)) if is_slower else NO_COST


def _register_tiles(conv: Node, extent: DimLike, terms: Terms) -> LayoutCost:
    """What register tiles over image rows take beyond their arithmetic. A step of 1 vector by 12
    accumulators is 12 multiply-adds with 12 broadcast loads, and a vector load that crosses a cache
    line counts twice. Tiles over a symbolic extent are wide, and half of one is idle on average."""
    lanes, size = _lanes(conv.shape.dtype, terms), max(1, terms.size_of(extent))
    rows, width = _register_tile(conv, extent, -(-size // lanes), terms.target.machine)
    waste = _idle_lane_flops(conv, extent, terms)
    if isinstance(extent, Dim):
        waste = terms.flops_of(conv) * width * lanes // (2 * size)
    flops = terms.flops_of(conv) + waste
    loads = max(0, rows + 2 * width - rows * width)
    reload = flops // (2 * rows) * conv.inputs[0].shape.dtype.itemsize
    return LayoutCost(waste + flops * loads // (rows * width), reload_bytes=reload)


def _register_tile(conv: Node, extent: DimLike, vectors: int, machine: Machine) -> tuple[int, int]:
    """(accumulator rows, vectors) of a tile: the widest that divides the row's vectors. A depthwise
    channel has one filter: one row."""
    if is_depthwise(conv):
        return 1, 1
    is_symbolic = isinstance(extent, Dim)
    return next((r, v) for r, v in machine.register_tiles if is_symbolic or vectors % v == 0)


def _is_pointwise(windows: Windows) -> bool:
    """Is every window one pixel, at stride 1?"""
    return all(k == 1 for k in windows.kernel) and all(s == 1 for s in windows.stride)


def _windows(conv: Node) -> Windows:
    """Attributes absent from a fused op have `conv`'s defaults."""
    axes, attrs = conv.shape.rank - 2, conv.attrs
    ones, zeros = (1,) * axes, (0,) * 2 * axes
    stride, dilation = attrs["stride"] or ones, attrs["dilation"] or ones
    return Windows(conv.inputs[1].shape.dims[2:], stride, attrs["padding"] or zeros, dilation)


def _padded_image(conv: Node, windows: Windows) -> Shape:
    """The copy of the image with its padding; where the stride along the last axis is above 1, each
    tap of that axis has a contiguous row of its own."""
    image = conv.inputs[0].shape
    counts = conv.shape.dims[2:]
    extents: list[DimLike] = [
        (c - 1) * s + span for c, s, span in zip(counts, windows.stride, windows.spans)
    ]
    if windows.stride[-1] > 1:
        extents[-1] = counts[-1] * windows.kernel[-1]
    return Shape([*image.dims[:2], *extents], image.dtype)


def _idle_lane_flops(conv: Node, extent: DimLike, terms: Terms) -> int:
    """The arithmetic of idle lanes in the last, partly filled vector."""
    lanes = _lanes(conv.shape.dtype, terms)
    used = max(1, terms.size_of(extent))
    return terms.flops_of(conv) * (-used % lanes) // used


def _lanes(dtype: DType, terms: Terms) -> int:
    return terms.target.machine.lanes(dtype)


# -- other kernels ---------------------------------------------------------------------------------


def _strided_operands(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout], terms: Terms
) -> LayoutCost:
    """Operands, a convolution's excepted, whose unit-stride axis is not the results'. They are read
    and the results written in any case: the cost is that this goes at a transposing copy's rate."""
    if not _is_vectorised_over_result(node):
        return NO_COST
    lanes, axis = _lanes(node.shapes[0].dtype, terms), _unit_stride_axis(results[0])
    transposed = {
        i: None
        for i, seen in _operand_layouts(node, operands)
        if _is_transposed(seen, results[0], axis) or _is_fragmented(seen, lanes)
    }
    size = 2 * sum(terms.bytes_of(node.inputs[i].shape) for i in transposed)
    return LayoutCost(sequential_bytes=-size, transposed_bytes=size)


def _operand_layouts(node: Node, operands: Sequence[Layout]) -> Iterator[tuple[int, Layout]]:
    """(operand, layout) of every read, seen through the views in front of it."""
    if node.op in CONVOLUTIONS:
        return
    if node.decl.kind is not Kind.REGION:
        yield from ((i, _view_layout(node, layout) or layout) for i, layout in enumerate(operands))
        return
    body = _body(node)
    layouts = {n: (i, layout) for i, (n, layout) in enumerate(zip(body.inputs, operands))}
    for inner in body.order():
        read = layouts.get(inner.inputs[0]) if inner.inputs else None
        moved = _view_layout(inner, read[1]) if read else None
        if read and moved:
            layouts[inner] = read[0], moved
        elif inner.op not in CONVOLUTIONS:
            yield from (layouts[i] for i in inner.inputs if i in layouts)
    yield from (layouts[o] for o in map(_before_transposes, body.outputs) if o in layouts)


def _view_layout(node: Node, layout: Layout) -> Layout | None:
    rule = node.decl.view_rule
    return rule(layout, **node.attrs) if rule and node.op != "item" else None


def _before_transposes(output: Node) -> Node:
    while output.op == "transpose":
        (output,) = output.inputs
    return output


def _is_vectorised_over_result(node: Node) -> bool:
    return all(
        n.decl.kind in (Kind.ELEMENTWISE, Kind.LEAF, Kind.MOVEMENT)
        or n.op in VECTORISED_OVER_RESULT
        or n.op in CONVOLUTIONS
        for n in body_nodes(node)
    )


def _is_transposed(layout: Layout, result: Layout, axis: int | None) -> bool:
    """Is its unit-stride axis another than the results'?"""
    fastest = _unit_stride_axis(layout)
    if fastest is None or axis is None:
        return False
    if len(layout.dims) == len(result.dims):
        return layout.dims[axis] != 1 and fastest != axis and layout.strides[axis] != 0
    if axis == 1 and _same_channels(layout.dims, result.dims):
        return fastest != axis
    return len(layout.dims) > 1 and fastest != _last_axis(layout)


def _is_fragmented(layout: Layout, lanes: int) -> bool:
    """Are its contiguous runs shorter than a vector, with gaps between them?"""
    left = {i for i, d in enumerate(layout.dims) if d != 1}
    if any(layout.strides[i] == 0 for i in left):
        return False
    size: DimLike = 1
    while found := [i for i in left if layout.strides[i] == size]:
        size = size * layout.dims[found[0]]
        left.remove(found[0])
    return bool(left) and not isinstance(size, Dim) and size < lanes


def _unit_stride_axis(layout: Layout) -> int | None:
    """The axis whose stride is 1."""
    return next(
        (i for i, (d, s) in reversed(list(enumerate(zip(layout.dims, layout.strides))))
         if d != 1 and s == 1), None,
    )  # fmt: skip


def _last_axis(layout: Layout) -> int | None:
    return next((i for i in reversed(range(len(layout.dims))) if layout.dims[i] != 1), None)


def _body(node: Node) -> Graph:
    return node.attrs["body"]
