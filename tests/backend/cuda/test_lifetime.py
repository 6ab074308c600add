"""What is dropped while the device uses it, on a library of host memory: when it is destroyed."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest

from rlx.backends.cuda.device import RETIRED, CudaDevice
from rlx.backends.cuda.progress import MAX_RETIRED
from rlx.backends.gpu.runtime.memory import Block
from tests.backend.cuda.fake import FakeCuda
from tests.backend.cuda.test_device import code

DESTROYED = {
    "cuGraphExecDestroy", "cuGraphDestroy", "cuEventDestroy_v2", "cuStreamDestroy_v2",
    "cuModuleUnload", "cuMemFree_v2", "cuMemFreeHost",
}  # fmt: skip
WAITED = {"cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}
STREAMS = [None, 0, 4711]
"""Of ours, everybody's, another library's."""


def pending(fake: FakeCuda, stream: int | None) -> tuple[CudaDevice, Any, Any]:
    """A device, a queue, and a graph of it that runs."""
    device = CudaDevice(library=fake.library())
    queue, memory = device.queue(stream), device.allocate(8)
    graph = queue.record(lambda: queue.fill(memory.address, 8, 7))
    fake.are_events_done = False
    graph.replay()
    return device, queue, graph


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_graph_is_destroyed_when_its_work_is_done(stream: int | None, is_closed: bool) -> None:
    fake = FakeCuda()
    device, queue, graph = pending(fake, stream)
    if is_closed:
        graph.close()
    del graph
    device.allocate(8)
    assert len(fake.graphs) == 2  # captured, and instantiated
    fake.are_events_done = True
    device.allocate(8)
    assert not fake.graphs
    assert not WAITED & set(fake.calls)
    queue.close()


@pytest.mark.parametrize("stream", STREAMS)
def test_the_garbage_collector_destroys_nothing(stream: int | None) -> None:
    """It finds memory, a queue and a graph that refer to each other, anywhere: here while a query
    of another queue holds its lock. All of that is given back behind the work, none before."""
    fake = FakeCuda()
    device, queue, graph = pending(fake, stream)
    other = device.queue(4712)
    other.fill(0, 0, 0)
    block = Block(device, 4096)
    queue.fill(block.address, 4096, 1)
    address, found = block.address, list[Any]([queue, graph, block])
    found.append(found)
    del queue, graph, block, found
    query, done = fake.EventQuery, list[int]()

    def interrupted(event: int) -> int:
        calls = len(fake.calls)
        gc.collect()
        done.append(len(DESTROYED & set(fake.calls[calls:])) + len(WAITED & set(fake.calls)))
        return query(event)

    fake.EventQuery = interrupted
    memory = device.allocate(8)
    other.fill(memory.address, 8, 0)
    assert not other.is_idle
    assert set(done) == {0}
    assert len(fake.graphs) == 2
    assert device.allocate(4096).address != address
    fake.are_events_done = True
    device.allocate(8)
    assert not fake.graphs
    assert device.allocate(4096).address == address
    assert ("cuStreamDestroy_v2" in fake.calls) == (stream is None)
    assert not WAITED & set(fake.calls)


def test_where_too_many_graphs_wait_the_oldest_is_waited_for() -> None:
    fake = FakeCuda()
    device, queue, graph = pending(fake, 4711)
    others = [device.queue(5000 + i) for i in range(MAX_RETIRED + 8)]
    memory = device.allocate(8)
    del graph
    for other in others:
        other.record(lambda: other.fill(memory.address, 8, 7)).replay()  # noqa: B023
    assert len(fake.graphs) // 2 == MAX_RETIRED + 1
    assert fake.calls.count("cuEventSynchronize") == 8
    assert queue.is_idle


def test_a_graph_holds_its_kernels_until_it_is_destroyed() -> None:
    fake = FakeCuda()
    device, _, graph = pending(fake, None)
    queue, kernel = device.queue(), device.load(code("held"))
    graph = queue.record(partial(queue.launch, kernel, [0, 0], {"n": 1}))
    graph.replay()
    unloaded, late, during = list[int](), [device.load(code("late"))], list[Any]()
    fake.ModuleUnload = unloaded.append  # type: ignore[attr-defined]
    fake.CtxSynchronize = lambda: [drop() for drop in during] and None  # type: ignore[attr-defined]
    module, last = kernel.handle.module, late[0].handle.module
    del queue, graph, kernel
    for _ in range(RETIRED + 1):
        device.load(code())
    assert len(unloaded) == RETIRED
    assert module not in unloaded
    during.append(late.clear)
    fake.are_events_done = True
    for _ in range(RETIRED + 1):
        device.load(code())
    assert module in unloaded
    assert not late
    assert last not in unloaded  # it may have been launched behind the wait


def test_a_queue_may_be_closed_twice() -> None:
    fake = FakeCuda()
    device, queue, graph = pending(fake, None)
    graph.close()
    queue.close()
    queue.close()
    assert not fake.graphs
    assert fake.calls.count("cuStreamDestroy_v2") == fake.calls.count("cuStreamSynchronize") == 1
    assert device.queue().is_idle
