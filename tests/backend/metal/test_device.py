"""The runtime of Metal through a stand-in of it: memory, code, launches, graphs, times, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.device import Devices, Kernel
from rlx.backends.metal import backend as module
from rlx.backends.metal import library
from rlx.backends.metal.backend import MetalBackend
from rlx.backends.metal.device import MetalDevice
from rlx.backends.metal.errors import CompileError, MetalError
from rlx.core.dtype import DType
from rlx.core.errors import OutOfMemoryError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.backend.gpu import kernels
from tests.backend.gpu.simulated_backend import differences, outputs, program_of
from tests.backend.metal import host
from tests.backend.metal.fake import EmulatedBackend, FakeError, FakeMetal

needs_clang = pytest.mark.skipif(host.clang() is None, reason="clang++ is not installed")
Array = np.ndarray[Any, Any]


def opened(metal: FakeMetal | None = None) -> MetalDevice:
    return MetalDevice(0, (metal or FakeMetal()).library())


def scaled(device: MetalDevice) -> Kernel:
    (code,) = device.assemble([kernels.scaled()])
    return device.load(code)


# -- memory ---------------------------------------------------------------------------------------


def test_memory_is_written_and_read_where_it_is() -> None:
    device = opened()
    queue, memory = device.queue(), device.allocate(64)
    given, found = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    queue.write(memory.address, given)
    queue.read(memory.address, found)
    np.testing.assert_array_equal(found, given)
    assert memory.address % 256 == 0
    device.free(memory)
    with pytest.raises(rlx.Error, match=r"64 bytes at address .* go beyond their memory"):
        queue.read(memory.address, found)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(OutOfMemoryError, match="2048 bytes are more than a buffer of Apple M9"):
        opened(FakeMetal(memory=1024)).allocate(2048)
    with pytest.raises(OutOfMemoryError, match="Apple M9 has no 1000 bytes left"):
        opened(FakeMetal(memory=1024)).allocate(1000)


# -- launches -------------------------------------------------------------------------------------


@needs_clang
def test_launches_copies_and_fills_are_in_order() -> None:
    device = opened()
    queue, kernel = device.queue(), scaled(device)
    x, y, z = (device.allocate(400) for _ in range(3))
    queue.write(x.address, np.arange(100, dtype=np.float32))
    queue.launch(kernel, [x.address, y.address], {"n": 100})
    queue.copy(z.address, y.address, 400)
    queue.copy(z.address + 4, y.address + 8, 6)
    queue.fill(z.address + 400 - 8, 8, 0)
    queue.launch(kernel, [z.address, x.address], {"n": 0})
    found = np.zeros(100, np.float32)
    queue.read(z.address, found)
    want = np.arange(100, dtype=np.float32) * 2 + 1
    want.view(np.uint8)[4:10] = want.view(np.uint8)[8:14].copy()
    want[98:] = 0
    np.testing.assert_array_equal(found, want)


@needs_clang
def test_a_graph_is_one_command_buffer_with_one_encoder() -> None:
    metal = FakeMetal()
    device = opened(metal)
    queue, kernel = device.queue(), scaled(device)
    x, y = (device.allocate(256) for _ in range(2))
    queue.write(x.address, np.ones(64, np.float32))

    def enqueue() -> None:
        queue.launch(kernel, [x.address, y.address], {"n": 64})
        queue.launch(kernel, [y.address, x.address], {"n": 64})
        queue.launch(kernel, [y.address, x.address], {"n": 64})

    graph = queue.record(enqueue)
    assert "dispatch" not in metal.calls
    metal.calls.clear()
    graph.replay()
    found = np.zeros(64, np.float32)
    queue.read(x.address, found)
    assert (found == 7).all()
    counts = {name: metal.calls.count(name) for name in set(metal.calls)}
    assert counts == {
        "encoder": 1, "pipeline": 1, "buffer": 4, "dispatch": 3, "commit": 1, "wait": 1,
    }, "what is the same for the next launch is set once"  # fmt: skip
    assert queue.is_idle


@needs_clang
def test_memory_that_a_graph_names_may_be_freed() -> None:
    device = opened()
    queue, kernel = device.queue(), scaled(device)
    x, y = (device.allocate(256) for _ in range(2))
    queue.write(x.address, np.ones(64, np.float32))
    graph = queue.record(lambda: queue.launch(kernel, [x.address, y.address], {"n": 64}))
    device.free(device.allocate(256))
    graph.replay()
    found = np.zeros(64, np.float32)
    queue.read(y.address, found)
    assert (found == 3).all()


@needs_clang
def test_times_are_those_of_command_buffers() -> None:
    device = opened()
    queue, kernel = device.queue(), scaled(device)
    x, y = (device.allocate(256) for _ in range(2))
    queue.write(x.address, np.ones(64, np.float32))
    enqueue = lambda: queue.launch(kernel, [x.address, y.address], {"n": 64})
    assert queue.time_ns(enqueue) == pytest.approx(1000)  # the stand-in's: 1 µs a dispatch
    assert queue.time_ns(lambda: None) == 0
    twice = lambda: (enqueue(), enqueue(), None)[2]
    graph = queue.record_stamped([enqueue, lambda: None, twice])
    graph.replay()
    assert graph.stamps_ns() == pytest.approx([0, 1000, 1000, 3000])


@needs_clang
def test_work_of_another_queue_comes_first() -> None:
    device = opened()
    one, two, kernel = device.queue(), device.queue(), scaled(device)
    x, y, z = (device.allocate(256) for _ in range(3))
    one.write(x.address, np.ones(64, np.float32))
    one.launch(kernel, [x.address, y.address], {"n": 64})
    two.wait_for(one.stream)
    two.launch(kernel, [y.address, z.address], {"n": 64})
    found = np.zeros(64, np.float32)
    two.read(z.address, found)
    assert (found == 7).all()


# -- code -----------------------------------------------------------------------------------------


@needs_clang
def test_kernels_are_compiled_once_and_without_fast_mathematics() -> None:
    metal = FakeMetal()
    device = opened(metal)
    assert scaled(device).handle is scaled(device).handle
    assert metal.options == [{"mode": 0, "language": 0x30001}]
    old = FakeMetal(has_math_mode=False)
    scaled(MetalDevice(0, old.library("13.6")))
    assert old.options == [{"fast": False, "language": 0x30000}]


@needs_clang
def test_source_that_does_not_compile_is_an_error_with_its_line() -> None:
    device = opened()
    (code,) = device.assemble([kernels.scaled()])
    wrong = code.with_binary(code.binary.replace(b"* 2.0f", b"* two"))
    said = (
        r"kernel scaled does not compile: line \d+, use of undeclared identifier 'two': const.*two"
    )
    with pytest.raises(CompileError, match=said):
        device.load(wrong)


@needs_clang
def test_a_kernel_that_the_device_does_not_run_as_printed() -> None:
    with pytest.raises(rlx.UnsupportedError, match="has 64 threads, and Apple M9 runs it with 48"):
        scaled(opened(FakeMetal(threads=48)))
    with pytest.raises(rlx.UnsupportedError, match="simdgroups of 32 threads, and Apple M9 gives"):
        scaled(opened(FakeMetal(width=16)))


@needs_clang
def test_a_command_buffer_that_fails_names_its_kernels() -> None:
    metal = FakeMetal()
    device = opened(metal)
    queue, kernel = device.queue(), scaled(device)
    x, y = (device.allocate(256) for _ in range(2))
    for failed, kind, said in (
        (FakeError("page fault", 3), MetalError, "kernel scaled: page fault. A kernel accessed"),
        (FakeError("no memory", 8), OutOfMemoryError, "no memory. Use smaller inputs"),
    ):
        metal.fail_commands = failed
        queue.launch(kernel, [x.address, y.address], {"n": 64})
        with pytest.raises(kind, match=said):
            queue.wait()
        queue.wait()


# -- devices --------------------------------------------------------------------------------------


def test_families() -> None:
    assert opened().architecture == "apple9"
    assert opened(FakeMetal(families=(1007,), device_name="Apple M1 Max")).machine.processors == 32
    old = opened(FakeMetal(families=(2002,), device_name="AMD Radeon Pro 5500M"))
    assert (old.architecture, old.machine.warp, old.machine.tiles) == ("mac2", 1, frozenset())
    with pytest.raises(rlx.UnsupportedError, match="Apple M9 is of no family"):
        opened(FakeMetal(families=()))


def test_without_bfloat_there_are_no_matrices() -> None:
    assert opened().machine.tiles
    assert not MetalDevice(0, FakeMetal().library("13.6")).machine.tiles


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(rlx.UnsupportedError, match="there is no Metal device 0; none here"):
        opened(FakeMetal(count=0))
    with pytest.raises(rlx.UnsupportedError, match="no Metal device 3; 2 here: 0 to 1"):
        MetalDevice(3, FakeMetal(count=2).library())


def test_without_a_mac_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.sys, "platform", "linux")
    missing = MetalBackend().missing()
    assert missing is not None
    assert "there is no Metal on linux: it is a part of macOS" in missing.reason
    assert "never been run on a Mac" in missing.reason
    monkeypatch.setattr(library.sys, "platform", "darwin")
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    missing = MetalBackend().missing()
    assert missing is not None
    assert missing.command == "pip install 'rlx[metal]'"
    assert MetalBackend().devices() == ()


def test_code_is_printed_for_a_family_without_a_device() -> None:
    backend = MetalBackend().configured("mac2", None)
    assert (backend.architecture, backend.machine.warp) == ("mac2", 1)
    (code,) = backend.assemble([kernels.scaled()])
    assert b"void rlx_scaled(" in code.binary
    with pytest.raises(rlx.Error, match="'metal:mac2' is an architecture: code is printed for it"):
        backend.device()
    with pytest.raises(rlx.UnsupportedError, match=r"no code for apple1\. It has apple9"):
        MetalBackend().configured("apple1", None)
    with pytest.raises(rlx.Error, match="threads is 2; target 'metal' runs on the device"):
        MetalBackend().configured("", 2)


# -- arrays ---------------------------------------------------------------------------------------


@needs_clang
def test_arrays_are_viewed_where_they_are(on_fake: MetalDevice) -> None:
    exe = rlx.compile(product(DType.F32), target="metal", params={"w": np.eye(80, 40, dtype="f4")})
    bound = exe.bind(np.ones((48, 80), np.float32))
    bound()
    (array,) = bound.device_outputs
    assert repr(array) == "DeviceArray(float32[48, 40] on metal:0)"
    view = array.__array__(copy=False)
    copy = np.array(array)
    np.testing.assert_array_equal(view, copy)
    on_fake.regions.bytes_at(array.address, 4)[:] = 0
    assert (view[0, 0], copy[0, 0] > 0) == (0, True)
    with pytest.raises(rlx.Error, match="memory of Metal has no address that other libraries know"):
        array.__dlpack__()
    with pytest.raises(rlx.Error, match=r"becomes one of .* by a copy only"):
        array.__array__(np.float64, copy=False)


@pytest.fixture
def on_fake(monkeypatch: pytest.MonkeyPatch) -> MetalDevice:
    """Target metal, on a stand-in."""
    device = opened()
    monkeypatch.setattr(module, "_DEVICES", Devices(lambda number: device))
    monkeypatch.setattr(MetalBackend, "search", None)  # what a launch takes here says nothing
    return device


@needs_clang
@pytest.mark.usefixtures("on_fake")
def test_target_metal_is_compiled_called_saved_and_timed(tmp_path: Path) -> None:
    n = rlx.Dim("n")
    graph = Graph("dynamic")
    x, w = graph.input("x", Shape((n, 80))), graph.param("w", Shape((80, 40)))
    graph.set_outputs([ops.softmax(ops.matmul(x, w), axis=-1)])
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(size=(80, 40)).astype(np.float32)}
    exe = rlx.compile(graph, target="metal", params=weights)
    for rows in (3, 50):
        given = rng.normal(size=(rows, 80)).astype(np.float32)
        want = rlx.compile(graph, target="reference", params=weights)(given)
        for _ in range(3):
            got = exe(given)
        # sums of 80 products in f32, in any order, then an exponential
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    rlx.save(exe, tmp_path / "it.rlx")
    np.testing.assert_array_equal(rlx.load(tmp_path / "it.rlx")(given), got)
    np.testing.assert_array_equal(exe.submit(given).result(), got)
    assert exe.profile([given]).kernels


# -- programs -------------------------------------------------------------------------------------


@needs_clang
def test_more_buffers_than_the_argument_table_has() -> None:
    graph, rng = Graph("many"), np.random.default_rng(2)
    values = {f"x{i}": rng.normal(size=(3, i % 4 + 1)).astype(np.float32) for i in range(40)}
    inputs = [graph.input(n, Shape(v.shape)) for n, v in values.items()]
    graph.set_outputs([graph.concat(*inputs, axis=1)])
    backend = EmulatedBackend()
    assert differences(graph, values, outputs(graph, values, backend, calls=3)) == []
    codes = program_of(graph, backend).artefact.codes
    assert any(b"constant Buffers& buffers [[buffer(0)]]" in c.binary for c in codes)


def product(dtype: DType) -> Graph:
    made = Graph("product")
    x, w = made.input("x", Shape((48, 80), dtype)), made.param("w", Shape((80, 40), dtype))
    made.set_outputs([ops.softmax(ops.matmul(x, w), axis=-1)])
    return made


@needs_clang
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
def test_a_program_runs_and_is_replayed(dtype: DType) -> None:
    rng, graph, metal = np.random.default_rng(3), product(dtype), FakeMetal()
    values = {
        n: rng.normal(size=s).astype(dtype.numpy) for n, s in (("x", (48, 80)), ("w", (80, 40)))
    }
    backend = EmulatedBackend(metal)
    got = outputs(graph, values, backend, calls=3)
    assert differences(graph, values, got) == []
    codes = b"".join(c.binary for c in program_of(graph, backend).artefact.codes)
    assert (b"simdgroup_multiply_accumulate" in codes) == (dtype is not DType.F32)
