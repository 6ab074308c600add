"""A device of Metal: its machine, code, memory and queues."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from rlx.backends.gpu.device import Code, Device, Kernel, Memory, Queue
from rlx.backends.metal.errors import CompileError, compile_error, text_of
from rlx.backends.metal.launch import Pipeline
from rlx.backends.metal.library import Metal, open_metal
from rlx.backends.metal.machine import Family, machine_of
from rlx.backends.metal.memory import Regions
from rlx.backends.metal.msl.printer import kernel_name, msl
from rlx.backends.metal.queue import MetalQueue
from rlx.backends.metal.transfers import Transfers
from rlx.core.errors import UnsupportedError
from rlx.program.program import Program


def print_code(program: Program, family: Family) -> Code:
    """The source is the code: Metal compiles it where it is loaded."""
    return Code.of(program, msl(program, family).encode(), 0)


class MetalDevice(Device):
    """One device, by number."""

    def __init__(self, number: int = 0, metal: Metal | None = None) -> None:
        self.metal, self.number = metal or open_metal(), number
        with self.metal.pool():
            self.handle = self.metal.device(number)
            self.family = self.metal.family_of(self.handle)
            most = int(self.handle.maxThreadgroupMemoryLength())
            self.machine = machine_of(self.family, self.name, most, self.metal.has_bfloat)
            self.commands = self.handle.newCommandQueue()
            self.regions = Regions(self.metal, self.handle)
        self.driver = f"macOS {self.metal.system} {self.metal.language}"
        self.transfers = Transfers(self)
        self._searched: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._queues: weakref.WeakValueDictionary[int, MetalQueue] = weakref.WeakValueDictionary()
        self._pipelines: weakref.WeakValueDictionary[bytes, Pipeline] = (
            weakref.WeakValueDictionary()
        )

    @property
    def searched(self) -> dict[str, Any]:
        return self._searched

    @property
    def name(self) -> str:
        return str(self.handle.name())

    @property
    def architecture(self) -> str:
        return self.family.name

    # -- code ------------------------------------------------------------------------------------

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        return [print_code(p, self.family) for p in programs]

    def load(self, code: Code) -> Kernel:
        with self._lock:
            found = self._pipelines.get(code.binary)
        if found is None:
            found = self._compiled(code)
            with self._lock:
                self._pipelines[code.binary] = found
        return Kernel(code, found)

    def _compiled(self, code: Code) -> Pipeline:
        source, name = code.binary.decode(), kernel_name(code.name)
        with self.metal.pool():
            options = self.metal.compile_options()
            library, error = self.handle.newLibraryWithSource_options_error_(source, options, None)
            if library is None:
                raise compile_error(code.name, source, error)
            function = library.newFunctionWithName_(name)
            if function is None:
                raise CompileError(f"kernel {code.name} is not in its own source; report it.")
            state, error = self.handle.newComputePipelineStateWithFunction_error_(function, None)
            if state is None:
                raise CompileError(
                    f"kernel {code.name} has no code for {self.name}: {text_of(error)}. This is a "
                    "defect of rlx: please report it."
                )
            self._check(code, state)
        return Pipeline(state, code.name)

    def _check(self, code: Code, state: Any) -> None:
        """Metal may give a kernel fewer threads than a threadgroup has, where it needs many
        registers; and simdgroups of another size than the family's."""
        most, width = int(state.maxTotalThreadsPerThreadgroup()), int(state.threadExecutionWidth())
        if code.block > most:
            raise UnsupportedError(
                f"kernel {code.name} has {code.block} threads, and {self.name} runs it with {most} "
                "at most. Please report it; target='cpu' runs it."
            )
        if self.family.simd not in (1, width):
            raise UnsupportedError(
                f"kernel {code.name} is printed for simdgroups of {self.family.simd} threads, and "
                f"{self.name} gives it {width}. Please report it; target='cpu' runs it."
            )

    # -- memory and queues -----------------------------------------------------------------------

    def allocate(self, size: int) -> Memory:
        with self.metal.pool():
            return self.regions.allocate(size)

    def free(self, memory: Memory) -> None:
        self.regions.free(memory)

    def queue(self, stream: int | None = None) -> Queue:
        """A new one: Metal has no streams that other libraries name."""
        number = next(self._numbers)
        made = MetalQueue(self, number)
        with self._lock:
            self._queues[number] = made
        return made

    def queue_of(self, stream: int) -> MetalQueue | None:
        with self._lock:
            return self._queues.get(stream)
