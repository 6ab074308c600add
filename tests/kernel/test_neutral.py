"""The kernel level is of no target: the kernels and schedules that the CPU runs are Triton's, too.

What is formed from a region is emitted as Triton source, run in Triton's interpreter, and compared
with the kernel level's own interpreter and with the references of the region's ops. Triton is
large, so it is no part of the usual setup: `make test-triton`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import evaluate as evaluate_dim
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.machine import CacheLevel, Machine
from rlx.cost.target import Target
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.kernel import interpret
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.contract import contraction
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.schedule import choose
from tests.kernel import triton_run
from tests.kernel.triton_probe import Source, Tiles, emit, emit_contract, legal, legal_contract

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not has_triton, reason="triton, a download of 286 MB, is not installed: make test-triton"
)

Array = np.ndarray[Any, Any]
Build = Callable[..., Node | tuple[Node, ...]]
Lay = Callable[[Shape], Layout]
B, M, N = (rlx.Dim(x, 0, 500) for x in "bmn")
F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
FLOATS = (F32, F16, BF16)
FILL = 77
"""What results are filled with."""


def machine(row_bytes: int) -> Machine:
    """Blocks of 64 floats, so that small shapes have tails."""
    caches = (CacheLevel(4 * row_bytes, 100.0),)
    return replace(Target.of("cuda").machine, vector_bytes=256, caches=caches)


WIDE, SHORT = machine(2048), machine(64)


@dataclass(frozen=True)
class Work:
    """A region, how its operands and results lie, and what it is run on."""

    build: Build
    shapes: tuple[Shape, ...]
    sizes: tuple[Mapping[str, int], ...] = ({},)
    operands: Mapping[int, Lay] = field(default_factory=dict)
    results: Mapping[int, Lay] = field(default_factory=dict)
    machine: Machine = WIDE
    special: tuple[float, ...] = ()
    """Values that stand at the start of the first operand."""

    def node(self) -> Node:
        body, whole = Graph("body"), Graph("whole")
        made = self.build(*(body.input(f"v{i}", s) for i, s in enumerate(self.shapes)))
        body.set_outputs(list(made) if isinstance(made, tuple) else [made])
        inputs = [whole.input(f"v{i}", s) for i, s in enumerate(self.shapes)]
        return whole.node("region", inputs, {"body": body})

    def layouts(self, node: Node) -> tuple[list[Layout], list[Layout]]:
        return _laid(self.shapes, self.operands), _laid(node.shapes, self.results)


def _laid(shapes: Sequence[Shape], how: Mapping[int, Lay]) -> list[Layout]:
    return [how.get(i, lambda s: Layout.contiguous(s.dims))(s) for i, s in enumerate(shapes)]


def turned(shape: Shape) -> Layout:
    """The last two axes the other way around in memory."""
    *batch, rows, columns = shape.dims
    perm = (*range(len(batch)), shape.rank - 1, shape.rank - 2)
    return Layout.contiguous((*batch, columns, rows)).permuted(perm)


def apart(shape: Shape) -> Layout:
    """Every other row of an array of wider rows, from its second column on."""
    *batch, rows, columns = shape.dims
    base = Layout.contiguous((*batch, 2 * rows, columns + 3))
    return base.sliced(shape.rank - 2, 0, rows, 2).sliced(shape.rank - 1, 1, columns)


def backwards(shape: Shape) -> Layout:
    last = shape.rank - 1
    return Layout.contiguous(shape.dims).sliced(last, shape.dims[-1] - 1, shape.dims[-1], -1)


def of(dtype: DType, *dims: Sequence[Any]) -> tuple[Shape, ...]:
    return tuple(Shape(d, dtype) for d in dims)


# -- what is probed -------------------------------------------------------------------------------


def chain(x: Node, scale: Node, bias: Node, residual: Node) -> Node:
    return ops.add(ops.gelu(ops.add(ops.mul(x, scale), bias)), residual)


def joined(x: Node, y: Node) -> Node:
    both = ops.concat(ops.sigmoid(x), y, axis=1)
    return ops.mul(both, both)


def several(x: Node, y: Node, column: Node) -> tuple[Node, ...]:
    return ops.sub(x, y), ops.less(x, y), ops.square(column)


def integers(x: Node, y: Node) -> Node:
    chosen = ops.where(ops.less(x, y), ops.mul(x, y), ops.maximum(x, y))
    return ops.cast(chosen, to=F32)


def residual_norm(x: Node, residual: Node, scale: Node, bias: Node) -> tuple[Node, ...]:
    total = ops.add(x, residual)
    return total, ops.silu(ops.layer_norm(total, scale, bias, eps=1e-3))


def norms(x: Node) -> tuple[Node, ...]:
    squares = ops.sum(ops.square(x), axes=(1,), keepdims=True)
    return ops.div(x, ops.sqrt(squares)), ops.max(x, axes=(1,), keepdims=True)


def centred(x: Node) -> Node:
    """Folds of either axis, one of them of the other's."""
    inner = ops.sub(x, ops.mean(x, axes=(1,), keepdims=True))
    return ops.sub(inner, ops.mean(ops.square(inner), axes=(0,), keepdims=True))


def embedded(ids: Node, table: Node, scale: Node) -> Node:
    return ops.rms_norm(ops.embedding(table, ids), scale)


def spread(x: Node) -> tuple[Node, ...]:
    """Folds of which no result has the axis."""
    mean = ops.mean(x, axes=(1,), keepdims=True)
    return ops.mean(ops.square(ops.sub(x, mean)), axes=(1,)), ops.log_sum_exp(x, axes=(1,))


def block(x: Node, w: Node, bias: Node, residual: Node) -> Node:
    return ops.add(ops.gelu(ops.add(ops.matmul(x, w), bias)), residual)


def two_results(x: Node, w: Node, column: Node) -> tuple[Node, ...]:
    total = ops.mul(ops.matmul(x, w), column)
    return total, ops.cast(ops.maximum(total, column), to=DType.F64)


def dequantised(x: Node, w: Node, scale: Node) -> Node:
    return ops.matmul(ops.silu(x), ops.mul(ops.cast(w, to=F32), scale))


def heads(x: Node, w: Node) -> Node:
    """Inner axes that lie apart, rows and columns in pieces."""
    rows = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(2 * M, 20))
    made = ops.reshape(ops.matmul(rows, w), dims=(2, M, 3, 7))
    return ops.transpose(made, perm=(0, 2, 1, 3))


def embedding_of(*ids: int) -> Work:
    shapes = (Shape([len(ids)], DType.I64), Shape([5, N]), Shape([N]))
    return Work(embedded, shapes, ({"n": 3}, {"n": 70}), special=ids)


TAILS = ({"m": 1, "n": 1}, {"m": 3, "n": 64}, {"m": 5, "n": 67})
ROWS = ({"m": 1, "n": 1}, {"m": 3, "n": 64}, {"m": 2, "n": 130})
"""Rows are longer than what is kept of them: one loop for each pass."""
CHAIN = ((M, N), (N,), (M, 1), (M, N))
LOOPS: dict[str, Work] = {
    **{f"chain {d.value}": Work(chain, of(d, *CHAIN), TAILS) for d in FLOATS},
    "chain apart": Work(chain, of(F32, *CHAIN), TAILS, {0: apart, 3: backwards}, {0: turned}),
    "turned": Work(ops.add, of(F32, (33, 40), (33, 40)), operands={0: turned}),
    "turned, named": Work(ops.add, of(F16, (M, N), (M, N)), TAILS, {0: turned}),
    "joined": Work(joined, of(F32, (M, 5), (M, N)), TAILS, {1: apart}),
    "padded": Work(lambda x: ops.pad(x, low=(1, 2), high=(0, 3)), of(F32, (M, N)), TAILS),
    "several": Work(several, of(F32, (M, N), (M, N), (M, 1)), TAILS),
    "integers": Work(integers, of(DType.I32, (M, N), (N,)), TAILS),
    **{f"softmax {d.value}": Work(ops.softmax, of(d, (M, N)), ROWS) for d in FLOATS},
    "softmax in passes": Work(ops.softmax, of(F32, (M, N)), ROWS, machine=SHORT),
    "softmax static": Work(ops.softmax, of(F32, (2, 3, 70)), operands={0: apart}),
    "softmax down": Work(lambda x: ops.softmax(x, axis=0), of(F32, (M, N)), TAILS),
    "softmax between": Work(lambda x: ops.softmax(x, axis=1), of(F32, (2, M, N)), TAILS),
    "softmax of specials": Work(
        ops.softmax, of(F32, (4, 3)), special=(np.nan, 1, 2, -np.inf, 0, 1, np.inf, 1, 2)
    ),
    **{
        f"residual norm {d.value}": Work(residual_norm, of(d, (M, N), (M, N), (N,), (N,)), ROWS)
        for d in FLOATS
    },
    "norms": Work(norms, of(F32, (M, N)), ROWS, {0: backwards}),
    "norms in passes": Work(norms, of(F32, (M, N)), ROWS, machine=SHORT),
    "centred": Work(centred, of(F32, (M, N)), TAILS),
    "centred in passes": Work(centred, of(F32, (M, N)), TAILS, machine=SHORT),
    "spread": Work(spread, of(F32, (M, N)), ROWS),
    "embedded": embedding_of(4, 0, 3),
    "all": Work(lambda x: ops.sum(x, axes=(0, 1)), of(F32, (M, N)), ROWS),
}
PRODUCTS_OF = ({"m": 1, "n": 1}, {"m": 16, "n": 32}, {"m": 19, "n": 41})
MATRICES = ((M, 37), (37, N))
BLOCK = (*MATRICES, (N,), (M, N))
CONTRACTS: dict[str, Work] = {
    **{f"block {d.value}": Work(block, of(d, *BLOCK), PRODUCTS_OF) for d in FLOATS},
    "block turned": Work(
        block, of(F32, *BLOCK), PRODUCTS_OF, {0: turned, 1: turned, 3: apart}, {0: turned}
    ),
    "block apart": Work(block, of(F32, *BLOCK), PRODUCTS_OF, {0: apart, 1: backwards}),
    "batch": Work(block, of(F32, (B, 1, M, 5), (2, 5, N), (2, 1, N), (M, N)),
                  ({"b": 2, "m": 17, "n": 3}, {"b": 1, "m": 1, "n": 33})),
    "shared weight": Work(block, of(F32, (B, M, 9), (9, N), (N,), (B, M, N)),
                          ({"b": 3, "m": 7, "n": 34},)),
    "two results": Work(two_results, of(F32, *MATRICES, (M, 1)), PRODUCTS_OF),
    "prologues": Work(
        dequantised, (Shape([M, 37]), Shape([37, N], DType.I8), Shape([N])), PRODUCTS_OF
    ),
    "heads": Work(heads, of(F32, (2, 4, M, 5), (20, 21)), ({"m": 3}, {"m": 9})),
    "vectors": Work(ops.matmul, of(F32, (37,), (37, N)), ({"n": 1}, {"n": 40})),
    "nothing to sum": Work(ops.matmul, of(F32, (3, 0), (0, 4))),
}  # fmt: skip
WORKS = LOOPS | CONTRACTS


# -- running --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with triton_run.interpreter() as process:
        yield process


@pytest.fixture(scope="module")
def compiler() -> Iterator[ProcessPoolExecutor]:
    with triton_run.compiler() as process:
        yield process


def made_of(work: Work, tiles: Tiles) -> tuple[Kernel, Source]:
    """What is formed of a region, and its source."""
    node = work.node()
    if any(n.op == "matmul" for n in node.attrs["body"].order()):
        contract = legal_contract(contraction(node, *work.layouts(node)))
        return contract.kernel(), emit_contract(contract, tiles, "probe")
    kernel = legal(loop_kernel(node, *work.layouts(node)))
    return kernel, emit(kernel, choose(kernel, work.machine), work.machine, "probe")


def data_of(work: Work, layouts: Sequence[Layout], sizes: Mapping[str, int]) -> list[Array]:
    """A buffer for each operand, as long as its layout reaches."""
    rng = np.random.default_rng(len(work.shapes))
    made: list[Array] = []
    for layout, shape in zip(layouts, work.shapes):
        values = rng.normal(size=span(bound(layout, sizes))) * (1 if shape.dtype.is_float else 9)
        made.append(values.astype(shape.dtype.numpy))
    made[0][: len(work.special)] = work.special
    return made


def bound(layout: Layout, sizes: Mapping[str, int]) -> Layout:
    numbers = lambda dims: tuple(evaluate_dim(d, sizes) for d in dims)
    return Layout(numbers(layout.dims), numbers(layout.strides), *numbers([layout.offset]))


def span(layout: Layout) -> int:
    """Elements up to the last one."""
    if 0 in layout.dims:
        return 0
    return (
        1
        + int(layout.offset)
        + sum(int(s) * (int(d) - 1) for d, s in zip(layout.dims, layout.strides) if int(s) > 0)
    )


def view(layout: Layout, flat: Array) -> Array:
    strides = [int(s) * flat.itemsize for s in layout.strides]
    start = flat[int(layout.offset) :] if flat.size else flat
    return np.lib.stride_tricks.as_strided(start, [int(d) for d in layout.dims], strides)


TOLERANCES = {"float64": 64 * 2.0**-23, "float32": 64 * 2.0**-23, "float16": 8 * 2.0**-10}
TOLERANCES["bfloat16"] = 8 * 2.0**-7


def assert_close(got: Array, want: Array) -> None:
    """Equal, or within roundings. Sums of up to 130 numbers of size 1 are in another order, and
    f64 results here are of f32 ones. Halves are rounded when stored only, where the references
    round after each of a few ops; the interpreter cuts bf16 off instead of rounding."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    eps = TOLERANCES[want.dtype.name]
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * size)


@needs_triton
@pytest.mark.parametrize("name", WORKS)
def test_triton_runs_what_the_kernel_means(name: str, interpreter: ProcessPoolExecutor) -> None:
    """The interpreter's bf16 products are those of the bits, so bf16 is multiplied as f32."""
    work = WORKS[name]
    kernel, source = made_of(work, Tiles(widens="bf16" in name))
    node = work.node()
    given, taken = work.layouts(node)
    for sizes in work.sizes:
        operands = data_of(work, given, sizes)
        meant = [m.reshape(-1) for m in interpret.run(kernel, operands, sizes)]
        empty = [np.full(m.shape, FILL, m.dtype) for m in meant]
        got = interpreter.submit(triton_run.run, source, operands, empty, sizes).result()
        views = [view(bound(x, sizes), o) for x, o in zip(given, operands)]
        values = {f"v{i}": v for i, v in enumerate(views)}
        want = evaluate(node.attrs["body"].bind(sizes), values)
        for flat, flat_meant, layout, result in zip(got, meant, taken, want, strict=True):
            assert_close(flat, flat_meant)
            assert_close(view(bound(layout, sizes), flat), result)


@needs_triton
@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_that_is_not_there_is_told(row: int, interpreter: ProcessPoolExecutor) -> None:
    work = embedding_of(2, row)
    kernel, source = made_of(work, Tiles())
    operands = data_of(work, work.layouts(work.node())[0], {"n": 3})
    with pytest.raises(rlx.Error, match="out of range"):
        interpret.run(kernel, operands, {"n": 3})
    empty = [np.full(6, FILL, np.float32)]
    with pytest.raises(IndexError, match="rows are not there"):
        interpreter.submit(triton_run.run, source, operands, empty, {"n": 3}).result()


COMPILED = {
    "chain bf16": False, "turned": False, "joined": False, "several": False,
    "softmax f32": False, "softmax in passes": False, "softmax down": False,
    "embedded": False, "spread": False,
    "block f16": True, "block bf16": True, "prologues": False,
}  # fmt: skip
"""Sources, and whether they are done by a GPU's matrix units."""


@needs_triton
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiler_for_gpus_takes_the_same_source(
    name: str, compiler: ProcessPoolExecutor
) -> None:
    """The interpreter takes more than the compiler does."""
    _, source = made_of(WORKS[name], Tiles())
    text = compiler.submit(triton_run.ptx, source).result()
    assert ".entry probe" in text
    assert ("mma" in text) == COMPILED[name]


@pytest.mark.parametrize(("name", "passes"), [("softmax f32", 1), ("softmax in passes", 3)])
def test_a_row_that_is_kept_is_read_once(name: str, passes: int) -> None:
    """A value that two passes over a row read is one node, so it is one variable of a block."""
    _, source = made_of(WORKS[name], Tiles())
    assert source.text.count("tl.load") == passes
    assert source.text.count("for ") == (0 if passes == 1 else passes)
