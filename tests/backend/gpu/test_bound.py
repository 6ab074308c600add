"""Bound calls: inputs and results stay in memory of the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.runtime.program import GpuProgram
from rlx.core.dim import Dim
from rlx.pipeline import CompilePipeline
from rlx.runtime.loaded_program import LoadedProgram
from tests.backend.gpu.simulated_backend import SimulatedBackend, program_of
from tests.backend.gpu.test_runtime import mlp, normal

BACKEND = SimulatedBackend()
DEVICE: Any = BACKEND.device()
PROGRAM = program_of(mlp(Dim("rows", 1, 100)), BACKEND)
WEIGHTS = PROGRAM.prepare({"w": normal(8, 6), "b": normal(6)}, None)


def on_device(array: Any) -> DeviceArray:
    queue, memory = DEVICE.queue(), DEVICE.allocate(array.nbytes)
    queue.write(memory.address, array)
    given = memory.address, array.shape, array.dtype, queue.device_id
    return DeviceArray(*given, queue, memory)


def wanted(x: Any) -> Any:
    return PROGRAM.run(WEIGHTS, [x], [None])[0]


def test_arrays_of_the_host_are_copied_once() -> None:
    x = normal(5, 8)
    bound = PROGRAM.bind(WEIGHTS, [x])
    given = x.copy()
    x[:] = 0
    for _ in range(4):  # the second call is recorded, the third is replayed
        bound()
        np.testing.assert_array_equal(bound.outputs[0], wanted(given))
    np.testing.assert_array_equal(bound.inputs[0].numpy(), given)


def test_arrays_of_the_device_are_read_where_they_are() -> None:
    first, second = normal(7, 8), normal(7, 8)
    x = on_device(first)
    bound = PROGRAM.bind(WEIGHTS, [x])
    assert bound.inputs == (x,)
    for values in (first, second, first, second):
        DEVICE.queue().write(x.address, values)
        bound()
        (made,) = bound.device_outputs
        assert (made.shape, made.device) == ((7, 6), x.device)
        np.testing.assert_array_equal(made.numpy(), wanted(values))
        assert made.address == bound.device_outputs[0].address


def test_a_result_is_the_input_of_another_call() -> None:
    x = normal(6, 8)
    bound = PROGRAM.bind(WEIGHTS, [x])
    bound()
    (made,) = bound.device_outputs
    flat = DeviceArray(made.address, (4, 8), made.dtype, made.device, made.queue, made.owner)
    other = PROGRAM.bind(WEIGHTS, [flat])
    other()
    first = wanted(x).reshape(-1)[:32].reshape(4, 8)
    np.testing.assert_array_equal(other.outputs[0], wanted(first))


def test_what_does_not_fit_is_named() -> None:
    x = on_device(normal(4, 8))
    strided = DeviceArray(x.address, (4, 8), x.dtype, x.device, x.queue, x.owner, (1, 4))
    with pytest.raises(rlx.Error, match="input 'x' is on the device and not contiguous"):
        PROGRAM.bind(WEIGHTS, [strided])
    wide = DeviceArray(x.address, (4, 7), x.dtype, x.device, x.queue, x.owner)
    with pytest.raises(rlx.Error, match="'x'"):
        PROGRAM.bind(WEIGHTS, [wide])
    half = DeviceArray(x.address, (4, 8), np.dtype(np.float16), x.device, x.queue, x.owner)
    with pytest.raises(rlx.Error, match="'x'"):
        PROGRAM.bind(WEIGHTS, [half])
    elsewhere = DeviceArray(x.address, (4, 8), x.dtype, (2, 1))
    with pytest.raises(rlx.Error, match="input 'x' is on cuda:1 and the model on"):
        PROGRAM.bind(WEIGHTS, [elsewhere])


def executable(graph: rlx.Graph, **params: Any) -> rlx.Executable:
    result = CompilePipeline(BACKEND.target()).compile(graph)
    return rlx.Executable(LoadedProgram(result, BACKEND.compile(result.lir), BACKEND, params))


def test_arrays_of_the_device_beside_those_of_the_host() -> None:
    g = rlx.Graph("sum")
    g.set_outputs([g.input("x", rlx.Shape([4, 3])) + g.input("y", rlx.Shape([3]))])
    exe, x, y = executable(g), normal(4, 3), normal(3)
    out = np.empty_like(x)
    for made in (
        exe(on_device(x), y),
        exe(x, on_device(y)),
        *exe.run({"y": on_device(y), "x": x}).values(),
        exe(on_device(x), on_device(y), out=out),
        exe(on_device(x), y, out=[None]),
        exe.submit(on_device(x), y).result(),
    ):
        assert isinstance(made, np.ndarray)
        np.testing.assert_array_equal(made, x + y)
    np.testing.assert_array_equal(out, x + y)


def test_calls_that_were_begun_have_contexts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = executable(mlp(Dim("rows", 1, 100)), w=normal(8, 6), b=normal(6))
    given = [normal(rows, 8) for rows in (3, 50, 1)]
    calls = [exe.submit(x) for x in given]
    for x, call in reversed(list(zip(given, calls))):
        np.testing.assert_array_equal(call.result(), exe(x))
    made = exe.submit(on_device(given[1])).result()
    assert isinstance(made, DeviceArray)
    np.testing.assert_array_equal(made.numpy(), exe(given[1]))
    with pytest.raises(rlx.Error, match="'x'"):
        exe.submit(given[0][:, :7]).result()
    for call in (exe.submit(x) for x in given):  # dropped: nobody asks for what it gives
        assert call is not None
    np.testing.assert_array_equal(exe.submit(given[0]).result(), exe(given[0]))

    def full(*_: Any) -> Any:
        raise MemoryError("the host has none left")

    with monkeypatch.context() as patched:
        patched.setattr(GpuProgram, "_results", full)
        call = exe.submit(given[0])
        with pytest.raises(rlx.Error, match="the host has none left"):
            call.result()
    np.testing.assert_array_equal(exe.submit(given[0]).result(), exe(given[0]))
