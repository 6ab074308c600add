"""Whole programs on a simulated device: every form of step, control flow, sizes, failures, weights.

All laws and more random graphs: `make test-gpu`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.description import APPROXIMATE, ON_HOST
from rlx.backends.gpu.runtime.memory import Block
from rlx.backends.gpu.runtime.parts import Segment, parts_of
from rlx.backends.gpu.simulated import SimulatedDevice
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.fuzz.generate import grow
from rlx.fuzz.job import refused_ops
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from rlx.program.errors import LaunchError
from tests.backend.gpu.kernels import scaled
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs, program_of

BACKEND = SimulatedBackend()
RNG = np.random.default_rng(0)


def normal(*dims: int) -> Any:
    return RNG.standard_normal(dims, np.float32)


@pytest.mark.parametrize("seed", range(2))
def test_random_graphs_are_the_references(seed: int) -> None:
    grown = grow(seed, 12, refused_ops(["cpu"]))
    assert differences(grown.graph, grown.values, outputs(grown.graph, grown.values, BACKEND)) == []


@pytest.mark.parametrize("span", [(0, 16), (8, 32)])
def test_a_kernel_ends_where_it_leaves_the_values_of_its_buffers(span: tuple[int, int]) -> None:
    """The memory goes on: other values lie there."""
    device = SimulatedDevice()
    queue, memory = device.queue(), device.allocate(64)
    kernel = device.load(device.assemble([scaled()])[0])
    addresses = memory.address, memory.address + 32
    queue.launch_within(kernel, addresses, {"n": 8}, lambda: [(0, 32), (0, 32)])
    with pytest.raises(LaunchError, match=f"elements {span[0] // 4} to {span[1] // 4 - 1}"):
        queue.launch_within(kernel, addresses, {"n": 8}, lambda: [(0, 32), span])


def test_values_that_walk_back_are_behind_the_address_of_their_kernel() -> None:
    """Their first position is not their first element in memory."""
    g = Graph("back")
    x = g.input("x", Shape([40, 8]))
    g.set_outputs([ops.exp(ops.flip(ops.narrow(x, axis=0, start=3, length=30), axes=(0,)))])
    values = {"x": normal(40, 8)}
    assert differences(g, values, outputs(g, values, BACKEND)) == []


def test_operands_of_control_flow_are_aligned_for_its_kernels() -> None:
    """Rows of 203 elements and slices begin anywhere; the device here refuses vectors that do."""
    body = Graph("body")
    carry, row = body.input("carry", Shape([203])), body.input("row", Shape([203]))
    body.set_outputs([ops.exp(ops.mul(carry, row)), ops.add(ops.neg(row), carry)])
    g = Graph("slices")
    x, y = g.input("x", Shape([9, 203])), g.input("y", Shape([206]))
    first = ops.narrow(y, axis=0, start=3, length=203)
    last, rows = ops.scan(first, x, body=body, length=9, num_carries=1)
    g.set_outputs([last, rows])
    values = {"x": normal(9, 203), "y": normal(206)}
    assert differences(g, values, outputs(g, values, BACKEND)) == []


def mlp(rows: int | Dim) -> Graph:
    g = Graph("mlp")
    x, w, b = g.input("x", Shape([rows, 8])), g.param("w", Shape([8, 6])), g.param("b", Shape([6]))
    g.set_outputs([ops.softmax(ops.relu(ops.add(ops.matmul(x, w), b)), axis=-1)])
    return g


def test_recorded_work_is_replayed_with_the_same_results() -> None:
    values = {"x": normal(5, 8), "w": normal(8, 6), "b": normal(6)}
    program = program_of(mlp(5), BACKEND)
    weights = program.prepare({n: values[n] for n in "wb"}, None)
    calls = [program.run(weights, [values["x"]], [None])[0] for _ in range(4)]
    context = weights.contexts.take()
    assert len(context.graphs) == 1
    assert all(np.array_equal(calls[0], c) for c in calls[1:])
    assert differences(mlp(5), values, calls[:1]) == []


def test_what_the_host_computes_is_a_decision() -> None:
    g = Graph("host")
    g.set_outputs([ops.slogdet(g.input("x", Shape([4, 4])))[1]])
    steps = BACKEND.description(CompilePipeline(BACKEND.target()).compile(g).lir).values()
    (made,) = (d for facts in steps for d in facts.decisions if d.what == ON_HOST)
    assert (made.kind, made.reason[-27:]) == ("cut", "no kernel is written for it")


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_what_half_precision_lets_be_approximated_is_a_decision(dtype: DType) -> None:
    g = Graph("chain")
    inner = ops.tanh(g.input("x", Shape([64], dtype)))
    g.set_outputs([ops.add(ops.sigmoid(ops.mul(inner, 0.5)), 1.0)])
    steps = BACKEND.description(CompilePipeline(BACKEND.target()).compile(g).lir).values()
    made = [d.reason for facts in steps for d in facts.decisions if d.what == APPROXIMATE]
    text = "3 ops are a polynomial of degree 2; approximated: tanh; 3 roundings are left out"
    assert made == ([text] if dtype is DType.BF16 else [])


def test_one_program_runs_all_sizes_of_a_named_dim() -> None:
    graph = mlp(Dim("rows", 0, 100))
    program = program_of(graph, BACKEND)
    params = {"w": normal(8, 6), "b": normal(6)}
    weights = program.prepare(params, None)
    for rows in (1, 7, 64, 33, 7, 0, 7):
        x = normal(rows, 8)
        got = program.run(weights, [x], [None])
        assert differences(graph, {**params, "x": x}, got) == []


def test_one_program_resizes_images_of_all_sizes() -> None:
    h, w = Dim("h", 1), Dim("w", 1)
    g = Graph("named")
    x, y = (g.input(n, Shape((1, 2, h * k, w * k), "f32")) for n, k in (("x", 1), ("y", 2)))
    g.set_outputs([ops.relu(ops.add(ops.resize(x, scales=(2.0, 2.0)), y))])
    program = program_of(g, BACKEND)
    for size in ((1, 1), (3, 5), (9, 2)):
        given = [normal(1, 2, *(k * n for n in size)) for k in (1, 2)]
        (made,) = program.run(program.prepare({}, None), given, [None])
        want = np.maximum(given[0].repeat(2, 2).repeat(2, 3) + given[1], 0)
        np.testing.assert_array_equal(made, want)


def test_weights_are_changed_between_calls() -> None:
    values = {"x": normal(5, 8), "w": normal(8, 6), "b": normal(6)}
    program = program_of(mlp(5), BACKEND)
    first = program.prepare({n: values[n] for n in "wb"}, None)
    before = program.run(first, [values["x"]], [None])
    changed = {**values, "b": normal(6)}
    second = program.prepare({n: changed[n] for n in "wb"}, first)
    assert second.uploaded["w"] is first.uploaded["w"]
    assert differences(mlp(5), changed, program.run(second, [values["x"]], [None])) == []
    assert np.array_equal(before[0], program.run(first, [values["x"]], [None])[0])


def test_an_index_out_of_range_names_its_node_and_the_next_call_is_right() -> None:
    g = Graph("g")
    table, rows = g.param("table", Shape([4, 3])), g.input("rows", Shape([2], DType.I64))
    g.set_outputs([ops.embedding(table, rows)])
    program = program_of(g, BACKEND)
    weights = program.prepare({"table": normal(4, 3)}, None)
    good = np.array([3, 0])
    want = weights.params["table"][good]
    assert np.array_equal(program.run(weights, [good], [None])[0], want)
    with pytest.raises(rlx.Error, match=r"embedding.*out of range"):
        program.run(weights, [np.array([1, 4])], [None])
    assert np.array_equal(program.run(weights, [good], [None])[0], want)
    bound = program.bind(weights, [np.array([1, 4])])
    bound()
    with pytest.raises(rlx.Error, match=r"embedding.*out of range"):
        bound.wait()


def test_what_a_call_noted_that_another_error_ended_is_not_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = Graph("g")
    table, rows = g.input("table", Shape([4, 3])), g.input("rows", Shape([2], DType.I64))
    g.set_outputs([ops.embedding(table, rows)])
    program, good = program_of(g, BACKEND), [normal(4, 3), np.array([3, 0])]
    weights = program.prepare({}, None)

    def stop(context: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(program, "_check", stop)
        with pytest.raises(KeyboardInterrupt):
            program.run(weights, [good[0], np.array([1, 4])], [None])
    assert np.array_equal(program.run(weights, good, [None])[0], good[0][good[1]])


def test_sizes_that_data_decides_outgrow_their_capacity() -> None:
    g = Graph("g")
    end = g.input("end", Shape([], DType.I64))
    g.set_outputs([ops.arange(0, end, 1)])
    program = program_of(g, BACKEND)
    weights = program.prepare({}, None)
    bound = program.bind(weights, [np.array(600)])
    bound()
    assert np.array_equal(bound.outputs[0], np.arange(600))
    for count in (3, 700, 0, 40_000):
        (got,) = program.run(weights, [np.array(count)], [None])
        assert np.array_equal(got, np.arange(count))


def test_steps_of_the_device_in_a_row_are_one_segment() -> None:
    program = program_of(mlp(5), BACKEND)
    main = program.artefact.routines[program.artefact.main]
    (only,) = parts_of(main.steps)
    assert isinstance(only, Segment)


def test_calls_of_several_threads_have_contexts_of_their_own() -> None:
    values = {"w": normal(8, 6), "b": normal(6)}
    program = program_of(mlp(5), BACKEND)
    weights = program.prepare(values, None)
    inputs = [normal(5, 8) for _ in range(4)]
    got: dict[int, Any] = {}

    def call(i: int) -> None:
        got[i] = program.run(weights, [inputs[i]], [None])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(inputs):
        assert differences(mlp(5), {**values, "x": x}, got[i]) == []


@pytest.mark.parametrize("inner", [1, 3])
def test_a_factor_that_an_inner_axis_does_not_move_is_summed_once_for_each(
    inner: int,
) -> None:
    """An outer product, and one summed over an axis that only the other factor has."""
    g = Graph("g")
    x, y = g.input("x", Shape([2, 3, inner], DType.I64)), g.input("y", Shape([2, 4], DType.I64))
    g.set_outputs([ops.einsum(x, y, equation="bmk,bn->bmn")])
    values = {"x": RNG.integers(-9, 9, (2, 3, inner)), "y": RNG.integers(-9, 9, (2, 4))}
    (got,) = outputs(g, values, BACKEND)
    assert np.array_equal(got, np.einsum("bmk,bn->bmn", values["x"], values["y"]))


def on_device(array: Any) -> DeviceArray:
    """A copy of an array in memory of the device."""
    queue, block = BACKEND.device().queue(), Block(BACKEND.device(), array.nbytes)
    queue.write(block.address, array)
    return DeviceArray(block.address, array.shape, array.dtype, queue.device_id, queue, block)


def test_arrays_on_the_device_give_results_on_the_device() -> None:
    values = {"w": normal(8, 6), "b": normal(6)}
    program = program_of(mlp(Dim("rows", 1, 64)), BACKEND)
    weights = program.prepare(values, None)
    call = program.quick(weights)
    for rows in (5, 17):
        x = normal(rows, 8)
        made = call(on_device(x))
        assert isinstance(made, DeviceArray)
        assert np.array_equal(made.numpy(), call(x))
        assert np.array_equal(call(made_again := on_device(x)).numpy(), made.numpy())
        assert made_again.shape == (rows, 8)


def test_a_bound_call_reads_what_is_there_when_it_runs() -> None:
    values = {"w": normal(8, 6), "b": normal(6)}
    program = program_of(mlp(5), BACKEND)
    weights = program.prepare(values, None)
    x, other = normal(5, 8), normal(5, 8)
    given = on_device(x)
    bound = program.bind(weights, [given])
    for array in (x, x, other, x):
        assert given.queue is not None
        given.queue.write(given.address, array)
        bound()
        (got,) = bound.outputs
        assert np.array_equal(got, program.run(weights, [array], [None])[0])


def test_an_array_of_another_dtype_on_the_device_is_an_error() -> None:
    program = program_of(mlp(5), BACKEND)
    weights = program.prepare({"w": normal(8, 6), "b": normal(6)}, None)
    with pytest.raises(rlx.Error, match="x"):
        program.quick(weights)(on_device(np.zeros((5, 8), np.float64)))
    with pytest.raises(rlx.Error, match="x"):
        program.quick(weights)(on_device(np.zeros((5, 7), np.float32)))


def test_weights_are_packed_before_the_sizes_of_a_call_are_known() -> None:
    """A convolution packs its kernel, and has a temporary as large as the image."""
    g = Graph("g")
    x = g.input("x", Shape([Dim("batch", 1, 8), 16, 9, 9], DType.BF16))
    w = g.param("w", Shape([32, 16, 3, 3], DType.BF16))
    g.set_outputs([ops.conv(x, w, padding=(1, 1, 1, 1))])
    program = program_of(g, BACKEND)
    routine = program.artefact.routines[program.artefact.main]
    assert routine.prologue
    assert any(isinstance(size, Dim) for size in routine.frame)
    params = {"w": normal(32, 16, 3, 3).astype(DType.BF16.numpy)}
    weights = program.prepare(params, None)
    for batch in (2, 1):
        image = normal(batch, 16, 9, 9).astype(DType.BF16.numpy)
        got = program.run(weights, [image], [None])
        assert differences(g, {**params, "x": image}, got) == []
