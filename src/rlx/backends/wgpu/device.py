"""A wgpu device: its machine, code, memory and queues, by the package's public interface alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlx.backends.gpu.device import Code, Device, Kernel, Memory
from rlx.backends.wgpu.adapters import Adapter, adapter
from rlx.backends.wgpu.errors import error_of
from rlx.backends.wgpu.graph import Queries
from rlx.backends.wgpu.launch import Limits, Shader
from rlx.backends.wgpu.machine import architecture_of
from rlx.backends.wgpu.memory import Buffers
from rlx.backends.wgpu.params import Params
from rlx.backends.wgpu.pipelines import Pipelines
from rlx.backends.wgpu.queue import WgpuQueue
from rlx.backends.wgpu.stream import Stream
from rlx.backends.wgpu.wgsl.module import Module

if TYPE_CHECKING:
    from rlx.program.program import Program

FEATURES = ("shader-f16", "timestamp-query")
"""That are asked for where an adapter has them."""
TICK_S = 0.02
"""How long the device's clock is compared with the host's."""


class WgpuDevice(Device):
    """One adapter's device."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.adapter = found = adapter(number)
        self.target = architecture_of(found.features, found.limits, found.is_software)
        self.machine = self.target.machine
        self.driver = f"{found.api} {found.driver} wgpu {_version()}"
        self._searched: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.stream = Stream(_opened(found))
        self.limits = Limits.of(found.limits)
        self.buffers = Buffers(self.stream, found.limits, found.name, found.is_software)
        self.params = Params(self.stream)
        self.pipelines = Pipelines(self.stream, self.buffers, self.params)

    @property
    def is_lost(self) -> bool:
        return bool(self.stream.lost)

    @property
    def searched(self) -> dict[str, Any]:
        return self._searched

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def architecture(self) -> str:
        return self.target.name

    # -- code ------------------------------------------------------------------------------------

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        from rlx.backends.wgpu.assemble import assemble

        return assemble(programs, self.target)

    def load(self, code: Code) -> Kernel:
        return Kernel(code, Shader(Module.of_bytes(code.binary)))

    def ready(self, kernels: Sequence[Kernel]) -> None:
        """Those with a binding for each buffer; which buffers of others share bindings depends on
        their addresses."""
        shaders: list[Shader] = [k.handle for k in kernels]
        most = self.limits.max_count
        self.pipelines.build([s for s in shaders if len(s.module.buffers) <= most])

    # -- memory ----------------------------------------------------------------------------------

    def allocate(self, size: int) -> Memory:
        return self.buffers.allocate(size)

    def free(self, memory: Memory) -> None:
        self.buffers.free(memory)

    # -- queues ----------------------------------------------------------------------------------

    def queue(self, stream: int | None = None) -> WgpuQueue:
        return WgpuQueue(self)

    @property
    def has_stamps(self) -> bool:
        """Does the device note times by its own clock?"""
        return "timestamp-query" in self.adapter.features

    @cached_property
    def ns_per_tick(self) -> float:
        """Of the device's clock, which wgpu does not tell: compared with the host's."""
        queue = WgpuQueue(self)
        queries = Queries(queue, 2)
        times = list[int]()
        for i in range(2):
            time.sleep(i * TICK_S)
            queue.wait()
            times.append(time.perf_counter_ns())
            self.stream.stamped((), queries.of_pass(i))
            self.stream.submit()
        ticks = queries.between()
        return (times[1] - times[0]) / ticks if ticks > 0 else 1.0


def _version() -> str:
    import wgpu

    return str(wgpu.__version__)


def _opened(found: Adapter) -> Any:
    """The device of an adapter, with all that it has."""
    wanted = [f for f in FEATURES if f in found.features]
    try:
        return found.handle.request_device_sync(
            label="rlx", required_features=wanted, required_limits=dict(found.limits)
        )
    except Exception as error:
        raise error_of(f"opening {found}", error) from None
