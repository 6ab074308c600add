"""Constants fold by the op's own reference, in the op's own dtype, where that is worth it."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Dim, Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.ops import op as table
from rlx.ops.draw import Draw
from rlx.ops.op import Kind
from rlx.rules.constants import MAX_BYTES, fold_constants
from rlx.rules.engine import Event, Fired, rewrite, ruleset

FOLDED = [
    o for o in table.table().values()
    if o.kind not in (Kind.LEAF, Kind.CONTROL) and o.signature.operands
    and not o.syncs_host and o.name != "item" and not o.measures
]  # fmt: skip


def fold(graph: Graph, log: list[Event] | None = None) -> Graph:
    return rewrite(graph, ruleset([fold_constants]), log)


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.order() if not n.is_leaf]


def folded(*outputs: Node) -> Graph:
    outputs[0].graph.set_outputs(outputs)
    return fold(outputs[0].graph)


@pytest.mark.parametrize("op", FOLDED, ids=lambda o: o.name)
def test_every_op_folds_to_what_its_reference_gives_bit_for_bit(op: table.Op) -> None:
    has_folded = 0
    for seed in range(8):
        draw = Draw((seed, 7))
        try:
            case = draw.case(op)
        except TypeError:
            pytest.skip(f"{op.name}: {op.why_no_cases or 'its page draws no cases'}")
        g = Graph("constants")
        made = op.build(g, [g.constant(a) for a in draw.arrays(case)], case.attrs)
        outputs = list(made) if isinstance(made, tuple) else [made]
        if not outputs:
            continue
        g.set_outputs(outputs)
        after = fold(g)
        try:
            expected = evaluate(g, {})
        except Error:
            assert ops_of(after), "an error of the data is for the run to report"
            continue
        for want, got in zip(expected, after.outputs, strict=True):
            assert got.op == "constant"
            array = got.attrs["value"].array
            assert (array.dtype, array.shape) == (want.dtype, want.shape)
            assert array.tobytes() == np.ascontiguousarray(want).tobytes()
            has_folded += 1
    assert has_folded, f"no draw of {op.name} folded"


def test_integers_and_wide_floats_do_not_pass_through_f32() -> None:
    g = Graph("exact")
    big = g.constant(np.array([2**53 + 1, -(2**62) - 1], np.int64))
    fine = g.constant(np.array([1 / 3, 1e300], np.float64))
    after = folded(ops.add(big, g.constant(np.int64(1))), ops.mul(fine, fine))
    assert after.outputs[0].attrs["value"].array.tolist() == [2**53 + 2, -(2**62)]
    assert after.outputs[1].attrs["value"].array.tolist() == [(1 / 3) ** 2, np.inf]


def test_a_cast_converts_its_values() -> None:
    g = Graph("cast")
    after = folded(ops.cast(g.constant(np.array([1.9, -2.5, np.nan, 1e9])), to=DType.I8))
    array = after.outputs[0].attrs["value"].array
    assert array.dtype == np.int8
    assert array.tolist() == [1, -2, 0, 127]


def test_halves_are_rounded_once() -> None:
    g = Graph("half")
    x = np.array([1.0 + 2**-7], DType.BF16.numpy)
    after = folded(ops.rms_norm(g.constant(np.repeat(x, 3))))
    assert after.outputs[0].shape.dtype is DType.BF16


def test_both_gelus_fold_to_their_own_formula() -> None:
    import math

    g = Graph("gelu")
    x = np.linspace(-3, 3, 7, dtype=np.float64)
    after = folded(ops.gelu(g.constant(x)), ops.gelu_tanh(g.constant(x)))
    erf = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    tanh = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x]
    np.testing.assert_allclose(after.outputs[0].attrs["value"].array, erf, rtol=1e-12)
    np.testing.assert_allclose(after.outputs[1].attrs["value"].array, tanh, rtol=1e-12)
    assert not np.allclose(erf, tanh, rtol=1e-5)


def test_operands_of_other_lengths_broadcast() -> None:
    g = Graph("broadcast")
    column, row = g.constant(np.arange(3.0).reshape(3, 1)), g.constant(np.arange(4.0))
    after = folded(ops.add(column, row))
    np.testing.assert_array_equal(
        after.outputs[0].attrs["value"].array, np.add.outer(np.arange(3.0), np.arange(4.0))
    )


def test_params_never_fold() -> None:
    g = Graph("params")
    w = g.param("w", Shape([2]))
    after = folded(ops.add(ops.neg(w), ops.neg(g.constant(np.float32(1.0)))))
    assert ops_of(after) == ["neg", "add"]
    assert [p.attrs["name"] for p in after.params] == ["w"]


def test_a_scalar_expanded_to_much_stays_small() -> None:
    g = Graph("large")
    one = g.constant(np.float32(1.0))
    side = MAX_BYTES // 4 + 1
    after = folded(ops.expand(one, dims=(side,)), ops.expand(one, dims=(2**20, 2**20)))
    assert ops_of(after) == ["expand", "expand"]
    assert ops_of(folded(ops.expand(one, dims=(4,)))) == []


def test_what_grows_no_larger_than_its_operands_folds() -> None:
    g = Graph("alike")
    large = g.constant(np.ones(MAX_BYTES // 2, np.float32))
    assert ops_of(folded(ops.neg(large))) == []


def test_long_work_is_left_to_the_run() -> None:
    g = Graph("long")
    x = g.constant(np.ones((512, 512), np.float32))
    assert ops_of(folded(ops.matmul(x, x))) == ["matmul"]


def test_an_error_of_the_data_is_left_to_the_run() -> None:
    g = Graph("bad")
    x, i = g.constant(np.arange(3.0)), g.constant(np.array([7]))
    after = folded(ops.gather(x, i, axis=0))
    assert ops_of(after) == ["gather"]
    with pytest.raises(Error, match="gather"):
        evaluate(after, {})


def test_a_size_that_is_not_known_yet_does_not_fold() -> None:
    g = Graph("dynamic")
    n = Dim("n")
    x = g.input("x", Shape([n]))
    wide = ops.expand(g.constant(np.float32(2.0)), dims=(n,))
    assert ops_of(folded(ops.add(x, wide))) == ["expand", "add"]


def test_results_of_an_op_with_several_fold_one_by_one() -> None:
    g = Graph("items")
    values, indices = ops.top_k(g.constant(np.array([3, 1, 2])), k=2, axis=0)
    after = folded(values, indices)
    assert [o.attrs["value"].array.tolist() for o in after.outputs] == [[3, 2], [0, 2]]
    assert ops_of(after) == []


def test_folding_is_recorded_and_keeps_its_origin() -> None:
    g = Graph("log")
    one = g.constant(np.float32(1.0))
    g.set_outputs([ops.neg(one)])
    log: list[Event] = []
    after = fold(g, log)
    (fired,) = log
    assert isinstance(fired, Fired)
    assert fired.rule == "fold_constants"
    assert any(o.kind == "rule" for o in after.outputs[0].origins)
    assert any(o.kind == "line" for o in after.outputs[0].origins)
