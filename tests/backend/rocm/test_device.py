"""HIP devices by a library that stands for HIP: calls, errors, and whole models on the host."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.device import Device
from rlx.backends.rocm.library import LIBRARIES, open_library
from rlx.core.dtype import DType
from rlx.core.errors import OutOfMemoryError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.backend.gpu import kernels
from tests.backend.gpu.simulated_backend import differences, outputs
from tests.backend.rocm.fake import EmulatedBackend, EmulatedDevice, FakeHip

Array = np.ndarray[Any, Any]
F32 = DType.F32


def scaled(device: Device, x: Array, calls: int = 1) -> Array:
    """2 x + 1 by a queue of the device, some times."""
    (code,) = device.assemble([kernels.scaled()])
    kernel, queue = device.load(code), device.queue()
    memories = [device.allocate(x.nbytes) for _ in range(2)]
    queue.write(memories[0].address, x)
    for _ in range(calls):
        queue.launch(kernel, [m.address for m in memories], {"n": x.size})
    made = np.zeros_like(x)
    queue.read(memories[1].address, made)
    queue.wait()
    for memory in memories:
        device.free(memory)
    queue.close()
    return made


def test_a_kernel_runs() -> None:
    x = np.random.default_rng(0).standard_normal(150).astype(np.float32)
    device = EmulatedDevice(FakeHip())
    np.testing.assert_array_equal(scaled(device, x), x * 2 + 1)
    assert (device.architecture, device.name) == ("gfx1100", "Fake GPU")
    assert (device.machine.processors, device.machine.shared_bytes) == (5, 64 << 10)
    assert device.machine.tiles == {"wmma"}


@pytest.mark.parametrize("stream", [None, 4711])
def test_recorded_work_is_replayed(stream: int | None) -> None:
    """On streams of others, too, where HIP has no graphs that record events."""
    device = EmulatedDevice(FakeHip(absent=frozenset({"hipEventRecordWithFlags"})))
    (code,) = device.assemble([kernels.scaled()])
    kernel, queue = device.load(code), device.queue(stream)
    x, y = (device.allocate(64 * 4) for _ in range(2))

    def work() -> None:
        queue.launch(kernel, [x.address, y.address], {"n": 64})
        queue.copy(x.address, y.address, 256)

    queue.write(x.address, np.ones(64, np.float32))
    graph = queue.record(work)
    for _ in range(3):
        graph.replay()
    made = np.zeros(64, np.float32)
    queue.read(x.address, made)
    queue.wait()
    np.testing.assert_array_equal(made, np.full(64, 15, np.float32))
    graph.close()
    assert queue.time_ns(work) == 2e6


def test_calls_are_made_with_the_queues_device_current() -> None:
    """Each thread has a current device, which is the same afterwards."""
    hip = FakeHip(devices=2)
    device = EmulatedDevice(hip, 1)
    scaled(device, np.ones(3, np.float32))
    assert hip.device == 0
    needing = [(n, d) for n, d in hip.devices_of_calls if n.startswith(("hipM", "hipStream"))]
    assert {"hipMalloc", "hipModuleLaunchKernel", "hipMemcpyHtoDAsync"} <= {n for n, _ in needing}
    assert {d for _, d in needing} == {1}


def test_code_of_another_architecture_is_refused() -> None:
    (code,) = EmulatedDevice(FakeHip(architecture="gfx1201")).assemble([kernels.scaled()])
    with pytest.raises(
        rlx.UnsupportedError, match="compiled for gfx1201, and this device is gfx1100"
    ):
        EmulatedDevice(FakeHip()).load(code)


# -- errors ---------------------------------------------------------------------------------------


def test_errors_say_what_to_do_next() -> None:
    with pytest.raises(rlx.UnsupportedError, match="no ROCm device 3; 1 here"):
        EmulatedDevice(FakeHip(), 3)
    with pytest.raises(rlx.UnsupportedError, match="no ROCm device 0; none here"):
        EmulatedDevice(FakeHip(devices=0))
    with pytest.raises(rlx.UnsupportedError, match="no code for the architecture gfx803"):
        EmulatedDevice(FakeHip(architecture="gfx803"))
    old = FakeHip(absent=frozenset({"hipGetDevicePropertiesR0600"}))
    with pytest.raises(rlx.UnsupportedError, match=r"HIP 6\.4 has no .*Install ROCm 6\.0 or later"):
        EmulatedDevice(old)
    with pytest.raises(OutOfMemoryError, match="4,294,967,296 bytes of GPU memory were asked for"):
        EmulatedDevice(FakeHip()).allocate(1 << 32)


def test_a_lost_device_is_lost_for_good() -> None:
    hip = FakeHip()
    device = EmulatedDevice(hip)
    hip.fail["hipStreamSynchronize"] = 719
    with pytest.raises(
        rlx.Error, match=r"context is lost: hipStreamSynchronize .*scaled was running"
    ):
        scaled(device, np.ones(3, np.float32))
    del hip.fail["hipStreamSynchronize"]
    with pytest.raises(rlx.Error, match="restart the process"):
        device.allocate(5)


def test_a_missing_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARIES, "linux", ("libnone.so.1",))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(
        rlx.UnsupportedError, match=r"libnone\.so\.1 cannot be loaded\. Install ROCm"
    ):
        open_library()


# -- models ---------------------------------------------------------------------------------------


def product() -> tuple[Graph, dict[str, Array]]:
    """A product of half floats on matrix instructions, in several stages, and what follows it."""
    graph = Graph("product")
    x = graph.input("x", Shape((17, 150), DType.F16))
    w = graph.param("w", Shape((150, 24), DType.F16))
    graph.set_outputs([ops.gelu(ops.matmul(x, w))])
    rng = np.random.default_rng(3)
    values = {"x": rng.standard_normal((17, 150)), "w": rng.standard_normal((150, 24)) / 12}
    return graph, {k: v.astype(np.float16) for k, v in values.items()}


def norm() -> tuple[Graph, dict[str, Array]]:
    """Reductions of waves."""
    graph = Graph("norm")
    x = graph.input("x", Shape((3, 70), F32))
    graph.set_outputs([ops.softmax(ops.layer_norm(x), axis=-1)])
    return graph, {"x": np.random.default_rng(3).standard_normal((3, 70)).astype(np.float32)}


@pytest.mark.parametrize(("architecture", "model"), [("gfx942", norm), ("gfx1100", product)])
def test_a_model_runs(architecture: str, model: Any) -> None:
    """Through selection, LLVM, code objects and HIP's calls."""
    graph, values = model()
    backend = EmulatedBackend(FakeHip(architecture=architecture))
    assert differences(graph, values, outputs(graph, values, backend)) == []


def test_threads_assemble_at_once() -> None:
    device, found = EmulatedDevice(FakeHip()), list[bytes]()

    def work() -> None:
        found.extend(c.binary for c in device.assemble([kernels.scaled(), kernels.softmax()]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    assert len(set(found)) == 2
