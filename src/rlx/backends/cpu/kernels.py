"""The kernels of this backend, registered: which ops each serves, and what it can take.

What the target claims, documented and installed alike, is derived from these rows: an op without
one is lowered into ops that have some, and a row names the code that serves it. Code is imported
when a step first needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from rlx.core.dtype import DType
from rlx.cost.target import ConvolutionPrices, KernelLimit
from rlx.ops.op import Kind

if TYPE_CHECKING:
    from rlx.backends.cpu.program.task import Step, Task
    from rlx.kernel.program.schedule import Schedule

    Maker = Callable[[Step, str], Schedule[Task]]

REAL = frozenset(d for d in DType if not d.is_complex)
GENERATED = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION})
"""Kinds whose ops are all loop kernels, by their own expressions."""
CONVOLUTIONS = ConvolutionPrices(instructions_per_window=40, instructions_per_tap=4)
"""Counted in the implicit-GEMM kernel, which reads windows of NHWC images in place."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Ops, and the code that makes kernels of a step: `package.module:function`, below this one."""

    ops: tuple[str, ...]
    code: str
    limit: KernelLimit | None = None

    def load(self) -> Maker:
        """The function."""
        module, _, name = self.code.partition(":")
        return getattr(import_module(f"rlx.backends.cpu.{module}"), name)


def _row(ops: str, code: str, limit: KernelLimit | None = None) -> Registered:
    return Registered(tuple(ops.split()), code, limit)


DEDICATED = (
    _row("attention", "codegen.attention.online_softmax:make_attention"),
    _row("cached_attention", "codegen.attention.online_softmax:make_cached_attention"),
    _row("cumprod cummax cummin cum_log_sum_exp", "codegen.scan.cumulative:make_cumulative"),
    _row("lstm gru rnn", "codegen.scan.recurrent:make_recurrent"),
    _row(
        "selective_scan mamba2 gated_delta_net linear_attention",
        "codegen.scan.state_space:make_state_space",
    ),
    _row("gguf_matmul", "codegen.lowp.packed_matmul:make_gguf_matmul"),
    _row("gguf_int8_matmul", "codegen.lowp.block_dot.product:make_block_dot"),
    _row("dequant_matmul", "codegen.lowp.packed_matmul:make_dequant_matmul"),
    _row("gguf_grouped_matmul", "codegen.lowp.packed_grouped_matmul:make_gguf_grouped_matmul"),
    _row(
        "dequant_grouped_matmul", "codegen.lowp.packed_grouped_matmul:make_dequant_grouped_matmul"
    ),
    _row("grouped_matmul", "codegen.lowp.grouped_matmul:make_grouped_matmul", KernelLimit(REAL)),
    _row("ifft", "library.fft.fft:make_ifft"),
    _row("rfft", "library.fft.fft:make_rfft"),
    _row("irfft", "library.fft.fft:make_irfft"),
    _row("stft", "library.fft.power_spectra:make_stft"),
    _row("power_frames", "library.fft.power_spectra:make_power"),
    _row("mean_power", "library.fft.power_spectra:make_mean"),
    _row("mel_frames", "library.fft.power_spectra:make_mel"),
    _row("append", "library.state_updates:make_append"),
    _row("assign", "library.state_updates:make_assign"),
    _row("sort", "library.sort.sort:make_sort"),
    _row("cholesky", "library.linalg.cholesky:make_cholesky"),
    _row("triangular_solve", "library.linalg.cholesky:make_triangular_solve"),
    _row("max_pool avg_pool lp_pool", "library.pool.pool:make_pool"),
    _row("max_pool_with_indices", "library.pool.max_pool_indices:make_max_pool_with_indices"),
    _row("resize", "library.resize.resize:make_resize", KernelLimit(REAL)),
    _row("roi_align", "library.roi_align:make_roi_align"),
    _row("max_roi_pool", "library.roi_align:make_max_roi_pool"),
    _row("non_max_suppression", "library.nms:make_nms"),
    _row("tree_ensemble", "library.trees.tree_walk:make_tree_ensemble"),
)
"""Kernels for one op each, or for a family of ops."""

PRIMITIVES = (
    _row("cumsum", "codegen.scan.cumulative:make_cumulative"),
    _row("fft", "library.fft.fft:make_fft"),
    _row("argsort", "library.sort.sort:make_argsort"),
    _row("top_k", "library.sort.sort:make_top_k"),
    _row("unique", "library.sort.unique:make_unique"),
    _row("take_along_axis", "library.gather_scatter:make_take_along_axis"),
    _row("scatter scatter_add", "library.gather_scatter:make_scatter"),
    _row("nonzero", "library.compaction:make_nonzero"),
    _row("arange", "library.compaction:make_arange"),
    _row("as_size", "library.compaction:make_as_size"),
    _row("same_size", "library.compaction:make_same_size"),
    _row("solve", "library.linalg.lu:make_solve"),
    _row("slogdet", "library.linalg.lu:make_slogdet"),
    _row("qr", "library.linalg.householder:make_qr"),
    _row("eigh", "library.linalg.eigh:make_eigh"),
    _row("svd", "library.linalg.svd:make_svd"),
    _row("lu_factor", "library.linalg.lu:make_lu_factor"),
    _row("ldl_factor", "library.linalg.ldl:make_ldl_factor"),
    _row("ldl_solve", "library.linalg.ldl:make_ldl_solve"),
    _row("geqrf", "library.linalg.householder:make_geqrf"),
    _row("householder_product", "library.linalg.householder:make_householder_product"),
    _row("eig", "library.linalg.eig:make_eig"),
)
"""The same for ops without a lowering, which a target has in any case."""

LOOP = _row(
    "squeeze expand_dims narrow pad tile flip embedding softmax log_softmax layer_norm rms_norm "
    "ada_layer_norm group_norm batch_norm rope fused_residual_ln fused_residual_rms_norm "
    "elementwise_region region block_quantize",
    "schedule.loop:loop_schedule",
)
GEMM = _row(
    "dot_general einsum fused_matmul_bias_act fused_swiglu wide_matmul matmul_integer "
    "qlinear_matmul quantized_matmul",
    "schedule.contraction:contraction_schedule",
)
CONV = _row(
    "conv fused_conv_bias_act conv_integer wide_conv", "schedule.contraction:contraction_schedule"
)
FORMS = (LOOP, GEMM, CONV)
"""Ops that become one kernel of a form as a whole, although they have a lowering: written out
before fusion, rows would be read more often, and weights of few bits be widened."""

LIMITS: Mapping[str, KernelLimit] = {"prod": KernelLimit(REAL)}
"""Of generated loops: a product of complex numbers is not the product of their parts."""


def claims() -> frozenset[str]:
    """The ops that have a kernel here although they have a lowering, beside generated kinds."""
    return frozenset(op for row in (*DEDICATED, *FORMS) for op in row.ops)


def limits() -> dict[str, KernelLimit]:
    """Op → what its kernel can take, where that is not everything."""
    rows = {op: row.limit for row in (*DEDICATED, *FORMS) for op in row.ops if row.limit}
    return {**LIMITS, **rows}


_DEDICATED = {op: row for row in (*DEDICATED, *PRIMITIVES) for op in row.ops}


def has_dedicated(op: str) -> bool:
    """Is a kernel written for this op, by hand?"""
    return op in _DEDICATED


@functools.cache
def dedicated(op: str) -> Maker | None:
    """What makes that kernel of a step; None where there is none."""
    row = _DEDICATED.get(op)
    return None if row is None else row.load()
