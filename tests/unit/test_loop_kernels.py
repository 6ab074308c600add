"""Loop kernels: forming one and interpreting it gives what the op's reference gives."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import rlx
from rlx.core.layout import Layout
from rlx.ir.interpret import evaluate
from rlx.kernel.expr import Kernel, Load, Reduce
from rlx.kernel.interpret import run
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.refusal import NotLowered
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Kind, Op, table

CASES = 12
LOOPS = [
    o
    for o in table().values()
    if not o.why_no_cases and o.kind in (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.ROW, Kind.MOVEMENT)
]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}


def kernel_of(op: Op, seed: int) -> tuple[Kernel, list[np.ndarray], object]:
    draw = Draw([zlib.crc32(op.name.encode()), seed])
    case = draw.case(op)
    arrays = draw.arrays(case)
    g = rlx.Graph(op.name)
    inputs = [g.input(f"x{i}", rlx.Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
    kernel = loop_kernel(g.node(op, inputs, case.attrs))
    return kernel, arrays, op.run(arrays, case.attrs)


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, or within roundings: a kernel adds in another order than NumPy, and rounds halves
    at each step; rows here are at most a few hundred numbers of size 1."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if np.dtype(want.dtype).kind not in "fcV":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    eps = 64 * EPS.get(want.dtype.name, 2.0**-52)
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * min(size, 1e4))


@pytest.mark.parametrize("op", LOOPS, ids=lambda o: o.name)
def test_a_formed_kernel_means_what_the_op_means(op: Op) -> None:
    formed = 0
    for seed in range(CASES):
        try:
            kernel, arrays, want = kernel_of(op, seed)
        except NotLowered:
            continue
        formed += 1
        results = want if isinstance(want, tuple) else (want,)
        for got, expected in zip(run(kernel, arrays, {}), results, strict=True):
            assert_close(got, expected)
    is_primitive_of_its_own = op.lower is None and op.name in ("take_along_axis", "cumsum")
    assert formed or is_primitive_of_its_own, f"{op.name} never formed a kernel"


def test_a_value_read_in_two_passes_is_one_expression() -> None:
    g = rlx.Graph("softmax")
    kernel = loop_kernel(g.softmax(g.input("x", rlx.Shape([8, 64]))))
    assert sum(isinstance(n, Load) for n in kernel.nodes) == 1
    assert [n.fold for n in kernel.nodes if isinstance(n, Reduce)] == ["max", "sum"]
    assert len(kernel.reduced) == 1
    assert kernel.reduced[0] is kernel.axes[1]


def test_a_reshape_makes_finer_axes() -> None:
    g = rlx.Graph("heads")
    x = g.input("x", rlx.Shape([6, 8]))
    y = g.relu(g.reshape(g.transpose(g.reshape(x, dims=(6, 2, 4)), perm=(1, 0, 2)), dims=(2, 24)))
    g.set_outputs([y])
    result = rlx.CompilePipeline("wgpu").compile_graph(g)
    data = np.arange(48, dtype=np.float32).reshape(6, 8) - 20
    want = evaluate(g, {"x": data})[0]
    body = rlx.Graph("body")
    a = body.input("a", rlx.Shape([6, 8]))
    moved = body.transpose(body.reshape(a, dims=(6, 2, 4)), perm=(1, 0, 2))
    body.set_outputs([body.relu(body.reshape(moved, dims=(2, 24)))])
    region = g.node("region", (x,), {"body": body})
    kernel = loop_kernel(region)
    assert [a.extent for a in kernel.axes] == [2, 6, 4]
    np.testing.assert_array_equal(run(kernel, [data], {})[0], want)
    assert result.lir.plan.schedule


def test_named_dims_are_extents() -> None:
    g = rlx.Graph("rows")
    n = rlx.Dim("n", 1, 100)
    x = g.input("x", rlx.Shape([n, 4]))
    kernel = loop_kernel(g.softmax(x, axis=0))
    for size in (1, 7):
        data = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
        assert_close(run(kernel, [data], {"n": size})[0], rlx.ops.softmax(data, axis=0))


@pytest.mark.parametrize("target", list(rlx.FusionTarget), ids=lambda t: t.value)
def test_regions_of_real_plans_are_loops(target: rlx.FusionTarget) -> None:
    from bench.models import transformer

    module = transformer(1, 6, width=32, heads=4, kv_heads=2, ffn=48)
    lir = rlx.CompilePipeline(target).compile_hir(module).lir
    formed = 0
    for node in lir.plan.schedule:
        kinds = {n.decl.kind for n in node.attrs["body"].order()} if "body" in node.attrs else set()
        if node.decl.kind in (Kind.ROW, Kind.ELEMENTWISE) or (
            kinds and kinds <= {Kind.LEAF, Kind.ELEMENTWISE, Kind.ROW, Kind.REDUCTION}
        ):
            kernel = loop_kernel(node)
            draw = Draw(formed)
            data = [draw.values(Spec(i.shape.dims, i.shape.dtype, "plain")) for i in node.inputs]
            want = node.decl.run(data, node.attrs)
            got = run(kernel, data, {})
            for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
                assert_close(a, b)
            formed += 1
    assert formed


def test_what_is_no_loop_says_why() -> None:
    g = rlx.Graph("sort")
    values, _ = g.top_k(g.input("x", rlx.Shape([8])), k=2)
    with pytest.raises(NotLowered, match="a partial sort needs a dedicated kernel"):
        loop_kernel(values.inputs[0])


def test_a_reshape_by_itself_is_a_copy_in_the_order_of_memory() -> None:
    """Neither side's dims nest in the other's, and one side may have gaps."""
    g = rlx.Graph("reshape")
    node = g.reshape(g.input("x", rlx.Shape([6, 4])), dims=(8, 3))
    x = np.arange(24, dtype="f4").reshape(6, 4)
    np.testing.assert_array_equal(run(loop_kernel(node), [x], {})[0], x.reshape(8, 3))
    gaps = Layout((6, 4), (5, 1))
    wide = np.arange(30, dtype="f4")
    (got,) = run(loop_kernel(node, [gaps]), [wide], {})
    np.testing.assert_array_equal(got, wide.reshape(6, 5)[:, :4].reshape(8, 3))
    with pytest.raises(NotLowered, match="do not nest"):
        loop_kernel(node, [gaps], [Layout((8, 3), (4, 1))])


def test_what_is_empty_has_no_loops() -> None:
    g = rlx.Graph("empty")
    kernel = loop_kernel(g.group_norm(g.input("x", rlx.Shape([1, 3, 0, 5])), groups=3))
    assert kernel.stores == ()
    assert run(kernel, [np.zeros((1, 3, 0, 5), "f4")], {})[0].shape == (1, 3, 0, 5)
