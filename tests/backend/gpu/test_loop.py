"""Loop kernels as SIMT programs: what they compute, in which form, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.lower.loop import emit, index_dtype, legal
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import GpuSchedule, choose
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.contract import contraction
from rlx.kernel.lower.loop import loop_kernel
from rlx.ops import op as table
from rlx.program import nodes as ir
from rlx.program.parse import parse
from rlx.program.program import Program
from rlx.program.text import text
from rlx.program.verify import verify
from tests.backend.gpu import laws
from tests.backend.gpu.regions import (
    BF16,
    CASES,
    CONTRACTIONS,
    F32,
    Case,
    M,
    N,
    U,
    bound,
    embedding_of,
    of,
    span,
    view,
)

Array = np.ndarray[Any, Any]
MACHINES = {"small": laws.SMALL, "default": GpuMachine()}
TOLERANCES = {
    "float64": 64 * 2.0**-23,
    "float32": 64 * 2.0**-23,
    "float16": 8 * 2.0**-10,
    "bfloat16": 8 * 2.0**-7,
}
"""Sums of up to 700 numbers of size 1 in another order; halves are rounded after each op, and f64
results are of f32 ones."""


def kernel_of(case: Case) -> Kernel:
    node = case.node()
    if any(n.op == "matmul" for n in node.attrs["body"].order()):
        return legal(contraction(node, *case.layouts(node)).kernel())
    return legal(loop_kernel(node, *case.layouts(node)))


def program_of(case: Case, machine: GpuMachine) -> Program:
    kernel = kernel_of(case)
    return verify(emit(kernel, choose(kernel, machine)))


def evaluate_dims(shape: Shape, sizes: Mapping[str, int]) -> int:
    return int(np.prod(shape.bind(sizes).static_dims))


def assert_close(got: Array, want: Array) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    eps = TOLERANCES[want.dtype.name]
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * size)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", [*CASES, *CONTRACTIONS])
def test_a_program_computes_what_the_region_means(name: str, machine: str) -> None:
    """Contractions too: as loops they are slow, and say that their kernels are of no target."""
    case = {**CASES, **CONTRACTIONS}[name]
    node = case.node()
    given, taken = case.layouts(node)
    program = program_of(case, MACHINES[machine])
    for sizes in case.sizes:
        operands = case.data(sizes)
        spans = [Shape((span(bound(x, sizes)),), s.dtype) for x, s in zip(taken, node.shapes)]
        got = laws.execute(program, operands, spans, sizes)
        views = [view(bound(x, sizes), o) for x, o in zip(given, operands)]
        values = {f"v{i}": v for i, v in enumerate(views)}
        want = evaluate(node.attrs["body"].bind(sizes), values)
        for flat, layout, result in zip(got, taken, want, strict=True):
            assert_close(view(bound(layout, sizes), flat), result)


@pytest.mark.parametrize("name", CASES)
def test_programs_are_deterministic_and_have_a_text(name: str) -> None:
    written = text(program_of(CASES[name], GpuMachine()))
    assert text(program_of(CASES[name], GpuMachine())) == written
    assert text(parse(written)) == written


# -- laws -----------------------------------------------------------------------------------------

DRAWN = [o for o in table.table().values() if not o.why_no_cases and not o.measures]
CHUNK = 24


@pytest.mark.parametrize("first", range(0, len(DRAWN), CHUNK))
def test_laws_of_ops_that_are_loops(first: int) -> None:
    """One application of each op; sizes that fill blocks are drawn for every third."""
    found: list[str] = []
    for number, op in enumerate(DRAWN[first : first + CHUNK]):
        for made in laws.drawn(op, number % 3, 1):
            kernel = laws.kernel_of(made)
            if kernel is not None:
                found += laws.wrong(made, laws.program_of(kernel, laws.SMALL))
    assert not found, "\n".join(found)


def test_most_ops_are_loops() -> None:
    made = [next(iter(laws.drawn(op, 0, 1))) for op in DRAWN]
    loops = [m.case.op.name for m in made if laws.kernel_of(m) is not None]
    assert len(loops) > 180
    assert {"softmax", "layer_norm", "gather", "concat", "erf", "pow", "rope"} <= set(loops)


# -- forms ----------------------------------------------------------------------------------------


def scheduled(name: str, machine: GpuMachine | None = None) -> GpuSchedule:
    return choose(kernel_of(CASES[name]), machine)


def test_contiguous_rows_are_read_as_vectors() -> None:
    given = scheduled("chain static")
    assert (given.team, given.width) == ("thread", 8)
    program = program_of(CASES["chain static"], GpuMachine())
    widths = [len(n.results) for n in program.nodes if isinstance(n, ir.Load) and n.buffer == "x0"]
    assert widths == [8]  # 16 bytes of bf16
    assert scheduled("chain f32").width == 1  # a named dim may be odd


def test_an_axis_ends_with_a_part_of_a_vector() -> None:
    """Where all vectors are aligned: rows of odd lengths begin anywhere."""
    for name, width in {"ragged": 8, "ragged, named": 4, "ragged planes": 4}.items():
        given = scheduled(name)
        assert (given.is_ragged, given.width) == (True, width)
        program = program_of(CASES[name], GpuMachine())
        widths = {len(n.results) for n in program.nodes if isinstance(n, ir.Load)}
        assert widths == {1, width}
    assert scheduled("chain f32").width == 1


def test_rows_are_a_warps_or_a_blocks_by_their_length() -> None:
    assert scheduled("softmax static").team == "warp"
    wide = scheduled("softmax vectors")
    assert (wide.team, wide.block, wide.width, wide.chunks) == ("block", 64, 8, 2)
    long = scheduled("softmax of any length")
    assert (long.team, long.chunks) == ("block", 0)


def test_many_rows_have_as_many_vectors_in_flight_whatever_their_operands() -> None:
    x = of(BF16, (16384, 4096), (16384, 4096), (4096,), (4096,))
    one = Case(lambda x, r, w, b: ops.layer_norm(x, w, b, eps=1e-5), x)
    two = Case(lambda x, r, w, b: ops.layer_norm(ops.add(x, r), w, b, eps=1e-5), x)
    found = [choose(kernel_of(case)) for case in (one, two)]
    assert [(s.block, s.chunks) for s in found] == [(128, 4), (256, 2)]


def test_a_staged_row_is_loaded_once() -> None:
    staged = program_of(CASES["softmax vectors"], GpuMachine())
    assert sum(isinstance(n, ir.Load) for n in staged.nodes) == 2  # chunks
    assert not any(isinstance(n, ir.For) for n in staged.nodes)
    passes = program_of(CASES["softmax of any length"], GpuMachine())
    assert sum(isinstance(n, ir.For) for n in passes.nodes) == 4  # the sum goes by blocks


def test_neighbouring_columns_are_neighbouring_threads() -> None:
    """Of a short column one, of a long one several, which meet in shared memory."""
    for name in ("columns", "softmax down", "softmax between"):
        given = scheduled(name)
        assert (given.team, given.threads) == ("column", 8)
    short = scheduled("softmax down, static")
    assert (short.team, short.width) == ("thread", 4)
    program = program_of(CASES["softmax down"], GpuMachine())
    assert sum(isinstance(n, ir.Barrier) for n in program.nodes) == 2  # maximum and sum


@pytest.mark.parametrize("name", ["transposed", "transposed, named", "chain strided"])
def test_transposed_loads_go_through_shared_memory(name: str) -> None:
    given = scheduled(name)
    assert given.tile is given.outer[-2]
    program = program_of(CASES[name], GpuMachine())
    assert sum(isinstance(n, ir.Barrier) for n in program.nodes) == 1
    assert [m.count for m in program.shared] == [32 * 33] * len(program.shared)
    assert program.shared


@pytest.mark.parametrize("name", ["transposed halves", "transposed, even"])
def test_pairs_of_halves_are_transposed_as_words(name: str) -> None:
    assert scheduled(name).tile_size == 64
    program = program_of(CASES[name], GpuMachine())
    assert [m.dtype.itemsize for m in program.shared] == [2]
    assert all(len(n.results) == 2 for n in program.nodes if isinstance(n, ir.SharedLoad))


def test_reductions_of_a_team_are_made_once() -> None:
    program = program_of(CASES["residual norm static"], GpuMachine())
    assert sum(isinstance(n, ir.Reduce) for n in program.nodes) == 2  # mean and variance


def test_indices_are_64_bits_where_32_do_not_suffice() -> None:
    def width(*dims: Any) -> DType:
        node = Case(ops.neg, of(F32, dims)).node()
        return index_dtype(legal(loop_kernel(node)))

    assert width(M, N) is DType.I32
    assert width(U) is DType.I64
    assert width(1 << 16, 1 << 12) is DType.I32
    assert width(1 << 16, 1 << 16) is DType.I64
    row = Case(ops.softmax, of(BF16, (1 << 13, 1 << 13))).node()
    assert index_dtype(legal(loop_kernel(row))) is DType.I32  # its axis is one, reduced or not


def test_a_dependent_kernel_waits_before_it_reads() -> None:
    program = program_of(CASES["softmax vectors"], GpuMachine(has_dependent_launch=True))
    order = [type(n) for n in program.nodes]
    assert order[0] is ir.ReleaseDependents
    assert order.index(ir.WaitDependencies) < order.index(ir.Load)


@pytest.mark.parametrize("name", ["residual norm static", "chain f32", "chain static"])
def test_constants_are_loaded_before_the_kernels_before_are_done(name: str) -> None:
    """Gains and biases, which each thread has once; results are the same."""
    case, machine = CASES[name], GpuMachine(has_dependent_launch=True)
    kernel, sizes = kernel_of(case), case.sizes[-1]
    constants = frozenset({1, 2, 3})
    plain = program_of(case, machine)
    early = verify(emit(kernel, replace(choose(kernel, machine), constants=constants)))
    assert {b.name for b in early.buffers if b.access == "constant"} == {"x1", "x2", "x3"}
    before = list(early.nodes)[: [type(n) for n in early.nodes].index(ir.WaitDependencies)]
    assert any(isinstance(n, ir.Load) for n in before)
    assert not any(isinstance(n, ir.Convert) and n.result.dtype.is_float for n in before)
    results = [Shape([evaluate_dims(s, sizes)], s.dtype) for s in case.node().shapes]
    for a, b in zip(*(laws.execute(p, case.data(sizes), results, sizes) for p in (plain, early))):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("row", [-1, 5])
def test_a_gathered_row_that_is_not_there_is_a_failure(row: int) -> None:
    case = embedding_of(2, row)
    program = program_of(case, GpuMachine())
    assert program.failures == ("operand 1: an index is out of range for 5 rows",)
    with pytest.raises(IndexError, match="out of range for 5 rows"):
        laws.execute(program, case.data({"n": 3}), case.node().shapes, {"n": 3})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"outer": ()}, "outer axes and row are not the kernel's"),
        ({"row": ()}, "a team of several threads has no row"),
        ({"width": 5}, "its vectors do not divide the axis"),
        ({"chunks": 1}, "too long for its registers"),
        ({"block": 40}, "no number of warps"),
    ],
)
def test_a_schedule_of_another_kernel_is_refused(change: dict[str, Any], why: str) -> None:
    kernel = kernel_of(CASES["softmax vectors"])
    with pytest.raises(rlx.Error, match=why):
        emit(kernel, replace(choose(kernel), **change))


def test_long_sums_are_added_up_in_blocks() -> None:
    """The error of a running sum grows with its length; that of blocks and of their sum hardly."""
    case = Case(lambda x: ops.sum(x, axes=(0,)), of(F32, (U, 2)), ({"u": 700},))
    program = program_of(case, replace(laws.SMALL, block=32))
    assert sum(isinstance(n, ir.For) for n in program.nodes) == 2
    x = np.random.default_rng(5).random((700, 2), np.float32)
    (got,) = laws.execute(program, [x], case.node().shapes, {"u": 700})
    parts = [np.add.accumulate(x[i : i + 256], axis=0)[-1] for i in range(0, 700, 256)]
    np.testing.assert_array_equal(got, np.add.accumulate(np.stack(parts), axis=0)[-1])


def test_code_does_not_grow_without_bounds() -> None:
    def long(x: Any) -> Any:
        for _ in range(200):
            x = ops.add(ops.mul(x, x), 0.5)
        return x

    kernel = kernel_of(Case(long, of(DType.BF16, (64, 64))))
    assert choose(kernel).width < 4
