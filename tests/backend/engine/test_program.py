"""Plans on engines: segments, host steps, control flow, phases, sizes and failures."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, Shape, ops
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.functions import MOST
from rlx.backends.engine.program import EngineProgram
from rlx.backends.engine.steps import ControlStep, HostStep, Segment, Step
from rlx.core.dtype import DType
from rlx.core.errors import OutOfMemoryError
from rlx.ir.interpret import evaluate
from rlx.pipeline import CompilePipeline
from tests.backend.engine.numpy_engine import Boxed, NumpyBackend

RNG = np.random.default_rng(16)


def compiled(graph: Graph, backend: EngineBackend) -> EngineProgram:
    return backend.compile(CompilePipeline(backend.target()).compile(graph).lir)


def ran(graph: Graph, backend: EngineBackend, values: dict[str, Any]) -> list[Any]:
    program = compiled(graph, backend)
    weights = program.prepare(
        {n.attrs["name"]: values[n.attrs["name"]] for n in graph.params}, None
    )
    inputs = [values[n.attrs["name"]] for n in graph.inputs]
    return program.run(weights, inputs, [None] * len(graph.outputs))


def agrees(graph: Graph, backend: EngineBackend, values: dict[str, Any]) -> None:
    """Within some units in the last place of numbers about 1: sums of engines have their own order,
    and XLA contracts products and sums."""
    for got, want in zip(ran(graph, backend, values), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert got.dtype == want.dtype


def floats(*dims: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(dims).astype(np.float32)


def kinds(steps: tuple[Step, ...]) -> list[type]:
    return [type(s) for s in steps]


# -- segments and host steps -----------------------------------------------------------------------


def test_a_graph_that_the_engine_computes_whole_is_one_segment(backend: EngineBackend) -> None:
    g = Graph("mlp")
    x, w = g.input("x", Shape((4, 8))), g.param("w", Shape((8, 3)))
    g.set_outputs([ops.relu(ops.matmul(x, w)), ops.exp(x)])
    assert kinds(compiled(g, backend).steps.call) == [Segment]
    agrees(g, backend, {"x": floats(4, 8), "w": floats(8, 3)})


def test_the_host_runs_what_the_engine_has_no_call_for() -> None:
    backend = NumpyBackend()
    g = Graph("host")
    x = g.input("x", Shape((4,)))
    g.set_outputs([ops.exp(ops.sin(ops.mul(x, x))), ops.mul(ops.cos(x), x)])
    lir = CompilePipeline(backend.target()).compile(g).lir
    program = backend.compile(lir)
    assert kinds(program.steps.call) == [HostStep, Segment, HostStep, Segment]
    hosts = [s for s in program.steps.call if isinstance(s, HostStep)]
    assert [s.node.op for s in hosts] == ["cos", "sin"]
    assert hosts[0].reason == "numpy has no call for cos, nor has the op a lowering"
    agrees(g, backend, {"x": floats(4)})
    decisions = [d for f in backend.description(lir).values() for d in f.decisions]
    assert [d.what for d in decisions] == ["run_on_host"] * 2


def test_a_dtype_that_the_engine_lacks_and_a_limit_of_a_call_are_the_hosts() -> None:
    backend = NumpyBackend()
    g = Graph("lacks")
    x, z = g.input("x", Shape((4,), "f64")), g.input("z", Shape((4,), "c64"))
    g.set_outputs([ops.log(x), ops.add(z, z)])
    hosts = [s for s in compiled(g, backend).steps.call if isinstance(s, HostStep)]
    assert [s.reason for s in hosts] == ["there is no log of f64", "numpy has no arrays of c64"]
    values = {"x": np.abs(floats(4)).astype(np.float64), "z": floats(4).astype(np.complex64)}
    agrees(g, backend, values)


def test_sizes_found_out_from_data_are_the_hosts(backend: EngineBackend) -> None:
    g = Graph("found")
    x = g.input("x", Shape((6,)))
    where = ops.nonzero(ops.less(x, 0.0))
    g.set_outputs([where, ops.add(where, 1)])
    agrees(g, backend, {"x": floats(6)})


def test_what_has_a_size_of_the_data_runs_after_it_is_found(backend: EngineBackend) -> None:
    """It reads nothing that depends on the data but its own size."""
    g = Graph("sized")
    x = g.input("x", Shape((6,)))
    size = ops.nonzero(ops.less(ops.neg(x), 0.0)).shape.dims[1]
    g.set_outputs([ops.expand(g.constant(np.ones(1, np.float32)), dims=(size,))])
    agrees(g, backend, {"x": floats(6)})


def test_a_prologue_that_only_moves_values_is_not_compiled(backend: EngineBackend) -> None:
    """Each of its nodes is the host's, those of several results with their items."""
    g = Graph("moves")
    x, w = g.input("x", Shape((2, 3))), g.param("w", Shape((3, 4)))
    first, second = ops.split(ops.flip(w, axes=(0,)), sizes=(2, 2), axis=1)
    g.set_outputs([ops.matmul(x, first), ops.matmul(x, second)])
    program = compiled(g, backend)
    assert set(kinds(program.prologue_steps)) == {HostStep}
    assert kinds(program.steps.call) == [Segment]
    agrees(g, backend, {"x": floats(2, 3), "w": floats(3, 4)})


def test_half_floats_are_rounded_once_per_op(backend: EngineBackend) -> None:
    g = Graph("halves")
    x = g.input("x", Shape((64,), "bf16"))
    g.set_outputs([ops.mul(ops.add(x, x), ops.exp(x))])
    values = {"x": floats(64).astype(DType.BF16.numpy)}
    (got,), (want,) = ran(g, backend, values), evaluate(g, values)
    np.testing.assert_array_equal(got, want)


# -- failures --------------------------------------------------------------------------------------


def gathering(name: str = "x") -> Graph:
    g = Graph("gathers")
    x, i = g.input(name, Shape((5, 2))), g.input("i", Shape((3,), "i64"))
    g.set_outputs([ops.exp(ops.gather(x, i, axis=0))])
    return g


def test_an_index_out_of_range_names_the_node(backend: EngineBackend) -> None:
    g, x = gathering(), floats(5, 2)
    agrees(g, backend, {"x": x, "i": np.array([4, 0, 2])})
    with pytest.raises(rlx.Error, match=r"gather at test_program.py:\d+: an index"):
        ran(g, backend, {"x": x, "i": np.array([0, 5, 1])})
    program = compiled(g, backend)
    weights = program.prepare({}, None)
    pending = program.submit(weights, [x, np.array([0, -1, 1])])
    with pytest.raises(rlx.Error, match="gather at"):
        pending()


def test_what_an_engine_raises_is_an_error_that_names_the_model() -> None:
    backend = NumpyBackend()
    g = gathering()
    program = compiled(g, backend)
    weights = program.prepare({}, None)
    inputs = [floats(5, 2), np.zeros(3, np.int64)]
    backend.held.fails = RuntimeError("device lost")
    with pytest.raises(rlx.Error, match=r"gathers: numpy failed: device lost\. target='cpu'"):
        program.run(weights, inputs, [None])
    backend.held.fails = MemoryError()
    with pytest.raises(OutOfMemoryError, match="gathers: numpy has not enough memory"):
        program.run(weights, inputs, [None])


# -- named dims ------------------------------------------------------------------------------------


def test_named_dims_have_a_function_per_size(
    backend: EngineBackend, caplog: pytest.LogCaptureFixture
) -> None:
    g, n = Graph("named"), Dim("n")
    x, w = g.input("x", Shape((n, 4))), g.param("w", Shape((4, 3)))
    g.set_outputs([ops.softmax(ops.matmul(x, w)), ops.reshape(x, dims=(n * 4,))])
    program, w_value = compiled(g, backend), floats(4, 3)
    weights = program.prepare({"w": w_value}, None)
    with caplog.at_level(logging.INFO, logger="rlx"):
        for size in (2, 5, 2, 0):
            given = floats(size, 4)
            made = program.run(weights, [given], [None, None])
            for got, want in zip(made, evaluate(g, {"x": given, "w": w_value})):
                np.testing.assert_allclose(got, want, rtol=1e-6)
    said = [r.getMessage() for r in caplog.records if "named" in r.getMessage()]
    assert list(dict.fromkeys(s.split(" in ")[0] for s in said)) == [
        f"named: a function for n={size} is compiled" for size in (2, 5, 0)
    ]


def test_functions_of_sizes_are_bounded() -> None:
    backend = NumpyBackend()
    g, n = Graph("bounded"), Dim("n")
    x = g.input("x", Shape((n,)))
    g.set_outputs([ops.exp(x)])
    program = compiled(g, backend)
    weights = program.prepare({}, None)
    for size in (*range(MOST + 2), MOST + 1, 0):
        program.run(weights, [floats(size)], [None])
    assert len(backend.held.shapes) == MOST + 3  # the last size is there, the first is not


# -- weights and phases ----------------------------------------------------------------------------


def test_the_prologue_runs_again_for_what_changed() -> None:
    backend = NumpyBackend()
    g = Graph("prologue")
    x, v, w = g.input("x", Shape((3,))), g.param("v", Shape((3,))), g.param("w", Shape((3,)))
    a, b = ops.exp(v), ops.exp(w)
    g.set_outputs([ops.add(x, ops.add(a, b)), ops.mul(x, ops.neg(b))])
    program = compiled(g, backend)
    params = {"v": floats(3), "w": floats(3)}
    first = program.prepare(params, None)
    changed = {**params, "v": floats(3)}
    second = program.prepare(changed, first)
    kept = [n for n in first.values if first.values[n] is second.values[n]]
    assert {n.op for n in kept} == {"param", "neg"}
    x_value = floats(3)
    for values, weights in ((params, first), (changed, second)):
        made = program.run(weights, [x_value], [None, None])
        for got, want in zip(made, evaluate(g, {**values, "x": x_value})):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_epilogue_runs_apart(backend: EngineBackend) -> None:
    g = Graph("phases")
    x = g.input("x", Shape((2, 8)))
    y = ops.exp(x)
    values, indices = ops.top_k(y, k=3)
    g.set_outputs([y, values, indices])
    program, given = compiled(g, backend), floats(2, 8)
    weights = program.prepare({}, None)
    early, state = program.step(weights, [given])
    want = evaluate(g, {"x": given})
    assert early[1:] == [None, None]
    np.testing.assert_allclose(early[0], want[0], rtol=1e-6)
    for _ in range(2):
        late = program.finish(state)
        assert late[0] is None
        np.testing.assert_allclose(late[1], want[1], rtol=1e-6)
        np.testing.assert_array_equal(late[2], want[2])


def test_calls_take_and_give_the_engines_arrays(backend: EngineBackend) -> None:
    g = Graph("own")
    x, w = g.input("x", Shape((4, 8))), g.param("w", Shape((8, 3)))
    g.set_outputs([ops.matmul(x, w)])
    given, params = floats(4, 8), {"w": floats(8, 3)}
    program, engine = compiled(g, backend), backend.engine()
    weights = program.prepare(params, None)
    call, own = program.quick(weights), engine.array(given)
    assert program.takes(own)
    made = call(own)
    assert engine.is_own(made)
    np.testing.assert_allclose(engine.numpy(made), given @ params["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(program.submit(weights, [given])()[0], call(given))
    out = np.empty((4, 3), np.float32)
    assert call(given, out) is out
    np.testing.assert_array_equal(out, call(given))
    assert call(given).flags.writeable
    with pytest.raises(rlx.GraphError, match=r"input 'x' is f32\[4, 8\], got f32\[4, 7\]"):
        call(floats(4, 7))
    with pytest.raises(rlx.GraphError, match="input 'x' is f32"):
        call(given.astype(np.float64))
    with pytest.raises(rlx.GraphError, match="input 'x' is f32"):
        call(engine.array(floats(3, 8)))


def test_outputs_that_are_inputs_or_weights_are_copies(backend: EngineBackend) -> None:
    g = Graph("passed")
    x, w = g.input("x", Shape((3,))), g.param("w", Shape((3,)))
    g.set_outputs([x, w, ops.add(x, w), g.constant(np.arange(40.0, dtype=np.float32))])
    given, params = floats(3), {"w": floats(3)}
    program = compiled(g, backend)
    weights = program.prepare(params, None)
    first = program.run(weights, [given], [None] * 4)
    first[0][:] = first[1][:] = first[3][:] = 7.0
    second = program.run(weights, [given], [None] * 4)
    np.testing.assert_array_equal(second[0], given)
    np.testing.assert_array_equal(second[1], params["w"])
    np.testing.assert_array_equal(second[3], np.arange(40.0))


def test_threads_share_a_program(backend: EngineBackend) -> None:
    g, n = Graph("threads"), Dim("n")
    x, w = g.input("x", Shape((n, 8))), g.param("w", Shape((8, 3)))
    g.set_outputs([ops.exp(ops.matmul(x, w))])
    program, params = compiled(g, backend), {"w": floats(8, 3)}
    weights, wrong = program.prepare(params, None), list[str]()

    def work(size: int) -> None:
        given = RNG.standard_normal((size, 8)).astype(np.float32)
        want = np.exp(given @ params["w"])
        for _ in range(4):
            (got,) = program.run(weights, [given], [None])
            if not np.allclose(got, want, rtol=1e-4):
                wrong.append(f"size {size}")

    threads = [threading.Thread(target=work, args=(i % 3 + 1,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_number_of_threads_is_refused(backend: EngineBackend) -> None:
    with pytest.raises(rlx.Error, match=r"threads is 2; target .* Leave it out"):
        backend.configured("", 2)


def test_boxes_are_no_host_arrays() -> None:
    assert not isinstance(Boxed(floats(2)), np.ndarray)


# -- control flow ----------------------------------------------------------------------------------


def body(name: str, *shapes: Shape) -> tuple[Graph, list[Any]]:
    g = Graph(name)
    return g, [g.input(f"a{i}", s) for i, s in enumerate(shapes)]


def branching(*, has_weight: bool = False) -> Graph:
    """One side can fail, so that no select of both takes the place of the branch."""
    shape = Shape((4,))
    then, (a,) = body("then", shape)
    then.set_outputs([ops.gather(ops.add(a, a), np.array([3, 1, 0, 2]), axis=0)])
    other, (b,) = body("other", shape)
    other.set_outputs([ops.exp(b)])
    g = Graph("branch")
    p, x = g.input("p", Shape((), "bool")), g.input("x", shape)
    given = g.param("w", shape) if has_weight else ops.mul(x, x)
    (made,) = ops.if_(p, given, then=then, else_=other)
    g.set_outputs([ops.add(made, x)])
    return g


@pytest.mark.parametrize("is_true", [True, False])
def test_branches(backend: EngineBackend, is_true: bool) -> None:
    agrees(branching(), backend, {"p": np.asarray(is_true), "x": floats(4)})


def test_weights_of_branches_stay_on_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(branching(has_weight=True), NumpyBackend())
    weights = program.prepare({"w": floats(4)}, None)
    inputs = [np.asarray(True), floats(4)]
    moved: list[Any] = []
    array = program.engine.array
    monkeypatch.setattr(program.engine, "array", lambda v: moved.append(v) or array(v))
    program.run(weights, inputs, [None])
    assert len(moved) == 1
    assert moved[0] is inputs[1]


def looping(most: int | None) -> Graph:
    state = (Shape((), "i64"), Shape((3,)), Shape((3,)))
    cond, (i, _, _) = body("cond", *state)
    cond.set_outputs([ops.less(i, 5)])
    step, (i, x, w) = body("step", *state)
    step.set_outputs([ops.add(i, 2), ops.add(ops.mul(x, w), x)])
    g = Graph("loop")
    inputs = [g.input(f"x{n}", s) for n, s in enumerate(state)]
    made = ops.while_(*inputs, cond=cond, body=step, num_bcasts=1, max_iterations=most)
    g.set_outputs([ops.neg(m) for m in made])
    return g


@pytest.mark.parametrize("most", [None, 2, 0])
def test_loops(backend: EngineBackend, most: int | None) -> None:
    values = {"x0": np.asarray(0), "x1": floats(3), "x2": floats(3)}
    agrees(looping(most), backend, values)


def scanning(length: int, *, reverse: bool) -> Graph:
    row = Shape((3,))
    step, (total, factor, x) = body("step", row, row, row)
    new = ops.add(total, ops.mul(factor, x))
    step.set_outputs([new, ops.sub(new, x)])
    g = Graph("scan")
    given = [g.input("c", row), g.input("f", row), g.input("xs", Shape((length, 3)))]
    made = ops.scan(*given, body=step, length=length, num_carries=1, num_bcasts=1, reverse=reverse)
    g.set_outputs(list(made))
    return g


@pytest.mark.parametrize(("length", "reverse"), [(0, False), (5, True), (40, False)])
def test_scans(backend: EngineBackend, length: int, reverse: bool) -> None:
    values = {"c": floats(3), "f": floats(3), "xs": floats(length, 3)}
    agrees(scanning(length, reverse=reverse), backend, values)


def test_loops_are_the_hosts_where_the_engine_has_none() -> None:
    backend = NumpyBackend()
    assert kinds(compiled(branching(), backend).steps.call) == [Segment, ControlStep, Segment]
    assert kinds(compiled(scanning(5, reverse=False), backend).steps.call) == [Segment]
    assert kinds(compiled(scanning(40, reverse=False), backend).steps.call) == [ControlStep]


def test_what_fails_inside_of_a_loop_names_its_node(backend: EngineBackend) -> None:
    state = (Shape((), "i64"), Shape((3,)))
    cond, (i, _) = body("cond", *state)
    cond.set_outputs([ops.less(i, 7)])
    step, (i, x) = body("step", *state)
    picked = ops.gather(x, i, axis=0)
    step.set_outputs(
        [ops.add(i, 1), ops.add(x, ops.expand(ops.reshape(picked, dims=(1,)), dims=(3,)))]
    )
    g = Graph("fails")
    inputs = [g.input(f"x{n}", s) for n, s in enumerate(state)]
    g.set_outputs(list(ops.while_(*inputs, cond=cond, body=step)))
    with pytest.raises(rlx.Error, match="gather at test_program"):
        ran(g, backend, {"x0": np.asarray(0), "x1": floats(3)})


def test_a_loop_that_stacks_rows_and_finds_their_number(backend: EngineBackend) -> None:
    state = (Shape((), "i64"), Shape((2,)))
    cond, (i, _) = body("cond", *state)
    cond.set_outputs([ops.less(i, 3)])
    step, (i, x) = body("step", *state)
    step.set_outputs([ops.add(i, 1), ops.add(x, x), ops.neg(x)])
    g = Graph("rows")
    inputs = [g.input(f"x{n}", s) for n, s in enumerate(state)]
    made = ops.while_(*inputs, cond=cond, body=step, num_rows=1, extent="steps", max_iterations=9)
    g.set_outputs(list(made))
    agrees(g, backend, {"x0": np.asarray(0), "x1": floats(2)})
