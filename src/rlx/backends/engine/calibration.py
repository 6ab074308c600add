"""What calls of an engine cost: one more step, a round trip, bytes, arithmetic.

Everything is timed on graphs that are compiled as any other, on arrays of the engine; the least
time counts, since what disturbs only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.calibrate import Numbers, Progress
from rlx.ir.mir import Graph

if TYPE_CHECKING:
    from rlx.backends.engine.backend import EngineBackend
    from rlx.ir.mir import Node

FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repeats: int = 7
    short: int = 4
    long: int = 36
    """Steps of the two chains: what one more takes is the slope."""
    elements: int = 1 << 24
    """Of arrays that no cache holds."""
    side: int = 512
    """Of the factors of products."""


def measure(
    backend: EngineBackend, progress: Progress, effort: Effort | None = None
) -> tuple[Numbers, ...]:
    """The engine's numbers: it has threads of its own."""
    return (_Probe(backend, progress, effort or Effort()).numbers(),)


class _Probe:
    def __init__(self, backend: EngineBackend, progress: Progress, effort: Effort) -> None:
        self.backend, self.engine, self.effort = backend, backend.engine(), effort
        self._progress, self._done = progress, 0
        self.floats = [d for d in FLOATS if self.engine.holds(d)]

    def numbers(self) -> Numbers:
        self._step("steps of a function")
        dispatch = self.dispatch()
        self._step("round trips")
        roundtrip = self.roundtrip()
        self._step("memory")
        memory = self.memory(lambda x: ops.add(x, 1.0))
        self._step("results")
        readback = self.readback()
        self._step("transposed copies")
        transposed = self.memory(lambda x: ops.add(ops.transpose(x, perm=(1, 0)), 1.0))
        rates = {d: self._rate(d) for d in self.floats}
        parts = {DType.C64: DType.F32, DType.C128: DType.F64}
        rates |= {c: rates[part] for c, part in parts.items() if part in rates}
        return Numbers(1, dispatch, roundtrip, dispatch, (), memory, readback, transposed, rates)

    def _step(self, what: str) -> None:
        self._progress(self._done, 5 + len(self.floats), what)
        self._done += 1

    # -- what is measured --------------------------------------------------------------------------

    def dispatch(self) -> float:
        """One more product of small matrices, which no engine fuses with another."""

        def chain(count: int) -> Callable[[Node], Node]:
            def made(x: Node) -> Node:
                y = x
                for _ in range(count):
                    y = ops.matmul(y, x)
                return y

            return made

        effort, shape = self.effort, Shape((8, 8))
        long, short = (self._ns(chain(n), shape) for n in (effort.long, effort.short))
        return max(1.0, (long - short) / (effort.long - effort.short))

    def roundtrip(self) -> float:
        """A call on the host's arrays."""
        call = self._call(lambda x: ops.add(x, 1.0), Shape((8,)))
        given = np.zeros(8, np.float32)
        return self._least(lambda: call(given))

    def memory(self, made: Callable[[Node], Node]) -> float:
        """GB/s of a matrix that is read and written."""
        side = int(self.effort.elements**0.5)
        return 2 * 4 * side * side / self._ns(made, Shape((side, side)))

    def readback(self) -> float:
        """GB/s of an array that becomes the host's own."""
        own = self.engine.array(np.zeros(self.effort.elements, np.float32))
        self.engine.wait([own])
        return 4 * self.effort.elements / self._least(lambda: np.array(self.engine.numpy(own)))

    def _rate(self, dtype: DType) -> float:
        self._step(f"products in {dtype}")
        side = self.effort.side
        return 2 * side**3 / self._ns(lambda x: ops.matmul(x, x), Shape((side, side), dtype))

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, made: Callable[[Node], Node], shape: Shape) -> Callable[..., Any]:
        from rlx.pipeline import CompilePipeline

        graph = Graph("probe")
        graph.set_outputs([made(graph.input("x", shape))])
        program = self.backend.compile(CompilePipeline(self.backend.target()).compile(graph).lir)
        return program.quick(program.prepare({}, None))

    def _ns(self, made: Callable[[Node], Node], shape: Shape) -> float:
        """Of a call on an array of the engine, until its result is computed."""
        call = self._call(made, shape)
        with self.engine.scope():
            own = self.engine.array(np.zeros(shape.static_dims, shape.dtype.numpy))
        return self._least(lambda: self.engine.wait([call(own)]))

    def _least(self, call: Callable[[], Any]) -> float:
        times: list[int] = []
        for _ in range(self.effort.repeats + 1):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        return float(max(1, min(times[1:])))
