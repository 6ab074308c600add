"""For every op an application to about a million elements.

Most follow from the op's signature: `*s` is 1024 × 1024, of f32 where that may be. The others are
written here, operands as `dtype[dims]:domain`, then attributes.
"""

from __future__ import annotations

import re
from typing import Any

from rlx.core.dtype import DType
from rlx.core.sig import CLASSES, Operand
from rlx.ops.draw import Case, Spec
from rlx.ops.op import Kind, Op

SQUARE = (1024, 1024)
M = "f32[1024,1024]"
IMAGE = "f32[1,16,256,256]"
WINDOWS = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
SIGNALS = "f32[64,16384]"
SAME = {"padding": (1, 1, 1, 1)}
DRAWS = {"dims": SQUARE, "seed": 1, "stream": 0}
PICK = "i64[1024]:index:1024"
Q8 = {"scheme": "q8_0"}
BLOCKS = {"packing": "int4", "block": 32}

LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    # movement
    "view_as_complex": ("f32[1024,512,2]", {}),
    "reshape": (M, {"dims": (2048, 512)}),
    "transpose": (M, {"perm": (1, 0)}),
    "expand": ("f32[1024,1]", {"dims": SQUARE}),
    "squeeze": ("f32[1024,1,1024]", {"axes": (1,)}),
    "expand_dims": (M, {"axes": (1,)}),
    "narrow": ("f32[1024,1100]", {"axis": 1, "start": 50, "length": 1024}),
    "slice": ("f32[1024,2048]", {"starts": (0, 0), "stops": SQUARE, "steps": (1, 1)}),
    "concat": ("f32[512,1024] f32[512,1024]", {"axis": 0}),
    "stack": ("f32[512,1024] f32[512,1024]", {"axis": 0}),
    "split": (M, {"sizes": (512, 512), "axis": 1}),
    "pad": ("f32[1000,1000]", {"low": (12, 12), "high": (12, 12)}),
    "tile": ("f32[512,512]", {"repeats": (2, 2)}),
    "gather": (f"{M} {PICK}", {"axis": 0}),
    "embedding": ("f32[8192,256] i64[4096]:index:8192", {}),
    "take_along_axis": (f"{M} i64[1024,1024]:index:1024", {"axis": 1}),
    "trilu": (M, {}),
    "im2col": ("f32[1,16,128,128]", {"kernel": (3, 3), **SAME}),
    "depth_to_space": (IMAGE, {"block": 2}),
    "space_to_depth": (IMAGE, {"block": 2}),
    "causal_conv_state": ("f32[8,512,256]", {"size": 3}),
    "frame": (SIGNALS, {"length": 512, "hop": 256}),
    # scatter, one-hot
    "scatter_add": (f"{M} {PICK} {M}", {"axis": 0}),
    "one_hot": ("i64[1024]:index:1024", {"depth": 1024, "to": DType.F32}),
    "scatter": (f"{M} {PICK} {M}", {"axis": 0}),
    "scatter_elements": (f"{M} i64[1024,1024]:index:1024 {M}", {"axis": 1}),
    "gather_nd": (f"{M} i64[1024,1]:index:1024", {}),
    "scatter_nd": (f"{M} i64[1024,1]:index:1024 {M}", {}),
    "tensor_scatter": ("f32[4,1024,256] f32[4,16,256] i64[4]:index:1000", {"axis": 1}),
    # reductions
    **{n: (M, {"axes": (1,)}) for n in ("sum", "prod", "mean", "max", "min", "any", "all")},
    "log_sum_exp": (M, {"axes": (1,)}),
    "argmax": (M, {"axis": 1}),
    "argmin": (M, {"axis": 1}),
    # order and scans
    "top_k": (M, {"k": 16}),
    "searchsorted": ("f32[1024]:ordered f32[1024,1024]:plain", {}),
    "reverse_sequence": ("f32[1024,1024] i64[1024]:index:1024", {"batch_axis": 0, "time_axis": 1}),
    "nonzero": (M, {"extent": "found"}),
    "compress": ("f32[1024,1024] bool[1024]", {"axis": 0, "extent": "found"}),
    "unique": ("i32[1048576]:index:5000", {"extent": "found"}),
    "non_max_suppression": (
        "f32[1,4096,4]:unit f32[1,8,4096]:unit",
        {"max_output_boxes_per_class": 20, "iou_threshold": 0.5, "extent": "found"},
    ),
    # products
    "matmul": ("f32[512,1024] f32[1024,512]", {}),
    "einsum": ("f32[512,1024] f32[1024,512]", {"equation": "ij,jk->ik"}),
    "dot_general": ("f32[512,1024] f32[512,1024]", {"lhs_contract": (1,), "rhs_contract": (1,)}),
    "fused_matmul_bias_act": ("f32[512,1024] f32[1024,512] f32[512]", {"activation": "relu"}),
    "tree_ensemble": (
        "f32[4096,32] f32[65536] i32[65536]:index:32 i32[65536]:child:64 bool[65536] "
        "i32[256]:index:256 f32[32,1]", {"n_targets": 1, "span": 64},
    ),
    "grouped_matmul": ("f32[512,512] f32[4,512,512] i64[512]:index:4", {}),
    "lora_matmul": ("f32[512,1024] f32[1024,512] f32[1024,16] f32[16,512]", {}),
    "moe_route": ("f32[16384,64]", {"top_k": 2}),
    "moe_ffn": ("f32[256,256] f32[256,8] f32[8,256,512] f32[8,256,512] f32[8,512,256]",
                {"top_k": 2}),
    "wide_matmul": ("bf16[512,1024] bf16[1024,512]", {"to": DType.F32}),
    "matmul_integer": ("u8[512,1024] u8[1024,512]", {}),
    "quantized_matmul": ("i8[512,1024] i8[1024,512]", {"multiplier": 0.01}),
    "outer": ("f32[1024] f32[1024]", {}),
    "cross": ("f32[349525,3] f32[349525,3]", {"axis": 1}),
    "trace": ("f32[16,256,256]", {}),
    # norms
    **{n: (f"{M} f32[1024] f32[1024]", {}) for n in ("layer_norm", "rms_norm")},
    "group_norm": (f"{IMAGE} f32[16] f32[16]", {"groups": 4}),
    "instance_norm": (f"{IMAGE} f32[16] f32[16]", {}),
    "layer_norm_2d": (f"{IMAGE} f32[16] f32[16]", {}),
    "batch_norm": (f"{IMAGE} f32[16] f32[16] f32[16] f32[16]:positive", {}),
    "ada_layer_norm": ("f32[4,256,1024] f32[4,1,1024] f32[4,1,1024]", {}),
    "local_response_norm": (IMAGE, {"size": 5}),
    "fused_residual_ln": (f"{M} {M} f32[1024] f32[1024]", {}),
    "fused_residual_rms_norm": (f"{M} {M} f32[1024]", {}),
    # attention, positions
    "attention": ("f32[1,1024,512] f32[1,1024,512] f32[1,1024,512]", {"num_heads": 8}),
    "fused_attention_block": ("f32[1,512,512] f32[512,1536] f32[512,512]",
                              {"num_heads": 8, "head_dim": 64}),
    "rope": ("f32[1,1024,1024] f32[1024,32] f32[1024,32]", {"head_dim": 64}),
    "axial_rope_2d": ("f32[1,1024,1024]", {"end_x": 32, "end_y": 32, "head_dim": 64}),
    # convolutions, pools, images
    "conv": ("f32[1,64,64,64] f32[64,64,3,3]", SAME),
    "fused_conv_bias_act": ("f32[1,64,64,64] f32[64,64,3,3] f32[64]",
                            {**SAME, "activation": "relu"}),
    "conv_transpose": ("f32[1,64,64,64] f32[64,64,2,2]", {"stride": (2, 2)}),
    "depthwise_conv1d_causal": ("f32[4,1024,256] f32[256,4]", {}),
    "col2im": ("f32[1,144,16384]", {"image": (128, 128), "kernel": (3, 3), **SAME}),
    "deform_conv": ("f32[1,16,64,64] f32[16,16,3,3] f32[1,18,64,64]:unit", SAME),
    **dict.fromkeys(("max_pool", "max_pool_with_indices", "avg_pool", "lp_pool"), (IMAGE, WINDOWS)),
    "max_unpool": ("f32[1,16,128,128] i64[1,16,128,128]:index:65536", {"image": (256, 256)}),
    **{f"global_{n}_pool": ("f32[16,64,32,32]", {}) for n in ("avg", "max", "lp")},
    "resize": ("f32[1,16,128,128]", {"axes": (2, 3), "sizes": (256, 256), "mode": "linear"}),
    "grid_sample": ("f32[1,16,256,256] f32[1,256,256,2]:unit", {}),
    "affine_grid": ("f32[1,2,3]", {"sizes": (1024, 512)}),
    "roi_align": ("f32[1,64,64,64] f32[64,4]:unit i64[64]:index:1",
                  {"output_size": (7, 7), "spatial_scale": 8.0}),
    "max_roi_pool": ("f32[1,64,64,64] f32[64,4]:unit i64[64]:index:1",
                     {"output_size": (7, 7), "spatial_scale": 8.0}),
    "wide_conv": ("bf16[1,64,64,64] bf16[64,64,3,3]", {**SAME, "to": DType.F32}),
    "conv_integer": ("u8[1,64,64,64] u8[64,64,3,3]", SAME),
    "quantized_conv": ("i8[1,64,64,64] i8[64,64,3,3]", {**SAME, "multiplier": 0.01}),
    # spectra and signals
    "fft": ("c64[1024,1024]", {}),
    "ifft": ("c64[1024,1024]", {}),
    "rfft": (M, {}),
    "irfft": ("c64[1024,513]", {}),
    "stft": ("f32[16,65536] f32[512]", {"n_fft": 512, "hop": 256}),
    "power_frames": ("f32[16,65536] f32[512]", {"n_fft": 512, "hop": 256}),
    "mean_power": ("f32[16,65536] f32[512]", {"n_fft": 512, "hop": 256}),
    "mel_frames": ("f32[16,65536] f32[257,80]:positive f32[512]", {"n_fft": 512, "hop": 256}),
    "log_mel": ("f32[2048,512] f32[80,129]:positive", {}),
    "welch_peaks": ("f32[2048,512]", {"k": 16, "n_segments": 2}),
    "fftn": ("c64[1024,1024]", {}),
    "ifftn": ("c64[1024,1024]", {}),
    "rfftn": (M, {}),
    "irfftn": ("c64[1024,513]", {}),
    "psd": (f"{M} f32[1024]", {}),
    "welch": (f"{SIGNALS} f32[512]", {"length": 512, "hop": 256}),
    "istft": ("c64[16,255,257] f32[512]:positive", {"n_fft": 512, "hop": 256}),
    "overlap_add": ("f32[64,64,512]", {"hop": 256}),
    "convolve": (f"{SIGNALS} f32[1,64]", {}),
    "fft_convolve": (f"{SIGNALS} f32[1,4096]", {}),
    "fir": (f"f32[64] {SIGNALS}", {}),
    "lfilter": (f"f32[3]:unit f32[3]:unit {SIGNALS}", {}),
    "sosfilt": (f"f32[2,6]:unit {SIGNALS}", {}),
    "resample_poly": (f"{SIGNALS} f32[41]", {"up": 1, "down": 2}),
    "resample": ("f32[256,4096]", {"num": 2048}),
    # random
    "random_bits": ("u64[]", DRAWS),
    "random_uniform": ("u64[]", {**DRAWS, "dtype": DType.F32}),
    "random_normal": ("u64[]", {**DRAWS, "dtype": DType.F32}),
    "random_integers": ("u64[]", {**DRAWS, "low": 0, "high": 100, "dtype": DType.I32}),
    "bernoulli": (f"{M}:unit u64[]", {"seed": 1, "stream": 0}),
    "top_k_filter": ("f32[128,8192]", {"k": 40}),
    "top_p_filter": ("f32[128,8192]", {"p": 0.9}),
    "min_p_filter": ("f32[128,8192]", {"p": 0.1}),
    "repetition_penalty": ("f32[128,8192] i64[128,64]:index:8192", {"penalty": 1.2}),
    "sample": ("f32[128,8192] u64[]", {"seed": 1, "stream": 0, "top_k": 40}),
    "multinomial": ("f32[128,8192]:unit u64[]", {"count": 4, "seed": 1, "stream": 0}),
    # losses
    "nll_loss": ("f32[1024,1024] i64[1024]:index:1024", {}),
    "softmax_cross_entropy": ("f32[1024,1024] i64[1024]:index:1024", {}),
    # recurrence
    "lstm": ("f32[64,16,256] f32[1,1024,256] f32[1,1024,256]", {}),
    "gru": ("f32[64,16,256] f32[1,768,256] f32[1,768,256]", {}),
    "rnn": ("f32[64,16,256] f32[1,256,256] f32[1,256,256]", {}),
    "selective_scan": (
        "f32[1,512,256] f32[1,512,256]:unit f32[256,16]:unit f32[1,512,16] f32[1,512,16]", {}),
    "mamba2": ("f32[1,512,8,32] f32[1,512,8]:unit f32[8]:unit f32[1,512,1,16] f32[1,512,1,16]", {}),
    "gated_delta_net": (
        "f32[1,256,8,32] f32[1,256,8,32] f32[1,256,8,32] f32[1,256,8]:unit f32[1,256,8]:unit", {}),
    "linear_attention": ("f32[1,512,256] f32[1,512,256] f32[1,512,256]",
                         {"num_heads": 8, "kv_heads": 8, "rule": "linear"}),
    # states
    "append": ("f32[4,512,512] f32[4,16,512] i64[4]:index:496", {"axis": 1}),
    "assign": (f"{M} {M}", {}),
    "cached_attention": (
        "f32[4,16,512] f32[4,512,512] f32[4,512,512] i64[4]:index:496", {"num_heads": 8}),
    # quantised
    "quantize_linear": (f"{M} f32[]:positive", {"to": DType.U8}),
    "dequantize_linear": ("u8[1024,1024] f32[]:positive", {}),
    "fake_quantize": (M, {"bits": 8}),
    "dynamic_quantize_linear": (M, {}),
    "block_quantize": (M, BLOCKS),
    "block_dequantize": ("u8[1024,512] f32[1024,32]", BLOCKS),
    "dequant_matmul": ("f32[16,1024] u8[1024,512] f32[1024,32]", BLOCKS),
    "dequant_grouped_matmul": ("f32[64,512] u8[4,512,256] i64[64]:index:4 f32[4,512,16]", BLOCKS),
    "gguf_dequantize": ("u8[1024,1088]:index:120", Q8),
    "gguf_matmul": ("f32[16,1024] u8[1024,1088]:index:120", Q8),
    "gguf_int8_matmul": ("f32[16,1024] u8[1024,1088]:index:60", Q8),
    "gguf_grouped_matmul": ("f32[64,512] u8[4,512,544]:index:120 i64[64]:index:4", Q8),
    "qlinear_matmul": (
        "u8[512,1024] f32[]:positive u8[] u8[1024,512] f32[]:positive u8[] f32[]:positive u8[]",
        {}),
    "qlinear_conv": ("u8[1,64,64,64] f32[]:positive u8[] u8[64,64,3,3] f32[]:positive u8[] "
                     "f32[]:positive u8[]", SAME),
    "cast": (M, {"to": DType.BF16}),
    "bitcast": (M, {"to": DType.I32}),
    # dense systems
    **{n: ("f32[16,256,256]:definite", {}) for n in ("eigh", "spd_exp", "spd_log", "spd_sqrt")},
    "spd_power": ("f32[16,256,256]:definite", {"exponent": 0.3}),
    **{n: ("f32[16,256,256]", {}) for n in ("qr", "svd", "svdvals", "pinv")},
    "cholesky": ("f32[16,256,256]:definite", {}),
    **{n: ("f32[16,256,256]:regular", {}) for n in ("inverse", "slogdet", "det")},
    "solve": ("f32[16,256,256]:regular f32[16,256,16]", {}),
    "triangular_solve": ("f32[16,256,256]:regular f32[16,256,16]", {}),
    **{n: ("f32[16,256,256]:regular f32[16,256,16]", {}) for n in ("lstsq", "cholesky_solve")},
    **{n: ("f32[16,256,256]:regular i64[16,256]:index:256 f32[16,256,16]", {})
       for n in ("lu_solve", "ldl_solve")},
    **{n: ("f32[16,256,256]", {}) for n in ("lu_factor", "ldl_factor", "geqrf", "eig", "eigvals")},
    **{n: ("f32[16,256,256]:regular", {}) for n in ("cholesky_inverse", "matrix_exp")},
    "pivots_to_permutation": ("i64[256,256]:index:256", {"size": 256}),
    "householder_product": ("f32[16,256,256]:unit f32[16,256]:unit", {}),
    "ormqr": ("f32[16,256,256]:unit f32[16,256]:unit f32[16,256,256]", {}),
    # functions by recurrences
    "orthogonal_polynomial": (f"{M}:unit {M}:positive", {"family": "legendre_p"}),
    **{n: (f"{M}:positive {M}:positive", {}) for n in ("igamma", "igammac", "zeta")},
    **{n: ("i32[1024,1024] i32[1024,1024]", {}) for n in ("gcd", "lcm")},
}  # fmt: skip

_OPERAND = re.compile(r"(\w+)\[([\d,]*)\](?::(\S+))?")
_LETTERS = {"c": DType.C64, "i": DType.I32, "bool": DType.BOOL}


def case_of(op: Op) -> Case | None:
    """The op at large, or None where nothing here says how."""
    if op.name in LARGE:
        operands, attrs = LARGE[op.name]
        return Case(op, tuple(_spec(op, m) for m in _OPERAND.finditer(operands)), attrs)
    if op.kind not in (Kind.ELEMENTWISE, Kind.ROW, Kind.MOVEMENT, Kind.SPECIAL):
        return None
    given = [o for o in op.signature.operands if o.suffix != "?"]
    if not given or not all(o.dims and set(o.dims) <= {"*s", "~s", "n", "*b"} for o in given):
        return None
    specs = [_square(op, o) for o in given]
    return None if None in specs else Case(op, tuple(s for s in specs if s), {})


def _spec(op: Op, found: re.Match[str]) -> Spec:
    dims = tuple(int(d) for d in found[2].split(",") if d)
    return Spec(dims, DType.of(found[1]), found[3] or _domain(op))


def _square(op: Op, operand: Operand) -> Spec | None:
    letter = operand.dtype
    if letter in _LETTERS:
        return Spec(SQUARE, _LETTERS[letter], "plain")
    if letter in CLASSES and DType.F32 in CLASSES[letter]:
        return Spec(SQUARE, DType.F32, _domain(op))
    return None


def _domain(op: Op) -> str:
    """Ordinary values: corner cases are for tests."""
    return op.draw if isinstance(op.draw, str) and op.draw != "any" else "plain"
