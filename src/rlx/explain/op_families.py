"""Families of ops, as the page of a report colours them."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.ops.op import Kind, table

FAMILIES = (
    "matmuls", "elementwise kernels", "convolutions, pooling, resampling", "attention",
    "norms and reductions", "data movement", "FFT, sort, recurrence", "others",
)  # fmt: skip
_MATMULS, _ELEMENTWISE, _WINDOWS, _ATTENTION, _ROWS, _MOVEMENT, _SEQUENCES, _OTHERS = range(8)
_OF_KIND = {
    Kind.CONTRACTION: _MATMULS, Kind.ELEMENTWISE: _ELEMENTWISE, Kind.CONVOLUTION: _WINDOWS,
    Kind.ATTENTION: _ATTENTION, Kind.ROW: _ROWS, Kind.REDUCTION: _ROWS, Kind.MOVEMENT: _MOVEMENT,
}  # fmt: skip
_MEMBERS = {
    _ELEMENTWISE: "quantize_linear dequantize_linear fake_quantize block_quantize block_dequantize "
    "gguf_dequantize orthogonal_polynomial igamma igammac gcd lcm frexp axial_rope_2d",
    _WINDOWS: "max_pool max_pool_with_indices max_unpool avg_pool lp_pool resize grid_sample "
    "roi_align max_roi_pool col2im convolve fir resample resample_poly",
    _ATTENTION: "cached_attention linear_attention",
    _ROWS: "local_response_norm dynamic_quantize_linear nll_loss softmax_cross_entropy",
    _MOVEMENT: "append assign one_hot scatter scatter_add scatter_elements scatter_nd "
    "tensor_scatter gather_nd reverse_sequence compress nonzero arange",
    _SEQUENCES: "fft ifft rfft irfft fftn ifftn rfftn irfftn dct idct stft istft fft_convolve "
    "log_mel psd welch welch_peaks power_frames mean_power mel_frames overlap_add sort argsort "
    "top_k unique searchsorted cumsum cumprod cummax cummin cum_log_sum_exp lstm gru rnn "
    "selective_scan mamba2 gated_delta_net lfilter sosfilt scan",
}
"""Of dedicated kernels, whose kind says nothing about their work."""
LISTED = {op: family for family, ops in _MEMBERS.items() for op in ops.split()}
ANCHORS = (_MATMULS, _WINDOWS, _ATTENTION, _SEQUENCES, _ROWS, _ELEMENTWISE, _MOVEMENT)
"""A region is of the family of its first op in this order."""


INT8_PRODUCTS = frozenset((
    "gguf_int8_matmul", "matmul_integer", "qlinear_matmul", "quantized_matmul", "conv_integer",
    "qlinear_conv", "quantized_conv",
))  # fmt: skip
"""Products of 8-bit operands, whatever dtype their result is."""


def family_of(op: str) -> int:
    """Of one op; one that no family lists is among the others."""
    if op in LISTED:
        return LISTED[op]
    row = table().get(op)
    return _OF_KIND.get(row.kind, _OTHERS) if row else _OTHERS


def family_of_all(ops: Iterable[str]) -> int:
    """Of ops that run as one kernel."""
    found = {family_of(op) for op in ops}
    return next((a for a in ANCHORS if a in found), _OTHERS)
