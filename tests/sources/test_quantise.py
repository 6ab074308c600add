"""Quantisation, products of bytes and of experts, against ONNX, ml_dtypes and plain NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.core.errors import Error, GraphError
from tests.sources.onnx_reference import TensorProto, run_onnx

SOURCES = {
    "quantize_linear": "onnx.reference QuantizeLinear",
    "dequantize_linear": "onnx.reference DequantizeLinear",
    "dynamic_quantize_linear": "onnx.reference DynamicQuantizeLinear",
    "fake_quantize": "onnx.reference QuantizeLinear, then DequantizeLinear",
    "wide_matmul": "numpy, in f64 and i64",
    "wide_conv": "onnx.reference Conv, of numbers that are whole",
    "matmul_integer": "onnx.reference MatMulInteger",
    "qlinear_matmul": "onnx.reference QLinearMatMul",
    "quantized_matmul": "onnx.reference QLinearMatMul; the bias by an i64 product",
    "conv_integer": "onnx.reference ConvInteger",
    "qlinear_conv": "onnx.reference QLinearConv",
    "quantized_conv": "onnx.reference QLinearConv",
    "block_dequantize": "ml_dtypes: int4, uint4, float8_e4m3fn, float8_e5m2",
    "block_quantize": "casts of ml_dtypes: int4, float8_e4m3fn, float8_e5m2",
    "dequant_matmul": "ml_dtypes, then the product in f64",
    "dequant_grouped_matmul": "ml_dtypes, then the product of each row in f64",
    "grouped_matmul": "a product of each row in f64",
    "lora_matmul": "the product with the merged weight, in f64",
    "moe_route": "numpy.argsort of the scores, written out here: ONNX and SciPy have no router",
    "moe_ffn": "the experts applied one row at a time in f64: ONNX and SciPy have none",
}
RNG = np.random.default_rng(11)
TO = {"u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16}


def normal(*dims: int, size: float = 1.0) -> np.ndarray:
    return (size * RNG.normal(size=dims)).astype(np.float32)


def whole(dtype: type, *dims: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, dims).astype(dtype)


def positive(*dims: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.2, dims).astype(np.float32)


# -- narrow ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_wide_matmul_rounds_like_f32(dtype: type) -> None:
    """Products of halves are exact in f32, so 2⁻²⁴ for each of 37 additions bounds the error."""
    x, w = normal(5, 37).astype(dtype), normal(37, 7).astype(dtype)
    exact, size = (f(x) @ f(w) for f in (np.float64, lambda v: abs(np.float64(v))))
    got = ops.wide_matmul(x, w, to="f32")
    assert got.dtype == np.float32
    assert (abs(got - exact) <= 37 * 2.0**-24 * size).all()


def test_wide_matmul_of_bytes_is_exact() -> None:
    x, w = whole(np.uint8, 5, 37), whole(np.int8, 37, 7)
    want = x.astype(np.int64) @ w.astype(np.int64)
    np.testing.assert_array_equal(ops.wide_matmul(x, w, to="i32"), want)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_wide_conv_sums_in_f32(dtype: type) -> None:
    """Whole numbers whose sums f32 holds, and neither half does."""
    x, w = (RNG.integers(-99, 99, dims).astype(np.float32) for dims in ((2, 4, 9, 7), (6, 2, 3, 2)))
    ours, theirs = ({"stride": (2, 1), "padding": (1, 0, 2, 1), "groups": 2},
                    {"strides": [2, 1], "pads": [1, 0, 2, 1], "group": 2})  # fmt: skip
    got = ops.wide_conv(x.astype(dtype), w.astype(dtype), to="f32", **ours)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, run_onnx("Conv", [x, w], theirs)[0])


# -- linear ---------------------------------------------------------------------------------------

SCALES = [((), {}), ((1,), {}), ((3,), {"axis": 1}), ((4,), {"axis": -1}),
          ((2, 2, 4), {"axis": 1, "block": 2}), ((2, 3, 1), {"axis": 2, "block": 5})]  # fmt: skip


def for_onnx(attrs: dict) -> dict:
    return {"block_size" if k == "block" else k: v for k, v in attrs.items()}


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize(("dims", "attrs"), SCALES)
@pytest.mark.parametrize("has_zero", [True, False])
def test_linear_quantisation(to: str, dims: tuple, attrs: dict, has_zero: bool) -> None:
    x, scale = normal(2, 3, 4, size=20.0), positive(*dims)
    x[0, 0] = scale.flat[0] * np.array([0.5, 1.5, -2.5, 1e7], np.float32)
    zero = whole(TO[to], *dims) if has_zero else None
    given = [x, scale] + ([zero] if has_zero else [])
    output = {} if has_zero else {"output_dtype": getattr(TensorProto, _onnx_name(to))}
    (want,) = run_onnx("QuantizeLinear", given, for_onnx(attrs) | output)
    got = ops.quantize_linear(*given, to=to, **attrs)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    (back,) = run_onnx("DequantizeLinear", [want, *given[1:]], for_onnx(attrs))
    np.testing.assert_array_equal(ops.dequantize_linear(got, *given[1:], **attrs), back)


def _onnx_name(to: str) -> str:
    return np.dtype(TO[to]).name.upper()


@pytest.mark.parametrize(("to", "name"), [("i8", "INT4"), ("u8", "UINT4")])
def test_four_bits_saturate_as_onnx_has_them(to: str, name: str) -> None:
    x, scale = normal(5, 7, size=3.0), np.float32(0.3)
    (want,) = run_onnx("QuantizeLinear", [x, scale], {"output_dtype": getattr(TensorProto, name)})
    got = ops.quantize_linear(x, scale, to=to, bits=4)
    np.testing.assert_array_equal(got, want.astype(TO[to]))


@pytest.mark.parametrize("x", [normal(3, 4), -np.abs(normal(5)), np.abs(normal(5)), np.zeros(3)])
def test_dynamic_quantisation(x: np.ndarray) -> None:
    given = x.astype(np.float32)
    want = run_onnx("DynamicQuantizeLinear", [given], n_outputs=3)
    for a, b in zip(ops.dynamic_quantize_linear(given), want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_fake_quantisation_is_there_and_back(axis: int | None) -> None:
    """No number is more than 127 steps from 0, so that ONNX, which goes to -128, agrees."""
    x = normal(4, 5)
    others = tuple(a for a in range(2) if a != axis)
    scale = np.abs(x).max(axis=others) / np.float32(127)
    attrs = {} if axis is None else {"axis": axis}
    zero = np.zeros(scale.shape, np.int8)
    (q,) = run_onnx("QuantizeLinear", [x, scale, zero], attrs)
    (want,) = run_onnx("DequantizeLinear", [q, scale, zero], attrs)
    np.testing.assert_array_equal(ops.fake_quantize(x, axis=axis), want)
    np.testing.assert_array_equal(ops.fake_quantize(x, scale, axis=axis), want)


def test_fake_quantisation_of_a_range() -> None:
    x = normal(6, 5) + 1
    q, scale, zero = run_onnx("DynamicQuantizeLinear", [x], n_outputs=3)
    (want,) = run_onnx("DequantizeLinear", [q, scale, zero])
    np.testing.assert_array_equal(ops.fake_quantize(x, symmetric=False), want)


def test_nothing_is_undefined() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    assert ops.quantize_linear(x, np.float32(1), np.int8(3), to="i8").tolist() == [0, 127, -128, 3]
    assert ops.quantize_linear(x, np.float32(0), to="u8").tolist() == [0, 255, 0, 0]
    assert ops.fake_quantize(np.zeros((0, 3), np.float32), axis=1).shape == (0, 3)
    with pytest.raises(GraphError, match="2 blocks of 2"):
        ops.quantize_linear(np.zeros((3, 4), np.float32), np.ones((3, 3), np.float32), block=2)


# -- products of bytes ----------------------------------------------------------------------------

DTYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


@pytest.mark.parametrize(("x_type", "w_type"), DTYPES)
def test_integer_products(x_type: type, w_type: type) -> None:
    x, w = whole(x_type, 2, 3, 4), whole(w_type, 4, 5)
    zeros = [whole(x_type), whole(w_type)]
    for given in ([x, w], [x, w, zeros[0]], [x, w, *zeros], [x, w, zeros[0], whole(w_type, 5)]):
        np.testing.assert_array_equal(
            ops.matmul_integer(*given), run_onnx("MatMulInteger", given)[0]
        )
    rows = whole(x_type, 3)
    want = (x.astype(int) - rows[:, None].astype(int)) @ w.astype(int)
    np.testing.assert_array_equal(ops.matmul_integer(x, w, rows), want)


def assert_rounded_alike(got: np.ndarray, want: np.ndarray, exact: np.ndarray) -> None:
    """Equal, but where the exact number is within an f32 rounding of halfway either will do."""
    assert got.dtype == want.dtype
    near_half = np.abs(np.abs(exact - np.floor(exact)) - 0.5) < 1e-5 * np.maximum(1, np.abs(exact))
    assert near_half.mean() < 0.05
    np.testing.assert_array_equal(got[~near_half], want[~near_half])
    assert np.all(np.abs(got.astype(int) - want.astype(int)) <= 1)


@pytest.mark.parametrize(("x_type", "w_type"), DTYPES)
@pytest.mark.parametrize("y_type", [np.uint8, np.int8])
def test_quantised_products(x_type: type, w_type: type, y_type: type) -> None:
    x, w = whole(x_type, 6, 8), whole(w_type, 8, 7)
    x_scale, w_scale, y_scale = np.float32(0.02), positive(7), np.float32(0.9)
    x_zero, w_zero, y_zero = whole(x_type), whole(w_type, 7), whole(y_type)
    given = [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero]
    sums = (x.astype(int) - int(x_zero)) @ (w.astype(int) - w_zero.astype(int))
    exact = sums * (float(x_scale) * w_scale.astype(float) / float(y_scale))
    got = ops.qlinear_matmul(*given)
    assert_rounded_alike(got, run_onnx("QLinearMatMul", given)[0], exact)


def test_quantised_product_by_constants() -> None:
    x, w, bias = whole(np.int8, 6, 8), whole(np.int8, 8, 7), whole(np.int16, 7).astype(np.int32)
    attrs = {"x_zero": 3, "w_zero": -4, "out_zero": 5, "multiplier": 0.003}
    sums = (x.astype(int) - 3) @ (w.astype(int) + 4)
    for given, total in (([x, w], sums), ([x, w, bias], sums + bias)):
        exact = total * float(np.float32(0.003))
        want = np.clip(np.rint(exact) + 5, -128, 127).astype(np.int8)
        assert_rounded_alike(ops.quantized_matmul(*given, **attrs), want, exact)
    scales = [np.float32(0.003), np.float32(1), np.float32(1)]
    zeros = [np.int8(3), np.int8(-4), np.int8(5)]
    pairs = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]]
    (onnx,) = run_onnx("QLinearMatMul", pairs)
    assert_rounded_alike(ops.quantized_matmul(x, w, **attrs), onnx, sums * 0.003)


GEOMETRY = [
    ({}, {}),
    ({"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2)},
     {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}),
    ({"groups": 2, "padding": (1, 1, 1, 1)}, {"group": 2, "pads": [1, 1, 1, 1]}),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), GEOMETRY)
@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
def test_quantised_convolutions(ours: dict, theirs: dict, x_type: type) -> None:
    x, w = whole(x_type, 2, 4, 6, 7), whole(np.int8, 6, 4 // ours.get("groups", 1), 3, 2)
    x_zero, w_zeros = whole(x_type), whole(np.int8, 6)
    for given in ([x, w], [x, w, x_zero], [x, w, x_zero, w_zeros]):
        np.testing.assert_array_equal(
            ops.conv_integer(*given, **ours), run_onnx("ConvInteger", given, theirs)[0]
        )
    y_zero, bias = whole(x_type), whole(np.int16, 6).astype(np.int32)
    w_scale, y_scale = positive(6), np.float32(3.7)
    given = [x, np.float32(0.05), x_zero, w, w_scale, w_zeros, y_scale, y_zero, bias]
    sums = ops.conv_integer(x, w, x_zero, w_zeros, **ours) + bias[:, None, None]
    exact = sums * (0.05 * w_scale.astype(float) / float(y_scale))[:, None, None]
    got = ops.qlinear_conv(*given, **ours)
    assert_rounded_alike(got, run_onnx("QLinearConv", given, theirs)[0], exact)


def test_quantised_convolution_by_constants() -> None:
    x, w = whole(np.int8, 1, 2, 5, 6), whole(np.int8, 3, 2, 3, 3)
    attrs = {"x_zero": 3, "w_zero": -4, "out_zero": 5, "multiplier": 0.004}
    one = np.float32(1)
    given = [x, np.float32(0.004), np.int8(3), w, one, np.int8(-4), one, np.int8(5)]
    exact = ops.conv_integer(x, w, np.int8(3), np.int8(-4)) * 0.004
    got = ops.quantized_conv(x, w, **attrs)
    assert_rounded_alike(got, run_onnx("QLinearConv", given)[0], exact)


# -- packed weights -------------------------------------------------------------------------------

TYPES = {"int8": np.int8, "uint8": np.uint8, "fp8_e4m3": ml_dtypes.float8_e4m3fn,
         "fp8_e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


def numbers(packed: np.ndarray, packing: str) -> np.ndarray:
    if packing in TYPES:
        return packed.view(TYPES[packing]).astype(np.float64)
    halves = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    kind = ml_dtypes.int4 if packing == "int4" else ml_dtypes.uint4
    return halves.view(kind).astype(np.float64)


@pytest.mark.parametrize("packing", ["int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2"])
def test_every_byte_of_every_packing(packing: str) -> None:
    packed = np.arange(256, dtype=np.uint8).reshape(2, 128)
    want = numbers(packed, packing)
    block = want.shape[1] // 4
    scale = positive(2, 4)
    got = ops.block_dequantize(packed, scale, packing=packing, block=block)
    # Each number has at most 8 significant bits: one rounding of the product to f32.
    exact = want * np.repeat(scale.astype(np.float64), block, 1)
    np.testing.assert_array_equal(got, exact.astype(np.float32))
    if packing.startswith("fp8"):
        return
    zero = RNG.integers(-8, 8, (2, 4))
    shifted = (want - np.repeat(zero, block, 1)) * np.repeat(scale.astype(np.float64), block, 1)
    got = ops.block_dequantize(packed, scale, zero, packing=packing, block=block)
    np.testing.assert_array_equal(got, shifted.astype(np.float32))


def test_products_with_packed_weights() -> None:
    packed, scale, x = whole(np.uint8, 3, 5, 8), positive(3, 5, 4), normal(6, 16)
    attrs = {"packing": "int4", "block": 4}
    weights = numbers(packed, "int4") * np.repeat(scale.astype(np.float64), 4, -1)
    # 16 products of numbers below 8 · 0.2 · 4: each rounds by eps/2, and so do the sums.
    atol = 16 * np.finfo(np.float32).eps * 16
    got = ops.dequant_matmul(x, packed[0], scale[0], **attrs)
    np.testing.assert_allclose(got, x.astype(np.float64) @ weights[0].T, atol=atol)
    experts = np.array([0, 2, 1, 1, 0, 2])
    want = np.stack([weights[e] @ row for row, e in zip(x.astype(np.float64), experts)])
    got = ops.dequant_grouped_matmul(x, packed, experts, scale, **attrs)
    np.testing.assert_allclose(got, want, atol=atol)
    with pytest.raises(GraphError, match="are not 4 blocks of 3"):
        ops.dequant_matmul(x, packed[0], scale[0], packing="int4", block=3)


GREATEST = {"int8": 127, "int4": 7, "fp8_e4m3": 448, "fp8_e5m2": 57344}


def rounded(x: np.ndarray, packing: str) -> np.ndarray:
    """The nearest numbers of a packing, as ml_dtypes rounds floats and NumPy rounds to integers."""
    within = np.clip(x, -GREATEST[packing], GREATEST[packing])
    kept = within if packing.startswith("fp8") else np.rint(within)
    return kept.astype(TYPES.get(packing, ml_dtypes.int4)).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("packing", GREATEST)
def test_quantising_blocks(packing: str, dtype: type) -> None:
    x = (RNG.normal(size=(3, 4, 64)) * 10.0 ** RNG.integers(-3, 3, (3, 4, 64))).astype(dtype)
    packed, scale = ops.block_quantize(x, packing=packing, block=16)
    wide = x.astype(np.float64 if dtype == np.float64 else np.float32).reshape(3, 4, 4, 16)
    most = np.abs(wide).max(-1) / wide.dtype.type(GREATEST[packing])
    np.testing.assert_array_equal(scale, most.astype(dtype))
    given = wide / scale.astype(wide.dtype)[..., None]
    want = rounded(given.astype(np.float32), packing)
    got = numbers(packed, packing).reshape(want.shape)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("packing", GREATEST)
def test_numbers_between_two_numbers(packing: str, dtype: type) -> None:
    """Every number, every tie, and what is next to a tie; the scale is 1. In f64, f32 has no part
    in the rounding: what is next to a tie is none."""
    count = {"int8": 128, "int4": 8, "fp8_e4m3": 127, "fp8_e5m2": 124}[packing]
    all_ = np.arange(count, dtype=np.uint8)
    values = all_.view(TYPES[packing]).astype(dtype) if "fp8" in packing else all_.astype(dtype)
    middles = (values[1:] + values[:-1]) / 2
    below, above = (np.nextafter(middles, dtype(to)) for to in (-np.inf, np.inf))
    near = np.arange(count - 1)
    even = near + near % 2
    x = np.concatenate([values, middles, below, above])
    want = values[np.concatenate([np.arange(count), even, near, near + 1])]
    x, want = (np.concatenate([v, -v]) for v in (x, want))
    packed, scale = ops.block_quantize(x, packing=packing, block=len(x))
    np.testing.assert_array_equal(scale, [1])
    np.testing.assert_array_equal(numbers(packed, packing), want)
    ml = rounded(x.astype(np.float32), packing)
    assert dtype == np.float64 or (ml == want).all()


def test_blocks_without_a_scale() -> None:
    x = np.float32([[0, 0, -0.0, 0], [1, np.nan, 2, 3], [1, np.inf, -np.inf, 3], [1, 2, 3, 4]])
    for packing in GREATEST:
        made = ops.block_quantize(x, packing=packing, block=4)
        back = ops.block_dequantize(*made, packing=packing, block=4)
        np.testing.assert_array_equal(back[0], x[0])
        assert np.isnan(back[1:3]).all()
        assert np.isfinite(back[3]).all()
    with pytest.raises(GraphError, match="blocks of 3"):
        ops.block_quantize(x, packing="int8", block=3)
    with pytest.raises(GraphError, match="in twos"):
        ops.block_quantize(x[:, :3], packing="int4", block=3)


# -- experts --------------------------------------------------------------------------------------


def test_grouped_product_and_its_errors() -> None:
    x, w, experts = normal(5, 3), normal(4, 3, 2), np.array([3, 0, 0, 2, 3], np.int32)
    want = np.stack([row @ w[e].astype(np.float64) for row, e in zip(x, experts)])
    # Three products of numbers of ordinary size.
    np.testing.assert_allclose(ops.grouped_matmul(x, w, experts), want, rtol=1e-6, atol=1e-6)
    with pytest.raises(Error, match="there is no expert 4 among 4"):
        ops.grouped_matmul(x, w, np.array([0, 1, 2, 3, 4]))


def test_low_rank_addition() -> None:
    x, w, a, b = normal(2, 5, 8), normal(8, 6), normal(8, 3), normal(3, 6)
    merged = w.astype(np.float64) + 0.5 * (a.astype(np.float64) @ b)
    # 8 products of products: sums of numbers around 10, in f32.
    np.testing.assert_allclose(ops.lora_matmul(x, w, a, b, scale=0.5), x @ merged, atol=1e-4)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalise", [True, False])
def test_experts_one_row_at_a_time(scoring: str, normalise: bool) -> None:
    x, router = normal(2, 3, 4).astype(np.float64), normal(4, 5).astype(np.float64)
    gate, up, down = (normal(*d).astype(np.float64) for d in ((5, 4, 6), (5, 4, 6), (5, 6, 4)))
    attrs = {"top_k": 2, "scoring": scoring, "normalise": normalise, "scale": 1.5}
    want = np.zeros_like(x)
    for at in np.ndindex(2, 3):
        logits = x[at] @ router
        score = np.exp(logits) / np.exp(logits).sum() if scoring == "softmax" else _sigmoid(logits)
        best = np.argsort(-score, kind="stable")[:2]
        weight = 1.5 * score[best] / (score[best].sum() if normalise else 1)
        for e, part in zip(best, weight):
            g = x[at] @ gate[e]
            want[at] += part * ((g * _sigmoid(g) * (x[at] @ up[e])) @ down[e])
        weights, experts = ops.moe_route(logits, **attrs)
        np.testing.assert_array_equal(experts, best)
        np.testing.assert_allclose(weights, weight, rtol=1e-12)
    # Both in f64, in another order.
    np.testing.assert_allclose(ops.moe_ffn(x, router, gate, up, down, **attrs), want, rtol=1e-9)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
