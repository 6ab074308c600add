"""Loop kernels in NumPy: what a kernel means, so that forming can be tested apart from emitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.core.attrs import bind
from rlx.core.dim import DimLike, evaluate
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.kernel.expr import (
    Affine,
    Apply,
    Axis,
    Choose,
    Const,
    Expr,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Size,
)
from rlx.ops.op import Array

FOLDS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def run(kernel: Kernel, operands: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """The kernel's results on contiguous operands."""
    shapes = [r.bind(sizes) for r in kernel.results]
    made = [np.empty(int(np.prod(s.static_dims)), s.dtype.numpy) for s in shapes]
    run_into(kernel, operands, made, sizes)
    return [flat.reshape(s.static_dims) for flat, s in zip(made, shapes)]


def run_into(
    kernel: Kernel, operands: Sequence[Array], results: Sequence[Array], sizes: Mapping[str, int]
) -> None:
    """The kernel on flat buffers: its index maps count from their starts. All values are computed
    before any is stored, as a result may be an operand's memory."""
    _Run(kernel, operands, sizes).store(results)


class _Run:
    """Every expression as an array over all axes; along those it does not vary with, of size 1."""

    def __init__(self, kernel: Kernel, operands: Sequence[Array], sizes: Mapping[str, int]) -> None:
        self.kernel, self.sizes = kernel, sizes
        self.operands = [np.ascontiguousarray(o).reshape(-1) for o in operands]
        axes = dict.fromkeys((*kernel.axes, *kernel.reduced))
        self.place = {axis: i for i, axis in enumerate(axes)}
        self.extent = {axis: self.int(axis.extent) for axis in axes}
        self.values: dict[Expr, Array] = {}

    def int(self, dim: DimLike) -> int:
        return evaluate(dim, self.sizes)

    def store(self, made: Sequence[Array]) -> None:
        for node in self.kernel.nodes:
            with np.errstate(all="ignore"):
                self.values[node] = self.value(node)
        for store in self.kernel.stores:
            if self.kernel.results[store.result].bind(self.sizes).num_elements:
                at = self.affine(store.at)
                made[store.result][at] = np.broadcast_to(self.values[store.value], at.shape)

    def affine(self, index: Affine) -> Array:
        """The index at every point of the axes it varies with."""
        total = np.full((1,) * len(self.place), self.int(index.offset))
        for axis, coefficient in index.terms:
            total = total + self.count(axis) * self.int(coefficient)
        return total

    def count(self, axis: Axis) -> Array:
        dims = [1] * len(self.place)
        dims[self.place[axis]] = self.extent[axis]
        return np.arange(self.extent[axis]).reshape(dims)

    def value(self, node: Expr) -> Array:
        args = [self.values[a] for a in node.args]
        ones = (1,) * len(self.place)
        match node:
            case Const():
                return np.reshape(node.value, ones)
            case Size():
                return np.full(ones, self.int(node.dim), node.dtype.numpy)
            case Index():
                return self.affine(node.at).astype(np.int64)
            case Inside():
                at = self.affine(node.at)
                return (at >= self.int(node.low)) & (at < self.int(node.high))
            case Load():
                return self.load(node, args)
            case Choose():
                return np.where(*args)
            case Reduce():
                return self.fold(node, args[0])
            case Apply():
                return self.apply(node, args)
            case _:
                raise Error(f"the kernel interpreter does not know {type(node).__name__}")

    def load(self, node: Load, args: Sequence[Array]) -> Array:
        at, data = self.affine(node.at), self.operands[node.operand]
        if args:
            wrong = (args[0] < 0) | (args[0] >= self.int(node.bound))
            if wrong.any():
                raise Error(f"index {args[0][wrong][0]} is out of range for {node.bound} rows")
            at = at + args[0].astype(np.int64) * self.int(node.stride)
        # what a guard rules out is not used, so it may be read from anywhere
        inside = np.clip(at, 0, max(0, len(data) - 1))
        return data[inside] if len(data) else np.zeros(at.shape, data.dtype)

    def fold(self, node: Reduce, body: Array) -> Array:
        axis = self.place[node.axis]
        dims = list(body.shape)
        dims[axis] = self.extent[node.axis]
        whole = np.broadcast_to(body, dims)
        given = {} if dims[axis] else {"initial": node.identity}
        fold = FOLDS[node.fold].reduce
        return fold(whole, axis=axis, keepdims=True, dtype=whole.dtype, **given)

    def apply(self, node: Apply, args: Sequence[Array]) -> Array:
        attrs = {k: bind(v, self.sizes) for k, v in node.attrs.items()}
        dims = np.broadcast_shapes(*(a.shape for a in args))
        return node.op.evaluate(args, attrs, [Shape(dims, node.dtype)])
