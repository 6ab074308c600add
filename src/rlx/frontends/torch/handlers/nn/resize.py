"""Resampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx import ops
from rlx.core.errors import GraphError
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, Refused, rank
from rlx.ir.mir import Node


def _scales(call: Call) -> tuple[float, ...]:
    """The factors that a call states, from which coordinates follow rather than from sizes."""
    given = call.args.get("scale_factors")
    if given is None:
        names = ("scales_d", "scales_h", "scales_w", "scales")
        given = [call.args[n] for n in names if call.args.get(n) is not None]
    count = len(call.dims) - 2
    return tuple(map(float, given)) if given and len(given) == count else ()


def _resized(call: Call, x: Node, **how: Any) -> Node:
    sizes: Any = call.dims[2:]
    scales = _scales(call) if how.get("coordinate_mode") != "align_corners" else ()
    more: dict[str, Any] = {"scales": scales} if scales else {}
    try:
        return ops.resize(x, axes=tuple(range(2, rank(x))), sizes=sizes, **more, **how)
    except GraphError as error:
        raise Refused(str(error)) from None


@handles("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(call: Call, x: Node, *_: Any) -> Node:
    return _resized(call, x, mode="nearest", coordinate_mode="asymmetric", nearest_mode="floor")


@handles("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(call: Call, x: Node, *_: Any) -> Node:
    how = {"mode": "nearest", "coordinate_mode": "half_pixel"}
    return _resized(call, x, nearest_mode="round_prefer_ceil", **how)


@handles("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def linear(call: Call, x: Node, *_: Any) -> Node:
    return _resized(call, x, mode="linear", coordinate_mode=_coordinates(call))


@handles("upsample_bicubic2d")
def cubic(call: Call, x: Node, *_: Any) -> Node:
    how = {"coordinate_mode": _coordinates(call), "cubic_coeff_a": -0.75}
    return _resized(call, x, mode="cubic", **how)


def _coordinates(call: Call) -> str:
    return "align_corners" if call.args.get("align_corners") else "half_pixel"


@handles("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def antialiased(call: Call, x: Node, *_: Any) -> Node:
    call.require(not call.args.get("align_corners"), "aligned corners with antialiasing")
    mode = "linear" if "bilinear" in call.op else "cubic"
    how: dict[str, Any] = {"cubic_coeff_a": -0.5} if mode == "cubic" else {}
    how |= {"coordinate_mode": "half_pixel", "antialias": True, "exclude_outside": True}
    return _resized(call, x, mode=mode, **how)


MODES: Sequence[Any] = ("linear", "nearest", "cubic")
PADDINGS: Sequence[Any] = ("zeros", "border", "reflection")


@handles("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sample(call: Call, x: Node, grid: Node, interpolation_mode: int = 0, padding_mode: int = 0,
                align_corners: bool = False) -> Node:  # fmt: skip
    call.require_wide(x, "half floats, whose coordinates torch rounds. Sample in f32")
    call.require(interpolation_mode != 2, "cubic samples: torch's coefficient is another")
    return ops.grid_sample(
        x, grid, mode=MODES[interpolation_mode], padding=PADDINGS[padding_mode],
        align_corners=bool(align_corners),
    )  # fmt: skip


@handles("affine_grid_generator")
def affine_grid(call: Call, x: Node, size: Any, align_corners: bool) -> Node:
    return ops.affine_grid(x, sizes=tuple(size[2:]), align_corners=bool(align_corners))
