"""One cost per op: on its page, and read by the gate, predictions, schedules and task sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.codegen.math.elementwise import is_native
from rlx.backends.cpu.isa import AVX2, AVX512, SSE2
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.loop import loop_task
from rlx.backends.cpu.schedule.loop_schedule import choose
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.profile import compute_profile
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.explain.pricing import Prices
from rlx.ir.mir import Graph, Node
from rlx.kernel.cost import cost_of
from rlx.kernel.expr import Apply, Kernel
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.program.schedule import buffers
from rlx.ops.cost import OpClass, operations_of, work_of
from rlx.ops.op import Kind, Op, lookup, table

ELEMENTWISE = [o for o in table().values() if o.kind is Kind.ELEMENTWISE]
NATIVE = [o for o in ELEMENTWISE if is_native(o.name)]
ATTRS = {
    "cast": {"to": DType.F64}, "bitcast": {"to": DType.I32}, "clamp": {"min": 0.0, "max": 1.0},
}  # fmt: skip
ROWS, COLUMNS = 512, 256
MACHINE = CpuMachine.of(AVX512)
CPU = replace(Target.of("cpu"), machine=MACHINE)


def folded() -> Node:
    """A sum of exponentials along rows."""
    g = Graph("g")
    return ops.sum(ops.exp(g.input("x", Shape([ROWS, COLUMNS]))), axes=(1,))


def kernel() -> Kernel:
    body, g = Graph("body"), Graph("g")
    x = body.input("v0", Shape([ROWS, COLUMNS]))
    body.set_outputs([ops.sum(ops.exp(x), axes=(1,))])
    return loop_kernel(g.node("region", [g.input("x", x.shape)], {"body": body}))


def nodes(found: Node) -> list[Node]:
    return [*found.inputs, found]


READERS: dict[str, Callable[[], Any]] = {
    "gate": lambda: compute_profile(nodes(folded()), Terms(CPU)).peak_flops,
    "prediction": lambda: Prices.at(CPU, 1, lambda _: None).kernel_ns(
        folded().inputs[0], Terms(CPU), is_split=False
    ),
    "loop schedule": lambda: choose(kernel(), MACHINE).accumulators,
    "task size": lambda: loop_task(kernel(), buffers(1, 0), buffers(0, 1), MACHINE, "k").grain,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_the_cost_from_the_page(
    reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the page said otherwise, each of them would: there is no second table."""
    before = READERS[reader]()
    monkeypatch.setattr(lookup("exp"), "cost", OpClass.POWER)
    assert READERS[reader]() != before


@pytest.mark.parametrize("op", NATIVE, ids=lambda o: o.name)
def test_what_a_kernel_computes_directly_states_its_cost(op: Op) -> None:
    """Results depend on it, so it does not follow from a decomposition that is not used."""
    assert op.cost is not None or op.lower is None


def test_nominal_costs_are_part_of_the_results() -> None:
    """They decide how many accumulators a sum has: a change of one is a change of bits."""
    dear = {o.name: o.cost.operations for o in NATIVE
            if isinstance(o.cost, OpClass) and o.cost.operations != 1}  # fmt: skip
    assert dear == {
        "exp": 12, "expm1": 12, "log": 12, "tanh": 20, "erf": 20,
        "pow": 40, "rem": 40, "sin": 40, "cos": 40, "atan2": 40, "erfc": 40,
    }  # fmt: skip
    assert choose(kernel(), MACHINE).accumulators == 4


@pytest.mark.parametrize(
    ("given", "to", "cost"),
    [("f16", "f32", 0), ("bf16", "f32", 0), ("f32", "f16", 3), ("f32", "bf16", 3),
     ("f32", "i32", 1), ("f64", "f32", 1), ("f32", "f32", 0)],
)  # fmt: skip
def test_rounding_to_half_precision_costs_and_widening_does_not(
    given: str, to: str, cost: int
) -> None:
    g = Graph("g")
    node = ops.cast(g.input("x", Shape([4], DType(given))), to=DType(to))
    casts = [n for n in loop_kernel(node).nodes if isinstance(n, Apply)]
    assert sum(map(cost_of, casts)) == cost


def work(op: Any, *dims: int) -> Any:
    g = Graph("g")
    node = op(*(g.input(f"x{i}", Shape(dims)) for i in range(len(op.signature.operands))))
    return work_of(node.decl, [i.shape for i in node.inputs], node.shapes, node.attrs)


def test_an_elementwise_op_costs_what_its_decomposition_does() -> None:
    assert work(ops.silu, 3, 5)[OpClass.EXPONENTIAL] == 15
    assert work(ops.silu, 3, 5)[OpClass.DIVISION] == 15
    assert work(ops.gelu, 7)[OpClass.ERROR_FUNCTION] == 7
    assert work(ops.softplus, 7).keys() >= {OpClass.EXPONENTIAL, OpClass.LOGARITHM}
    assert work(ops.softmax, 3, 5) == {OpClass.EXPONENTIAL: 15, OpClass.ARITHMETIC: 75}


def test_a_fused_op_costs_what_its_parts_do() -> None:
    g = Graph("g")
    x, w, b = (g.input(n, Shape(d)) for n, d in (("x", (4, 8)), ("w", (8, 16)), ("b", (16,))))
    fused = g.node("fused_matmul_bias_act", (x, w, b), {"activation": "silu"})
    parts = ops.silu(ops.add(ops.matmul(x, w), b))
    terms = Terms(CPU)
    alone = [n for n in g.nodes if not n.is_leaf and n is not fused]
    assert parts in alone
    assert terms.peak_flops(fused) == sum(map(terms.peak_flops, alone))


def test_contractions_run_at_the_peak_rate_and_functions_by_instructions() -> None:
    g = Graph("g")
    x, w = g.input("x", Shape([8, 16])), g.param("w", Shape([16, 4]))
    terms = Terms(CPU)
    assert terms.peak_flops(ops.matmul(x, w)) == 2 * 8 * 16 * 4
    assert terms.peak_flops(ops.add(x, x)) == 2 * 8 * 16
    assert terms.peak_flops(ops.exp(x)) == 2 * 20 * 8 * 16


def test_functions_take_more_instructions_where_an_instruction_set_has_fewer() -> None:
    g = Graph("g")
    node = ops.exp(g.input("x", Shape([64])))
    counts = [
        Terms(replace(CPU, machine=CpuMachine.of(isa))).peak_flops(node)
        for isa in (AVX512, AVX2, SSE2)
    ]
    assert counts == [2 * n * 64 for n in (20, 33, 119)]


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda o: o.name)
def test_every_elementwise_op_has_a_cost(op: Op) -> None:
    found: list[Any] = []
    for dtype in (DType.F32, DType.F16, DType.I32, DType.BOOL, DType.C64):
        shapes = [Shape([3], dtype)] * len(op.signature.operands)
        try:
            attrs = op.canonical(ATTRS.get(op.name, {}), shapes)
            results = op.infer(shapes, attrs)
        except rlx.Error:
            continue
        found.append(operations_of(work_of(op, shapes, results, attrs)))
    assert found, "no dtype was taken"
    assert all(isinstance(n, int) and n >= 3 for n in found)
