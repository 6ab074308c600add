"""Contractions: forming one and interpreting it gives what the ops' references give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from bench.models import transformer
from rlx import ops
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract, materialised
from rlx.kernel.expr import Accumulator, Load
from rlx.kernel.interpret import run
from rlx.kernel.lower.contract import contraction, lower_contract, lower_contract_and_loop
from rlx.kernel.lower.loop import body_of, loop_kernel
from rlx.kernel.refusal import NotLowered, Refusal, required
from rlx.ops.draw import Draw
from rlx.ops.op import lookup

CASES = 60
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}
Build = Callable[..., Node | tuple[Node, ...]]


def region(build: Build, *shapes: Shape) -> Node:
    """A region node whose body is what `build` makes of its inputs."""
    body, whole = Graph("body"), Graph("whole")
    made = build(*(body.input(f"v{i}", s) for i, s in enumerate(shapes)))
    body.set_outputs(list(made) if isinstance(made, tuple) else [made])
    inputs = [whole.input(f"v{i}", s) for i, s in enumerate(shapes)]
    return whole.node("region", inputs, {"body": body})


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, or within roundings: sums of at most a few dozen numbers of size 1 in another order,
    then at most a few ops, each rounded to the dtype."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fcV":
        np.testing.assert_array_equal(got, want)
        return
    eps = 64 * EPS.get(want.dtype.name, 2.0**-52)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=eps, atol=eps)


def meaning(contract: Contract, operands: list[np.ndarray], **sizes: int) -> list[np.ndarray]:
    return run(contract.kernel(), operands, sizes)


@pytest.mark.parametrize("name", ["matmul", "fused_matmul_bias_act", "einsum", "dot_general"])
def test_a_formed_contraction_means_what_the_op_means(name: str) -> None:
    op, formed = lookup(name), 0
    for seed in range(CASES):
        draw = Draw([len(name), seed])
        case = draw.case(op)
        arrays = draw.arrays(case)
        g = Graph(name)
        inputs = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
        node = g.node(op, inputs, case.attrs)
        if node.shape.num_elements == 0:
            assert not loop_kernel(node).stores  # nothing to do is a loop kernel without stores
            formed += 1
            continue
        try:
            contract = contraction(node)
        except NotLowered:
            continue
        formed += 1
        assert_close(meaning(contract, arrays)[0], np.asarray(op.run(arrays, case.attrs)))
    always = name in ("matmul", "fused_matmul_bias_act")
    assert formed == CASES if always else formed > CASES // 4


def layout_of(draw: Draw, dims: tuple[int, ...]) -> tuple[Layout, np.ndarray]:
    """A random layout of the dims, and a buffer that holds it: permuted, apart, turned around."""
    perm = [int(i) for i in draw.rng.permutation(len(dims))]
    steps = [draw.choice((1, 1, 2)) for _ in dims]
    base = tuple(dims[p] * steps[p] + 1 for p in perm)
    layout = Layout.contiguous(base).permuted([perm.index(i) for i in range(len(dims))])
    for i, d in enumerate(dims):
        is_turned = d > 0 and draw.coin(0.2)
        start = (d - 1) * steps[i] if is_turned else 0
        layout = layout.sliced(i, start, d, -steps[i] if is_turned else steps[i])
    size = int(np.prod(base))
    return layout, draw.rng.normal(size=size).astype(np.float32)


def view_of(layout: Layout, flat: np.ndarray) -> np.ndarray:
    strides = [s * flat.itemsize for s in layout.strides]
    return np.lib.stride_tricks.as_strided(flat[layout.offset :], layout.dims, strides)


@pytest.mark.parametrize("seed", range(40))
def test_operands_may_lie_anyhow(seed: int) -> None:
    draw = Draw([7, seed])
    m, n, b = (draw.integer(1, 9) for _ in range(3))
    k = draw.integer(0, 9)
    shapes = [(b, m, k), draw.choice([(k, n), (b, k, n), (1, k, n)]), draw.choice([(n,), (m, n)])]
    laid = [layout_of(draw, s) for s in shapes]
    g = Graph("laid")
    x, y, z = (g.input(f"x{i}", Shape(s)) for i, s in enumerate(shapes))
    node = g.node("fused_matmul_bias_act", (x, y, z), {"activation": "relu"})
    contract = contraction(node, [layout for layout, _ in laid])
    left, right, bias = (view_of(layout, flat) for layout, flat in laid)
    (got,) = meaning(contract, [flat for _, flat in laid])
    assert_close(got, np.maximum(left @ right + bias, 0))


def test_results_may_lie_anyhow() -> None:
    g = Graph("laid")
    node = g.matmul(g.input("x", Shape([3, 5, 4])), g.input("y", Shape([4, 6])))
    result = Layout.contiguous((6, 3, 5)).permuted((1, 2, 0))
    contract = contraction(node, None, [result])
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((3, 5, 4), (4, 6)))
    (got,) = meaning(contract, [x, y])
    assert_close(got.reshape(6, 3, 5), (x @ y).transpose(2, 0, 1))


def test_a_shared_weight_makes_one_product_of_a_batch() -> None:
    g, b = Graph("batch"), rlx.Dim("b", 1, 99)
    x, w = g.input("x", Shape([b, 7, 8])), g.input("w", Shape([8, 5]))
    contract = contraction(g.matmul(x, w))
    assert contract.batch == ()
    assert contract.rows.extent == 7 * b
    row = contraction(g.matmul(g.input("row", Shape([b, 1, 8])), w))
    assert (row.batch, row.rows.extent) == ((), b)
    both = contraction(g.matmul(x, g.input("y", Shape([b, 8, 5]))))
    assert [a.extent for a in both.batch] == [b]


def test_heads_are_read_and_written_in_place() -> None:
    """The reshapes and transposes around a product are index maps."""

    def heads(x: Node, w: Node) -> Node:
        rows = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(6, 32))
        made = ops.reshape(ops.matmul(rows, w), dims=(2, 3, 3, 4))
        return ops.relu(ops.transpose(made, perm=(0, 2, 1, 3)))

    node = region(heads, Shape([2, 4, 3, 8]), Shape([32, 12]))
    contract = contraction(node)
    assert isinstance(contract.left, Load)
    assert isinstance(contract.right, Load)
    assert [a.extent for a in contract.inner] == [4, 8]
    rng = np.random.default_rng(0)
    data = [rng.normal(size=s).astype(np.float32) for s in ((2, 4, 3, 8), (32, 12))]
    (want,) = evaluate(node.attrs["body"], {"v0": data[0], "v1": data[1]})
    assert_close(meaning(contract, data)[0], want)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64], ids=str)
def test_an_epilogue_may_have_several_results(dtype: DType) -> None:
    s = rlx.Dim("s", 1, 50)

    def build(x: Node, w: Node, bias: Node, residual: Node, scale: Node) -> tuple[Node, ...]:
        product = ops.matmul(x, w)
        total = ops.add(ops.add(product, bias), residual)
        return product, ops.gelu(total), ops.mul(ops.cast(total, to=DType.F32), scale)

    shapes = [Shape(d, dtype) for d in ([2, s, 6], [6, 4], [4], [2, s, 4])] + [Shape([s, 1])]
    node = region(build, *shapes)
    contract = contraction(node)
    assert [n.dtype for n in contract.epilogue if isinstance(n, Accumulator)] == [dtype]
    assert [a.extent for a in contract.batch] == [2]
    rng = np.random.default_rng(2)
    for size in (1, 5):
        bound = [shape.bind({"s": size}) for shape in shapes]
        data = [rng.normal(size=b.static_dims).astype(b.dtype.numpy) for b in bound]
        want = evaluate(node.attrs["body"], {f"v{i}": x for i, x in enumerate(data)})
        for got, expected in zip(meaning(contract, data, s=size), want, strict=True):
            assert_close(got, expected)


def test_a_prologue_is_an_expression() -> None:
    def scaled(x: Node, w: Node, scale: Node) -> Node:
        return ops.matmul(x, ops.mul(ops.cast(w, to=DType.F32), scale))

    node = region(scaled, Shape([3, 4]), Shape([4, 5], DType.I8), Shape([5]))
    contract = contraction(node)
    rng = np.random.default_rng(3)
    x, scale = (rng.normal(size=s).astype(np.float32) for s in ((3, 4), (5,)))
    w = rng.integers(-9, 9, (4, 5)).astype(np.int8)
    assert_close(meaning(contract, [x, w, scale])[0], x @ (w * scale))


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_a_computed_left_operand_is_a_kernel_of_its_own(batch: tuple[int, ...]) -> None:
    def build(x: Node, y: Node, w: Node) -> Node:
        return ops.matmul(ops.sub(x, y), w)

    dims = ((*batch, 3, 4), (4,), (*batch, 4, 5))
    kernel, contract = materialised(contraction(region(build, *map(Shape, dims))))
    rng = np.random.default_rng(5)
    x, y, w = (rng.normal(size=d).astype(np.float32) for d in dims)
    (left,) = run(kernel, [x, y, w], {})
    assert isinstance(contract.left, Load)
    assert_close(meaning(contract, [x, y, w, left])[0], (x - y) @ w)


def test_what_folds_a_product_reads_it_from_memory() -> None:
    def build(x: Node, w: Node, residual: Node) -> tuple[Node, ...]:
        total = ops.add(ops.matmul(ops.relu(x), w), residual)
        return total, ops.softmax(total, axis=-1)

    node = region(build, Shape([2, 3, 4]), Shape([4, 5]), Shape([2, 3, 5]))
    contract, after = required(lower_contract_and_loop(node))
    rng = np.random.default_rng(7)
    data = [rng.normal(size=i.shape.static_dims).astype(np.float32) for i in node.inputs]
    (product,) = meaning(contract, data)
    want = evaluate(node.attrs["body"], {f"v{i}": x for i, x in enumerate(data)})
    for got, expected in zip(run(after, [*data, product], {}), want, strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize("target", list(rlx.FusionTarget), ids=lambda t: t.value)
def test_products_of_real_plans_are_contractions(target: rlx.FusionTarget) -> None:
    module = transformer(1, rlx.Dim("s", 1, 64), width=32, heads=4, kv_heads=2, ffn=48)
    lir = rlx.CompilePipeline(target).compile_hir(module).lir
    steps = [n for n in lir.plan.schedule if products_in(n) == 1]
    assert steps
    for node in steps:
        contract = contraction(node)
        assert frozenset(contract.batch) <= contract.right.free, "a weight serves all rows"
        sizes = {"s": 5}
        shapes = [i.shape.bind(sizes) for i in node.inputs]
        rng = np.random.default_rng(6)
        data = [rng.normal(size=s.static_dims).astype(s.dtype.numpy) for s in shapes]
        body = body_of(node).bind(sizes)
        want = evaluate(body, {n.attrs["name"]: x for n, x in zip(body.inputs, data)})
        for got, expected in zip(meaning(contract, data, **sizes), want, strict=True):
            assert_close(got, expected)


def products_in(node: Node) -> int:
    if node.op in ("matmul", "fused_matmul_bias_act"):
        return 1
    return sum(map(products_in, node.attrs["body"].order())) if node.op == "region" else 0


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda x, y: ops.matmul(ops.matmul(x, y), x), "2 products"),
        (lambda x, y: ops.add(x, y), "0 products"),
        (lambda x, y: ops.softmax(ops.matmul(x, y)), "folds an axis"),
        (lambda x, y: ops.add(ops.matmul(x, y), ops.expand(x, dims=(3, 4, 4))), "repeats"),
        (lambda x, y: ops.narrow(ops.matmul(x, y), axis=0, start=1, length=2), "whole"),
        (
            lambda x, y: ops.add(p := ops.matmul(x, y), ops.transpose(p, perm=(1, 0))),
            "2 indices",
        ),
        (lambda x, y: ops.matmul(x, ops.cumsum(y, axis=0)), "no loop nest"),
    ],
)
def test_what_is_no_contraction_says_why(build: Build, reason: str) -> None:
    node = region(build, Shape([4, 4]), Shape([4, 4]))
    refusal = lower_contract(node)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    with pytest.raises(NotLowered, match=reason):
        contraction(node)


def test_rows_and_columns_exchange() -> None:
    g = Graph("swap")
    contract = contraction(g.matmul(g.input("x", Shape([3, 4])), g.input("y", Shape([4, 5]))))
    rng = np.random.default_rng(4)
    data = [rng.normal(size=s).astype(np.float32) for s in ((3, 4), (4, 5))]
    swapped = contract.swapped()
    assert (swapped.rows.extent, swapped.columns.extent) == (5, 3)
    np.testing.assert_array_equal(meaning(swapped, data)[0], meaning(contract, data)[0])
