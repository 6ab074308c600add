"""A queue of work on an AMD device: one stream, and graphs that are captured from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlx.backends.cuda.queue import CudaQueue, ForeignQueue
from rlx.backends.gpu.device import Graph
from rlx.backends.rocm.context import HipContext
from rlx.core.dlpack import ROCM


class HipQueue(CudaQueue):
    """One stream. A queue is used by one thread at a time."""

    context: HipContext

    def __init__(self, context: HipContext, *shared: Any) -> None:
        super().__init__(context, *shared)
        self.device_id = ROCM, context.number

    def record(self, enqueue: Callable[[], None]) -> Graph:
        return HipGraph(super().record(enqueue))

    def device_of(self, address: int) -> tuple[int, int]:
        return ROCM, super().device_of(address)[1]


class ForeignHipQueue(HipQueue, ForeignQueue):
    """A queue on a stream of another library. Not every release of HIP has graphs that record
    events of others: the host records the one behind a replay."""

    def replayed(self, name: str) -> None:
        CudaQueue.replayed(self, name)
        self._note()

    def _enqueue_all(self, enqueue: Callable[[], None]) -> None:
        enqueue()


@dataclass(frozen=True, eq=False)
class HipGraph(Graph):
    """An instantiated graph, with the addresses it was recorded with: nodes of HIP's graphs are
    not replaced, so one of other addresses is recorded anew."""

    captured: Graph

    def replay(self) -> None:
        self.captured.replay()

    def close(self) -> None:
        self.captured.close()
