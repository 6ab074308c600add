"""Contractions as native code: every edge, layout, dtype and epilogue, against NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu import emit
from rlx.backends.cpu.emit import Function
from rlx.backends.cpu.gemm import emit_gemm, legal
from rlx.backends.cpu.isa import AVX512, ISAS, NEON, Isa, host
from rlx.backends.cpu.jit import Native, assembled
from rlx.backends.cpu.tiling import (
    NoGemm,
    Tiling,
    is_worth_packing,
    oriented,
    pack_kernel,
    panels_of,
    reads_in_place,
    tiling_of,
)
from rlx.backends.cpu.work import Source
from rlx.dim import DimLike, evaluate
from rlx.dtype import DType
from rlx.ir.interpret import evaluate as evaluate_graph
from rlx.ir.layout import Layout
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.form_contract import form_contract
from rlx.kernel.schedule import choose, sizes_of
from rlx.shape import Shape
from tests.backend.cpu.guarded import addresses, guarded
from tests.backend.cpu.kernels import Machine

Array = np.ndarray[Any, Any]
Build = Callable[..., Node | tuple[Node, ...]]
B, M, K, N = (rlx.Dim(x, 0, 4096) for x in "bmkn")
RUNS_AVX512 = host().name == AVX512.name
RUNNABLE = [i for i in ISAS.values() if i.triple[:6] == host().triple[:6]]
RUNNABLE = [i for i in RUNNABLE if RUNS_AVX512 or i is not AVX512]
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
class Compiled:
    """A contraction, its code, and what runs it."""

    contract: Contract
    tiling: Tiling
    pack: Source | None
    gemm: Source
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
            self._call(self.pack, [*operands, *panels], sizes, cuts)
        self._call(self.gemm, [*operands, *results, *panels], sizes, cuts)

    def _call(
        self, source: Source, buffers: Sequence[Array], sizes: Mapping[str, int], cuts: str
    ) -> None:
        given = [evaluate(s, sizes) for s in source.sizes]
        for start, stop in _runs(evaluate(source.num_units, sizes), cuts):
            code = self.native.call_part(
                source.function.name, addresses(buffers), given, start, stop
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
            kind = "panels" if has_panels else "in_place"
            parts[f"{name}, {kind}"] = emitted(contract, tiling, isa, f"k{number}_{kind}")
    native = Native(emit.module(functions(parts.values()), isa), isa)
    return {name: Compiled(*part, native) for name, part in parts.items()}


Part = tuple[Contract, Tiling, Source | None, Source]


def emitted(contract: Contract, tiling: Tiling, isa: Isa, name: str) -> Part:
    pack = packed(contract, tiling, isa, f"{name}_pack") if tiling.has_panels else None
    return contract, tiling, pack, emit_gemm(contract, tiling, isa, name)


def packed(contract: Contract, tiling: Tiling, isa: Isa, name: str) -> Source:
    kernel = emit.legal(pack_kernel(contract, tiling))
    schedule = choose(kernel, Machine(isa.vector_bytes))
    assert schedule.parallel
    function = emit.emit(kernel, schedule, isa, name)
    return Source(function, sizes_of(kernel), schedule.parallel.extent)


def functions(parts: Iterable[Part]) -> list[Function]:
    return [s.function for _, _, pack, gemm in parts for s in (pack, gemm) if s]


def contract_of(name: str) -> Contract:
    node = WORKS[name].node()
    return legal(form_contract(node, *WORKS[name].layouts(node)))


@functools.cache
def module(isa: Isa) -> dict[str, Compiled]:
    return compiled({name: contract_of(name) for name in names(isa)}, isa)


def names(isa: Isa) -> Sequence[str]:
    return list(WORKS) if isa.name == host().name else ELSEWHERE


def kinds(isa: Isa, name: str) -> list[Compiled]:
    """By panels, and in place where it can be."""
    return [c for n, c in module(isa).items() if n.rsplit(",", 1)[0] == name]


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


EPS = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, F32: 2.0**-23, DType.F64: 2.0**-52}


def sizes_in(x: Array) -> Array:
    """How large the numbers are; the least integer as the greatest."""
    return abs(x if x.dtype.kind != "i" else np.maximum(x, -np.iinfo(x.dtype).max))


def wide(x: Array) -> Array:
    return x.astype(np.longdouble)


def check_product(case: Case, got: Array) -> None:
    """The exact product to 8 · eps · Σ|terms|, and one rounding to a half float; integers exact."""
    x, y = (view(a, f) for a, f in zip(case.given, case.operands))
    dtype = case.dtypes[0]
    if not dtype.is_float:
        np.testing.assert_array_equal(got, np.matmul(x, y))
        return
    exact = np.matmul(wide(x), wide(y))
    allowed = 8 * EPS[dtype.compute] * np.matmul(abs(wide(x)), abs(wide(y)))
    if dtype is not dtype.compute:
        allowed = allowed + EPS[dtype] / 2 * abs(exact) + 2.0**-24
    assert (abs(wide(got) - exact) <= allowed).all()


def sizes_for(name: str) -> list[dict[str, int]]:
    """Random sizes from 0 to 70, and a few that need several blocks."""
    work = WORKS[name]
    if work.sizes:
        return [{"b": 2, **s} for s in work.sizes]
    rng = np.random.default_rng(len(name))
    small = [{x: int(rng.integers(0, 71)) for x in "mkn"} for _ in range(5)]
    zeros = [{"m": 5, "k": 0, "n": 7}, {"m": 0, "k": 3, "n": 2}, {"m": 3, "k": 2, "n": 0}]
    large = [{"m": 1, "k": 1100, "n": 130}, {"m": 201, "k": 5, "n": 17}]
    none = {"b": 0, "m": 2, "k": 3, "n": 4}
    return [*({"b": int(rng.integers(1, 4)), **s} for s in (*small, *zeros, *large)), none]


def is_product(name: str) -> bool:
    return WORKS[name].build is product


@on_isas(is_product)
def test_products(isa: Isa, name: str) -> None:
    for seed, sizes in enumerate(sizes_for(name)):
        case = Case(name, sizes, seed)
        for kind in kinds(isa, name):
            (got,) = case.run(kind)
            check_product(case, got)


@on_isas(lambda name: not is_product(name))
def test_what_surrounds_a_product(isa: Isa, name: str) -> None:
    """The exact results to 8 · eps · Σ|terms|: on the sizes of the operands,
    sums, products and maxima give the sum of their terms' sizes. GELU is at most 1.13 times as
    steep as that, which leaves 8 · eps room for its own roundings."""
    for seed, sizes in enumerate(sizes_for(name)):
        case = Case(name, sizes, seed)
        want, terms = case.exact(lambda x: x), case.exact(sizes_in)
        eps = 8 * EPS[case.dtypes[0]]
        for kind in kinds(isa, name):
            for got, exact, size in zip(case.run(kind), want, terms, strict=True):
                assert got.shape == exact.shape
                if got.dtype == np.bool_:
                    np.testing.assert_array_equal(got, exact)
                else:
                    assert (abs(wide(got) - wide(exact)) <= eps * size).all()


@on_isas(lambda name: name in ("f32", "batch broadcast", "heads", "several"))
def test_bits_do_not_depend_on_how_the_work_is_split(isa: Isa, name: str) -> None:
    sizes = {"b": 2, "m": 205, "k": 530, "n": 131} if name == "f32" else sizes_for(name)[0]
    case = Case(name, sizes, 3)
    for kind in kinds(isa, name):
        for once, apart in zip(case.run(kind), case.run(kind, "one by one"), strict=True):
            assert once.tobytes() == apart.tobytes()


def test_bits_do_not_depend_on_the_tile() -> None:
    """Rows taken alone, and tiles of other shapes, give the same sums."""
    contract = contract_of("f32")
    first = tiling_of(contract, host(), has_panels=True)
    others = [
        replace(first, rows=(1,)),
        replace(first, rows=(3, 1), vectors=1, row_block=3),
        replace(first, has_panels=False),
    ]
    case = Case("f32", {"m": 14, "k": 700, "n": 37}, 1)
    found = {case.run(one(contract, t, host()))[0].tobytes() for t in (first, *others)}
    assert len(found) == 1


def one(contract: Contract, tiling: Tiling, isa: Isa) -> Compiled:
    part = emitted(contract, tiling, isa, "gemm")
    return Compiled(*part, Native(emit.module(functions([part]), isa), isa))


def test_known_sizes_choose_the_tile() -> None:
    def rows_and_vectors(m: int, n: int) -> tuple[tuple[int, ...], int]:
        g = Graph("g")
        node = g.matmul(g.input("x", Shape([m, 8])), g.input("w", Shape([8, n])))
        tiling = tiling_of(form_contract(node), AVX512, has_panels=True)
        return tiling.rows, tiling.vectors

    assert rows_and_vectors(16, 48) == ((8,), 3)
    assert rows_and_vectors(17, 64) == ((6, 4, 1), 4)
    assert rows_and_vectors(126, 1536) == ((6,), 4)
    assert rows_and_vectors(12, 32) == ((12,), 2)
    assert rows_and_vectors(1, 2816) == ((1,), 4)


def test_equal_structure_is_equal_code() -> None:
    """Extents and strides are arguments: the code does not know them."""

    def text(m: int, k: int, n: int) -> str:
        g = Graph("g")
        node = g.matmul(g.input("x", Shape([m, k])), g.input("w", Shape([k, n])))
        contract = form_contract(node)
        tiling = tiling_of(contract, AVX512, has_panels=True)
        return emit_gemm(contract, tiling, AVX512, "k").function.text

    assert text(18, 64, 128) == text(36, 18, 192)
    assert text(18, 64, 128) != text(20, 64, 128)


@pytest.mark.parametrize("name", ["f32", "several bf16"])
def test_other_processors_get_code_that_assembles(name: str) -> None:
    contract = contract_of(name)
    tiling = tiling_of(contract, NEON, has_panels=True)
    text = emit.module(functions([emitted(contract, tiling, NEON, "gemm")]), NEON)
    assert "fmla" in assembled(text, NEON)


@pytest.mark.parametrize(
    ("name", "constants", "is_swapped"),
    [("f32", (1,), False), ("f32", (0,), True), ("f32", (), False), ("result turned", (), True)],
)
def test_what_is_packed_goes_right(name: str, constants: tuple[int, ...], is_swapped: bool) -> None:
    """Either way the results are the same, bit by bit: products commute."""
    contract = contract_of(name)
    turned = oriented(contract, constants)
    assert (turned.rows is contract.columns) == is_swapped
    case = Case(name, {"m": 14, "k": 9, "n": 37}, 1)
    found = {
        case.run(one(c, tiling_of(c, host(), has_panels=True), host()))[0].tobytes()
        for c in (contract, turned)
    }
    assert len(found) == 1


def test_few_rows_read_their_operand_in_place() -> None:
    def is_packed(m: DimLike, *, is_constant: bool = False) -> bool:
        g = Graph("g")
        node = g.matmul(g.input("x", Shape([m, 8])), g.input("w", Shape([8, 5])))
        return is_worth_packing(form_contract(node), is_constant=is_constant)

    assert not is_packed(1)
    assert is_packed(1, is_constant=True)
    assert is_packed(100)
    assert is_packed(M)
    assert is_worth_packing(contract_of("right turned"), is_constant=False)


def test_a_column_becomes_a_row() -> None:
    turned = oriented(contract_of("matrix and vector"))
    assert (turned.rows.extent, turned.columns.extent) == (1, M)


def test_what_has_no_code_says_why() -> None:
    def refused(work: Work, *, has_panels: bool) -> str:
        node = work.node()
        with pytest.raises(NoGemm) as error:
            tiling_of(form_contract(node, *work.layouts(node)), host(), has_panels=has_panels)
        return str(error.value)

    def computed(x: Node, w: Node) -> Node:
        return ops.matmul(ops.relu(x), w)

    contract = contract_of("f32")
    tiling = tiling_of(contract, host(), has_panels=True)
    with pytest.raises(NoGemm, match="leave some of m out"):
        emit_gemm(contract, replace(tiling, rows=(6,)), host(), "gemm")
    with pytest.raises(NoGemm, match="are not a vector"):
        emit_gemm(contract, replace(tiling, lanes=1), host(), "gemm")
    assert "lie apart. Pack it" in refused(WORKS["right turned"], has_panels=False)
    assert "complex" in refused(Work(product, of(DType.C64, *MATRICES)), has_panels=True)
    assert "left operand is computed" in refused(
        Work(computed, of(F32, *MATRICES)), has_panels=True
    )
