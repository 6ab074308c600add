"""Examples that document the elementwise, logic, activation, movement and indexing ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.core.dim import Dim
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph

INF, NAN = math.inf, math.nan
I8_MIN, I8_MAX = -128, 127


def i8(*values: int) -> Any:
    return np.array(values, np.int8)


def u8(*values: int) -> Any:
    return np.array(values, np.uint8)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def same(got: Any, *wanted: Any) -> None:
    """Equal, NaN and the sign of zero included."""
    array = np.asarray(wanted, got.dtype)
    np.testing.assert_array_equal(got, array)
    if array.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got[array == 0]), np.signbit(array[array == 0]))


def node(*dims: Any, dtype: str = "f32") -> Any:
    return Graph().input("x", Shape(dims, dtype))


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


# -- movement -------------------------------------------------------------------------------------


def test_two_spellings_of_a_reshape_are_one_node():
    x = node(2, Dim("seq"), 6)
    assert ops.reshape(x, dims=(-1, 12)) is ops.reshape(x, dims=(Dim("seq"), 12))
    assert ops.reshape(x, dims=(2, -1)).shape.dims == (2, Dim("seq") * 6)


@pytest.mark.parametrize("dims", [(3, 3), (-1, 3), (-1, -1), (-2, -8), (4, 4, 2)])
def test_a_reshape_keeps_the_number_of_elements(dims: tuple[int, ...]):
    with pytest.raises(GraphError, match="reshape"):
        ops.reshape(node(4, 4), dims=dims)


def test_reshapes_of_no_elements():
    x = np.zeros((0, 3))
    assert ops.reshape(x, dims=(5, 0)).shape == (5, 0)
    assert ops.reshape(x, dims=(-1, 3)).shape == (0, 3)
    with pytest.raises(GraphError, match="-1 has no one value"):
        ops.reshape(x, dims=(0, -1))


def test_a_shape_past_the_address_space_is_refused():
    with pytest.raises(GraphError, match="2\\^63"):
        ops.expand(node(1, 1), dims=(2**40, 2**40))
    with pytest.raises(GraphError, match="2\\^63"):
        ops.tile(node(2**20), repeats=(2**50,))


def test_transpose_names_every_axis_once():
    x = node(2, 3, 4)
    assert ops.transpose(x) is ops.transpose(x, perm=(-1, 1, 0))
    for perm in [(0, 1), (0, 0, 1), (0, 1, 3)]:
        with pytest.raises(GraphError, match="transpose"):
            ops.transpose(x, perm=perm)


def test_narrow_is_checked_also_where_dims_are_named():
    seq = Dim("seq", 4, 64)
    x = node(seq, 8)
    assert ops.narrow(x, axis=0, start=1, length=seq - 1).shape.dims == (seq - 1, 8)
    with pytest.raises(GraphError, match="start 6 \\+ length 3 is past the end of axis 1: 8"):
        ops.narrow(x, axis=1, start=6, length=3)
    with pytest.raises(GraphError, match="may be past the end"):
        ops.narrow(x, axis=0, start=0, length=5)
    with pytest.raises(GraphError, match="start is -1"):
        ops.narrow(x, axis=0, start=-1, length=1)


def test_equal_slices_are_one_node():
    x = node(6)
    whole = ops.slice(x, starts=(5,), stops=(-7,), steps=(-2,))
    assert whole is ops.slice(x, starts=(-1,), stops=(0,), steps=(-2,))
    assert whole.shape.dims == (3,)
    assert ops.slice(x, starts=(4,), stops=(2,)) is ops.slice(x, starts=(9,), stops=(9,))


def test_squeeze_and_expand_dims_place_axes():
    x = np.zeros((1, 3, 1))
    assert ops.squeeze(x).shape == (3,)
    assert ops.squeeze(x, axes=(-1,)).shape == (1, 3)
    assert ops.expand_dims(x, axes=(0, -1)).shape == (1, 1, 3, 1, 1)
    with pytest.raises(GraphError, match="axis 1 of f64\\[1, 3, 1\\] is 3, not 1"):
        ops.squeeze(x, axes=(1,))


def test_concat_adds_named_dims():
    g = Graph()
    past, seq = Dim("past"), Dim("seq")
    x, y = g.input("x", Shape([2, past])), g.input("y", Shape([2, seq]))
    assert ops.concat([x, y], axis=1).shape.dims == (2, past + seq)
    with pytest.raises(GraphError, match="all dims but that of axis 0 must be equal"):
        ops.concat([x, y], axis=0)


def test_split_has_one_result_per_size():
    parts = ops.split(node(2, 7), sizes=(3, 0, 4), axis=1)
    assert [p.shape.dims for p in parts] == [(2, 3), (2, 0), (2, 4)]
    with pytest.raises(GraphError, match="add up to 6"):
        ops.split(node(7), sizes=(3, 3))


def test_pad_modes():
    x = i8(1, 2, 3)
    same(ops.pad(x, low=(1,), high=(2,), value=9.0), 9, 1, 2, 3, 9, 9)
    same(ops.pad(x, low=(1,), high=(2,), mode="edge"), 1, 1, 2, 3, 3, 3)
    same(ops.pad(x, low=(1,), high=(2,), mode="reflect"), 2, 1, 2, 3, 2, 1)
    same(ops.pad(x, low=(1,), high=(2,), mode="wrap"), 3, 1, 2, 3, 1, 2)
    with pytest.raises(GraphError, match="reflect by 3 needs at least 4"):
        ops.pad(x, low=(3,), high=(0,), mode="reflect")
    with pytest.raises(GraphError, match=r"the value 300\.0 is no i8"):
        ops.pad(x, low=(3,), high=(0,), value=300.0)


def test_tile_flip_and_stack():
    same(ops.tile(i8(1, 2), repeats=(2,)), 1, 2, 1, 2)
    same(ops.flip(i8(1, 2, 3)), 3, 2, 1)
    assert ops.stack([np.zeros((2, 3)), np.ones((2, 3))], axis=-1).shape == (2, 3, 2)


# -- indexing -------------------------------------------------------------------------------------


def test_gather_puts_the_dims_of_indices_in_place_of_the_axis():
    x, at = np.arange(70).reshape(2, 5, 7), np.array([[4, 0, 4]])
    np.testing.assert_array_equal(ops.gather(x, at, axis=1), x[:, at])
    same(ops.embedding(f32(1, 2, 3)[:, None], np.array([2, 0]))[:, 0], 3, 1)


@pytest.mark.parametrize("index", [5, -1])
def test_an_index_out_of_range_is_an_error_that_names_it(index: int):
    g = Graph("lookup")
    x, at = g.input("x", Shape([5])), g.input("at", Shape([2], "i64"))
    g.set_outputs([ops.gather(x, at, axis=0)])
    with pytest.raises(Error, match=f"gather at .*index {index} at \\[1\\] is out of range"):
        evaluate(g, {"x": np.zeros(5, np.float32), "at": np.array([0, index])})


def test_scatter_add_adds_repeated_indices():
    x = np.zeros((2, 3), np.int32)
    updates = np.array([[1, 2, 4], [8, 16, 32]], np.int32)
    got = ops.scatter_add(x, np.array([2, 0, 2]), updates, axis=1)
    np.testing.assert_array_equal(got, [[2, 0, 5], [16, 0, 40]])
    with pytest.raises(GraphError, match="as gather would give"):
        ops.scatter_add(x, np.array([0]), updates, axis=1)


def test_take_along_axis_and_one_hot():
    x = np.array([[3, 1, 2], [6, 5, 4]])
    at = np.argsort(x, -1)
    np.testing.assert_array_equal(ops.take_along_axis(x, at), np.sort(x, -1))
    np.testing.assert_array_equal(ops.one_hot(u8(1, 7), depth=3, to="i8"), [[0, 1, 0], [0, 0, 0]])


X = np.arange(120).reshape(2, 3, 4, 5)
INDICES: list[Any] = [
    1, -1, (), ..., (..., 2), (0, ..., -2), (slice(None), slice(1, None)), (None, 1, None),
    (slice(None, None, -1), slice(5, -9, -2)), (..., slice(-2, None)), (slice(1, 1),),
    np.array([1, 0, -1]), (slice(None), [[0, 2]]), (0, np.array([1, 2]), None), (..., [0, -1]),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_nodes_are_indexed_as_numpy_has_it(index: Any):
    x = node(*X.shape, dtype="i64")
    made = x[index]
    x.graph.set_outputs([made])
    wanted = X[index]
    assert made.shape.dims == wanted.shape
    np.testing.assert_array_equal(evaluate(x.graph, {"x": X})[0], wanted)


@pytest.mark.parametrize(
    "index", [2, (0, 0, 0, 0, 0), (0, slice(None), [1]), ([0], [1]), 1.0, True, ([True, False],),
              (..., ...), slice(0, 1, 0), slice("a"), [5]], ids=repr,
)  # fmt: skip
def test_what_is_no_index_is_said(index: Any):
    with pytest.raises(GraphError, match=r"indexing i64\[2, 3, 4, 5\] at test_ops_a\.py"):
        node(*X.shape, dtype="i64")[index]


def test_indexing_named_dims():
    seq, any_seq = Dim("seq", 1, 64), Dim("any_seq")
    assert node(2, seq, 3)[:, -1].shape.dims == (2, 3)
    assert node(2, seq)[:, : seq - 1].shape.dims == (2, seq - 1)
    assert node(any_seq)[::-1].shape.dims == (any_seq,)
    with pytest.raises(GraphError, match="index -1 may be out of range for axis 0 of size any_seq"):
        node(any_seq)[-1]


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_slices_of_named_dims_are_clipped_when_the_size_is_known(size: int):
    x = node(Dim("any_seq"))
    parts = [x[2:], x[:-1], x[-3:], x[1::2], x[::-1], x[5:2:-1]]
    x.graph.set_outputs(parts)
    a = np.arange(size, dtype=np.float32)
    wanted = [a[2:], a[:-1], a[-3:], a[1::2], a[::-1], a[5:2:-1]]
    for got, part, array in zip(evaluate(x.graph, {"x": a}), parts, wanted, strict=True):
        assert part.shape.bind({"any_seq": size}).dims == array.shape
        np.testing.assert_array_equal(got, array)


def test_a_node_of_indices_gathers():
    g = Graph()
    table, ids = g.input("table", Shape([10, 4])), g.input("ids", Shape([2, Dim("seq")], "i32"))
    rows = table[ids]
    assert rows.op == "gather"
    assert rows.shape.dims == (2, Dim("seq"), 4)


@pytest.mark.parametrize("exponent", [0.5, [0.5, 0.5], [[0.5], [0.5]]])
def test_a_power_of_a_half_is_no_root_however_the_exponent_is_shaped(exponent: Any) -> None:
    made = ops.pow(np.array([-np.inf, -0.0], np.float32), np.array(exponent, np.float32))
    assert (made == np.broadcast_to([np.inf, 0.0], made.shape)).all()
    assert not np.signbit(made).any()
