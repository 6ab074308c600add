"""Memory, copies, graphs, time stamps and errors of a wgpu device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.device import Devices
from rlx.backends.wgpu.device import WgpuDevice
from rlx.backends.wgpu.errors import LostDeviceError, WgpuError
from rlx.backends.wgpu.launch import Limits, _merged, _Reach
from rlx.backends.wgpu.memory import SHIFT, rounded
from rlx.backends.wgpu.params import RING_SLOTS, SLAB_SLOTS
from rlx.backends.wgpu.pipelines import Text
from rlx.core.errors import Error, OutOfMemoryError
from tests.backend.wgpu.devices import opened

SIZE = 5000


@pytest.fixture(scope="module")
def device() -> WgpuDevice:
    return opened()


def bytes_of(queue: Any, address: int, size: int) -> np.ndarray[Any, Any]:
    found = np.empty(size, np.uint8)
    queue.read(address, found)
    queue.wait()
    return found


def test_bytes_at_any_place_are_written_read_copied_and_filled(device: WgpuDevice) -> None:
    rng, queue = np.random.default_rng(0), device.queue()
    near, far = device.allocate(SIZE), device.allocate(300_001)
    other = rng.integers(0, 256, 300_001).astype(np.uint8)
    expected = np.zeros(SIZE, np.uint8)
    queue.fill(near.address, SIZE, 0)
    queue.write(far.address, other)
    for _ in range(60):
        kind, size, to = (int(rng.integers(n)) for n in (4, 700, SIZE // 2 - 700))
        match kind:
            case 0:
                expected[to : to + size] = given = rng.integers(0, 256, size).astype(np.uint8)
                queue.write(near.address + to, given)
            case 1:
                expected[to : to + size] = byte = int(rng.integers(256))
                queue.fill(near.address + to, size, byte)
            case 2:
                source = int(rng.integers(300_000 - size))
                expected[to : to + size] = other[source : source + size]
                queue.copy(near.address + to, far.address + source, size)
            case _:  # within one buffer
                source = SIZE // 2 + int(rng.integers(SIZE // 2 - size))
                expected[to : to + size] = expected[source : source + size]
                queue.copy(near.address + to, near.address + source, size)
        first = int(rng.integers(SIZE - 100))
        np.testing.assert_array_equal(
            bytes_of(queue, near.address + first, 97), expected[first : first + 97]
        )
    np.testing.assert_array_equal(bytes_of(queue, near.address, SIZE), expected)
    np.testing.assert_array_equal(bytes_of(queue, far.address, 300_001), other)


def test_large_copies_are_transfers(device: WgpuDevice) -> None:
    queue, given = device.queue(), np.arange(1 << 16, dtype=np.uint32)
    a, b = (device.allocate(given.nbytes) for _ in range(2))
    queue.write(a.address, given)
    graph = queue.record(lambda: queue.copy(b.address, a.address, given.nbytes))
    queue.fill(b.address, given.nbytes, 0)
    graph.replay()
    found = np.empty_like(given)
    queue.read(b.address, found)
    queue.wait()
    np.testing.assert_array_equal(found, given)


def test_a_graph_is_replayed_in_order(device: WgpuDevice) -> None:
    queue, block = device.queue(), device.allocate(64)

    def work() -> None:
        queue.fill(block.address, 64, 1)
        queue.fill(block.address + 5, 10, 2)
        queue.copy(block.address + 32, block.address, 16)

    graph = queue.record(work)
    queue.fill(block.address, 64, 9)
    assert bytes_of(queue, block.address, 1) == 9, "nothing runs while it is recorded"
    for _ in range(3):
        graph.replay()
    expected = np.full(64, 1)
    expected[5:15] = expected[37:47] = 2
    expected[47:48] = 1
    np.testing.assert_array_equal(bytes_of(queue, block.address, 64), expected)
    with pytest.raises(Error, match="wait while work is recorded"):
        queue.record(queue.wait)
    queue.wait()


def test_params_of_graphs_are_given_back(device: WgpuDevice) -> None:
    """Many more than the slots of a buffer, and of the ring of launches that are not recorded."""
    queue, block = device.queue(), device.allocate(16)
    for i in range(2 * SLAB_SLOTS // 512):
        graph = queue.record(
            lambda: [queue.fill(block.address, 16, 7) for _ in range(512)] and None
        )
        if i == 0:
            graph.replay()
        graph.close()
    for i in range(2 * RING_SLOTS + 3):
        queue.fill(block.address + i % 16, 1, i % 256)
    assert bytes_of(queue, block.address, 16).tolist() == [
        max(i for i in range(2 * RING_SLOTS + 3) if i % 16 == k) % 256 for k in range(16)
    ]


def test_time_stamps(device: WgpuDevice) -> None:
    queue, block = device.queue(), device.allocate(1 << 20)
    parts = [lambda: queue.fill(block.address, 1 << 20, 3), lambda: None]
    graph = queue.record_stamped(parts)
    graph.replay()
    start, middle, end = graph.stamps_ns()
    assert start == 0.0
    assert 0.0 <= middle <= end
    assert middle > 0.0, "a mebibyte takes some time"
    assert queue.time_ns(parts[0]) > 0.0
    graph.close()


def test_memory_that_is_freed_is_used_again(device: WgpuDevice) -> None:
    for size in (100, 1 << 20):
        first = device.allocate(size)
        device.free(first)
        assert device.allocate(size).address == first.address
    held = device.buffers.held_bytes
    large = [device.allocate(96 << 20) for _ in range(3)]
    for block in large:
        device.free(block)
    device.allocate(16)
    assert device.buffers.held_bytes <= held + (256 << 20), "the rest went back to the driver"
    assert rounded(1) == 256
    assert device.buffers.max_bytes < (1 << SHIFT)


def test_what_no_buffer_can_hold_names_the_limit(device: WgpuDevice) -> None:
    limit = device.buffers.max_bytes
    with pytest.raises(OutOfMemoryError, match=rf"at most {limit:,} \(maxBufferSize\)"):
        device.allocate(limit + 1)
    assert device.allocate(16).size == 16, "others are not affected"


def test_buffers_share_bindings_where_an_adapter_has_few() -> None:
    reaches = [_Reach(n, at, at, at + 100) for n, at in ((1, 0), (2, 0), (1, 512), (1, 9000))]
    assert _merged(reaches, 4096) == [[0, 2], [3], [1]]
    assert _merged(reaches, 1 << 20) == [[0, 2, 3], [1]]
    limits = {"max-storage-buffer-binding-size": 1000, "max-storage-buffers-per-shader-stage": 8}
    assert Limits.of(limits) == (768, 8)


def test_text_that_is_no_wgsl_is_an_error(device: WgpuDevice) -> None:
    with pytest.raises(WgpuError, match=r"compiling kernel main: wgpu answered: .*expected"):
        device.pipelines.pipeline(Text("fn main( {", "main", 1, 16))
    queue, block = device.queue(), device.allocate(16)
    queue.fill(block.address, 16, 5)
    assert bytes_of(queue, block.address, 16).tolist() == [5] * 16, "the device goes on"


def test_a_lost_device_is_one_error_and_a_new_one_is_opened() -> None:
    opened()
    devices = Devices(WgpuDevice)
    first = devices[0]
    queue, block = first.queue(), first.allocate(16)
    queue.fill(block.address, 16, 5)
    queue.wait()
    array = DeviceArray(block.address, (4,), np.dtype(np.float32), queue.device_id, queue)
    first.stream.device.destroy()
    with pytest.raises(LostDeviceError, match=r"is lost.*compile or load the model again"):
        bytes_of(queue, block.address, 16)
    for call in (lambda: first.allocate(1 << 22), lambda: queue.fill(block.address, 4, 1)):
        with pytest.raises(LostDeviceError, match="the wgpu device is lost"):
            call()
    second = devices[0]
    assert second is not first
    fresh = second.queue()
    again = second.allocate(16)
    fresh.fill(again.address, 16, 6)
    assert bytes_of(fresh, again.address, 16).tolist() == [6] * 16
    with pytest.raises(Error, match="another device's"):
        array.numpy(fresh)


def test_threads_work_beside_each_other(device: WgpuDevice) -> None:
    wrong = list[str]()

    def work(number: int) -> None:
        queue, block = device.queue(), device.allocate(4096)
        graph = queue.record(lambda: queue.fill(block.address, 4096, number))
        for turn in range(10):
            graph.replay()
            queue.fill(block.address + turn, 1, 99)
            found = bytes_of(queue, block.address, 4096)
            expected = np.full(4096, number)
            expected[turn] = 99
            if (found != expected).any():
                wrong.append(f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(t.is_alive() for t in threads)
