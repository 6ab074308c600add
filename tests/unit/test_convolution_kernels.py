"""Convolutions as contractions: what they mean, by the interpreter of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.interpret import run
from rlx.kernel.lower.conv import lower_conv
from rlx.kernel.refusal import Refusal, required
from rlx.ops.draw import Draw
from rlx.ops.op import lookup


def lowered(node: Node) -> tuple[Kernel | None, Contract] | Refusal:
    return lower_conv(
        node,
        [Layout.contiguous(i.shape.dims) for i in node.inputs],
        [Layout.contiguous(s.dims) for s in node.shapes],
    )


def check(node: Node, arrays: list[np.ndarray], want: np.ndarray, sizes: dict[str, int]) -> None:
    """To 64 · eps of the largest result: sums are taken in another order."""
    writing, contract = required(lowered(node))
    assert contract.rows not in contract.right.free
    assert contract.columns not in contract.left.free
    given = list(arrays)
    if writing is not None:
        given += run(writing, arrays, sizes)
    (got,) = run(contract.kernel(), given, sizes)
    assert got.dtype == want.dtype
    exact = want.dtype.kind in "iu"
    scale = np.abs(want.astype(np.complex128)).max(initial=1.0)
    eps = 0 if exact else 64 * {2: 2.0**-7}.get(want.dtype.itemsize, 2.0**-23) * scale
    assert np.abs(got.astype(np.complex128) - want.astype(np.complex128)).max(initial=0) <= eps


def region(shapes: list[Shape], build: object) -> Node:
    body, whole = Graph("body"), Graph("whole")
    body.set_outputs([build(*(body.input(f"v{i}", s) for i, s in enumerate(shapes)))])
    return whole.node("region", [whole.input(f"v{i}", s) for i, s in enumerate(shapes)],
                      {"body": body})  # fmt: skip


@pytest.mark.parametrize("op", ["conv", "fused_conv_bias_act"])
def test_drawn_convolutions(op: str) -> None:
    for seed in range(60):
        draw = Draw([seed, 9])
        case = draw.case(lookup(op))
        arrays = draw.arrays(case)
        g = Graph("g")
        inputs = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
        g.set_outputs([g.node(case.op, inputs, case.attrs)])
        (want,) = evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})
        if want.size == 0:  # which is no work
            continue
        check(g.outputs[0], arrays, want, {})


def test_what_surrounds_a_convolution() -> None:
    """Work before it is done where the image is written; work after it on the sums."""
    shapes = [Shape([2, 4, 9, 10]), Shape([6, 2, 3, 3]), Shape([6]), Shape([2, 6, 5, 5])]

    def build(x: Node, w: Node, bias: Node, other: Node) -> Node:
        attrs = {"stride": (2, 2), "padding": (1, 1, 1, 1), "groups": 2}
        made = ops.conv(ops.relu(x), ops.neg(w), bias, **attrs)
        return ops.mul(ops.sigmoid(made), other)

    node = region(shapes, build)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s.static_dims).astype(np.float32) for s in shapes]
    (want,) = evaluate(node.attrs["body"], {f"v{i}": a for i, a in enumerate(arrays)})
    check(node, arrays, want, {})


def test_sizes_may_be_unknown() -> None:
    h, w = Dim("h", 1, 100), Dim("w", 1, 100)
    shapes = [Shape([1, 3, h, w]), Shape([4, 3, 3, 3])]
    node = region(shapes, lambda x, k: ops.conv(x, k, padding=(1, 1, 1, 1), stride=(1, 2)))
    for sizes in ({"h": 5, "w": 8}, {"h": 1, "w": 1}):
        bound = node.attrs["body"].bind(sizes)
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=s.bind(sizes).static_dims).astype(np.float32) for s in shapes]
        (want,) = evaluate(bound, {f"v{i}": a for i, a in enumerate(arrays)})
        check(node, arrays, want, sizes)


def test_an_image_that_lies_side_by_side_is_not_copied() -> None:
    g = Graph("g")
    x, w = g.input("x", Shape([1, 3, 8, 8])), g.input("w", Shape([4, 3, 3, 3]))
    assert required(lowered(g.conv(x, w)))[0] is None
    assert required(lowered(g.conv(x, w, padding=(1, 1, 1, 1))))[0] is not None
    _, points = required(lowered(g.conv(x, g.input("p", Shape([4, 3, 1, 1])))))
    assert [a.extent for a in (points.rows, points.columns, *points.inner)] == [4, 64, 3]


def test_columns_are_an_axis_with_more_than_one_window() -> None:
    shapes = [Shape([2, 3, 9, 2, 4]), Shape([4, 3, 3, 2, 3])]
    attrs = {"padding": (1, 0, 0, 1, 0, 0), "stride": (1, 1, 2), "dilation": (2, 1, 1)}
    node = region(shapes, lambda x, w: ops.conv(x, w, **attrs))
    _, contract = required(lowered(node))
    assert contract.columns.extent == 7
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s.static_dims).astype(np.float32) for s in shapes]
    (want,) = evaluate(node.attrs["body"], {f"v{i}": a for i, a in enumerate(arrays)})
    check(node, arrays, want, {})


def test_two_convolutions_are_none() -> None:
    shapes = [Shape([1, 2, 5, 5]), Shape([2, 2, 3, 3])]
    node = region(shapes, lambda x, w: ops.add(ops.conv(x, w), ops.conv(ops.neg(x), w)))
    assert lowered(node) == Refusal("body: it has 2 convolutions, not one")
