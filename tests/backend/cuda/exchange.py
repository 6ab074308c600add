"""Arrays of torch on a GPU, both ways: parts of `python -m tests.backend.cuda.runtime`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.backends.cuda.device import CudaDevice
from rlx.backends.gpu.arrays.device_array import DeviceArray, device_array
from rlx.backends.gpu.arrays.exchange import Exchange
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.program.verify import verify
from tests.backend.cuda.harness import Run, host_us, step


def exchange() -> Iterator[str]:
    """Arrays of torch, both ways, behind work on streams of torch's and ours."""
    import torch

    r = Run()
    n = 1 << 22
    kernel = r.load(step())
    for number in range(6):
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            x = torch.randint(-99, 99, (n,), device="cuda", dtype=torch.int32)
            torch.cuda._sleep(20_000_000)
            x += 1
            given = device_array(x, r.queue) if number < 4 else device_array(Plain(x), r.queue)
            made = r.device.allocate(n * 4)
            for _ in range(20):
                r.queue.launch(kernel, [given.address, made.address], {"n": n})
            out = DeviceArray(made.address, (n // 4, 4), np.dtype(np.int32), (2, 0), r.queue, made)
            got = torch.from_dlpack(out) if number % 3 else torch.as_tensor(out, device="cuda")
            assert got.data_ptr() == made.address
            want = (x * 3 + 1).reshape(-1, 4)
            assert torch.equal(got, want)
            r.device.free(made)
    yield "torch tensors by DLPack and by the CUDA array interface, ordered: right"
    for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bool):
        x = torch.randn(3, 4, device="cuda").to(kind).t()
        found = device_array(x, r.queue)
        assert (found.shape, found.strides) == ((4, 3), (1, 4))
        host = found.numpy(r.queue).astype(np.float32)
        np.testing.assert_array_equal(host, x.float().cpu().numpy())
        again = DeviceArray(
            found.address, found.shape, found.dtype, found.device, r.queue, x, found.strides
        )
        assert torch.equal(torch.from_dlpack(again).float(), x.float())
    yield "bf16, fp8, f16, bool, strided: right"
    yield from exchange_times(r)


def on_their_streams() -> Iterator[str]:
    """Graphs on torch's streams, in order with its own work, without any call that orders them."""
    import torch

    device = CudaDevice()
    n = 1 << 20
    kernel = device.load(device.assemble([verify(step())])[0])
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        queue = device.queue(stream.cuda_stream)
        with torch.cuda.stream(stream):
            x, y = (torch.zeros(n, device="cuda", dtype=torch.int32) for _ in range(2))
            pair = [x.data_ptr(), y.data_ptr()]
            graph = queue.record(lambda: queue.launch(kernel, pair, {"n": n}))  # noqa: B023
            want = torch.zeros_like(x)
            for i in range(50):
                torch.cuda._sleep(100_000)
                x += i
                graph.replay()
                queue.launch(kernel, [y.data_ptr(), x.data_ptr()], {"n": n})
                x -= y
                want = (want + i) * 6 + 3
            assert torch.equal(x, want), (x[0], want[0])
            yield f"50 calls between torch's on stream {stream.cuda_stream:#x}: right"
            yield f"replay there: {host_us(graph.replay, queue.wait):.2f} µs"
        queue.close()


def bound_calls() -> Iterator[str]:
    """Models on torch's arrays, between torch's own work on its streams."""
    import torch

    import rlx
    from rlx import ops

    graph = rlx.Graph("g")
    x = graph.input("x", Shape((64, 128), DType.F32))
    w = graph.param("w", Shape((128, 32), DType.F32))
    graph.set_outputs([ops.softmax(ops.matmul(x, w), axis=-1)])
    weight = np.random.default_rng(0).standard_normal((128, 32)).astype(np.float32) / 8
    exe = rlx.compile(graph, target="cuda", params={"w": weight})
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            given = torch.randn(64, 128, device="cuda")
            bound = exe.bind(given)
            matrix = torch.from_numpy(weight).cuda()
            for _ in range(20):
                torch.cuda._sleep(200_000)
                given.normal_()
                bound()
                (made,) = bound.device_outputs
                got = torch.from_dlpack(made) * 1.0
                want = torch.softmax((given.double() @ matrix.double()), -1)
                assert (got - want).abs().max().item() < 1e-5  # 128 products of f32
                given.zero_()
            assert bound.inputs[0].address == given.data_ptr()
            yield f"20 bound calls on stream {stream.cuda_stream:#x}: right"
            yield f"a bound call: {host_us(bound, bound.wait, 50):.2f} µs"
            yield f"its results: {host_us(lambda: bound.device_outputs, bound.wait):.2f} µs"  # noqa: B023


def calls_on_many_streams() -> Iterator[str]:
    """Threads with streams of torch's, on which calls of two models are bound, enqueued behind
    other work and dropped: memory goes from one to the other, and graphs are destroyed, only when
    their work is done. Where graphs were destroyed before, 20 to 35 turns left the GPU stuck."""
    import torch

    import rlx
    from rlx import ops

    rng, exes = np.random.default_rng(0), list[Any]()
    weights = [rng.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2)]
    for number, weight in enumerate(weights):
        graph = rlx.Graph(f"net{number}")
        x = graph.input("x", Shape((512, 256), DType.F32))
        w = graph.param("w", Shape((256, 256), DType.F32))
        made = ops.softmax(ops.matmul(ops.softmax(ops.matmul(x, w), axis=-1), w), axis=-1)
        graph.set_outputs([made])
        exes.append(rlx.compile(graph, target="cuda", params={"w": weight}))
    given = [torch.randn(512, 256, device="cuda") for _ in range(6)]
    want = [[torch.from_dlpack(e(x)).clone() for x in given] for e in exes]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def call(number: int) -> None:
        stream = torch.cuda.default_stream() if number == 0 else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(40):
                exe, i = (number + turn) % 2, (number + turn) % 6
                x = torch.zeros_like(given[i])
                bound = exes[exe].bind(x)
                for _ in range(3):
                    torch.cuda._sleep(100_000)
                    x.copy_(given[i])
                    bound()
                got = torch.from_dlpack(bound.device_outputs[0]).clone()
                del bound
                if not torch.equal(got, want[exe][i]):
                    wrong.append(f"model {exe} on input {i} by thread {number}")

    threads = [threading.Thread(target=call, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"{len(wrong)} wrong, such as {wrong[:3]}"
    yield "5 threads, each with a stream of torch's, 600 calls of 200 bound ones: right"


def exchange_times(r: Run) -> Iterator[str]:
    import torch

    x = torch.zeros(4, 128, 384, device="cuda")
    table = Exchange.of(torch.Tensor)
    assert table is not None
    assert table.described(x).address == x.data_ptr()
    assert table.stream((2, 0)) == torch.cuda.current_stream().cuda_stream
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert table.stream((2, 0)) == side.cuda_stream
    memory = r.device.allocate(x.nbytes)
    ours = DeviceArray(memory.address, (4, 128, 384), np.dtype("f4"), (2, 0), r.queue, memory)
    for name, f in {
        "describe by the table": lambda: table.described(x),
        "torch's stream": lambda: table.stream((2, 0)),
        "device_array of torch's": lambda: device_array(x, r.queue),
        "DeviceArray made": lambda: DeviceArray(0, (4, 128, 384), ours.dtype, (2, 0), r.queue),
        "torch.from_dlpack of ours": lambda: torch.from_dlpack(ours),
        "wait_for a stream": lambda: r.queue.wait_for(side.cuda_stream),
    }.items():
        yield f"{name}: {host_us(f, r.queue.wait):.2f} µs"


class Plain:
    """A tensor with the CUDA array interface alone."""

    def __init__(self, tensor: Any) -> None:
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__ | {"stream": stream or 1}


def shared_queues() -> Iterator[str]:
    """Threads that call one model on arrays of the device: what a call has given is read, and given
    to torch, by threads of others, while the next calls are recorded on the same queue."""
    import torch

    import rlx

    g = rlx.Graph("net")
    x = g.input("x", Shape([rlx.Dim("n", 1, 256), 64]))
    g.set_outputs([g.softmax(g.matmul(x, g.param("w", Shape([64, 64]))), axis=1)])
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 64)).astype(np.float32)
    exe = rlx.compile(g, "cuda", params={"w": w})
    given = [rng.normal(size=(1 + 31 * i, 64)).astype(np.float32) for i in range(8)]
    want = [exe(a) for a in given]
    wrong: list[str] = []

    def judge(got: Any, i: int, how: str) -> None:
        if not np.array_equal(got, want[i]):
            wrong.append(f"{how} of {i}")

    def call(number: int) -> None:
        tensors = [torch.from_numpy(a).cuda() for a in given]
        for turn in range(150):
            i = (number + turn) % 8
            made, begun = exe(tensors[i]), exe.submit(given[i])
            if turn % 3:
                judge(made.numpy(), i, "a copy")
            else:
                judge(torch.from_dlpack(made).cpu().numpy(), i, "a tensor")
            judge(begun.result(), i, "a call that was begun")

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"{len(wrong)} wrong, such as {wrong[:3]}"
    yield "6 threads on one model, 1,800 results read by copies and by torch: right"
