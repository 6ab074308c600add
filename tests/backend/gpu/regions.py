"""Regions of every form that loop kernels have, with layouts and sizes to run them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rlx
from rlx import ops
from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
M, N = (rlx.Dim(x, 0, 500) for x in "mn")
U = rlx.Dim("u")
"""Of any size."""
F32, F16, BF16 = DType.F32, DType.F16, DType.BF16


@dataclass(frozen=True)
class Case:
    """A region, the layouts of its operands and results, and the sizes it is run with."""

    build: Callable[..., Node | tuple[Node, ...]]
    shapes: tuple[Shape, ...]
    sizes: tuple[Sizes, ...] = ({},)
    operands: Mapping[int, Callable[[Shape], Layout]] = field(default_factory=dict)
    results: Mapping[int, Callable[[Shape], Layout]] = field(default_factory=dict)
    special: tuple[float, ...] = ()
    """Values at the start of the first operand."""

    def node(self) -> Node:
        body, whole = Graph("body"), Graph("whole")
        made = self.build(*(body.input(f"v{i}", s) for i, s in enumerate(self.shapes)))
        body.set_outputs(list(made) if isinstance(made, tuple) else [made])
        inputs = [whole.input(f"v{i}", s) for i, s in enumerate(self.shapes)]
        return whole.node("region", inputs, {"body": body})

    def layouts(self, node: Node) -> tuple[list[Layout], list[Layout]]:
        return _layouts(self.shapes, self.operands), _layouts(node.shapes, self.results)

    def data(self, sizes: Sizes) -> list[Array]:
        """A buffer for each operand, as long as its layout reaches."""
        rng = np.random.default_rng(len(self.shapes))
        made: list[Array] = []
        for shape, layout in zip(self.shapes, self.layouts(self.node())[0]):
            values = rng.normal(size=span(bound(layout, sizes))) * (
                1 if shape.dtype.is_float else 9
            )
            made.append(values.astype(shape.dtype.numpy))
        made[0][: len(self.special)] = self.special
        return made


def _layouts(
    shapes: Sequence[Shape], given: Mapping[int, Callable[[Shape], Layout]]
) -> list[Layout]:
    return [given.get(i, lambda s: Layout.contiguous(s.dims))(s) for i, s in enumerate(shapes)]


def bound(layout: Layout, sizes: Sizes) -> Layout:
    numbers = lambda dims: tuple(evaluate(d, sizes) for d in dims)
    return Layout(numbers(layout.dims), numbers(layout.strides), *numbers([layout.offset]))


def span(layout: Layout) -> int:
    """Elements up to the last one."""
    if 0 in layout.dims:
        return 0
    steps = zip(layout.dims, layout.strides)
    return 1 + int(layout.offset) + sum(int(s) * (int(d) - 1) for d, s in steps if int(s) > 0)


def view(layout: Layout, flat: Array) -> Array:
    strides = [int(s) * flat.itemsize for s in layout.strides]
    start = flat[int(layout.offset) :] if flat.size else flat
    return np.lib.stride_tricks.as_strided(start, [int(d) for d in layout.dims], strides)


def transposed(shape: Shape) -> Layout:
    """The last two axes the other way around in memory."""
    *batch, rows, columns = shape.dims
    perm = (*range(len(batch)), shape.rank - 1, shape.rank - 2)
    return Layout.contiguous((*batch, columns, rows)).permuted(perm)


def strided(shape: Shape) -> Layout:
    """Every other row of an array of wider rows, from its second column on."""
    *batch, rows, columns = shape.dims
    base = Layout.contiguous((*batch, 2 * rows, columns + 3))
    return base.sliced(shape.rank - 2, 0, rows, 2).sliced(shape.rank - 1, 1, columns)


def repeated(shape: Shape) -> Layout:
    """All rows at the same place."""
    return Layout.contiguous((1, *shape.dims[1:])).expanded(shape.dims)


def reversed_rows(shape: Shape) -> Layout:
    last = shape.rank - 1
    return Layout.contiguous(shape.dims).sliced(last, shape.dims[-1] - 1, shape.dims[-1], -1)


def of(dtype: DType, *dims: Sequence[Any]) -> tuple[Shape, ...]:
    return tuple(Shape(d, dtype) for d in dims)


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
    """Reductions over either axis, one of them of the other's."""
    inner = ops.sub(x, ops.mean(x, axes=(1,), keepdims=True))
    return ops.sub(inner, ops.mean(ops.square(inner), axes=(0,), keepdims=True))


def embedded(ids: Node, table: Node, scale: Node) -> Node:
    return ops.rms_norm(ops.embedding(table, ids), scale)


def spread(x: Node) -> tuple[Node, ...]:
    """Reductions over an axis that no result has."""
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
    """Inner axes that are strided, rows and columns in pieces."""
    rows = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(2 * M, 20))
    made = ops.reshape(ops.matmul(rows, w), dims=(2, M, 3, 7))
    return ops.transpose(made, perm=(0, 2, 1, 3))


def embedding_of(*ids: int) -> Case:
    shapes = (Shape([len(ids)], DType.I64), Shape([5, N]), Shape([N]))
    return Case(embedded, shapes, ({"n": 3}, {"n": 70}), special=ids)


TAILS = ({"m": 1, "n": 1}, {"m": 3, "n": 64}, {"m": 5, "n": 67})
ROWS = (*TAILS, {"m": 2, "n": 130}, {"m": 0, "n": 4}, {"m": 4, "n": 0})
CHAIN = ((M, N), (N,), (M, 1), (M, N))
CASES: dict[str, Case] = {
    **{f"chain {d.value}": Case(chain, of(d, *CHAIN), TAILS) for d in (F32, F16, BF16)},
    "chain static": Case(chain, of(BF16, (6, 64), (64,), (6, 1), (6, 64))),
    "ragged": Case(ops.silu, of(BF16, (37, 61))),
    "ragged, named": Case(ops.mul, of(F32, (M, N), (M, N)), ({"m": 37, "n": 41}, *TAILS)),
    "ragged planes": Case(
        lambda x, y: ops.add(ops.mul(x, y), x),
        of(F32, (3, 4, 333), (3, 4, 1)),
        operands={0: lambda s: Layout((3, 4, 333), (4 * 336, 336, 1), 0)},
        results={0: lambda s: Layout((3, 4, 333), (4 * 336, 336, 1), 0)},
    ),
    "chain strided": Case(
        chain, of(F32, *CHAIN), TAILS, {0: strided, 3: reversed_rows}, {0: transposed}
    ),
    "transposed": Case(ops.add, of(F32, (33, 40), (33, 40)), operands={0: transposed}),
    "transposed halves": Case(ops.add, of(BF16, (70, 98), (70, 98)), operands={0: transposed}),
    "transposed, even": Case(
        lambda x, y: ops.mul(ops.transpose(x, perm=(0, 2, 1)), y),
        of(F16, (2, 2 * M, 66), (66, 2 * M)),
        ({"m": 1}, {"m": 35}),
    ),
    "transposed, named": Case(ops.add, of(F16, (M, N), (M, N)), TAILS, {0: transposed}),
    "joined": Case(joined, of(F32, (M, 5), (M, N)), TAILS, {1: strided}),
    "joined, static": Case(joined, of(F32, (3, 8), (3, 12))),
    "padded": Case(lambda x: ops.pad(x, low=(1, 2), high=(0, 3)), of(F32, (M, N)), TAILS),
    "padded, repeated": Case(
        lambda x: ops.pad(x, low=(0, 0), high=(0, 4)), of(F32, (2, 4)), operands={0: repeated}
    ),
    "several": Case(several, of(F32, (M, N), (M, N), (M, 1)), (*TAILS, {"m": 3, "n": 0})),
    "integers": Case(integers, of(DType.I32, (M, N), (N,)), TAILS),
    **{f"softmax {d.value}": Case(ops.softmax, of(d, (M, N)), ROWS) for d in (F32, F16, BF16)},
    "softmax of any length": Case(ops.softmax, of(F32, (3, U)), ({"u": 1}, {"u": 700})),
    "softmax static": Case(ops.softmax, of(F32, (2, 3, 72)), operands={0: strided}),
    "softmax vectors": Case(ops.softmax, of(BF16, (5, 1024))),
    "softmax down": Case(lambda x: ops.softmax(x, axis=0), of(F32, (M, N)), TAILS),
    "softmax down, static": Case(lambda x: ops.softmax(x, axis=0), of(F32, (7, 64))),
    "softmax between": Case(lambda x: ops.softmax(x, axis=1), of(F32, (2, M, N)), TAILS),
    "softmax of specials": Case(
        ops.softmax, of(F32, (4, 3)), special=(np.nan, 1, 2, -np.inf, 0, 1, np.inf, 1, 2)
    ),
    **{
        f"residual norm {d.value}": Case(residual_norm, of(d, (M, N), (M, N), (N,), (N,)), TAILS)
        for d in (F32, F16, BF16)
    },
    "residual norm static": Case(residual_norm, of(BF16, (3, 384), (3, 384), (384,), (384,))),
    "norms": Case(norms, of(F32, (M, N)), TAILS, {0: reversed_rows}),
    "centred": Case(centred, of(F32, (M, N)), ({"m": 1, "n": 1}, {"m": 5, "n": 9})),
    "spread": Case(spread, of(F32, (M, N)), TAILS),
    "embedded": embedding_of(4, 0, 3),
    "all": Case(lambda x: ops.sum(x, axes=(0, 1)), of(F32, (M, N)), TAILS),
    "columns": Case(lambda x: ops.sum(x, axes=(0,)), of(F32, (M, N)), TAILS),
    "planes": Case(lambda x: ops.max(x, axes=(0, 2)), of(DType.I32, (3, M, N)), TAILS),
    "any": Case(lambda x: ops.any(ops.less(x, 0.0), axes=(1,)), of(F32, (M, N)), TAILS),
}
B = rlx.Dim("b", 0, 500)
PRODUCTS = ({"m": 1, "n": 1}, {"m": 16, "n": 32}, {"m": 19, "n": 41})
MATRICES = ((M, 37), (37, N))
BLOCK = (*MATRICES, (N,), (M, N))
CONTRACTIONS: dict[str, Case] = {
    **{f"block {d.value}": Case(block, of(d, *BLOCK), PRODUCTS) for d in (F32, F16, BF16)},
    "block transposed": Case(
        block, of(F32, *BLOCK), PRODUCTS, {0: transposed, 1: transposed, 3: strided},
        {0: transposed},
    ),
    "block strided": Case(block, of(F32, *BLOCK), PRODUCTS, {0: strided, 1: reversed_rows}),
    "batch": Case(
        block, of(F32, (B, 1, M, 5), (2, 5, N), (2, 1, N), (M, N)),
        ({"b": 2, "m": 17, "n": 3}, {"b": 1, "m": 1, "n": 33}),
    ),
    "two results": Case(two_results, of(F32, *MATRICES, (M, 1)), PRODUCTS),
    "dequantised": Case(
        dequantised, (Shape([M, 37]), Shape([37, N], DType.I8), Shape([N])), PRODUCTS
    ),
    "heads": Case(heads, of(F32, (2, 4, M, 5), (20, 21)), ({"m": 3}, {"m": 9})),
    "vectors": Case(ops.matmul, of(F32, (37,), (37, N)), ({"n": 1}, {"n": 40})),
    "nothing to sum": Case(ops.matmul, of(F32, (3, 0), (0, 4))),
}  # fmt: skip
"""Contractions, as the loop kernels that they are."""
