"""Programs of jax: what XLA says of their functions, and those for TPUs that are not here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from rlx.backends.code_facts import CodeFacts
from rlx.backends.engine.module import Module
from rlx.backends.engine.program import EngineProgram
from rlx.backends.engine.steps import Segment, Step
from rlx.backends.state_memory import StateMemory
from rlx.backends.tpu.engine import JaxEngine
from rlx.backends.tpu.topology import Topology
from rlx.core.errors import Error, OutOfMemoryError, UnsupportedError
from rlx.ir.mir import Node
from rlx.ir.states import state_of
from rlx.ops.op import Array

COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\("
)
"""An instruction of a compiled function by which devices exchange values."""


class TpuProgram(EngineProgram):
    """A plan whose functions XLA compiled."""

    engine: JaxEngine
    memory_bytes: int = 0
    """Of a device, where it is documented."""

    @property
    def donated(self) -> list[str]:
        """The inputs that a call may consume, beside states."""
        taken = (s.inputs[i] for s, numbers in self.engine.donated.items() for i in numbers)
        return sorted(str(n.attrs["name"]) for n in taken if n.op == "input")

    def code_facts(self, sizes: Mapping[str, int]) -> CodeFacts:
        engine = self.engine
        device, count = engine.device.device_kind, len(engine.all_devices)
        segments = [s for s in self.steps.call if isinstance(s, Segment)]
        known = [self.functions.of(s, sizes) for s in segments if s.symbols <= sizes.keys()]
        none = CodeFacts(device, count, 0, 0, 0, 0, 0, 0, 0, memory_bytes=self.memory_bytes)
        found = (facts_of(engine.executable(f.call), device, count) for f in known)
        return reduce(add, found, none)


class AheadProgram(TpuProgram):
    """A plan compiled ahead of time for TPUs that are not here. It cannot be called."""

    def __init__(self, module: Module, engine: JaxEngine, topology: Topology) -> None:
        super().__init__(module, engine)
        self.topology, self.memory_bytes = topology, topology.generation.memory_bytes

    def build(self) -> None:
        """Functions are compiled when somebody asks what they take."""

    def code_facts(self, sizes: Mapping[str, int]) -> CodeFacts:
        """XLA compiles nothing that the memory of a device does not hold."""
        try:
            return super().code_facts(sizes)
        except OutOfMemoryError as error:
            raise UnsupportedError(
                f"{error} tpu:{self.topology} cannot hold it: split it over more devices, as "
                "mesh={'model': 4} does, or reduce its precision or sizes."
            ) from error

    @property
    def states(self) -> StateMemory:
        raise self._elsewhere()

    def prepare(self, params: Mapping[str, Array], old: Any | None) -> Any:
        """Nothing runs here, so that nothing follows from params."""

    def quick(self, weights: Any) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            raise self._elsewhere()

        return call

    def run(
        self, weights: Any, inputs: Sequence[Any], outputs: Sequence[Array | None]
    ) -> list[Any]:
        raise self._elsewhere()

    def step(self, weights: Any, inputs: Sequence[Any]) -> Any:
        raise self._elsewhere()

    def submit(self, weights: Any, inputs: Sequence[Any]) -> Any:
        raise self._elsewhere()

    def _elsewhere(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.interface.name}: it was compiled for tpu:{self.topology}, which is not here. "
            "target='tpu' runs it, on a TPU or on jax's processor."
        )


def donations(program: TpuProgram, names: Sequence[str]) -> dict[Segment, tuple[int, ...]]:
    """By segment of a call: the arguments that are inputs of these names, or states that the call
    updates, which nothing reads afterwards. The host may keep a view of what it reads."""
    known = {n.attrs["name"]: n for n in program.graph.inputs}
    for name in names:
        if name not in known:
            shown = ", ".join(known) or "none"
            raise Error(f"{program.interface.name}: there is no input {name!r} to donate: {shown}.")
    updated = {n for u in program.graph.updates if (n := state_of(u)) is not None}
    given, later = {n for name, n in known.items() if name in names}, _read(program.steps.epilogue)
    return {
        **_donated(program.steps.call, given | updated, set(program.graph.outputs)),
        **_donated(program.steps.steady, updated, later | set(program.graph.outputs)),
    }


def _donated(
    steps: Sequence[Step], given: set[Node], kept: set[Node]
) -> dict[Segment, tuple[int, ...]]:
    """By segment: the arguments among these that it is the last to read, but for those to keep."""
    last: dict[Node, Step] = {}
    for step in steps:
        read = _read([step])
        last.update(dict.fromkeys(read, step))
        kept |= set[Node]() if isinstance(step, Segment) else {n for n in read if n.op == "state"}
    free = given - kept
    return {
        step: tuple(i for i, n in enumerate(step.inputs) if n in free and last[n] is step)
        for step in steps
        if isinstance(step, Segment)
    }


def _read(steps: Iterable[Step]) -> set[Node]:
    """The operands of steps."""
    return {n for s in steps for n in (s.inputs if isinstance(s, Segment) else s.node.inputs)}


def facts_of(compiled: Any, device: str, devices: int) -> CodeFacts:
    """What XLA says of a compiled function."""
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return CodeFacts(
        device, devices, 1, memory.generated_code_size_in_bytes, cost.get("flops", 0.0),
        cost.get("bytes accessed", 0.0), memory.argument_size_in_bytes,
        memory.output_size_in_bytes, memory.temp_size_in_bytes, memory.alias_size_in_bytes,
        optimal_ns=max(0.0, cost.get("optimal_seconds", 0.0)) * 1e9,
        collectives=_collectives(compiled.as_text().splitlines()) if devices > 1 else {},
    )  # fmt: skip


def _collectives(lines: Iterable[str]) -> dict[str, int]:
    found = (COLLECTIVE.search(line) for line in lines)
    return dict(Counter(m[1] for m in found if m))
