"""Small arrays of a step as arithmetic of positions: the same values, and no arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import lower_loop
from rlx.kernel.lower.spelled_out import spelled_out
from rlx.kernel.refusal import Refusal
from rlx.ops.quant.gguf_formats import SCHEMES

Array = np.ndarray[Any, Any]


def region(build: Callable[[Node], Node], x: Array) -> Node:
    """A step of one operand like x, spelled out."""
    body, whole, shape = Graph("body"), Graph("whole"), Shape(x.shape, DType.of(x.dtype))
    body.set_outputs([build(body.input("v0", shape))])
    made = spelled_out(whole.node("region", [whole.input("v0", shape)], {"body": body}))
    assert isinstance(made, Node)
    return made


def constants(node: Node) -> list[Array]:
    values = (n.attrs["value"].array for n in node.attrs["body"].order() if n.op == "constant")
    return [v for v in values if v.size > 1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_decoding_means_the_same(scheme: str) -> None:
    block = SCHEMES[scheme]
    packed = np.random.default_rng(0).integers(0, 256, (3, 2 * block.block_bytes)).astype(np.uint8)
    graph = Graph("decoding")
    node = ops.gguf_dequantize(graph.input("v0", Shape(packed.shape, DType.U8)), scheme=scheme)
    graph.set_outputs([node])
    made = spelled_out(node)
    if isinstance(made, Refusal):
        assert scheme == "q8_k", made.reason
        return
    (got,) = evaluate(made.attrs["body"], {"v0": packed})
    (want,) = evaluate(graph, {"v0": packed})
    np.testing.assert_array_equal(got, want)


def test_most_formats_are_one_loop_nest() -> None:
    """All but those with codebooks, and the one of powers of three."""
    refused: list[str] = []
    for scheme, block in SCHEMES.items():
        x = Graph("decoding").input("v0", Shape((3, block.block_bytes), DType.U8))
        made = spelled_out(ops.gguf_dequantize(x, scheme=scheme))
        if not isinstance(made, Refusal) and isinstance(lower_loop(made), Refusal):
            refused.append(scheme)
    codebooks = [s for s in SCHEMES if s.startswith("iq") and not s.startswith("iq4")]
    assert sorted(refused) == sorted([*codebooks, "tq1_0"])


@pytest.mark.parametrize(
    "array",
    [
        np.array([3, 1, -1], np.int32),
        np.array([[0, 4], [1, 5]], np.uint8),
        np.array([2.5, -1.0, 7.0]),
        np.array([[True], [False], [True]]),
    ],
    ids=["line", "plane", "numbers", "truth"],
)
def test_a_constant_is_a_function_of_positions(array: Array) -> None:
    x = np.ones(array.shape, array.dtype)
    op = ops.logical_and if array.dtype == np.bool_ else ops.mul
    made = region(lambda v: op(v, array), x)
    assert not constants(made)
    (got,) = evaluate(made.attrs["body"], {"v0": x})
    np.testing.assert_array_equal(got, array)


def test_long_constants_stay_arrays() -> None:
    values = np.sin(np.arange(40))
    made = region(lambda v: ops.mul(v, values), values)
    assert [c.size for c in constants(made)] == [40]


def test_a_table_is_looked_up_only_where_every_index_is_in_it() -> None:
    table = np.array([5.0, 6.0, 7.0, 8.0], np.float32)
    index = np.array([0, 3, 2], np.uint8)
    inside = region(lambda v: ops.gather(table, ops.bit_and(v, np.uint8(3)), axis=0), index)
    (got,) = evaluate(inside.attrs["body"], {"v0": index})
    np.testing.assert_array_equal(got, table[index])
    assert all(n.op != "gather" for n in inside.attrs["body"].order())
    anywhere = region(lambda v: ops.gather(table, v, axis=0), index)
    assert any(n.op == "gather" for n in anywhere.attrs["body"].order())
