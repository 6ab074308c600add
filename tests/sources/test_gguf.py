"""GGUF's block schemes against the `gguf` package: bit for bit, on random bytes."""

from __future__ import annotations

import numpy as np
import pytest

import gguf
from gguf import GGMLQuantizationType as Type
from rlx import ops
from rlx.core.errors import GraphError
from rlx.ops.quant.gguf import SCHEMES

SOURCES = {
    "bitcast": "numpy.ndarray.view, and struct",
    "gguf_dequantize": "gguf.dequantize; q8_k, which it cannot, by its block layout",
    "gguf_matmul": "gguf.dequantize, then the product in f64",
    "gguf_int8_matmul": "activations rounded by hand, gguf.dequantize, the product in f64",
    "gguf_grouped_matmul": "gguf.dequantize, then the product of each row in f64",
}
HAS_SOURCE = [s for s in SCHEMES if s != "q8_k"]


def random_rows(scheme: str, *lead: int, blocks: int = 3, seed: int = 0) -> np.ndarray:
    """Every byte may be anything: also scales that are infinite, subnormal or no number."""
    rng = np.random.default_rng([seed, len(scheme), *scheme.encode()])
    return rng.integers(0, 256, (*lead, blocks * SCHEMES[scheme].block_bytes), np.uint8)


def tame_rows(scheme: str, *lead: int, blocks: int = 1) -> np.ndarray:
    """Bytes as the quantiser of the package writes them."""
    rng = np.random.default_rng(7)
    weights = rng.normal(size=(*lead, blocks * SCHEMES[scheme].weights)).astype(np.float32)
    return gguf.quantize(weights, Type[scheme.upper()])


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Any NaN is a NaN: processors differ in the payload that arithmetic leaves."""
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    is_nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), is_nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~is_nan], want.view(np.uint32)[~is_nan])


def expected(packed: np.ndarray, scheme: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.dequantize(packed, Type[scheme.upper()])


@pytest.mark.parametrize("scheme", HAS_SOURCE)
def test_every_scheme_decodes_to_the_bit(scheme: str) -> None:
    for seed in range(4):
        packed = random_rows(scheme, 2, 17, seed=seed)
        assert_same_bits(ops.gguf_dequantize(packed, scheme=scheme), expected(packed, scheme))


def test_every_scheme_of_the_package_is_there() -> None:
    """NVFP4 has a scale outside of its blocks, so it is no scheme of blocks alone."""
    known = {Type.F32, Type.F16, *gguf.quants._type_traits}
    assert {t.name.lower() for t in known} - {"nvfp4"} == set(HAS_SOURCE)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sizes_are_those_of_the_format(scheme: str) -> None:
    layout = SCHEMES[scheme]
    assert gguf.GGML_QUANT_SIZES[Type[scheme.upper()]] == (layout.weights, layout.block_bytes)


def test_q8_k_is_an_f32_scale_256_bytes_and_their_sums() -> None:
    """The package knows the size of q8_k's blocks but cannot decode them."""
    values = np.arange(-128, 128).astype(np.int8)
    sums = values.reshape(16, 16).sum(1, dtype=np.int16)
    block = np.float32(0.37).tobytes() + values.tobytes() + sums.tobytes()
    got = ops.gguf_dequantize(np.frombuffer(block, np.uint8), scheme="q8_k")
    assert_same_bits(got, np.float32(0.37) * values.astype(np.float32))


def test_a_row_is_whole_blocks() -> None:
    with pytest.raises(GraphError, match=r"no whole blocks of q4_k: they have 144 bytes"):
        ops.gguf_dequantize(np.zeros((2, 145), np.uint8), scheme="q4_k")


@pytest.mark.parametrize("scheme", ["q4_0", "q5_1", "q8_0", "tq1_0", "mxfp4", "bf16"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_products_multiply_by_the_transpose(scheme: str, dtype: type) -> None:
    packed = tame_rows(scheme, 5, blocks=256 // SCHEMES[scheme].weights)
    x = np.random.default_rng(1).normal(size=(2, 3, 256)).astype(dtype)
    want = x.astype(np.float64) @ expected(packed, scheme).astype(np.float64).T
    got = ops.gguf_matmul(x, packed, scheme=scheme)
    assert got.dtype == dtype
    # A sum of 256 products in f32, or f64, errs by at most 256 roundings of its terms; a half
    # rounds once more.
    eps = np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
    size = np.abs(x).astype(np.float64) @ np.abs(expected(packed, scheme)).astype(np.float64).T
    bound = 256 * eps * size + np.finfo(dtype).eps * np.abs(want)
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound)


@pytest.mark.parametrize("scheme", ["q4_1", "q8_0", "q6_k"])
def test_activations_are_rounded_to_bytes(scheme: str) -> None:
    """Each 32 of a row to multiples of their greatest size over 127; 32 zeros stay zeros."""
    packed = random_rows(scheme, 5, blocks=256 // SCHEMES[scheme].weights) & 0x3F
    x = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
    x[1, 32:64] = 0
    blocks = x.astype(np.float64).reshape(3, 8, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    codes = np.round(blocks / np.where(scale == 0, 1, scale))
    weights = expected(packed, scheme).astype(np.float64)
    want = (codes * scale).reshape(3, 256) @ weights.T
    got = ops.gguf_int8_matmul(x, packed, scheme=scheme)
    # 256 roundings to f32, of terms that are products of rounded numbers
    bound = 258 * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(weights).T)
    assert np.all(np.abs(got - want) <= bound)


def test_floats_are_no_codes() -> None:
    with pytest.raises(GraphError, match="f16 holds floats, no integers with scales"):
        ops.gguf_int8_matmul(np.zeros((1, 32), "f"), np.zeros((4, 64), np.uint8), scheme="f16")


def test_grouped_products_take_each_row_to_its_expert() -> None:
    packed = np.stack([tame_rows("q4_0", 5, blocks=2) for _ in range(3)])
    packed[1] = packed[1, ::-1]
    x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
    experts = np.array([2, 0, 1, 1])
    weights = expected(packed, "q4_0").astype(np.float64)
    want = np.stack([weights[e] @ row for row, e in zip(x, experts)])
    got = ops.gguf_grouped_matmul(x, packed, experts, scheme="q4_0")
    # 64 products of numbers around 1, each rounded to f32.
    np.testing.assert_allclose(got, want, atol=64 * np.finfo(np.float32).eps * 8)


def test_bitcast_reads_the_same_bits() -> None:
    assert ops.bitcast(np.array([1.0, -0.0], np.float32), to="u32").tolist() == [
        0x3F800000,
        1 << 31,
    ]
    assert ops.bitcast(np.array([0x7C00], np.uint16), to="f16")[0] == np.inf
    with pytest.raises(GraphError, match="of one width"):
        ops.bitcast(np.zeros(2, np.uint16), to="f32")
