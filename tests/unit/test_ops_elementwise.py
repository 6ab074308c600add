"""Elementwise ops: arithmetic, casts, activations, comparisons, by examples that document them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import rlx.ops as ops
from rlx.core.errors import GraphError
from tests.unit.op_examples import f32, i8, same, u8

INF, NAN = math.inf, math.nan
I8_MIN, I8_MAX = -128, 127


# -- integers -------------------------------------------------------------------------------------


def test_integer_arithmetic_wraps():
    same(ops.add(i8(I8_MAX), i8(1)), I8_MIN)
    same(ops.neg(i8(I8_MIN)), I8_MIN)
    same(ops.abs(i8(I8_MIN, -3)), I8_MIN, 3)
    same(ops.sub(u8(0), u8(1)), 255)


def test_integer_division_never_traps():
    same(ops.div(i8(7, -7, 7, -7), i8(2, 2, -2, 0)), 3, -3, -3, 0)
    same(ops.div(i8(I8_MIN), i8(-1)), I8_MIN)
    same(ops.floor_div(i8(7, -7, -7, 5), i8(2, 2, -2, 0)), 3, -4, 3, 0)
    same(ops.rem(i8(7, -7, 7, 5), i8(3, 3, -3, 0)), 1, -1, 1, 0)
    same(ops.mod(i8(7, -7, 7, 5), i8(3, 3, -3, 0)), 1, 2, -2, 0)
    same(ops.mod(i8(I8_MIN), i8(-1)), 0)


def test_integer_powers_are_defined_for_every_exponent():
    same(ops.pow(i8(2, 3, 0, 2), i8(3, 0, 0, 7)), 8, 1, 1, I8_MIN)
    same(ops.pow(i8(2, 1, -1, -1, 0, I8_MIN), i8(-1, -5, -2, -3, -1, -1)), 0, 1, 1, -1, 0, 0)
    same(ops.pow(u8(255, 2), u8(2, 8)), 1, 0)


def test_shift_amounts_are_read_as_unsigned():
    same(ops.shift_left(i8(1, 1, 3, 1), i8(7, 8, 1, -1)), I8_MIN, 0, 6, 0)
    same(ops.shift_right(i8(-5, -5, 5, -1), i8(1, 8, 100, -1)), -3, -1, 0, -1)
    same(ops.shift_right(u8(255, 255), u8(7, 8)), 1, 0)


def test_bits():
    same(ops.bit_not(u8(0, 255)), 255, 0)
    same(ops.bit_not(i8(0, -1)), -1, 0)
    same(ops.bit_and(u8(0b1100), u8(0b1010)), 0b1000)
    same(ops.bit_xor(u8(0b1100), u8(0b1010)), 0b0110)


def test_casts_to_integers_saturate():
    same(ops.cast(f32(1e9, -1e9, 2.9, -2.9, NAN, INF), to="i8"), 127, -128, 2, -2, 0, 127)
    same(ops.cast(f32(-5.0, 3e9), to="u8"), 0, 255)
    same(ops.cast(np.array([2.0**63, -(2.0**64)]), to="i64"), 2**63 - 1, -(2**63))
    same(ops.cast(np.array([300, -1]), to="u8"), 44, 255)
    same(ops.cast(f32(0.0, NAN, 0.5), to="bool"), False, True, True)


def test_clamp_of_integers():
    same(ops.clamp(u8(0, 9, 255), min=-4.0, max=9.0), 0, 9, 9)
    with pytest.raises(GraphError, match=r"bound 0\.5 is no u8"):
        ops.clamp(u8(1), min=0.5)


# -- floats ---------------------------------------------------------------------------------------


def test_maximum_and_clamp_keep_nan():
    same(ops.maximum(f32(NAN, 1, -INF), f32(1, NAN, 2)), NAN, NAN, 2)
    same(ops.clamp(f32(NAN, 5, -5), min=-1.0, max=1.0), NAN, 1, -1)
    same(ops.clamp(f32(0), min=3.0, max=1.0), 1)
    same(ops.relu(f32(NAN, -1, 2)), NAN, 0, 2)


def test_float_remainders_follow_numpy():
    same(ops.mod(f32(5, -5, 0, -1, 1), f32(-3, 3, -3, INF, 0)), -1, 1, -0.0, INF, NAN)
    same(ops.floor_div(f32(5, -5, 1, -1), f32(-3, 3, 0, INF)), -2, -2, INF, -1)


def test_rounding_goes_to_even_and_keeps_the_sign_of_zero():
    same(ops.round(f32(0.5, 1.5, 2.5, -0.5)), 0, 2, 2, -0.0)
    same(ops.trunc(f32(1.7, -1.7, -0.2)), 1, -1, -0.0)
    same(ops.ceil(f32(-0.2)), -0.0)
    same(ops.sign(f32(-3, -0.0, NAN)), -1, 0, NAN)


def test_erf_is_that_of_the_standard_library():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=5000) * 2, np.logspace(-300, 1, 500), [0.0, -7.0, INF]])
    wanted = np.array([math.erf(v) for v in x])
    # Two roundings of the series and a value that may be half its leading term: 4 ulp at most.
    assert np.max(np.abs(ops.erf(x) - wanted) / np.spacing(np.abs(wanted))) <= 4
    same(ops.erf(np.array([-0.0, NAN, -INF])), -0.0, NAN, -1)


def test_activations_at_the_ends():
    ends = f32(-INF, -200, 200, INF, NAN)
    same(ops.sigmoid(ends), 0, 0, 1, 1, NAN)
    same(ops.softplus(ends), 0, 0, 200, INF, NAN)
    same(ops.elu(ends, alpha=2.0), -2, -2, 200, INF, NAN)
    same(ops.tanh(ends), -1, -1, 1, 1, NAN)
    same(ops.hard_sigmoid(ends), 0, 0, 1, 1, NAN)
    same(ops.log1p(f32(-1, INF, -2)), -INF, INF, NAN)


def test_sigmoid_is_accurate_where_its_value_is_tiny():
    x = np.array([-700.0])
    np.testing.assert_allclose(ops.sigmoid(x), np.exp(x), rtol=2**-52)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "mish", "hard_swish"])
def test_gated_activations_are_products(name: str):
    """-∞ · 0 is NaN, as in the spelling that is recognised as the activation."""
    same(getattr(ops, name)(f32(-INF, 0, INF)), NAN, 0, INF)


def test_gelu_values():
    x = np.array([-1.0, 0.5, 3.0])
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    # A handful of roundings in each spelling.
    np.testing.assert_allclose(ops.gelu(x), exact, rtol=8 * 2**-52)
    np.testing.assert_allclose(
        ops.gelu_tanh(x), exact, atol=5e-4
    )  # the form is off by 4.8e-4 at most


def test_half_floats_round_once():
    one, eps = np.float16(1), np.float16(2**-11)
    same(ops.fma(np.array([eps]), np.array([one]), np.array([one])), 1)
    x = np.array([60000.0], np.float16)
    same(ops.fma(x, np.array([2.0], np.float16), -x), 60000)


# -- complex numbers and truth --------------------------------------------------------------------


def test_complex_parts():
    z = ops.make_complex(f32(3, INF), f32(4, NAN))
    assert z.dtype == np.complex64
    same(ops.abs(z), 5, INF)
    same(ops.imag(ops.conj(z)), -4, NAN)
    same(ops.is_inf(z), False, True)
    same(ops.is_finite(z), True, False)


def test_comparisons_with_nan():
    x, y = f32(NAN, 1, -0.0), f32(NAN, 2, 0.0)
    same(ops.equal(x, y), False, False, True)
    same(ops.not_equal(x, y), True, True, False)
    same(ops.less_equal(x, y), False, True, True)
    same(ops.is_nan(x), True, False, False)


def test_logic_takes_truth_values_only():
    same(ops.logical_xor(np.array([True, True]), np.array([True, False])), False, True)
    with pytest.raises(GraphError, match="expected dtype bool"):
        ops.logical_and(i8(1), i8(1))


@pytest.mark.parametrize(
    ("alias", "name"),
    [("subtract", "sub"), ("divide", "div"), ("absolute", "abs"), ("negative", "neg"),
     ("remainder", "mod"), ("power", "pow"), ("clip", "clamp"), ("bitwise_and", "bit_and"),
     ("isnan", "is_nan"), ("arctan2", "atan2"), ("permute_dims", "transpose"),
     ("broadcast_to", "expand"), ("concatenate", "concat"), ("take", "gather"),
     ("swish", "silu"), ("conjugate", "conj"), ("unsqueeze", "expand_dims")],
)  # fmt: skip
def test_array_api_and_numpy_names(alias: str, name: str):
    assert getattr(ops, alias) is getattr(ops, name)
