"""A driver library of host memory, for tests without a GPU.

Its functions are C callbacks of the declared types, so that arguments go through ctypes as they do
to the real one. Device memory is host memory. Streams do their work at once, unless they are
captured; launches are noted, and given to a function of the kernel's name.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlx.backends.cuda.graph import CopyParams, FillParams, KernelParams
from rlx.backends.cuda.launch import Attribute, Config
from rlx.backends.cuda.library import SIGNATURES, TYPES, Library

TOTAL = 1 << 30
NAMES = {
    2: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    700: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered"),
}
Work = Callable[[], None]


@dataclass(frozen=True)
class Launched:
    """What a launch was given."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    attributes: dict[int, tuple[int, ...]]
    parameters: int
    """The address of the pointers to the parameters."""

    def parameter(self, number: int, size: int) -> bytes:
        pointers = (ctypes.c_void_p * (number + 1)).from_address(self.parameters)
        return ctypes.string_at(pointers[number], size)


def put(address: int, value: int, kind: Any = ctypes.c_uint64) -> None:
    kind.from_address(address).value = value


@dataclass
class FakeCuda:
    """One device of a compute capability."""

    capability: int = 90
    devices: int = 1
    fail: dict[str, int] = field(default_factory=dict[str, int])
    """The error codes of functions that are to fail."""
    absent: frozenset[str] = frozenset()
    """Functions that an older driver lacks."""
    needing_context: frozenset[str] = frozenset()
    """Functions that fail where no context is current."""
    calls: list[str] = field(default_factory=list[str])
    noted: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Copies and events, with their streams."""
    launched: list[Launched] = field(default_factory=list[Launched])
    kernels: dict[str, Callable[[Launched], None]] = field(
        default_factory=dict[str, Callable[[Launched], None]]
    )
    memory: dict[int, Any] = field(default_factory=dict[int, Any])
    current: list[int] = field(default_factory=list[int])
    events: dict[int, bool] = field(default_factory=dict[int, bool])
    """Is the event done?"""
    are_events_done: bool = True
    captured: dict[int, Work] | None = None
    graphs: dict[int, dict[int, Work]] = field(default_factory=dict[int, dict[int, Work]])
    """Nodes by number."""
    modules: dict[int, bytes] = field(default_factory=dict[int, bytes])
    names: dict[int, str] = field(default_factory=dict[int, str])
    streams: dict[str, int] = field(default_factory=dict[str, int])
    """The last that was captured, launched to, and given a graph."""
    used: int = 0
    last: int = 1000

    def library(self) -> Library:
        return Library(_Handle(self))

    def handle(self) -> int:
        self.last += 1
        return self.last

    def do(self, work: Work, stream: int) -> None:
        """Now, or when the graph that is captured from the stream is launched."""
        if self.captured is None or stream != self.streams["capture"]:
            work()
        else:
            self.captured[self.handle()] = work

    # -- the functions, without "cu" -------------------------------------------------------------

    def GetErrorName(self, code: int, to: int) -> None:
        self._text(to, NAMES.get(code, (b"CUDA_ERROR_%d" % code, b""))[0])

    def GetErrorString(self, code: int, to: int) -> None:
        self._text(to, NAMES.get(code, (b"", b"what code %d means" % code))[1])

    def _text(self, to: int, text: bytes) -> None:
        held = ctypes.create_string_buffer(text)
        self.memory[ctypes.addressof(held)] = held
        put(to, ctypes.addressof(held))

    def DriverGetVersion(self, to: int) -> None:
        put(to, 12080, ctypes.c_int)

    def DeviceGetCount(self, to: int) -> None:
        put(to, self.devices, ctypes.c_int)

    def DeviceGet(self, to: int, number: int) -> None:
        put(to, number, ctypes.c_int)

    def DeviceGetName(self, to: int, size: int, device: int) -> None:
        ctypes.memmove(to, b"Fake GPU\0", 9)

    def DeviceGetAttribute(self, to: int, number: int, device: int) -> None:
        known = {
            75: self.capability // 10,
            76: self.capability % 10,
            16: 7,
            38: 1 << 20,
            97: 99 << 10,
        }
        put(to, known[number], ctypes.c_int)

    def DeviceTotalMem_v2(self, to: int, device: int) -> None:
        put(to, 3 * TOTAL)

    def DevicePrimaryCtxRetain(self, to: int, device: int) -> None:
        put(to, 500 + device)

    def CtxGetCurrent(self, to: int) -> None:
        put(to, self.current[-1] if self.current else 0)

    def CtxPushCurrent_v2(self, handle: int) -> None:
        self.current.append(handle)

    def CtxPopCurrent_v2(self, to: int) -> None:
        put(to, self.current.pop())

    def MemGetInfo_v2(self, free: int, total: int) -> None:
        put(free, TOTAL - self.used)
        put(total, TOTAL)

    def MemAlloc_v2(self, to: int, size: int) -> int:
        if self.used + size > TOTAL:
            return 2
        held = ctypes.create_string_buffer(min(size, 1 << 25) + 256)
        address = -(-ctypes.addressof(held) // 256) * 256
        self.memory[address] = held, size
        self.used += size
        put(to, address)
        return 0

    def MemFree_v2(self, address: int) -> None:
        self.used -= self.memory.pop(address)[1]

    def MemHostAlloc(self, to: int, size: int, flags: int) -> None:
        held = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(held)] = held
        put(to, ctypes.addressof(held))

    def MemFreeHost(self, address: int) -> None:
        del self.memory[address]

    def _move(self, to: int, address: int, size: int, stream: int) -> None:
        self.do(lambda: ctypes.memmove(to, address, size) and None, stream)

    MemcpyHtoDAsync_v2 = MemcpyDtoHAsync_v2 = MemcpyDtoDAsync_v2 = _move

    def MemsetD8Async(self, address: int, byte: int, size: int, stream: int) -> None:
        self.do(lambda: ctypes.memset(address, byte, size) and None, stream)

    def TensorMapEncodeTiled(
        self, to: int, dtype: int, rank: int, address: int, dims: int, strides: int, box: int,
        steps: int, interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> None:  # fmt: skip
        """The arguments themselves, as 16 numbers of 64 bits."""
        assert to % 64 == 0
        sizes = (ctypes.c_uint64 * 2).from_address(dims)
        boxes = (ctypes.c_uint32 * 2).from_address(box)
        pitch = ctypes.c_uint64.from_address(strides).value
        values = (dtype, rank, address, *sizes, pitch, *boxes, swizzle, promotion, fill)
        ctypes.memmove(to, (ctypes.c_uint64 * 16)(*values), 128)

    def TensorMapEncodeIm2col(
        self, to: int, dtype: int, rank: int, address: int, dims: int, strides: int, first: int,
        last: int, channels: int, pixels: int, steps: int, interleave: int, swizzle: int,
        promotion: int, fill: int,
    ) -> None:  # fmt: skip
        """The same of windows along two axes."""
        assert (to % 64, rank) == (0, 4)
        sizes = (ctypes.c_uint64 * 4).from_address(dims)
        corners = [*(ctypes.c_int * 2).from_address(first), *(ctypes.c_int * 2).from_address(last)]
        along = (ctypes.c_uint32 * 4).from_address(steps)
        values = (dtype, rank, address, *sizes, *corners, channels, pixels, *along[1:3], swizzle)
        ctypes.memmove(to, (ctypes.c_int64 * 16)(*values), 128)

    def StreamCreate(self, to: int, flags: int) -> None:
        put(to, self.handle())

    def EventCreate(self, to: int, flags: int) -> None:
        put(to, self.handle())

    def EventRecord(self, event: int, stream: int) -> None:
        assert self.captured is None or stream != self.streams["capture"]
        self.events[event] = self.are_events_done

    def EventRecordWithFlags(self, event: int, stream: int, flags: int) -> None:
        self.do(lambda: self.events.update({event: self.are_events_done}), stream)

    def EventQuery(self, event: int) -> int:
        return 0 if self.events[event] or self.are_events_done else 600

    def EventElapsedTime(self, to: int, start: int, stop: int) -> None:
        put(to, 2, ctypes.c_float)

    def LinkCreate_v2(self, count: int, keys: int, values: int, to: int) -> None:
        put(to, self.handle())

    def LinkAddData_v2(
        self, state: int, kind: int, data: int, size: int, name: bytes, count: int, keys: int,
        values: int,
    ) -> None:  # fmt: skip
        self.modules[state] = ctypes.string_at(data, size - 1)

    def LinkComplete(self, state: int, to: int, size: int) -> None:
        held = ctypes.create_string_buffer(b"\x7fELF" + self.modules[state])
        self.memory[ctypes.addressof(held)] = held
        put(to, ctypes.addressof(held))
        put(size, len(held))

    def ModuleLoadDataEx(self, to: int, data: int, count: int, keys: int, values: int) -> int:
        text = ctypes.string_at(data)
        if b"nonsense" in text:
            log = (ctypes.c_void_p * 1).from_address(values)[0]
            assert log is not None
            ctypes.memmove(log, b"line 4: syntax error\0", 21)
            return 218
        number = self.handle()
        self.modules[number] = text
        put(to, number)
        return 0

    def ModuleGetFunction(self, to: int, module: int, name: bytes) -> None:
        assert re.search(rb"\.entry " + name + rb"\(", self.modules[module])
        number = self.handle()
        self.names[number] = name.decode()
        put(to, number)

    def LaunchKernelEx(self, config: int, function: int, parameters: int, extra: int) -> None:
        given = Config.from_address(config)
        found = (Attribute * given.num_attributes).from_address(given.attributes or config)
        noted = Launched(
            self.names[function], tuple(given.grid), tuple(given.block), given.shared_bytes,
            {a.id: tuple(a.value[:3]) for a in found}, parameters,
        )  # fmt: skip
        self.launched.append(noted)
        self.streams["launch"] = given.stream
        self.do(lambda: self.run(noted), given.stream)

    def run(self, launched: Launched) -> None:
        work = self.kernels.get(launched.name)
        if work is not None:
            work(launched)

    def StreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        self.captured = {}
        self.streams["capture"] = stream

    def StreamEndCapture(self, stream: int, to: int) -> None:
        assert self.captured is not None
        number = self.handle()
        self.graphs[number], self.captured = self.captured, None
        put(to, number)

    def GraphInstantiateWithFlags(self, to: int, graph: int, flags: int) -> None:
        number = self.handle()
        self.graphs[number] = dict(self.graphs[graph])
        put(to, number)

    def GraphGetNodes(self, graph: int, nodes: int, count: int) -> None:
        """In no order."""
        found = list(reversed(self.graphs[graph]))
        put(count, len(found))
        if nodes:
            (ctypes.c_uint64 * len(found)).from_address(nodes)[:] = found

    def GraphGetEdges_v2(self, graph: int, first: int, second: int, data: int, count: int) -> None:
        found = list(self.graphs[graph])
        edges = list(itertools.pairwise(found))[::-1]
        put(count, len(edges))
        for to, ends in zip((first, second), zip(*edges)) if first else ():
            (ctypes.c_uint64 * len(edges)).from_address(to)[:] = ends

    def GraphExecKernelNodeSetParams_v2(self, graph: int, node: int, params: int) -> None:
        given = KernelParams.from_address(params)
        noted = Launched(
            self.names[given.function], tuple(given.grid), tuple(given.block), given.shared_bytes,
            {}, given.pointers,
        )  # fmt: skip
        self.graphs[graph][node] = lambda: self.run(noted)

    def GraphExecMemcpyNodeSetParams(self, graph: int, node: int, params: int, ctx: int) -> None:
        given = CopyParams.from_address(params)
        to, source, size = given.target.address, given.source.address, given.size[0]
        self.graphs[graph][node] = lambda: ctypes.memmove(to, source, size) and None

    def GraphExecMemsetNodeSetParams(self, graph: int, node: int, params: int, ctx: int) -> None:
        given = FillParams.from_address(params)
        address, value, size = given.address, given.value, given.width
        self.graphs[graph][node] = lambda: ctypes.memset(address, value, size) and None

    def GraphLaunch(self, graph: int, stream: int) -> None:
        self.streams["graph"] = stream
        for work in self.graphs[graph].values():
            work()

    def GraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    GraphExecDestroy = GraphDestroy


class _Handle:
    """What ctypes.CDLL gives."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def __getattr__(self, name: str) -> Any:
        cuda = self._cuda
        if name in cuda.absent:
            raise AttributeError(name)
        method = getattr(cuda, name.removeprefix("cu"), None)

        def called(*args: Any) -> int:
            cuda.calls.append(name)
            if name.startswith(("cuMemcpy", "cuEventRecord", "cuStreamWaitEvent")):
                cuda.noted.append((name, args[0 if name == "cuStreamWaitEvent" else -1]))
            if name in cuda.fail:
                return cuda.fail[name]
            if name in cuda.needing_context and not cuda.current:
                return 201
            return (method(*args) or 0) if method is not None else 0

        made = ctypes.CFUNCTYPE(ctypes.c_int, *(TYPES[t] for t in SIGNATURES[name]))(called)
        setattr(self, name, made)
        return made
