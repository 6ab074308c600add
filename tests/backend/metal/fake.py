"""Metal on the host, for tests without a Mac: the calls of pyobjc that rlx makes, and no others.

Buffers are host memory, and a dispatch runs what was printed, compiled by clang (`host.py`), when
its command buffer is committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.gpu.device import Code
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.metal.backend import MetalBackend
from rlx.backends.metal.device import MetalDevice
from rlx.backends.metal.library import Metal
from rlx.program.program import Program
from tests.backend.metal import host

Array = np.ndarray[Any, Any]
STATUS_COMPLETED, STATUS_ERROR = 4, 5
OFFSET_ALIGN = 4
"""Of a buffer's offset, whatever a kernel reads from there."""


@dataclass
class FakeError:
    """An NSError."""

    text: str
    number: int = 1

    def localizedDescription(self) -> str:
        return self.text

    def code(self) -> int:
        return self.number


@dataclass
class FakeMetal:
    """The module Metal: its functions, classes and constants."""

    device_name: str = "Apple M9"
    families: tuple[int, ...] = (1007, 1008, 1009)
    count: int = 1
    memory: int = 1 << 34
    threads: int = 1024
    width: int = 32
    has_math_mode: bool = True
    fail_commands: FakeError | None = None
    calls: list[str] = field(default_factory=list[str])
    options: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    clock: float = 100.0

    MTLGPUFamilyApple7 = 1007
    MTLGPUFamilyApple8 = 1008
    MTLGPUFamilyApple9 = 1009
    MTLGPUFamilyMac2 = 2002
    MTLLanguageVersion3_1 = 0x30001
    MTLLanguageVersion3_0 = 0x30000
    MTLLanguageVersion2_4 = 0x20004
    MTLMathModeSafe = 0
    MTLResourceStorageModeShared = 0
    MTLDispatchTypeSerial = 0
    MTLResourceUsageRead, MTLResourceUsageWrite = 1, 2
    MTLCommandBufferStatusCompleted = STATUS_COMPLETED
    MTLCommandBufferStatusError = STATUS_ERROR

    def MTLCopyAllDevices(self) -> list[FakeDevice]:
        return [FakeDevice(self, i) for i in range(self.count)]

    def MTLSize(self, width: int, height: int, depth: int) -> tuple[int, int, int]:
        return width, height, depth

    @property
    def MTLCompileOptions(self) -> Any:
        return _OptionsClass(self)

    def library(self, system: str = "14.5") -> Metal:
        return Metal(self, nullcontext, system)


@dataclass
class _OptionsClass:
    metal: FakeMetal

    def alloc(self) -> _OptionsClass:
        return self

    def init(self) -> Any:
        kind = FakeOptions if self.metal.has_math_mode else OldOptions
        return kind({})


@dataclass
class OldOptions:
    """MTLCompileOptions before macOS 15."""

    given: dict[str, Any]

    def setFastMathEnabled_(self, value: bool) -> None:
        self.given["fast"] = value

    def setLanguageVersion_(self, value: int) -> None:
        self.given["language"] = value


class FakeOptions(OldOptions):
    def setMathMode_(self, value: int) -> None:
        self.given["mode"] = value


@dataclass
class FakeDevice:
    metal: FakeMetal
    number: int
    allocated: int = 0

    def name(self) -> str:
        return self.metal.device_name

    def isLowPower(self) -> bool:
        return False

    def supportsFamily_(self, family: int) -> bool:
        return family in self.metal.families

    def maxThreadgroupMemoryLength(self) -> int:
        return 32 << 10

    def maxBufferLength(self) -> int:
        return self.metal.memory

    def newBufferWithLength_options_(self, length: int, options: int) -> FakeBuffer | None:
        assert length > 0
        assert options == self.metal.MTLResourceStorageModeShared
        if self.allocated + length > self.metal.memory:
            return None
        self.allocated += length
        return FakeBuffer(length)

    def newCommandQueue(self) -> FakeQueue:
        return FakeQueue(self.metal)

    def newLibraryWithSource_options_error_(
        self, source: str, options: OldOptions, error: None
    ) -> tuple[FakeLibrary | None, FakeError | None]:
        self.metal.options.append(options.given)
        try:
            kernel = host.compiled(source)
        except host.ShimError as failure:
            return None, FakeError(_as_metal(source, str(failure)))
        return FakeLibrary(self.metal, source, kernel), None

    def newComputePipelineStateWithFunction_error_(
        self, function: FakeFunction, error: None
    ) -> tuple[FakePipeline, None]:
        return FakePipeline(self.metal, function), None


def _as_metal(source: str, said: str) -> str:
    """clang's message with the line of the kernel's own source, as Metal's compiler has it."""
    found = re.search(r":(\d+):(\d+): error: (.*)", said)
    if found is None:
        return said
    line = int(found[1]) - 2  # the header's and the namespace's
    return f"program_source:{line}:{found[2]}: error: {found[3]}\n"


class FakeBuffer:
    """Memory of the host, at a multiple of a page."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._room = np.full(length + 4096, 0xFF, np.uint8)
        start = -self._room.ctypes.data % 4096
        self.bytes = self._room[start : start + length]

    def length(self) -> int:
        return self._length

    def gpuAddress(self) -> int:
        return self.bytes.ctypes.data

    def contents(self) -> _Contents:
        return _Contents(self.bytes)


@dataclass
class _Contents:
    """objc.varlist: memory of no known length."""

    bytes: Array

    def as_buffer(self, length: int) -> memoryview:
        return memoryview(self.bytes)[:length]


@dataclass
class FakeLibrary:
    metal: FakeMetal
    source: str
    kernel: host.HostKernel

    def newFunctionWithName_(self, name: str) -> FakeFunction | None:
        return FakeFunction(self) if name == self.kernel.name else None


@dataclass
class FakeFunction:
    library: FakeLibrary


@dataclass(eq=False)
class FakePipeline:
    metal: FakeMetal
    function: FakeFunction

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self.metal.threads

    def threadExecutionWidth(self) -> int:
        return self.metal.width


@dataclass
class FakeQueue:
    metal: FakeMetal

    def commandBuffer(self) -> FakeCommands:
        return FakeCommands(self.metal)


@dataclass
class FakeCommands:
    """A command buffer: committed once, after its encoders ended."""

    metal: FakeMetal
    work: list[Any] = field(default_factory=list[Any])
    state: int = 0
    is_encoding: bool = False
    times: tuple[float, float] = (0.0, 0.0)

    def computeCommandEncoderWithDispatchType_(self, kind: int) -> FakeEncoder:
        assert not self.is_encoding
        assert self.state == 0
        self.is_encoding = True
        self.metal.calls.append("encoder")
        return FakeEncoder(self)

    def commit(self) -> None:
        assert not self.is_encoding, "the encoder has not ended"
        assert self.state == 0, "it was committed before"
        self.metal.calls.append("commit")
        start = self.metal.clock
        for one in self.work:
            one()
            self.metal.clock += 1e-6
        self.times = start, self.metal.clock
        self.state = STATUS_COMPLETED if self.metal.fail_commands is None else STATUS_ERROR

    def waitUntilCompleted(self) -> None:
        assert self.state, "it was not committed"
        self.metal.calls.append("wait")

    def status(self) -> int:
        return self.state

    def error(self) -> FakeError | None:
        return self.metal.fail_commands

    def GPUStartTime(self) -> float:
        return self.times[0]

    def GPUEndTime(self) -> float:
        return self.times[1]


@dataclass
class FakeEncoder:
    """A table of arguments, of which a dispatch sees what is there when it is encoded."""

    commands: FakeCommands
    table: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    pipeline: FakePipeline | None = None
    used: list[FakeBuffer] = field(default_factory=list[FakeBuffer])

    def setComputePipelineState_(self, state: FakePipeline) -> None:
        self.commands.metal.calls.append("pipeline")
        self.pipeline = state

    def setBuffer_offset_atIndex_(self, buffer: FakeBuffer, offset: int, index: int) -> None:
        assert 0 <= index < 31
        assert 0 <= offset < buffer.length()
        self.commands.metal.calls.append("buffer")
        self.table[index] = buffer.bytes, offset

    def useResource_usage_(self, buffer: FakeBuffer, usage: int) -> None:
        assert usage == 3
        self.used.append(buffer)

    def setBytes_length_atIndex_(self, given: bytes, length: int, index: int) -> None:
        assert 0 <= index < 31
        assert 0 < length <= 4096
        self.table[index] = np.frombuffer(given[:length], np.uint8).copy(), 0

    def dispatchThreadgroups_threadsPerThreadgroup_(
        self, groups: Sequence[int], threads: Sequence[int]
    ) -> None:
        assert self.pipeline is not None
        assert min(groups) > 0
        block, y, z = threads
        assert (y, z) == (1, 1)
        assert block <= self.commands.metal.threads
        kernel, table = self.pipeline.function.library.kernel, dict(self.table)
        held = [table.get(i, (None, 0)) for i in range(max(table, default=-1) + 1)]

        def run() -> None:
            addresses = [0 if a is None else a.ctypes.data + offset for a, offset in held]
            kernel.run(addresses, groups, block)

        self.commands.metal.calls.append("dispatch")
        self.commands.work.append(run)

    def endEncoding(self) -> None:
        self.commands.is_encoding = False


class EmulatedBackend(MetalBackend):
    """The backend on a device of the host; kernels of a program are compiled together."""

    def __init__(self, metal: FakeMetal | None = None, machine: GpuMachine | None = None) -> None:
        super().__init__(tune="off")  # what a launch takes here says nothing
        device = MetalDevice(0, (metal or FakeMetal()).library())
        if machine is not None:
            device.machine = machine
        object.__setattr__(self, "_made", device)

    def missing(self) -> None:
        return None

    def device(self) -> MetalDevice:
        return object.__getattribute__(self, "_made")

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        made = self.device().assemble(programs)
        host.compile_all(c.binary.decode() for c in made)
        return made
