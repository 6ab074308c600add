"""Grid sample, ROI align, space-to-depth, and non-maximum suppression."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Modes have other names from opset 20 on."""


@handles("GridSample")
@handles("GridSample", domain=MICROSOFT)
def grid_sample(call: Call) -> Node:
    x, grid = call.node(0), call.node(1)
    named: str = call.attr("mode", "linear")
    mode: Any = GRID_MODES.get(named, named)
    wide = _mixed_in(call, x, grid, mode)
    made = ops.grid_sample(
        ops.cast(x, to=wide),
        ops.cast(grid, to=wide),
        mode=mode,
        padding=call.attr("padding_mode", "zeros"),
        align_corners=bool(call.attr("align_corners", 0)),
    )
    return ops.cast(made, to=x.shape.dtype)


def _mixed_in(call: Call, x: Node, grid: Node, mode: str) -> DType:
    """The float that holds the image and the grid."""
    dtypes = (x.shape.dtype, grid.shape.dtype)
    if all(d.is_float for d in dtypes):
        return max(dtypes, key=lambda d: d.numpy.itemsize)
    if mode != "nearest" or dtypes[0].numpy.itemsize > 4 or not dtypes[1].is_float:
        raise call.unsupported(f"an image of {x.shape} is not interpolated. Cast it to a float")
    return DType.F64


@handles("AffineGrid")
def affine_grid(call: Call) -> Node:
    _, _, *sizes = call.ints(1)
    is_aligned = bool(call.attr("align_corners", 0))
    return ops.affine_grid(call.node(0), sizes=tuple(sizes), align_corners=is_aligned)


# -- regions --------------------------------------------------------------------------------------


@handles("RoiAlign", since=10)
def roi_align_by_corners(call: Call) -> Node:
    return _roi_align(call, call.attr("coordinate_transformation_mode", "output_half_pixel"))


@handles("RoiAlign", since=16)
def roi_align(call: Call) -> Node:
    return _roi_align(call, call.attr("coordinate_transformation_mode", "half_pixel"))


def _roi_align(call: Call, coordinates: str) -> Node:
    return ops.roi_align(
        *call.nodes(),
        output_size=(call.attr("output_height", 1), call.attr("output_width", 1)),
        mode=call.attr("mode", "avg"),
        sampling_ratio=call.attr("sampling_ratio", 0),
        spatial_scale=call.attr("spatial_scale", 1.0),
        half_pixel=coordinates == "half_pixel",
    )


@handles("MaxRoiPool")
def max_roi_pool(call: Call) -> Node:
    """Each region begins with the number of its image."""
    x, regions = call.node(0), call.node(1)
    image = ops.squeeze(ops.narrow(regions, axis=1, start=0, length=1), axes=(1,))
    return ops.max_roi_pool(
        x,
        ops.narrow(regions, axis=1, start=1, length=4),
        ops.cast(image, to=DType.I64),
        output_size=call.required("pooled_shape"),
        spatial_scale=call.attr("spatial_scale", 1.0),
    )


# -- blocks of pixels -----------------------------------------------------------------------------


@handles("DepthToSpace", "SpaceToDepth")
def blocks(call: Call) -> Node:
    op: Any = ops.depth_to_space if call.op == "DepthToSpace" else ops.space_to_depth
    return op(call.node(0), block=call.required("blocksize"), order=call.attr("mode", "DCR"))


# -- NMS ------------------------------------------------------------------------------------------


@handles("NonMaxSuppression")
def non_max_suppression(call: Call) -> Node:
    """The number of selected boxes is data-dependent; the thresholds must be known."""
    most, overlap, score = (_number(call, i) for i in (2, 3, 4))
    if most is not None and most < 0:
        raise GraphError(f"{call.label}: max_output_boxes_per_class is {most}")
    return ops.non_max_suppression(
        call.node(0),
        call.node(1),
        max_output_boxes_per_class=int(most or 0),
        iou_threshold=overlap or 0.0,
        score_threshold=score,
        center_point_box=bool(call.attr("center_point_box", 0)),
    )


def _number(call: Call, number: int) -> float | None:
    return float(call.array(number).reshape(-1)[0]) if call.has(number) else None
