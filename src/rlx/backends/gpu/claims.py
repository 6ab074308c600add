"""What GPU targets claim: the ops that become kernels although they have a lowering.

Ops of the library are those that it registers; each scan and attention is a kernel form. The
documented targets are derived from these names, so nothing here imports code of kernels.
"""

from __future__ import annotations

from rlx.backends.gpu.library.table import claims as library_claims
from rlx.core.dtype import DType
from rlx.cost.target import ImplicitGemm, KernelLimit

LOOPS = frozenset(
    {
        *("squeeze", "expand_dims", "narrow", "pad", "tile", "flip", "embedding", "softmax"),
        *("log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "rope"),
        "ada_layer_norm",
        *("fused_residual_ln", "fused_residual_rms_norm", "elementwise_region", "region"),
        *("block_quantize", "block_dequantize", "gguf_dequantize"),
    }
)
PRODUCTS = frozenset(
    {
        *("dot_general", "einsum", "fused_matmul_bias_act", "fused_swiglu", "wide_matmul"),
        *("matmul_integer", "qlinear_matmul", "quantized_matmul", "gguf_matmul", "dequant_matmul"),
        *("conv", "fused_conv_bias_act", "conv_integer", "wide_conv"),
    }
)
SCANS = frozenset(
    {
        *("cumprod", "cummax", "cummin", "cum_log_sum_exp", "lstm", "gru", "rnn"),
        *("selective_scan", "mamba2", "gated_delta_net", "linear_attention"),
    }
)
ATTENTION = frozenset({"attention"})
CONVOLUTIONS = ImplicitGemm(frozenset({DType.F16, DType.BF16}))
FORMS = SCANS | ATTENTION
"""Ops of which each has a kernel form of its own."""


def claims() -> frozenset[str]:
    """The ops that have a kernel although they have a lowering, beside generated kinds."""
    return LOOPS | PRODUCTS | FORMS | library_claims()


def limits() -> dict[str, KernelLimit]:
    """Op → what its kernel can take, where that is not everything: a product of complex numbers is
    not the product of their parts."""
    return {"prod": KernelLimit(frozenset(d for d in DType if not d.is_complex))}
