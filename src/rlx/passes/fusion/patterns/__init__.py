"""The fusion patterns, in the order they are matched."""

from __future__ import annotations

from rlx.passes.fusion.patterns.common import Pattern
from rlx.passes.fusion.patterns.conv import fuse_conv_bias_act
from rlx.passes.fusion.patterns.gate import fuse_gated_residual
from rlx.passes.fusion.patterns.norm import (
    fuse_ada_layer_norm,
    fuse_residual_ln,
    fuse_residual_rms_norm,
    fuse_rms_norm_reshape,
)
from rlx.passes.fusion.patterns.product import fuse_matmul_bias_act, fuse_shared_input_matmul
from rlx.passes.fusion.patterns.swiglu import fuse_swiglu, fuse_swiglu_dual_matmul

PATTERNS: tuple[Pattern, ...] = (
    fuse_matmul_bias_act,
    fuse_ada_layer_norm,
    fuse_residual_ln,
    fuse_residual_rms_norm,
    fuse_rms_norm_reshape,
    fuse_swiglu_dual_matmul,
    fuse_shared_input_matmul,
    fuse_swiglu,
    fuse_conv_bias_act,
    fuse_gated_residual,
)
