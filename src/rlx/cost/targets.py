"""The seven targets, as documented: claims, limits, prices, and what the hardware forbids."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from rlx.core.dtype import DType
from rlx.cost.machine import DOCUMENTED
from rlx.cost.target import LOOPS, REGION_KINDS, FusionLimits, Target
from rlx.ops.op import Kind

_BOUNDED = FusionLimits(32, 16)

# -- claims ---------------------------------------------------------------------------------------


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


_GENERATED = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION})
"""Kernels that every target generates from the op's own expression."""

_SHARED = _ops(
    "squeeze expand_dims narrow pad tile flip embedding softmax log_softmax layer_norm "
    "cumprod cummax cummin cum_log_sum_exp "
    "fused_matmul_bias_act fused_residual_ln elementwise_region region"
)
_RECURRENCES = _ops("lfilter sosfilt selective_scan mamba2 gated_delta_net linear_attention")
"""Recurrences of independent channels or heads: each keeps its state on one core, so that one
kernel runs all steps."""

_GPU = (
    _SHARED
    | _RECURRENCES
    | _ops(
        "attention rope rms_norm group_norm batch_norm conv max_pool avg_pool "
        "fused_residual_rms_norm"
    )
)
_FFTS = _ops("ifft rfft irfft")
"""FFTs of a library besides the complex transform, which is a primitive."""

WHY_NO_LAPACK = (
    "the CPU backend has no factorisation kernels yet, and a lowering would not be one: "
    "use target='reference', which has LAPACK's"
)
_CPU_FACTORS: Mapping[str, str] = dict.fromkeys(
    ("qr", "svd", "eigh", "solve", "slogdet"), WHY_NO_LAPACK
)
_MLX = (_GPU | _FFTS | _ops("dot_general einsum fused_swiglu")) - _RECURRENCES - {"group_norm"}
_TPU = _SHARED | _FFTS | _ops("conv max_pool avg_pool batch_norm")

# -- what does not exist --------------------------------------------------------------------------

_INSTEAD_OF_DOUBLE = "Use {}, the option f64='f32' (--f64 f32), or another target"
_NO_DOUBLE_WGSL = {
    DType.F64: "WGSL has no 64-bit floats. " + _INSTEAD_OF_DOUBLE.format("f32"),
    DType.C128: "WGSL has no 64-bit floats. " + _INSTEAD_OF_DOUBLE.format("c64"),
}
_NO_DOUBLE_MSL = {
    DType.F64: "the Metal shading language has no double. " + _INSTEAD_OF_DOUBLE.format("f32"),
    DType.C128: "the Metal shading language has no double. " + _INSTEAD_OF_DOUBLE.format("c64"),
}
_NO_C128_MLX = {DType.C128: "MLX has complex64 only. Use c64, or another target"}
_NO_C128_TPU = {DType.C128: "TPUs have no complex128. Use c64, or another target"}

# -- what is read in place ------------------------------------------------------------------------

_STRIDED = frozenset({"transpose", "narrow", "slice", "expand", "flip"})
_HOST = frozenset({"custom"})
_GPU_REGIONS = frozenset(REGION_KINDS)
_ALL_REGIONS = _GPU_REGIONS - {"few_rows"}
"""Where a kernel begins at no cost, what few rows give is made once."""
_ALL_LOOPS = frozenset(LOOPS)


@functools.cache
def documented(name: str) -> Target:
    """The documented value of one of the seven."""
    made = {
        "cpu": _cpu, "cuda": _cuda, "rocm": _rocm, "metal": _metal, "mlx": _mlx, "wgpu": _wgpu,
        "tpu": _tpu,
    }  # fmt: skip
    return made[name]()


def _cpu() -> Target:
    """Claims are those of the kernels that its backend registers, and written nowhere else."""
    from rlx.backends.cpu import kernels

    return Target(
        "cpu", DOCUMENTED["cpu"], FusionLimits(), kernels.GENERATED, kernels.claims(),
        kernels.limits(), _CPU_FACTORS, {},
        views=_STRIDED, syncs=frozenset(), regions=_ALL_REGIONS, loops=_ALL_LOOPS,
        convolutions=kernels.CONVOLUTIONS, jit_compiles=True,
    )  # fmt: skip


def _cuda() -> Target:
    """The host runs branches and loops, on values that stay on the device."""
    return _by_kernels("cuda")


def _rocm() -> Target:
    return _by_kernels("rocm")


def _by_kernels(name: str) -> Target:
    """Claims are those of the kernels that GPUs have, and written nowhere else."""
    from rlx.backends.gpu import claims

    return Target(
        name, DOCUMENTED[name], _BOUNDED, _GENERATED, claims.claims(), claims.limits(), {}, {},
        views=_STRIDED, syncs=_HOST | _ALL_LOOPS - {"scan"}, regions=_GPU_REGIONS, loops=_ALL_LOOPS,
        convolutions=claims.CONVOLUTIONS,
    )  # fmt: skip


def _metal() -> Target:
    return replace(_by_kernels("metal"), missing_dtypes=_NO_DOUBLE_MSL)


def _mlx() -> Target:
    """MLX fuses elementwise chains only; its loops run on the host, which waits for conditions."""
    return Target(
        "mlx", DOCUMENTED["mlx"], _BOUNDED, _GENERATED, _MLX, {}, {}, _NO_C128_MLX,
        views=_STRIDED, syncs=_HOST | {"if", "while"}, loops=_ALL_LOOPS,
        regions=frozenset({"elementwise", "multi_result"}),
    )  # fmt: skip


def _wgpu() -> Target:
    """WGSL has no 64-bit types: i64 and u64 are pairs of u32; smaller types are packed."""
    return replace(_by_kernels("wgpu"), missing_dtypes=_NO_DOUBLE_WGSL)


def _tpu() -> Target:
    """XLA's buffers have no strides: every movement that is not a reshape is a copy. f64 is
    emulated by pairs of f32."""
    return Target(
        "tpu", DOCUMENTED["tpu"], _BOUNDED, _GENERATED, _TPU, {}, {}, _NO_C128_TPU,
        views=frozenset(), syncs=_HOST, regions=_ALL_REGIONS, loops=_ALL_LOOPS,
    )  # fmt: skip
