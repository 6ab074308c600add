"""Products without matrix instructions: what they compute, in which form, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.kernels import GpuKernels
from rlx.backends.gpu.lower.product.expressions import legal_product
from rlx.backends.gpu.lower.product.gemv import gemv_schedule
from rlx.backends.gpu.lower.product.register_tile import (
    emit_register_tile,
    register_tile_schedule,
)
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.contraction import ContractionForm, contraction_schedule
from rlx.backends.gpu.schedule.register_tile import ranked_register_tiles
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.interpret import run
from rlx.kernel.lower.contract import contraction
from rlx.kernel.lower.conv import lower_conv
from rlx.kernel.program.program import Step
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.ops.quant.gguf_formats import SCHEMES
from rlx.program import nodes as ir
from rlx.program.parse import parse
from rlx.program.text import text
from tests.backend.gpu import laws
from tests.backend.gpu.regions import BF16, CONTRACTIONS, F16, F32, Case, U, bound, of, span
from tests.backend.gpu.schedules import execute, meaning
from tests.backend.gpu.simulated_backend import (
    SimulatedBackend,
    differences,
    outputs,
    program_of,
)

Array = np.ndarray[Any, Any]
DEPENDENT = GpuMachine(processors=32, has_dependent_launch=True, has_async_copy=True)
MACHINES = {"small": laws.SMALL, "dependent": DEPENDENT}
TOLERANCES = {"float64": 2.0**-45, "float32": 2.0**-18, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Sums of up to 2048 numbers of size 1 in another order, relative to the greatest; the meaning adds
f64 products in f64, and half floats are rounded once more."""
FEW = rlx.Dim("m", 0, 16)
K = rlx.Dim("k", 0, 500)
I8, I32, I64, F64 = DType.I8, DType.I32, DType.I64, DType.F64


def nk(x: Node, w: Node) -> Node:
    """Columns of the matrix are contiguous."""
    return ops.matmul(x, ops.transpose(w, perm=(1, 0)))


def gated(x: Node, gate: Node, w: Node, bias: Node, residual: Node) -> Node:
    """Expressions on both sides and behind."""
    left = ops.mul(ops.silu(gate), x)
    total = ops.matmul(left, ops.transpose(ops.mul(w, 2.0), perm=(1, 0)))
    return ops.add(ops.relu(ops.add(total, bias)), residual)


def shifted(x: Node, w: Node) -> Node:
    """Factors that are not 0 where nothing is loaded, and infinite there on one side."""
    return nk(ops.div(1.0, x), ops.add(w, 1.0))


GATED = ((3, 72), (3, 72), (41, 72), (41,), (3, 41))
SIZES = ({"m": 3, "k": 40, "u": 5}, {"m": 16, "k": 300, "u": 50}, {"m": 0, "k": 3, "u": 5})
FEW_ROWS = {
    **{f"columns contiguous {d.value}": Case(nk, of(d, (1, 512), (70, 512))) for d in (F32, BF16)},
    **{
        f"rows contiguous {d.value}": Case(ops.matmul, of(d, (2, 90), (90, 200)))
        for d in (F32, F16)
    },
    "long": Case(nk, of(BF16, (3, 2048), (9, 2048))),
    "one inner position": Case(ops.matmul, of(F32, (3, 1), (1, 70))),
    "long rows": Case(ops.matmul, of(F32, (16, 300), (300, 40))),
    "gated bf16": Case(gated, of(BF16, *GATED)),
    "gated f32": Case(gated, of(F32, *GATED)),
    "shifted": Case(shifted, of(F32, (3, 41), (9, 41))),
    "few columns": Case(ops.matmul, of(F32, (100, 64), (64, 3))),
    "short": Case(nk, of(F32, (2, 24), (70, 24))),
    "f64": Case(ops.matmul, of(F64, (5, 30), (30, 100))),
    "i8": Case(ops.matmul, of(I8, (5, 30), (30, 100))),
    "i64": Case(ops.matmul, of(I64, (33, 30), (30, 7))),
    "any sizes": Case(nk, of(F32, (FEW, K), (U, K)), (*SIZES, {"m": 2, "k": 0, "u": 5})),
    "rows of any sizes": Case(ops.matmul, of(F32, (FEW, K), (K, U)), SIZES),
    "batch": Case(ops.matmul, of(F32, (3, 4, 1, 64), (3, 4, 64, 33))),
    "whole turns of nothing": Case(nk, of(F32, (2, 1024 * K), (3, 1024 * K)), ({"k": 0}, {"k": 1})),
    **{name: CONTRACTIONS[name] for name in ("vectors", "nothing to sum")},
}
ANY_ROWS = {
    **CONTRACTIONS,
    "tails": Case(ops.matmul, of(F32, (130, 40), (40, 140))),
    "columns contiguous": Case(nk, of(F32, (33, 72), (20, 72))),
    "in parts": Case(
        lambda a, b, c: ops.relu(ops.add(ops.matmul(a, b), c)),
        of(F32, (33, 1024), (1024, 20), (20,)),
    ),
    "gated": Case(gated, of(F32, (33, 72), (33, 72), (41, 72), (41,), (33, 41))),
    "shifted": Case(shifted, of(F32, (33, 41), (20, 41))),
    "f64": Case(ops.matmul, of(F64, (33, 64), (64, 20))),
    "i8": Case(ops.matmul, of(I8, (33, 64), (64, 40))),
    "i32": Case(nk, of(I32, (33, 30), (40, 30))),
    "any sizes": Case(nk, of(F32, (FEW, K), (U, K)), SIZES),
    "batch": Case(ops.matmul, of(F32, (3, 4, 17, 20), (3, 4, 20, 18))),
}
FORMS: dict[str, ContractionForm] = {"few": gemv_schedule, "any": register_tile_schedule}
CASES = [
    *(("few", name, case) for name, case in FEW_ROWS.items()),
    *(("any", name, case) for name, case in ANY_ROWS.items()),
]


def contract_of(case: Case) -> Contract:
    node = case.node()
    return contraction(node, *case.layouts(node))


def made(schedule: Schedule[GpuTask] | Refusal) -> Schedule[GpuTask]:
    assert isinstance(schedule, Schedule)
    return schedule


def assert_close(got: Array, want: Array, sums: DType) -> None:
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    eps = max(TOLERANCES[name] for name in (want.dtype.name, sums.numpy.name))
    np.testing.assert_allclose(a, b, rtol=0, atol=eps * size)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{f} {n}" for f, n, _ in CASES])
def test_a_product_computes_what_the_contraction_means(number: int) -> None:
    """Cases in turn on each machine."""
    form, _, case = CASES[number]
    machine = list(MACHINES)[number % len(MACHINES)]
    node, contract = case.node(), contract_of(case)
    taken = case.layouts(node)[1]
    schedule = made(FORMS[form](contract, MACHINES[machine], "k", frozenset({1})))
    for sizes in case.sizes:
        spans = [span(bound(x, sizes)) for x in taken]
        check(contract, schedule, case.data(sizes), spans, sizes)


def check(
    contract: Contract,
    schedule: Schedule[GpuTask],
    operands: list[Array],
    spans: list[int],
    sizes: Mapping[str, int],
) -> None:
    """The schedule on flat operands against the contraction's meaning."""
    dtypes = [r.dtype.numpy for r in contract.results]
    got, want = ([np.full(n, 7, d) for n, d in zip(spans, dtypes)] for _ in range(2))
    execute(schedule, operands, got, sizes)
    meaning(contract, operands, want, sizes)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, contract.sums)


@pytest.mark.parametrize("slices", [2, 4])
@pytest.mark.parametrize("machine", ["copies", "no copies"])
@pytest.mark.parametrize("name", ["tails", "gated", "any sizes", "i8"])
def test_slices_of_a_block_share_its_inner_steps(name: str, machine: str, slices: int) -> None:
    case = ANY_ROWS[name]
    contract, given = contract_of(case), replace(DEPENDENT, has_async_copy=machine == "copies")
    schedule = made(register_tile_schedule(contract, given, "k", frozenset({1})))
    legal = legal_product(contract)
    assert isinstance(legal, Contract)
    choice = replace(ranked_register_tiles(legal, given)[0][1], slices=slices)
    task = schedule.tasks[-1]
    assert isinstance(task, Launch)
    assert len(schedule.tasks) == 1
    write = lambda n: emit_register_tile(legal, choice, n, frozenset({1}))
    for sizes in case.sizes:
        spans = [span(bound(x, sizes)) for x in case.layouts(case.node())[1]]
        check(contract, Schedule((replace(task, write=write),)), case.data(sizes), spans, sizes)


# -- convolutions ---------------------------------------------------------------------------------


def conv(**attrs: Any) -> Callable[..., Node]:
    return lambda x, w, bias: ops.relu(ops.conv(x, w, bias, **attrs))


CONVS = {
    "plain": (conv(), ((2, 3, 9, 12), (20, 3, 3, 3), (20,))),
    "bordered": (conv(padding=(1, 1, 1, 1)), ((2, 5, 7, 7), (18, 5, 3, 3), (18,))),
    "strided": (
        conv(stride=(2, 2), padding=(3, 3, 3, 3)),
        ((1, 3, 17, 19), (17, 3, 7, 7), (17,)),
    ),
    "dilated": (conv(dilation=(2, 3)), ((1, 4, 9, 14), (6, 4, 2, 3), (6,))),
    "pointwise": (conv(), ((3, 24, 5, 7), (40, 24, 1, 1), (40,))),
    "grouped": (conv(groups=3, padding=(1, 0, 0, 1)), ((2, 6, 8, 9), (21, 2, 3, 3), (21,))),
    "depthwise": (conv(groups=4, padding=(1, 1, 1, 1)), ((2, 4, 8, 9), (4, 1, 3, 3), (4,))),
    "of lines": (conv(stride=(2,)), ((2, 3, 40), (5, 3, 5), (5,))),
    "of volumes": (conv(padding=(1,) * 6), ((1, 2, 5, 6, 7), (9, 2, 3, 3, 3), (9,))),
    "deep": (conv(padding=(1, 1, 1, 1)), ((1, 64, 4, 4), (20, 64, 3, 3), (20,))),
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", CONVS)
def test_a_convolution_computes_what_its_contraction_means(name: str, dtype: DType) -> None:
    build, dims = CONVS[name]
    case = Case(build, of(dtype, *dims))
    node = case.node()
    lowered = lower_conv(node, *case.layouts(node))
    assert not isinstance(lowered, Refusal)
    image, contract = lowered
    operands = case.data({})
    if image is not None:
        operands += [a.reshape(-1) for a in run(image, operands, {})]
    spans = [int(np.prod(r.static_dims)) for r in contract.results]
    schedule = contraction_schedule(contract, laws.SMALL, "k", frozenset({1}))
    check(contract, schedule, operands, spans, {})


# -- quantised weights ----------------------------------------------------------------------------


def quantised(op: str, rows: int, **attrs: Any) -> tuple[Contract, list[Array]]:
    """A product with packed weights of 19 outputs, as selection finds it, and operands for it."""
    rng = np.random.default_rng(1)
    if op == "gguf_matmul":
        block = SCHEMES[attrs["scheme"]]
        inner, size = 2 * block.weights, 2 * block.block_bytes
        more: list[Array] = []
    else:
        inner, size = 128, 64 if attrs["packing"] in ("int4", "uint4") else 128
        more = [rng.normal(size=(19, 4)).astype(np.float16)]
    # bytes of at most 59 are finite as either half of an f16
    packed = rng.integers(0, 60, (19, size)).astype(np.uint8)
    arrays = [rng.normal(size=(rows, inner)).astype(np.float32), packed, *more]
    graph = Graph("quantised")
    shapes = [Shape(a.shape, DType.of(a.dtype)) for a in arrays]
    node = graph.node(op, [graph.input(f"x{i}", s) for i, s in enumerate(shapes)], attrs)
    calls = GpuKernels(DEPENDENT).candidates(Step.alone(node))
    made = (c.lower(Step.alone(node)) for c in calls)
    found = next(m for m in made if not isinstance(m, Refusal))
    (call,) = found.calls
    assert isinstance(call.kernel, Contract)
    return call.kernel, [a.reshape(-1) for a in arrays]


@pytest.mark.parametrize("rows", [2, 17])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        *(("gguf_matmul", {"scheme": s}) for s in ("f16", "q4_0", "q5_1", "q8_0", "q4_k", "q6_k")),
        *(("gguf_matmul", {"scheme": s}) for s in ("iq4_nl", "mxfp4", "tq2_0")),
        *(("dequant_matmul", {"packing": p, "block": 32}) for p in ("int8", "int4", "fp8_e4m3")),
    ],
    ids=lambda v: next(iter(v.values())) if isinstance(v, dict) else v,
)
def test_packed_weights_are_decoded_where_they_are_loaded(
    op: str, attrs: Mapping[str, Any], rows: int
) -> None:
    contract, operands = quantised(op, rows, **attrs)
    schedule = contraction_schedule(contract, DEPENDENT, "k", frozenset({1, 2}))
    check(contract, schedule, operands, [rows * 19], {})


def test_a_byte_is_loaded_once_for_the_weights_in_it() -> None:
    contract, _ = quantised("gguf_matmul", 1, scheme="q4_k")
    (launch,) = made(gemv_schedule(contract, DEPENDENT, "k", frozenset({1}))).tasks
    assert isinstance(launch, Launch)
    loads = [n for n in nodes_of(launch, ir.Load) if n.buffer == "x1"]
    assert {len(n.results) for n in loads} == {1, 16}
    assert sum(len(n.results) == 16 for n in loads) <= 8


def test_blocks_out_of_line_are_packed_once() -> None:
    """Those of q4_0 have 18 bytes; as weights, their 16 bytes of codes are read as whole vectors,
    and their scales are decoded to f32."""
    contract, operands = quantised("gguf_matmul", 3, scheme="q4_0")
    schedule = contraction_schedule(contract, DEPENDENT, "k", frozenset({1}))
    scales, codes = (int(packed.size) for packed in schedule.packed)
    blocks = operands[1].size // 18
    assert (scales, codes) == (4 * blocks, 16 * blocks)
    (launch,) = schedule.tasks
    assert isinstance(launch, Launch)
    assert "16 neighbours" in launch.note
    buffers = ["operand0", "operand1", "packed0", "packed1", "result0"]
    assert [str(b) for b in launch.buffers] == buffers
    check(contract, schedule, operands, [3 * 19], {})
    assert not contraction_schedule(contract, DEPENDENT, "k", frozenset()).packed


@pytest.mark.parametrize("scheme", ["q4_0", "q6_k", "iq2_xs"])
def test_whole_programs_decode_their_weights(scheme: str) -> None:
    """Formats with codebooks are decoded by steps of their own."""
    block, rng = SCHEMES[scheme], np.random.default_rng(2)
    graph = Graph("quantised")
    x = graph.input("x", Shape((2, block.weights)))
    w = graph.param("w", Shape((5, block.block_bytes), DType.U8))
    made = ops.gguf_matmul(x, w, scheme=scheme)
    graph.set_outputs([ops.relu(ops.add(made, graph.param("b", Shape((5,)))))])
    values = {
        "x": rng.normal(size=(2, block.weights)).astype(np.float32),
        "w": rng.integers(0, 60, (5, block.block_bytes)).astype(np.uint8),
        "b": rng.normal(size=5).astype(np.float32),
    }
    assert differences(graph, values, outputs(graph, values, SimulatedBackend())) == []


# -- forms ----------------------------------------------------------------------------------------


def launches(case: Case, form: ContractionForm, machine: GpuMachine) -> list[Launch]:
    schedule = made(form(contract_of(case), machine, "k", frozenset({1})))
    return [t for t in schedule.tasks if isinstance(t, Launch)]


def nodes_of(launch: Launch, kind: type[ir.Node]) -> list[Any]:
    return [n for n in launch.program().nodes if isinstance(n, kind)]


def test_the_matrix_is_requested_in_vectors_before_the_wait() -> None:
    case = Case(nk, of(BF16, (1, 2048), (64, 2048)))
    (launch,) = launches(case, gemv_schedule, replace(DEPENDENT, processors=8))
    nodes = list(launch.program().nodes)
    wait = next(i for i, n in enumerate(nodes) if isinstance(n, ir.WaitDependencies))
    early = [n for n in nodes[:wait] if isinstance(n, ir.Load)]
    assert {(n.buffer, len(n.results)) for n in early} == {("x1", 8)}
    assert sum(2 * len(n.results) for n in early) == DEPENDENT.stream_bytes
    assert all(n.buffer == "x0" for n in nodes[wait:] if isinstance(n, ir.Load))


def test_tiles_are_read_and_stored_in_vectors() -> None:
    case = Case(ops.matmul, of(F32, (512, 64), (64, 512)))
    (launch,) = launches(case, register_tile_schedule, replace(DEPENDENT, processors=4))
    assert launch.note.startswith("tiles of 128x128x8, 4 stages")
    assert {n.width for n in nodes_of(launch, ir.AsyncCopy) if n.buffer == "x1"} == {4}
    assert {len(n.results) for n in nodes_of(launch, ir.SharedLoad)} == {4}
    assert {len(n.args) - 1 for n in nodes_of(launch, ir.Store)} == {4}
    assert {(n.buffer, len(n.results)) for n in nodes_of(launch, ir.Load)} == {("x0", 4)}


def test_few_tiles_are_done_in_parts() -> None:
    """Their order is fixed: the second launch adds them up in a loop."""
    case = Case(ops.matmul, of(F32, (33, 1024), (1024, 20)))
    first, last = launches(case, register_tile_schedule, DEPENDENT)
    assert [str(b) for b in first.buffers] == ["operand0", "operand1", "temp0"]
    assert [str(b) for b in last.buffers] == ["temp0", "result0"]
    assert not nodes_of(first, ir.Atomic)


def test_rows_of_a_bounded_number_are_done_in_parts_too() -> None:
    graph = Graph("parts")
    x = graph.input("x", Shape((Dim("rows", 17, 40), 512), F32))
    w = graph.param("w", Shape((512, 24), F32))
    graph.set_outputs([ops.relu(ops.matmul(x, w))])
    backend = SimulatedBackend()
    assert any("parts" in c.name for c in program_of(graph, backend).artefact.codes)
    rng = np.random.default_rng(0)
    values = {
        n: rng.standard_normal(d, np.float32) for n, d in (("x", (37, 512)), ("w", (512, 24)))
    }
    assert not differences(graph, values, outputs(graph, values, backend))


def test_the_form_is_chosen_by_rows_and_columns() -> None:
    notes = {
        dims: contraction_schedule(
            contract_of(Case(ops.matmul, of(F32, *dims))), DEPENDENT, "k", frozenset()
        )
        .tasks[-1]
        .text({})
        for dims in (((1, 64), (64, 64)), ((64, 64), (64, 16)), ((17, 64), (64, 17)))
    }
    assert ["gemv" in n for n in notes.values()] == [True, True, False]


def test_many_rows_are_no_gemv() -> None:
    refused = gemv_schedule(
        contract_of(Case(ops.matmul, of(F32, (17, 64), (64, 17)))), DEPENDENT, "k", frozenset()
    )
    assert isinstance(refused, Refusal)
    assert "16 rows" in refused.reason


def test_rows_of_an_image_are_no_gemv_each() -> None:
    """A convolution's columns are those of one line of an image, of which there are many."""
    case = Case(conv(padding=(1, 1, 1, 1)), of(F32, (2, 8, 7, 7), (20, 8, 3, 3), (20,)))
    lowered = lower_conv(case.node(), *case.layouts(case.node()))
    assert not isinstance(lowered, Refusal)
    refused = gemv_schedule(lowered[1], DEPENDENT, "k", frozenset())
    assert isinstance(refused, Refusal)
    assert "more rows" in refused.reason
    schedule = contraction_schedule(lowered[1], DEPENDENT, "k", frozenset({1}))
    assert len(schedule.packed) == 1
    assert "tiles of" in schedule.tasks[0].text({})


def test_truth_values_and_complex_numbers_are_refused() -> None:
    contract = contract_of(Case(ops.matmul, of(F32, (3, 4), (4, 5))))
    for form in FORMS.values():
        refused = form(replace(contract, sums=DType.C64), DEPENDENT, "k", frozenset())
        assert isinstance(refused, Refusal)
        assert "floats or integers" in refused.reason


@pytest.mark.parametrize(("form", "name"), [("few", "gated bf16"), ("any", "gated")])
def test_programs_are_deterministic_and_have_a_text(form: str, name: str) -> None:
    case = {"few": FEW_ROWS, "any": ANY_ROWS}[form][name]
    written = [text(launches(case, FORMS[form], laws.SMALL)[0].program()) for _ in range(2)]
    assert written[0] == written[1] == text(parse(written[0]))
