"""Contractions to compile and run: shapes, layouts, epilogues, and buffers that end at a fence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.codegen.gemm.gemm import Gemm, legal
from rlx.backends.cpu.codegen.gemm.packing import Packing, operands_read
from rlx.backends.cpu.codegen.loop import emit
from rlx.backends.cpu.isa import AVX2, SSE2, Isa, host, why_not
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import Function, module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.gemm_tiling import (
    Tiling,
    pack_kernel,
    panels_of,
    reads_in_place,
    tiling_of,
)
from rlx.backends.cpu.schedule.loop_schedule import choose, sizes_of
from rlx.core.dim import DimLike, evaluate
from rlx.core.dim import product as product_of
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate as evaluate_graph
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.lower.contract import contraction
from tests.backend.cpu.guarded import addresses, guarded

Array = np.ndarray[Any, Any]
Build = Callable[..., Node | tuple[Node, ...]]
B, M, K, N = (rlx.Dim(x, 0, 4096) for x in "bmkn")
RUNNABLE = list(dict.fromkeys(i for i in (host(), AVX2, SSE2) if why_not(i) is None))
"""This machine's, and the levels below it that differ in more than a few instructions."""
SENTINEL = 0x5A
MARGIN = 64


@dataclass(frozen=True)
class Work:
    """A region to compile: shapes with named dims, how operands and results lie, what it does."""

    build: Build
    shapes: tuple[Shape, ...]
    operands: Mapping[int, Callable[[Shape], Layout]] = field(default_factory=dict)
    results: Mapping[int, Callable[[Shape], Layout]] = field(default_factory=dict)
    sizes: tuple[dict[str, int], ...] = ()

    def node(self) -> Node:
        body, whole = Graph("body"), Graph("whole")
        made = self.build(*(body.input(f"v{i}", s) for i, s in enumerate(self.shapes)))
        body.set_outputs(list(made) if isinstance(made, tuple) else [made])
        inputs = [whole.input(f"v{i}", s) for i, s in enumerate(self.shapes)]
        return whole.node("region", inputs, {"body": body})

    def layouts(self, node: Node) -> tuple[list[Layout], list[Layout]]:
        def laid(shapes: Sequence[Shape], how: Mapping[int, Any]) -> list[Layout]:
            side_by_side = [Layout.contiguous(s.dims) for s in shapes]
            return [
                how[i](s) if i in how else p for i, (s, p) in enumerate(zip(shapes, side_by_side))
            ]

        return laid(self.shapes, self.operands), laid(node.shapes, self.results)


def product(x: Node, y: Node) -> Node:
    return ops.matmul(x, y)


def turned(shape: Shape) -> Layout:
    """The last two axes the other way around in memory."""
    *batch, rows, columns = shape.dims
    rank = shape.rank
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return Layout.contiguous((*batch, columns, rows)).permuted(perm)


def apart(shape: Shape) -> Layout:
    """Rows in an array of wider rows, from its second column on, and every other row."""
    *batch, rows, columns = shape.dims
    base = Layout.contiguous((*batch, 2 * rows, columns + 3))
    return base.sliced(shape.rank - 2, 0, rows, 2).sliced(shape.rank - 1, 1, columns)


def spread(shape: Shape) -> Layout:
    """Every third column."""
    base = Layout.contiguous((*shape.dims[:-1], 3 * shape.dims[-1]))
    return base.sliced(shape.rank - 1, 0, shape.dims[-1], 3)


def backwards(shape: Shape) -> Layout:
    return Layout.contiguous(shape.dims).sliced(
        shape.rank - 2, shape.dims[-2] - 1, shape.dims[-2], -1
    )


def of(dtype: DType, *dims: tuple[DimLike, ...]) -> tuple[Shape, ...]:
    return tuple(Shape(d, dtype) for d in dims)


def bias_relu(x: Node, w: Node, bias: Node) -> Node:
    return ops.relu(ops.add(ops.matmul(x, w), bias))


def several(x: Node, w: Node, bias: Node, residual: Node, scale: Node) -> tuple[Node, ...]:
    total = ops.add(ops.mul(ops.add(ops.matmul(x, w), bias), scale), residual)
    wide = ops.cast(ops.maximum(total, residual), to=DType.F64)
    return total, wide, ops.less(ops.maximum(bias, scale), residual)


def feed_forward(x: Node, w: Node, bias: Node, residual: Node) -> Node:
    return ops.add(ops.gelu(ops.add(ops.matmul(x, w), bias)), residual)


def heads(x: Node, w: Node) -> Node:
    """Inner axes that lie apart, rows and columns in pieces."""
    rows = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(2 * M, 5 * B))
    made = ops.reshape(ops.matmul(rows, w), dims=(2, M, 4, 21))
    return ops.transpose(made, perm=(0, 2, 1, 3))


def dequantised(x: Node, w: Node, scale: Node) -> Node:
    return ops.matmul(x, ops.mul(ops.cast(w, to=scale.shape.dtype), scale))


F32 = DType.F32
MATRICES = ((M, K), (K, N))
FEW = ({"m": 13, "k": 21, "n": 71}, {"m": 1, "k": 70, "n": 16}, {"m": 6, "k": 1, "n": 3})
WORKS: dict[str, Work] = {
    "f32": Work(product, of(F32, *MATRICES)),
    "f64": Work(product, of(DType.F64, *MATRICES), sizes=FEW),
    "bf16": Work(product, of(DType.BF16, *MATRICES), sizes=FEW),
    "f16": Work(product, of(DType.F16, *MATRICES), sizes=FEW),
    "i32": Work(product, of(DType.I32, *MATRICES), sizes=FEW),
    "i64": Work(product, of(DType.I64, *MATRICES), sizes=FEW),
    "i8": Work(product, of(DType.I8, *MATRICES), sizes=FEW),
    "u16": Work(product, of(DType.U16, *MATRICES), sizes=FEW),
    "left turned": Work(product, of(F32, *MATRICES), {0: turned}),
    "right turned": Work(product, of(F32, *MATRICES), {1: turned}),
    "both turned": Work(product, of(F32, *MATRICES), {0: turned, 1: turned}, {0: turned}),
    "apart": Work(product, of(F32, *MATRICES), {0: apart, 1: apart}, {0: apart}),
    "spread": Work(product, of(F32, *MATRICES), {0: spread, 1: spread}, {0: spread}),
    "result turned": Work(bias_relu, of(F32, *MATRICES, (M, 1)), results={0: turned}),
    "result spread": Work(product, of(F32, *MATRICES), results={0: spread}),
    "backwards": Work(product, of(F32, *MATRICES), {0: backwards, 1: backwards}),
    "batch": Work(product, of(F32, (B, M, K), (B, K, N)), {0: turned}),
    "batch of rows": Work(product, of(F32, (B, 1, K), (K, N))),
    "batch of weights": Work(product, of(F32, (M, K), (3, B, K, N))),
    "batch broadcast": Work(bias_relu, of(F32, (B, 1, M, K), (2, K, N), (2, 1, N))),
    "vectors": Work(product, of(F32, (K,), (K,))),
    "matrix and vector": Work(product, of(F32, (M, K), (K,))),
    "vector and matrix": Work(product, of(F32, (K,), (B, K, N))),
    "bias": Work(bias_relu, of(F32, *MATRICES, (N,))),
    "several": Work(several, of(F32, (B, M, K), (K, N), (N,), (B, M, N), (M, 1))),
    "several bf16": Work(
        several, of(DType.BF16, (B, M, K), (K, N), (N,), (B, M, N), (M, 1)), sizes=FEW
    ),
    "gelu": Work(feed_forward, of(F32, *MATRICES, (N,), (M, N))),
    "heads": Work(heads, of(F32, (2, B, M, 5), (5 * B, 84))),
    "dequantised": Work(dequantised, (Shape([M, K]), Shape([K, N], DType.I8), Shape([N]))),
}
ELSEWHERE = ("f32", "f64", "bf16", "f16", "i8", "i64", "spread", "batch", "several", "heads")
"""What is tried on instruction sets below the machine's best."""


@dataclass(frozen=True)
class Emitted:
    """A function, and what it is called with."""

    function: Function
    sizes: tuple[DimLike, ...]
    num_units: DimLike
    scratch: DimLike = 0


@dataclass(frozen=True)
class Compiled:
    """A contraction, its code, and what runs it."""

    contract: Contract
    tiling: Tiling
    pack: Emitted | None
    gemm: Emitted
    native: Native

    def run(
        self,
        operands: Sequence[Array],
        results: Sequence[Array],
        sizes: Mapping[str, int],
        cuts: str,
    ) -> None:
        panels: list[Array] = []
        if self.pack is not None:
            shape = panels_of(self.contract, self.tiling).bind(sizes)
            panels.append(guarded(np.full(shape.static_dims, 77, shape.dtype.numpy)))
            read = range(len(operands))
            if self.tiling.dot_group > 1:
                read = operands_read(self.contract.right)
            self._call(self.pack, [*(operands[i] for i in read), *panels], sizes, cuts)
        self._call(self.gemm, [*operands, *results, *panels], sizes, cuts)

    def _call(
        self, source: Emitted, buffers: Sequence[Array], sizes: Mapping[str, int], cuts: str
    ) -> None:
        given = [evaluate(s, sizes) for s in source.sizes]
        scratch = guarded(np.zeros(evaluate(source.scratch, sizes), np.uint8))
        for start, stop in _runs(evaluate(source.num_units, sizes), cuts):
            code = self.native.call_part(
                source.function.name, addresses(buffers), given, start, stop, scratch.ctypes.data
            )
            assert code == 0


def _runs(units: int, cuts: str) -> Iterator[tuple[int, int]]:
    """All units at once, and one where there is none; or one by one from the last to the first."""
    if cuts == "once":
        yield 0, max(units, 1)
    else:
        yield from ((u, u + 1) for u in reversed(range(units)))


def compiled(contracts: Mapping[str, Contract], isa: Isa) -> dict[str, Compiled]:
    """Many contractions in one module, each by panels and, where it can be, read in place."""
    parts: dict[str, Part] = {}
    for number, (name, contract) in enumerate(contracts.items()):
        for has_panels in (True, False) if reads_in_place(contract) else (True,):
            tiling = tiling_of(contract, isa, has_panels=has_panels)
            if name != "f32":  # whose tiles have every number of rows
                tiling = replace(tiling, rows=tuple(dict.fromkeys((tiling.rows[0], 1))))
            kind = "packed" if has_panels else "in_place"
            parts[f"{name}, {kind}"] = emitted(contract, tiling, isa, f"k{number}_{kind}")
    native = Native(module(functions(parts.values()), isa), isa)
    return {name: Compiled(*part, native) for name, part in parts.items()}


Part = tuple[Contract, Tiling, Emitted | None, Emitted]


def emitted(contract: Contract, tiling: Tiling, isa: Isa, name: str) -> Part:
    pack = packed(contract, tiling, isa, f"{name}_pack") if tiling.has_panels else None
    return contract, tiling, pack, written(Gemm(contract, tiling, isa), name)


def written(work: Gemm | Packing, name: str) -> Emitted:
    source = work.source(name)
    scratch = work.scratch if isinstance(work, Gemm) else 0
    return Emitted(source.function, source.sizes, work.num_units, scratch)


def packed(contract: Contract, tiling: Tiling, isa: Isa, name: str) -> Emitted:
    if tiling.dot_group > 1:
        return written(Packing(contract, tiling, isa), name)
    kernel = emit.legal(pack_kernel(contract, tiling))
    schedule = choose(kernel, CpuMachine.of(isa))
    assert schedule.parallel
    function = emit.emit(kernel, schedule, isa, name)
    return Emitted(function, sizes_of(kernel), product_of(a.extent for a in schedule.parallel))


def functions(parts: Iterable[Part]) -> list[Function]:
    return [s.function for _, _, pack, gemm in parts for s in (pack, gemm) if s]


def contract_of(name: str) -> Contract:
    node = WORKS[name].node()
    return legal(contraction(node, *WORKS[name].layouts(node)))


@functools.cache
def compiled_cases(isa: Isa) -> dict[str, Compiled]:
    return compiled({name: contract_of(name) for name in names(isa)}, isa)


def names(isa: Isa) -> Sequence[str]:
    return list(WORKS) if isa.name == host().name else ELSEWHERE


def kinds(isa: Isa, name: str) -> list[Compiled]:
    """By panels, and in place where it can be."""
    return [c for n, c in compiled_cases(isa).items() if n.rsplit(",", 1)[0] == name]


def on_isas(chosen: Callable[[str], bool]) -> pytest.MarkDecorator:
    """A test of some works on every instruction set there is."""
    pairs = [(i, n) for i in RUNNABLE for n in names(i) if chosen(n)]
    return pytest.mark.parametrize(("isa", "name"), pairs, ids=lambda x: getattr(x, "name", x))


def span(layout: Layout) -> int:
    """The number of elements of the least buffer that holds the layout."""
    if 0 in layout.dims:
        return 0
    return 1 + layout.offset + sum(max(0, (d - 1) * s) for d, s in zip(layout.dims, layout.strides))


def view(layout: Layout, flat: Array) -> Array:
    if 0 in layout.dims:
        return np.zeros(layout.dims, flat.dtype)
    strides = [s * flat.itemsize for s in layout.strides]
    return np.lib.stride_tricks.as_strided(flat[layout.offset :], layout.dims, strides)


def bound(layout: Layout, sizes: Mapping[str, int]) -> Layout:
    dims, strides = ([evaluate(d, sizes) for d in x] for x in (layout.dims, layout.strides))
    return Layout(tuple(dims), tuple(strides), evaluate(layout.offset, sizes))


def drawn(rng: np.random.Generator, size: int, dtype: DType) -> Array:
    if dtype.is_float:
        return rng.normal(size=size).astype(dtype.numpy)
    ends = np.iinfo(dtype.numpy)
    return rng.integers(ends.min, ends.max, size, dtype.numpy, endpoint=True)


class Case:
    """One work at one size: buffers that end at a fence, and what must come out."""

    def __init__(self, name: str, sizes: Mapping[str, int], seed: int) -> None:
        work = WORKS[name]
        node = work.node()
        self.work, self.sizes, self.body = work, sizes, node.attrs["body"]
        given, made = work.layouts(node)
        rng = np.random.default_rng(seed)
        self.given = [bound(x, sizes) for x in given]
        self.made = [bound(x, sizes) for x in made]
        self.operands = [
            guarded(drawn(rng, span(x), s.dtype)) for x, s in zip(self.given, work.shapes)
        ]
        self.dtypes = [s.dtype for s in node.shapes]

    def run(self, compiled: Compiled, cuts: str = "once") -> list[Array]:
        """The results; around them and between their elements nothing is written."""
        whole = [
            guarded(np.full((MARGIN + span(x)) * d.itemsize, SENTINEL, np.uint8))
            for x, d in zip(self.made, self.dtypes)
        ]
        flat = [w[MARGIN * d.itemsize :].view(d.numpy) for w, d in zip(whole, self.dtypes)]
        compiled.run(self.operands, flat, self.sizes, cuts)
        results = [view(x, f).copy() for x, f in zip(self.made, flat)]
        for x, f, w, d in zip(self.made, flat, whole, self.dtypes):
            if span(x):
                view(x, f.view(f"V{d.itemsize}"))[...] = np.void(bytes([SENTINEL] * d.itemsize))
            assert (w == SENTINEL).all(), "it writes outside of its result"
        return results

    def exact(self, change: Callable[[Array], Array]) -> list[Array]:
        """The results in f64, of operands that are changed first."""
        wide = tuple(Shape(s.dims, DType.F64) if s.dtype.is_float else s for s in self.work.shapes)
        body = replace(self.work, shapes=wide).node().attrs["body"].bind(self.sizes)
        views = [change(view(x, f)) for x, f in zip(self.given, self.operands)]
        given = {f"v{i}": v.astype(s.dtype.numpy) for i, (v, s) in enumerate(zip(views, wide))}
        return evaluate_graph(body, given)
