"""The CUDA device layer on a library of host memory: arguments, order, memory, errors."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda.backend import CudaBackend
from rlx.backends.cuda.context import Context, found_devices
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.errors import AssemblerError, DriverError, LostDeviceError
from rlx.backends.cuda.graph import CopyParams, KernelParams
from rlx.backends.cuda.launch import CLUSTER, DEPENDENT, offsets
from rlx.backends.cuda.library import open_library
from rlx.backends.cuda.machine import GENERATIONS, architecture_of, generation_of, machine_of
from rlx.backends.cuda.memory import rounded
from rlx.backends.cuda.tensor_map import Matrix, encode
from rlx.backends.gpu.device import ALIGN, Code, Devices, Kernel, Memory
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error, OutOfMemoryError, UnsupportedError
from rlx.program.program import Program
from rlx.program.tensor_map import TensorMap
from tests.backend.cuda.fake import FakeCuda, Launched
from tests.backend.gpu import kernels
from tests.patience import eventually

F32, BF16, I32, I64 = DType.F32, DType.BF16, DType.I32, DType.I64
n = Dim("n")


def code(name: str = "k", **more: Any) -> Code:
    given: dict[str, Any] = {
        "grid": ((n + 31) // 32, 1, 1), "block": 32, "cluster": 1, "shared_bytes": 0,
        "buffers": ("x", "y"), "scalars": ((I32, n),),
    }  # fmt: skip
    return Code(name, f"\x7fELF .entry {name}(".encode(), **(given | more))


def opened(fake: FakeCuda) -> tuple[CudaDevice, Any]:
    device = CudaDevice(library=fake.library())
    return device, device.queue()


# -- arguments ------------------------------------------------------------------------------------


def test_parameters_are_addresses_then_scalars_then_tensor_maps() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    made = code(
        scalars=((I32, n), (I64, n * 2), (I32, n + 1)),
        maps=(TensorMap("m", "y", (n, 64), (8, 32)),),
        map_dtypes=(BF16,),
        map_swizzles=(True,),
    )
    assert offsets(made) == ((0, 8, 16, 24, 32, 64), 192)
    queue.launch(device.load(made), [4096, 8192], {"n": 70})
    (launched,) = fake.launched
    assert (launched.grid, launched.block) == ((3, 1, 1), (32, 1, 1))
    assert [struct.unpack("Q", launched.parameter(i, 8))[0] for i in (0, 1)] == [4096, 8192]
    assert struct.unpack("i", launched.parameter(2, 4)) == (70,)
    assert struct.unpack("q", launched.parameter(3, 8)) == (140,)
    assert struct.unpack("i", launched.parameter(4, 4)) == (71,)
    encoded = struct.unpack("16Q", launched.parameter(5, 128))[:11]
    # bf16, rank 2, address, columns, rows, bytes of a row, box of columns and rows, 128-byte
    # swizzle, L2 promotion, zeros outside
    assert encoded == (9, 2, 8192, 64, 70, 128, 32, 8, 3, 3, 0)


def test_a_launch_is_prepared_once_and_an_empty_grid_is_nothing() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    kernel = device.load(code())
    for _ in range(3):
        queue.launch(kernel, [256, 512], {"n": 5})
        queue.launch(kernel, [256, 512], {"n": 0})
    assert len(fake.launched) == 3
    assert len({launched.parameters for launched in fake.launched}) == 1
    queue.launch(kernel, [512, 1024], {"n": 5})  # only the addresses are new
    moved = fake.launched[-1]
    assert [struct.unpack("Q", moved.parameter(i, 8))[0] for i in (0, 1)] == [512, 1024]
    assert struct.unpack("i", moved.parameter(2, 4)) == (5,)
    for sizes in ({"n": 5}, {"n": 6}):
        with pytest.raises(rlx.Error, match="kernel k has 2 buffers and was given 1"):
            queue.launch(kernel, [256], sizes)


def test_only_a_kernel_right_behind_a_kernel_is_dependent() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    plain, dependent = device.load(code("p")), device.load(code("d", is_dependent=True))
    cluster = device.load(code("c", is_dependent=True, cluster=4, grid=(8, 1, 1)))
    memory = device.allocate(64)
    where = [memory.address] * 2
    for kernel in (dependent, dependent, plain, cluster):
        queue.launch(kernel, where, {"n": 1})
    queue.fill(memory.address, 4, 0)
    queue.launch(cluster, where, {"n": 1})
    queue.launch(dependent, where, {"n": 1})
    queue.time_ns(lambda: queue.launch(dependent, where, {"n": 1}))
    assert [launched.attributes for launched in fake.launched] == [
        {},
        {DEPENDENT: (1, 0, 0)},
        {},
        {CLUSTER: (4, 1, 1), DEPENDENT: (1, 0, 0)},
        {CLUSTER: (4, 1, 1)},
        {DEPENDENT: (1, 0, 0)},
        {},
    ]


IMAGES = Matrix(
    BF16, 16, 7, 64, (128, 64), True, 64, ((2, 4032, 1), (9, 448, 1)), ((9, -1, 1), (4, -1, 2))
)  # fmt: skip
"""9x7 pixels of 64 channels; windows of 3x3 taps with a border of 1, every other one of a row."""


def test_windows_start_between_two_corners_of_an_image() -> None:
    """3x3 taps: the last window starts two elements before the end of the border."""
    assert not IMAGES.refusal()
    assert IMAGES.corners == ((-1, -1), (-1, -1))
    block = encode(Context(FakeCuda().library(), 0), IMAGES, "conv")
    assert list(np.frombuffer(block, np.int64)) == [
        *(9, 4, 16, 64, 7, 9, 2),
        *(-1, -1, -1, -1, 64, 128, 2, 1, 3),
    ]


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        (Matrix(BF16, 8, 4, 64, (4, 64)), "address 0x8, which is no multiple of 16"),
        (Matrix(BF16, 16, 4, 65, (4, 64)), "rows of 130 bytes, which is no multiple of 16"),
        (Matrix(F32, 16, 4, 64, (4, 64)), "rows of a box of 256 bytes"),
        (Matrix(F32, 16, 4, 64, (4, 3), False), "rows of a box of 12 bytes"),
        (Matrix(F32, 16, 999, 64, (257, 32)), "at most 256 each way"),
        (Matrix(DType.C128, 16, 4, 64, (4, 1)), "elements of c128"),
        (replace(IMAGES, windows=((9, -200, 1), (4, -1, 2))), "less than 128"),
        (replace(IMAGES, windows=((9, -1, 1), (4, -1, 9))), "windows at steps [1, 9]; at most 8"),
    ],
)
def test_matrices_that_the_copy_engine_cannot_read(matrix: Matrix, why: str) -> None:
    assert why in matrix.refusal()


def test_one_row_of_any_length_has_a_map() -> None:
    assert not Matrix(F32, 16, 1, 3, (1, 4), False).refusal()


def test_boxes_of_one_map_are_swizzled_or_not() -> None:
    found = Code.of(kernels.warpgroup_gemm(96), b"", 0)
    assert found.map_swizzles == (True, True)
    assert Code.of(kernels.pipeline(37), b"", 0).map_swizzles == (False,)


# -- copies and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, (1 << 20) + 1, (5 << 20) + 3])
def test_bytes_come_back(size: int) -> None:
    device, queue = opened(FakeCuda())
    data = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    memory = device.allocate(size)
    assert memory.address % ALIGN == 0
    given = data.copy()
    queue.write(memory.address, given)
    given[:] = 0
    got = np.zeros_like(data)
    queue.read(memory.address, got)
    queue.wait()
    np.testing.assert_array_equal(got, data)


def test_small_copies_go_round_the_ring() -> None:
    """More than the pinned memory holds, in arrays of several dtypes that are not contiguous."""
    fake = FakeCuda()
    device, queue = opened(fake)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((i % 7 + 1, 1500)).T.astype(BF16.numpy) for i in range(60)]
    held = [device.allocate(a.nbytes) for a in arrays]
    for memory, array in zip(held, arrays):
        queue.write(memory.address, array)
    got = [np.empty(a.shape, a.dtype) for a in arrays]
    for memory, array in zip(held, got):
        queue.read(memory.address, array)
    queue.wait()
    assert all(np.array_equal(a, b) for a, b in zip(arrays, got))
    with pytest.raises(Error, match="contiguous arrays only"):
        queue.read(held[1].address, got[1].T)


def test_pinned_memory_is_used_again_behind_the_copies_of_its_own_stream() -> None:
    """Large copies of two queues: each slot's event is recorded in the stream that reads it."""
    fake = FakeCuda()
    device, first = opened(fake)
    second = device.queue()
    data = np.zeros(3 << 20, np.uint8)
    memory = device.allocate(data.nbytes)
    for queue in (first, second, first):
        fake.noted.clear()
        queue.write(memory.address, data)
        assert {s for name, s in fake.noted if name == "cuMemcpyHtoDAsync_v2"} == {queue.stream}
        assert {s for name, s in fake.noted if name == "cuEventRecord"} == {queue.stream}
        assert fake.noted[-1][0] == "cuEventRecord"


def test_streams_of_others_are_ordered_by_one_event() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    queue.release_to(99)
    assert fake.noted == []  # nothing was enqueued
    memory = device.allocate(8)
    fake.are_events_done = False
    queue.fill(memory.address, 8, 0)
    assert not queue.is_idle
    fake.noted.clear()
    queue.release_to(99)
    queue.release_to(queue.stream)
    queue.wait_for(98)
    assert fake.noted == [
        ("cuEventRecord", queue.stream), ("cuStreamWaitEvent", 99),
        ("cuEventRecord", 98), ("cuStreamWaitEvent", queue.stream),
    ]  # fmt: skip
    queue.wait()
    assert queue.is_idle


def test_copies_and_fills() -> None:
    device, queue = opened(FakeCuda())
    a, b = device.allocate(100), device.allocate(100)
    queue.fill(a.address, 100, 7)
    queue.copy(b.address, a.address, 50)
    queue.fill(b.address + 50, 50, 1)
    got = np.empty(100, np.uint8)
    queue.read(b.address, got)
    queue.wait()
    np.testing.assert_array_equal(got, [7] * 50 + [1] * 50)


def test_freed_memory_is_reused_only_behind_the_work_that_was_queued() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    other = device.queue()
    first = device.allocate(1000)
    device.free(first)
    assert device.allocate(900).address == first.address  # nothing was queued
    queue.fill(first.address, 10, 0)
    other.fill(first.address, 10, 0)
    device.free(first)
    fake.are_events_done = False
    second = device.allocate(1000)
    assert second.address != first.address
    queue.wait()
    assert device.allocate(1000).address not in (first.address, second.address)
    fake.are_events_done = True
    assert device.allocate(1000).address == first.address


def test_memory_that_others_use_is_reused_when_the_device_was_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlx.backends.cuda.memory.SHARED_BYTES", 3000)
    fake = FakeCuda()
    device, queue = opened(fake)
    held = [device.allocate(1024) for _ in range(2)]
    queue.share(held[0].address + 100)
    for memory in held:
        device.free(memory)
    assert device.allocate(1024) == held[1]
    assert device.allocate(1024) not in held
    assert "cuCtxSynchronize" not in fake.calls
    for _ in range(2):
        memory = device.allocate(1024)
        queue.share(memory.address)
        device.free(memory)
    assert device.allocate(1024) == held[0]  # too much waits for the others by now
    assert fake.calls.count("cuCtxSynchronize") == 1


@pytest.mark.parametrize("stream", [None, 99])
def test_other_threads_use_a_queue_while_it_is_recorded(stream: int | None) -> None:
    """What a call has given is read, and another library's stream waits for it, while the next
    call is recorded: nothing of that is captured."""
    fake = FakeCuda()
    device, _ = opened(fake)
    queue = device.queue(stream)
    held, other = device.allocate(100), device.allocate(100)
    queue.fill(held.address, 100, 7)
    got, checked = np.zeros(100, np.uint8), list[bool]()

    def read() -> None:
        fake.noted.clear()
        queue.read(held.address, got)
        if stream is not None:  # its last event is all that is waited for
            assert [name for name, _ in fake.noted] == ["cuMemcpyDtoHAsync_v2", "cuEventRecord"]
        queue.wait()
        queue.release_to(4711)
        checked.append(True)

    def enqueue() -> None:
        queue.fill(other.address, 100, 1)
        with pytest.raises(Error, match="while work is recorded"):
            queue.wait()
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

    graph = queue.record(enqueue)
    assert checked
    assert (got == 7).all()
    count = 1 if stream is None else 2  # with the event
    assert [len(nodes) for nodes in fake.graphs.values()] == [count] * 2
    graph.replay()
    queue.read(other.address, got)
    queue.wait()
    assert (got == 1).all()


def test_threads_read_results_of_one_queue() -> None:
    """Each gets its own: neither takes what the other's copies have not brought yet."""
    device, queue = opened(FakeCuda())
    held = [device.allocate(512) for _ in range(4)]
    for i, memory in enumerate(held):
        queue.fill(memory.address, 512, i)
    wrong: list[int] = []

    def read(number: int) -> None:
        for _ in range(100):
            got = np.full(512, 99, np.uint8)
            queue.read(held[number].address, got)
            queue.wait()
            if not (got == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_devices_are_chosen_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(lambda number: CudaDevice(number, FakeCuda(devices=2).library()))
    monkeypatch.setattr("rlx.backends.cuda.backend._DEVICES", devices)
    for session in (rlx.Session("cuda", device=1), rlx.Session("cuda:1")):
        assert isinstance(session.backend, CudaBackend)
        assert session.backend.device() is devices[1]
    with pytest.raises(Error, match="there is no CUDA device 2; 2 here: 0 to 1"):
        rlx.Session("cuda", device=2).backend.device()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Error, match=r"device is 1; target 'cuda:0' names one"):
        rlx.Session("cuda:0", device=1)
    with pytest.raises(Error, match=r"device is -1; the first is 0"):
        rlx.Session("cuda", device=-1)
    with pytest.raises(Error, match=r"device is 0; target 'cpu' has none. Leave it out."):
        rlx.Session("cpu", device=0)
    with pytest.raises(Error, match=r"device is '1'. Give None, or a whole number"):
        rlx.Session("cuda", device="1")  # type: ignore[arg-type]
    with pytest.raises(Error, match=r"no CUDA architecture '²'.*or a device's number"):
        rlx.Session("cuda:²")


def test_all_that_code_depends_on_is_in_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    device, backend = CudaDevice(0, FakeCuda().library()), CudaBackend()
    monkeypatch.setattr("rlx.backends.cuda.backend._DEVICES", {0: device})
    found = [backend.identity, backend.tuned("off").identity]
    device.machine = replace(device.machine, processors=device.machine.processors // 2)
    found.append(backend.identity)
    device.driver = "99.0"
    found.append(backend.identity)
    assert len(set(found)) == len(found)


def test_threads_that_ask_for_a_device_at_once_get_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two would have memory of their own, and reuse it while the other's queues still read it."""
    fake = FakeCuda(devices=2)
    made: list[int] = []

    def opening() -> Any:
        time.sleep(0.01)
        made.append(1)
        return fake.library()

    monkeypatch.setattr("rlx.backends.cuda.device.open_library", opening)
    found: list[CudaDevice] = []
    devices = Devices(CudaDevice)
    threads = [threading.Thread(target=lambda: found.append(devices[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert found[0].context.number == 1


def test_nobody_waits_for_the_device_while_work_is_recorded() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    held = [device.allocate(100 << 20) for _ in range(3)]

    def enqueue() -> None:
        for memory in held:
            device.free(memory)

    queue.record(enqueue)
    assert "cuCtxSynchronize" not in fake.calls
    assert fake.used >= 300 << 20
    device.allocate(10)
    assert fake.calls.count("cuCtxSynchronize") == 1
    assert fake.used < 1 << 20


def test_blocks_waste_at_most_an_eighth() -> None:
    for size in (0, 1, 511, 513, 5000, 123_456, 98_765_432):
        assert size <= rounded(size) <= max(512, size * 9 / 8 + 512)
        assert rounded(size) % 512 == 0
        assert rounded(rounded(size)) == rounded(size)


def test_memory_that_is_kept_is_given_back_before_there_is_none() -> None:
    fake = FakeCuda()
    device, _ = opened(fake)
    held = [device.allocate(100 << 20) for _ in range(9)]
    for memory in held[1:]:
        device.free(memory)
    device.allocate(800 << 20)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(300 << 20)
    assert "314,572,800 bytes of GPU memory were asked for, and " in str(caught.value)
    assert "of 1,073,741,824 are free; rlx holds" in str(caught.value)
    with pytest.raises(Error, match="was it freed"):
        device.free(Memory(12345, 8))


# -- graphs ---------------------------------------------------------------------------------------


def doubled(launched: Launched) -> None:
    source, target = (struct.unpack("Q", launched.parameter(i, 8))[0] for i in (0, 1))
    (count,) = struct.unpack("i", launched.parameter(2, 4))
    given = (ctypes.c_int * count).from_address(source)
    (ctypes.c_int * count).from_address(target)[:] = [2 * v for v in given]


def test_a_graph_is_recorded_and_replayed() -> None:
    fake = FakeCuda(kernels={"k": doubled})
    device, queue = opened(fake)
    kernel = device.load(code(is_dependent=True))
    x = np.arange(5, dtype=np.int32)
    a, b = device.allocate(x.nbytes), device.allocate(x.nbytes)
    queue.write(a.address, x)

    def enqueue() -> None:
        queue.launch(kernel, [a.address, b.address], {"n": 5})
        queue.launch(kernel, [b.address, a.address], {"n": 5})

    graph = queue.record(enqueue)
    got = np.empty_like(x)
    for factor in (1, 4, 16):
        queue.read(a.address, got)
        queue.wait()
        np.testing.assert_array_equal(got, x * factor)
        graph.replay()
    assert [bool(launched.attributes) for launched in fake.launched] == [False, True]
    graph.close()
    graph.close()
    assert not fake.graphs


def test_parts_with_time_stamps_wait_for_each_other() -> None:
    fake = FakeCuda(kernels={"k": doubled})
    device, queue = opened(fake)
    kernel, memory = device.load(code(is_dependent=True)), device.allocate(40)
    x = np.arange(5, dtype=np.int32)
    queue.write(memory.address, x)
    work = partial(queue.launch, kernel, [memory.address, memory.address], {"n": 5})
    graph = queue.record_stamped([work, work])
    graph.replay()
    assert graph.stamps_ns() == [0.0, 0.0, 0.0]  # all as long as the stamp that is subtracted
    assert not any(launched.attributes for launched in fake.launched)
    got = np.empty_like(x)
    queue.read(memory.address, got)
    queue.wait()
    np.testing.assert_array_equal(got, 4 * x)
    graph.close()
    assert not fake.graphs


def test_a_graph_is_given_other_addresses() -> None:
    """Kernels, copies and fills, at addresses inside of what moves; the others stay."""
    fake = FakeCuda(kernels={"k": doubled})
    device, queue = opened(fake)
    kernel = device.load(code())
    x = np.arange(6, dtype=np.int32)
    a, b, c, other_a, other_c = (device.allocate(x.nbytes) for _ in range(5))
    queue.write(a.address, x)
    queue.write(other_a.address, x + 100)

    def enqueue() -> None:
        queue.launch(kernel, [a.address + 4, b.address], {"n": 5})
        queue.fill(c.address, 24, 0)
        queue.copy(c.address + 8, b.address, 16)

    graph = queue.record(enqueue)
    graph.replay()
    assert graph.rebind([(a.address, 24, other_a.address), (c.address, 24, other_c.address)])
    calls = len(fake.calls)
    assert graph.rebind([(12345, 10, 54321)])  # nobody has it
    assert len(fake.calls) == calls
    graph.replay()
    got = [np.empty_like(x) for _ in range(3)]
    for memory, array in zip((c, other_c, a), got):
        queue.read(memory.address, array)
    queue.wait()
    np.testing.assert_array_equal(got[0], [0, 0, *(2 * x[1:5])])
    np.testing.assert_array_equal(got[1], [0, 0, *(2 * (x[1:5] + 100))])
    np.testing.assert_array_equal(got[2], x)
    assert ctypes.sizeof(CopyParams) == 200
    assert ctypes.sizeof(KernelParams) == 72


def test_a_queue_on_another_librarys_stream() -> None:
    """Its work is there; recording is not, and neither is anything when it is closed."""
    fake = FakeCuda(kernels={"k": doubled})
    device, _ = opened(fake)
    kernel = device.load(code())
    x = np.arange(5, dtype=np.int32)
    a, b = device.allocate(x.nbytes), device.allocate(x.nbytes)
    queue = device.queue(stream=4711)
    queue.write(a.address, x)
    graph = queue.record(lambda: queue.launch(kernel, [a.address, b.address], {"n": 5}))
    assert fake.streams == {"capture": fake.streams["capture"], "launch": fake.streams["capture"]}
    assert fake.streams["capture"] != 4711
    fake.noted.clear()
    fake.are_events_done = False
    graph.replay()
    assert fake.streams["graph"] == 4711
    assert fake.noted == []  # the graph records the event
    assert not queue.is_idle
    queue.launch(kernel, [b.address, a.address], {"n": 5})
    assert fake.streams["launch"] == 4711
    device.free(b)
    assert not queue.is_idle
    assert device.allocate(x.nbytes).address != b.address
    fake.are_events_done = True
    assert device.allocate(x.nbytes).address == b.address
    got = np.empty_like(x)
    queue.read(a.address, got)
    fake.noted.clear()
    queue.wait()
    np.testing.assert_array_equal(got, x * 4)
    queue.close()
    assert fake.noted == []  # the stream may have ended by now
    assert "cuStreamSynchronize" not in fake.calls


@pytest.mark.parametrize("stream", [0, 1])
def test_a_queue_on_the_default_stream(stream: int) -> None:
    """Events are recorded when somebody asks; it is waited for by those, since the stream is that
    of whatever device is current. Both names are the same stream."""
    fake = FakeCuda()
    device = CudaDevice(library=fake.library())
    queue, memory = device.queue(stream), device.allocate(8)
    graph = queue.record(lambda: queue.fill(memory.address, 8, 7))
    given = stream or None  # as ctypes gives 0 to a callback
    fake.are_events_done = False
    fake.noted.clear()
    for _ in range(3):
        graph.replay()
    queue.release_to(1 - stream)
    assert fake.streams["graph"] == given
    assert fake.noted == []
    device.free(memory)
    assert device.allocate(8) != memory
    assert fake.noted == [("cuEventRecord", given)]
    graph.replay()
    queue.wait()
    assert fake.noted == [("cuEventRecord", given)] * 2
    assert queue.is_idle
    assert device.allocate(8) == memory
    queue.close()
    assert not {"cuStreamSynchronize", "cuStreamDestroy_v2"} & set(fake.calls)


def test_what_is_enqueued_while_an_event_is_queried_is_not_taken_for_done() -> None:
    """Another thread replays between a query and what is made of its answer."""
    fake = FakeCuda()
    device, _ = opened(fake)
    queue, memory = device.queue(stream=4711), device.allocate(8)
    graph = queue.record(lambda: queue.fill(memory.address, 8, 0))
    graph.replay()
    query = fake.EventQuery

    def late(event: int) -> int:
        code = query(event)
        if fake.are_events_done:
            fake.are_events_done = False
            graph.replay()
        return code

    fake.EventQuery = late
    assert queue.is_idle  # as of the first replay
    assert not queue.is_idle
    device.free(memory)
    assert device.allocate(8) != memory
    fake.events = dict.fromkeys(fake.events, True)
    assert device.allocate(8) == memory


def test_a_graph_that_marks_its_end_is_given_other_addresses() -> None:
    fake = FakeCuda()
    device, _ = opened(fake)
    queue = device.queue(stream=4711)
    first, second = device.allocate(8), device.allocate(8)
    graph = queue.record(lambda: queue.fill(first.address, 8, 7))
    assert graph.rebind([(first.address, 8, second.address)])
    graph.replay()
    got = np.zeros(8, np.uint8)
    queue.read(second.address, got)
    queue.wait()
    assert (got == 7).all()


def test_what_fails_while_it_is_recorded_ends_the_recording() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    memory = device.allocate(8)
    with pytest.raises(Error, match="write while work is recorded"):
        queue.record(lambda: queue.write(memory.address, np.zeros(1)))
    with pytest.raises(Error, match="read while work is recorded"):
        queue.record(lambda: queue.read(memory.address, np.zeros(1)))
    for wrong in (queue.wait, lambda: queue.wait_for(99), lambda: queue.record(queue.wait)):
        with pytest.raises(Error, match="while work is recorded"):
            queue.record(wrong)
    assert fake.captured is None
    assert not fake.graphs
    queue.write(memory.address, np.zeros(1))


# -- code -----------------------------------------------------------------------------------------


def test_programs_are_assembled_in_order_and_loaded_from_bytes() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    programs = [kernels.scaled(32 * i) for i in range(1, 9)]
    codes = device.assemble(programs)
    assert [c.block for c in codes] == [p.block for p in programs]
    assert all(f".maxntid {c.block}," in c.binary.decode() for c in codes)
    assert all(c.binary.startswith(b"\x7fELF") for c in codes)
    calls = len(fake.calls)
    kernel = device.load(codes[3])
    assert not any(c.startswith("cuLink") for c in fake.calls[calls:])
    queue.launch(kernel, [256, 512], {"n": 130})
    assert fake.launched[0].grid == (2, 1, 1)


def test_programs_are_assembled_while_others_are_written() -> None:
    fake = FakeCuda()
    device, _ = opened(fake)
    begun: list[bool] = []

    def written() -> Iterator[Program]:
        yield kernels.scaled(32)
        eventually(lambda: "cuLinkComplete" in fake.calls, "the first, assembled")
        begun.append("cuLinkComplete" in fake.calls)
        yield kernels.scaled(64)

    assert [c.block for c in device.assemble(written())] == [32, 64]
    assert begun == [True]


def test_what_computes_while_products_are_under_way_is_assembled_as_a_whole() -> None:
    """Relocatable code, which the linker makes, waits for each product."""
    device, _ = opened(FakeCuda())
    started = kernels.warpgroup_values(1, 64, 64, is_async=True)
    codes = device.assemble([kernels.warpgroup_gemm(64), started, kernels.scaled(32)])
    assert [c.binary[:4] for c in codes] == [b"\x7fELF", b".ver", b"\x7fELF"]


def test_shared_memory_beyond_the_default_is_asked_for() -> None:
    fake = FakeCuda()
    device, _ = opened(fake)
    device.load(code(shared_bytes=48 << 10))
    assert "cuFuncSetAttribute" not in fake.calls
    device.load(code(shared_bytes=(48 << 10) + 1))
    assert fake.calls.count("cuFuncSetAttribute") == 1
    device.load(code(cluster=8, grid=(16, 1, 1)))
    assert fake.calls.count("cuFuncSetAttribute") == 1
    device.load(code(cluster=16, grid=(16, 1, 1)))
    assert fake.calls.count("cuFuncSetAttribute") == 2
    with pytest.raises(UnsupportedError, match=r"asks for 102400 bytes .* Fake GPU has 101376"):
        device.load(code(shared_bytes=100 << 10))


def test_the_assembler_is_quoted() -> None:
    device, _ = opened(FakeCuda())
    with pytest.raises(AssemblerError, match=r"kernel bad: .* says: line 4: syntax error"):
        device.load(Code("bad", b"nonsense", (1, 1, 1), 32, 1, 0, (), ()))


def test_modules_that_nobody_uses_are_unloaded() -> None:
    fake = FakeCuda()
    device, _ = opened(fake)
    kept = device.load(code())
    for _ in range(70):
        device.load(code())
    assert fake.calls.count("cuModuleUnload") == 64
    assert isinstance(kept, Kernel)


# -- architectures --------------------------------------------------------------------------------


def test_capabilities_of_architectures() -> None:
    assert machine_of(80).tiles == {"mma"}
    assert machine_of(90).tiles == {"mma", "wgmma"}
    assert machine_of(100).tiles == {"mma"}
    assert [machine_of(c).shared_bytes >> 10 for c in GENERATIONS] == [163, 99, 99, 227, 227, 99]
    assert [machine_of(c).has_clusters for c in GENERATIONS] == [False] * 3 + [True] * 3
    assert machine_of(86, 82, 1000).processors == 82


def test_a_newer_device_is_given_portable_code() -> None:
    names = {80: "sm_80", 87: "sm_86", 90: "sm_90a", 100: "sm_100a", 103: "sm_100", 121: "sm_120"}
    assert {c: generation_of(c).architecture.name for c in names} == names
    assert architecture_of("sm_90").name == architecture_of("sm_90a").name == "sm_90a"
    with pytest.raises(UnsupportedError, match=r"no CUDA architecture 'sm_70'. Use one of: sm_80"):
        architecture_of("sm_70")


# -- errors ---------------------------------------------------------------------------------------


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(UnsupportedError, match=r"needs NVIDIA's driver, and .* cannot be loaded"):
        open_library()


@pytest.mark.parametrize(
    ("fake", "number", "why"),
    [
        (FakeCuda(devices=0), 0, "there is no CUDA device 0; none here"),
        (FakeCuda(devices=2), 3, "there is no CUDA device 3; 2 here: 0 to 1"),
        (FakeCuda(fail={"cuInit": 100}), 0, "cuInit .* failed: CUDA_ERROR_100 .*rlx doctor"),
        (FakeCuda(capability=75), 0, "compute capability 8.0 or later, and this one has 7.5"),
        (FakeCuda(absent=frozenset({"cuLaunchKernelEx"})), 0, "12.8 has no cuLaunchKernelEx"),
    ],
)
def test_devices_that_cannot_be_used(fake: FakeCuda, number: int, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        CudaDevice(number, fake.library()).queue()


def test_devices_are_listed_without_a_context() -> None:
    fake = FakeCuda(devices=2, capability=86)
    found = found_devices(fake.library())
    assert [str(f) for f in found] == [f"cuda:{i} Fake GPU, capability 8.6, 3 GiB" for i in (0, 1)]
    assert "cuDevicePrimaryCtxRetain" not in fake.calls


def test_a_context_is_made_once_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, backend = FakeCuda(fail={"cuDevicePrimaryCtxRetain": 2}), CudaBackend()
    device = CudaDevice(0, fake.library())
    monkeypatch.setattr("rlx.backends.cuda.backend._DEVICES", {0: device})
    assert backend.has_device
    assert "Fake GPU sm_90a" in backend.identity
    assert "cuDevicePrimaryCtxRetain" not in fake.calls
    missing = backend.missing()
    assert missing is not None
    assert "out of memory" in missing.reason
    fake.fail.clear()
    assert backend.missing() is None
    assert device.allocate(8)
    assert fake.calls.count("cuDevicePrimaryCtxRetain") == 2


def test_programs_out_of_files_need_no_kernels() -> None:
    """Their modules take longer to import than a program to load."""
    used = "rlx.backends.cuda.backend", "rlx.backends.gpu.runtime.serialize", "rlx.runtime.session"
    known = "rlx.backends.gpu.kernels", "rlx.program.nodes", "rlx.kernel", "rlx.pipeline"
    code = f"import sys, {', '.join(used)}; print([m for m in {known} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_backend_lists_devices_for_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setattr("rlx.backends.cuda.backend.open_library", fake.library)
    line = "cuda:0 Fake GPU, capability 9.0, 3 GiB, driver 12.8"
    assert CudaBackend().devices() == (line,)
    fake.fail["cuInit"] = 100
    assert CudaBackend().devices() == ()


def test_a_sticky_error_names_the_kernel_and_stays() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    kernel, memory = device.load(code("bad_softmax")), device.allocate(8)
    queue.launch(kernel, [memory.address] * 2, {"n": 1})
    fake.fail["cuStreamSynchronize"] = 700
    with pytest.raises(LostDeviceError) as caught:
        queue.wait()
    said = str(caught.value)
    assert "cuStreamSynchronize answered CUDA_ERROR_ILLEGAL_ADDRESS (700: an illegal" in said
    assert "Kernel bad_softmax was running." in said
    assert "restart the process" in said
    fake.fail.clear()
    for later in (lambda: device.allocate(8), lambda: device.load(code()), device.queue):
        with pytest.raises(LostDeviceError, match="bad_softmax"):
            later()
    calls = len(fake.calls)
    device.free(memory)
    device.trim()
    queue.close()
    assert fake.calls[calls:] == ["cuStreamSynchronize"]
    assert CudaDevice(library=fake.library()).allocate(8)


def test_kernels_of_a_graph_are_named() -> None:
    fake = FakeCuda()
    device, queue = opened(fake)
    kernel = device.load(code("one"))
    graph = queue.record(lambda: queue.launch(kernel, [0, 0], {"n": 1}))
    graph.replay()
    fake.fail["cuStreamSynchronize"] = 719
    with pytest.raises(LostDeviceError, match="Kernel the graph of one was running"):
        queue.wait()


def test_a_launch_that_is_refused_is_named() -> None:
    fake = FakeCuda(fail={"cuLaunchKernelEx": 701})
    device, queue = opened(fake)
    kernel = device.load(code("wide", shared_bytes=12))
    with pytest.raises(DriverError, match=r"kernel wide \(grid \(1, 1, 1\), 32 threads.* 12 bytes"):
        queue.launch(kernel, [0, 0], {"n": 1})


def test_other_threads_and_libraries_see_no_context_of_ours() -> None:
    """A thread without a current context may launch; afterwards it has none again."""
    fake = FakeCuda(
        needing_context=frozenset({"cuLaunchKernelEx", "cuGraphLaunch", "cuMemAlloc_v2"})
    )
    device, queue = opened(fake)
    kernel = device.load(code())
    device.allocate(10)
    queue.launch(kernel, [0, 0], {"n": 1})
    queue.record(lambda: queue.launch(kernel, [0, 0], {"n": 1})).replay()
    assert len(fake.launched) == 2
    assert not fake.current
