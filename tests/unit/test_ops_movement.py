"""Movement and indexing ops, by examples that document them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.core.dim import Dim
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from tests.unit.op_examples import f32, i8, same, u8


def node(*dims: Any, dtype: str = "f32") -> Any:
    return Graph().input("x", Shape(dims, dtype))


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
    with pytest.raises(GraphError, match=r"indexing i64\[2, 3, 4, 5\] at test_ops_movement\.py"):
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
