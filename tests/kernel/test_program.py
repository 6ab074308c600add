"""Kernel programs: what is selected for a plan, as text, and what it means in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.llvm.function import TaskCode
from rlx.core.shape import Shape
from rlx.fuzz.generate import grow
from rlx.fuzz.job import refused_ops
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph, Node
from rlx.kernel.program import interpret
from rlx.kernel.program.program import (
    Branch,
    KernelProgram,
    KernelSequence,
    Nested,
    ScanLoop,
    WhileLoop,
)
from rlx.pipeline import CompilePipeline
from tests.effort import tries

BACKEND = CpuBackend()


def program_of(graph: Graph) -> KernelProgram:
    return BACKEND.program(CompilePipeline(BACKEND.target()).compile(graph).lir)


def differences(graph: Graph, values: Mapping[str, Any]) -> list[str]:
    made = interpret.run(program_of(graph), values)
    return [m.message for m in compare("interpreted", Expected(graph, values), made)]


def normal(seed: int, *dims: int) -> Any:
    return np.random.default_rng(seed).standard_normal(dims, np.float32)


# -- what it means --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100, 100 + tries(8, 24)))
def test_random_programs_are_the_references(seed: int) -> None:
    grown = grow(seed, 12, refused_ops(["cpu"]))
    assert differences(grown.graph, grown.values) == []


def layers() -> tuple[Graph, dict[str, Any]]:
    """Weights that are packed, a view that is read in place, a norm behind a product."""
    g = Graph("layers")
    x, w = g.input("x", Shape([rlx.Dim("n", 1, 64), 48])), g.param("w", Shape([48, 48]))
    y = ops.softmax(ops.matmul(ops.relu(x), w), axis=-1)
    g.set_outputs([ops.matmul(ops.transpose(y, perm=(1, 0)), y), ops.sort(y, axis=1)])
    return g, {"x": normal(0, 7, 48), "w": normal(1, 48, 48)}


def branching() -> tuple[Graph, dict[str, Any]]:
    """A strided operand of a branch, which is made contiguous."""
    g = Graph("branching")
    x, flag = g.input("x", Shape([5, 6])), g.input("flag", Shape([], rlx.DType.BOOL))
    turned = ops.transpose(x, perm=(1, 0))
    g.set_outputs([rlx.cond(flag, ops.exp, lambda v: ops.softmax(v, axis=1), turned)])
    return g, {"x": normal(0, 5, 6), "flag": np.array(False)}


def looping() -> tuple[Graph, dict[str, Any]]:
    g = Graph("looping")
    x = g.input("x", Shape([5, 6]))
    g.set_outputs([rlx.while_loop(lambda v: ops.sum(v) > 0.5, lambda v: v * 0.5, ops.abs(x))])
    return g, {"x": normal(0, 5, 6)}


def scanning() -> tuple[Graph, dict[str, Any]]:
    """A carry, weights that every step sees, and rows, backwards."""
    g = Graph("scanning")
    x, w = g.input("x", Shape([9, 6])), g.param("w", Shape([6, 6]))

    def step(carry: Node, row: Node, w: Node) -> tuple[Node, Node]:
        made = ops.tanh(ops.matmul(ops.reshape(carry + row, dims=(1, 6)), w))
        return ops.reshape(made, dims=(6,)), row * carry

    last, rows = rlx.scan_loop(step, g.constant(np.zeros(6, "f")), x, (w,), reverse=True)
    g.set_outputs([last, rows])
    return g, {"x": normal(0, 9, 6), "w": normal(1, 6, 6)}


def measuring() -> tuple[Graph, dict[str, Any]]:
    """Sizes that are found in data, and a capacity that is outgrown."""
    g = Graph("measuring")
    x, count = g.input("x", Shape([40])), g.input("n", Shape([], rlx.DType.I64))
    zero, one = (g.constant(np.int64(v)) for v in (0, 1))
    found = ops.nonzero(x > 0.0)
    g.set_outputs([ops.cast(found, to=rlx.DType.F32) * 2.0, ops.arange(zero, count, one) * 3])
    return g, {"x": normal(0, 40), "n": np.array(1000)}


def count(v: Node) -> Node:
    return ops.sum(ops.cast(ops.nonzero(v > 0.0), to=rlx.DType.F32))


def measuring_twice() -> tuple[Graph, dict[str, Any]]:
    """A body that two steps share measures a size of its own in each."""
    g = Graph("measuring_twice")
    flag = g.input("flag", Shape([], rlx.DType.BOOL))
    xs = [g.input(f"x{i}", Shape([20])) for i in range(2)]
    g.set_outputs([rlx.cond(flag, count, ops.sum, x) for x in xs])
    return g, {"flag": np.array(True), "x0": normal(0, 20), "x1": normal(1, 20)}


def measuring_in_a_loop() -> tuple[Graph, dict[str, Any]]:
    g = Graph("measuring_in_a_loop")
    x, zero = g.input("x", Shape([7, 20])), g.constant(np.float32(0))
    last, rows = rlx.scan_loop(lambda c, row: (c + count(row), row), zero, x)
    g.set_outputs([last, rows])
    return g, {"x": normal(0, 7, 20)}


def scanning_what_was_found() -> tuple[Graph, dict[str, Any]]:
    """As many steps as data says; storage is planned for the most."""
    g = Graph("scanning_what_was_found")
    x, c = g.input("x", Shape([40])), g.input("c", Shape([]))
    rows = ops.transpose(ops.cast(ops.nonzero(x > 0.0), to=rlx.DType.F32), perm=(1, 0))
    g.set_outputs([*rlx.scan_loop(lambda c, r: (c + ops.sum(r), r * 2.0 + c), c, rows)])
    return g, {"x": normal(0, 40), "c": np.float32(0.5)}


CASES: dict[str, tuple[Callable[[], tuple[Graph, dict[str, Any]]], type | None]] = {
    "layers": (layers, None),
    "branching": (branching, Branch),
    "looping": (looping, WhileLoop),
    "scanning": (scanning, ScanLoop),
    "measuring": (measuring, None),
    "measuring twice": (measuring_twice, Branch),
    "measuring in a loop": (measuring_in_a_loop, ScanLoop),
    "scanning what was found": (scanning_what_was_found, ScanLoop),
}
"""A graph, and the control flow that its program has."""


@pytest.mark.parametrize("name", CASES)
def test_a_program_means_what_its_graph_does(name: str) -> None:
    make, control = CASES[name]
    graph, values = make()
    assert differences(graph, values) == []
    kinds = {type(s.lowering) for s in program_of(graph).main.calls}
    assert control is None or control in kinds


def nested(x: Node) -> Node:
    """A region that no kernel form takes whole: two products."""
    return ops.matmul(ops.matmul(x, x), x)


def test_a_step_that_no_form_takes_is_a_subprogram() -> None:
    body, g = Graph("body"), Graph("g")
    body.set_outputs([nested(body.input("x", Shape([6, 6])))])
    g.set_outputs([g.node("region", [g.input("x", Shape([6, 6]))], {"body": body})])
    lir = CompilePipeline(BACKEND.target()).plan_lir(g)
    program = BACKEND.program(lir)
    (step,) = program.main.calls
    assert isinstance(step.lowering, Nested)
    assert list(program.subprograms)[-1] == program.main.name
    assert [len(s.calls) for s in program.subprograms.values()] == [2, 1]
    (got,) = interpret.run(program, {"x": (x := normal(0, 6, 6))})
    # two products of sums of 6 terms of size 1, each rounded
    np.testing.assert_allclose(got, x @ x @ x, rtol=1e-4, atol=1e-4)


# -- what it says ---------------------------------------------------------------------------------


def test_selection_writes_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(code: TaskCode) -> None:
        raise AssertionError(f"{code} was written")

    monkeypatch.setattr(TaskCode, "source", property(forbidden))
    graph, _ = layers()
    lir = CompilePipeline(BACKEND.target()).compile(graph).lir
    program = BACKEND.program(lir)
    assert str(program)
    assert set(BACKEND.description(lir)) == {s.node for s in program.main.calls}
    assert str(rlx.explain(graph, "cpu"))


def test_the_text_has_every_kernel_and_why() -> None:
    text = str(program_of(layers()[0]))
    for part in (
        "program layers for cpu",
        "subprogram main: arena",
        "pack %",
        "not a loop nest: ",
        "store r0[",
        "contracts rows",
        "special sort(",
        "packs ",
    ):
        assert part in text
    assert text == str(program_of(layers()[0]))


def test_equal_steps_have_their_kernels_once() -> None:
    g = Graph("twice")
    x, w = g.input("x", Shape([16, 16])), g.param("w", Shape([16, 16]))
    g.set_outputs([ops.matmul(ops.matmul(x, w), w)])
    program = program_of(g)
    first, last = (s.lowering for s in program.main.calls)
    assert isinstance(first, KernelSequence)
    assert first is last
    assert len(program.sequences) == 1


def test_equal_weights_are_packed_once() -> None:
    g = Graph("tied")
    w = g.param("w", Shape([64, 64]))
    xs = [g.input(f"x{i}", Shape([32 * (i + 1), 64])) for i in range(2)]
    g.set_outputs([ops.matmul(x, w) for x in xs])
    program = program_of(g)
    places = [s.packed_offsets for s in program.main.calls]
    assert len(places) == 2
    assert places[0] == places[1] != ()
    assert len(program.main.packing) == 1
    assert isinstance(program.weight_bytes, int)
    assert program.weight_bytes == 2 * 64 * 64 * 4
