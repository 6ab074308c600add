"""Contractions as native code: every edge, layout, dtype and epilogue, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cpu.codegen.gemm.gemm import Gemm
from rlx.backends.cpu.isa import AVX512, NEON, Isa, host
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.schedule.gemm_tiling import (
    NoGemm,
    Tiling,
    is_worth_packing,
    oriented,
    tiling_of,
)
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.lower.contract import contraction
from tests.backend.cpu.products import (
    F32,
    MATRICES,
    WORKS,
    Array,
    Case,
    Compiled,
    M,
    Work,
    contract_of,
    emitted,
    functions,
    kinds,
    of,
    on_isas,
    product,
    view,
)

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
    return Compiled(*part, Native(module(functions([part]), isa), isa))


def test_known_sizes_choose_the_tile() -> None:
    def rows_and_vectors(m: int, n: int) -> tuple[tuple[int, ...], int]:
        g = Graph("g")
        node = g.matmul(g.input("x", Shape([m, 8])), g.input("w", Shape([8, n])))
        tiling = tiling_of(contraction(node), AVX512, has_panels=True)
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
        contract = contraction(node)
        tiling = tiling_of(contract, AVX512, has_panels=True)
        return Gemm(contract, tiling, AVX512).source("k").function.text

    assert text(18, 64, 128) == text(36, 18, 192)
    assert text(18, 64, 128) != text(20, 64, 128)


@pytest.mark.parametrize("name", ["f32", "several bf16"])
def test_other_processors_get_code_that_assembles(name: str) -> None:
    contract = contract_of(name)
    tiling = tiling_of(contract, NEON, has_panels=True)
    text = module(functions([emitted(contract, tiling, NEON, "gemm")]), NEON)
    assert "fmla" in assembled(text, NEON)


@pytest.mark.parametrize(
    ("name", "constants", "is_swapped"),
    [
        ("f32", (0,), False),
        ("f32", (1,), False),
        ("result turned", (), True),
        ("result spread", (0,), True),
        ("result spread", (1,), False),
    ],
)
def test_results_lie_along_the_columns_and_constants_go_right(
    name: str, constants: tuple[int, ...], is_swapped: bool
) -> None:
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
        node = g.matmul(g.input("x", Shape([m, 80])), g.input("w", Shape([80, 500])))
        return is_worth_packing(contraction(node), is_constant=is_constant)

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
            tiling_of(contraction(node, *work.layouts(node)), host(), has_panels=has_panels)
        return str(error.value)

    def computed(x: Node, w: Node) -> Node:
        return ops.matmul(ops.relu(x), w)

    contract = contract_of("f32")
    tiling = tiling_of(contract, host(), has_panels=True)
    with pytest.raises(NoGemm, match="leave some of m out"):
        Gemm(contract, replace(tiling, rows=(6,)), host())
    with pytest.raises(NoGemm, match="are not a vector"):
        Gemm(contract, replace(tiling, lanes=1), host())
    assert "lie apart. Pack it" in refused(WORKS["right turned"], has_panels=False)
    assert "complex" in refused(Work(product, of(DType.C64, *MATRICES)), has_panels=True)
    assert "left operand is computed" in refused(
        Work(computed, of(F32, *MATRICES)), has_panels=True
    )
