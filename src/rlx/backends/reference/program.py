"""A plan, run step by step with the ops' NumPy meanings, in the plan's own memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rlx.backends.base import Backend, Program, Runner, StepFacts, Steps
from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.errors import Error
from rlx.core.extent import FIRST_CAPACITY, outgrown
from rlx.core.layout import Layout
from rlx.core.memory_limits import require_memory
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.interface import Interface
from rlx.ir.interpret import evaluate_node, infer_binding
from rlx.ir.lir import LirModule, Phase, Slot, Space
from rlx.ir.mir import Node
from rlx.ops.op import Array
from rlx.plan.check.checker import opened

POISON = 0xFF  # NaN in every float, -1 or the greatest integer, an index out of every range


@dataclass(frozen=True, slots=True)
class Weights:
    """One set of parameters with all that follows from them alone."""

    memory: Array
    params: Mapping[str, Array]
    sizes: Mapping[str, int]
    """Of the named dims of params."""


@dataclass(frozen=True, slots=True)
class ReferenceBackend(Backend):
    """Runs the plan of any target on NumPy."""

    name: ClassVar[str] = "reference"
    summary: ClassVar[str] = "NumPy, any target's plan"
    runs_any_plan: ClassVar[bool] = True
    updates_host_arrays: ClassVar[bool] = True

    why: str = "target='reference' is NumPy"
    """Why it runs plans, for `explain`."""

    def standing_in(self, why: str) -> ReferenceBackend:
        """This backend, for plans whose target cannot run here."""
        return replace(self, why=why)

    def runner(self) -> Runner:
        return Runner("NumPy", why=self.why, is_target=False)

    def description(self, lir: LirModule) -> Steps:
        facts = StepFacts("NumPy", ("the op's meaning in NumPy, op by op",))
        return dict.fromkeys(lir.plan.schedule, facts)

    def target(self) -> Target:
        """The documented cpu; NumPy has LAPACK, so that nothing is refused."""
        return replace(Target.of("cpu"), refusals={})

    def configured(self, variant: str, threads: int | None, cache: Any = None) -> ReferenceBackend:
        if variant:
            raise Error(f"target 'reference' has no variant {variant!r}. Leave it out.")
        return self

    def compile(self, lir: LirModule) -> ReferenceProgram:
        return ReferenceProgram(lir)


class ReferenceProgram(Program):
    """The plan with what a call needs looked up once."""

    def __init__(self, lir: LirModule) -> None:
        self.lir, self.plan, self.graph = lir, opened(lir), lir.mir.graph
        self.interface = Interface.planned(lir)
        self.kernels = set(self.plan.schedule)
        self.prologue = [
            n
            for n in self.graph.order()
            if self.plan.phases[n] is Phase.PROLOGUE and not n.is_given
        ]
        self.steady, self.epilogue = (
            [n for n in self.plan.schedule if self.plan.phases[n] is phase]
            for phase in (Phase.STEADY_STATE, Phase.EPILOGUE)
        )
        self.items = _items_of(self.graph.nodes)
        self.capacities = dict.fromkeys(self.plan.capacities, FIRST_CAPACITY)
        """As large as a call needed them so far."""
        self.deaths = self._deaths()

    def _deaths(self) -> dict[Node, list[Node]]:
        """Kernel → the arena buffers that nothing reads after it. What the Epilogue begins with
        stays, as it may run again."""
        last: dict[Node, Node] = {}
        for step in (*self.steady, *self.epilogue):
            for operand in (*step.inputs, step, *self.items.get(step, ())):
                last[self.plan.root(operand)] = step
        read = {self.plan.root(i) for step in self.epilogue for i in step.inputs}
        kept = {self.plan.root(o) for o in self.graph.outputs}
        kept |= {r for r in read if self.plan.phases[r] is not Phase.EPILOGUE}
        deaths: dict[Node, list[Node]] = {}
        for root, step in last.items():
            slot = self.plan.assignments.get(root)
            if slot is not None and slot.space is Space.ARENA and root not in kept:
                deaths.setdefault(step, []).append(root)
        return deaths

    # -- weights -------------------------------------------------------------------------------

    def prepare(self, params: Mapping[str, Array], old: Weights | None) -> Weights:
        """Load params and run the Prologue: all of it, or what depends on params that changed."""
        sizes = infer_binding(self.graph.params, params)
        kept = old if old and old.sizes == sizes else None
        memory = kept.memory.copy() if kept else _aligned(evaluate(self.plan.weight_formula, sizes))
        place = Place(self, memory[:0], memory, sizes)
        changed: set[Node] = set()
        for node in self.prologue:
            if _is_stale(node, params, kept, changed):
                changed.add(node)
                self._fill(place, node, params)
        return Weights(memory, dict(params), sizes)

    def _fill(self, place: Place, node: Node, params: Mapping[str, Array]) -> None:
        if node.op == "constant":
            place.write(node, node.attrs["value"].array)
        elif node.op == "param":
            place.write(node, params[node.attrs["name"]])
        elif node in self.kernels:
            self._step(place, node)

    # -- calls ---------------------------------------------------------------------------------

    def run(
        self, weights: Weights, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        interface = self.interface
        sizes = interface.bind(weights.params, inputs)
        arrays = interface.checked(inputs, sizes)
        interface.check_outs(outputs, sizes, is_measured=False)
        interface.check_no_overlap(outputs, inputs)
        place = self._ran(weights, arrays, sizes, (*self.steady, *self.epilogue))
        interface.check_outs(outputs, place.sizes, is_measured=True)
        return [_delivered(place.read(node), out) for node, out in zip(self.graph.outputs, outputs)]

    def step(self, weights: Weights, inputs: Sequence[Array]) -> tuple[list[Array | None], State]:
        sizes = self.interface.bind(weights.params, inputs)
        leaves, checked = self.interface.inputs, self.interface.checked(inputs, sizes)
        arrays = [a if n.op == "state" else np.array(a) for n, a in zip(leaves, checked)]
        place = self._ran(weights, arrays, sizes, self.steady)
        return self._outputs(place, is_late=False), State(place, weights, arrays, sizes)

    def finish(self, state: State) -> list[Array | None]:
        place = state.place
        if more := self._outgrown(place, self.epilogue):
            self.capacities |= more
            nodes = (*self.steady, *self.epilogue)
            place = self._ran(state.weights, state.inputs, state.sizes, nodes)
        return self._outputs(place, is_late=True)

    def _ran(
        self,
        weights: Weights,
        arrays: Sequence[Array],
        given: Mapping[str, int],
        nodes: Sequence[Node],
    ) -> Place:
        """Memory in which these steps have been done, as large as it had to be."""
        while True:
            capacities = dict(self.capacities)
            arena = _aligned(evaluate(self.plan.arena_formula, {**given, **capacities}))
            place = Place(self, arena, weights.memory, dict(given), capacities)
            for node, array in zip(self.graph.given, arrays):
                if node.op == "state":
                    place.states[node] = array.reshape(-1).view(np.uint8)
                else:
                    place.write(node, array)
            more = self._outgrown(place, nodes)
            if not more:
                return place
            self.capacities |= more

    def _outgrown(self, place: Place, nodes: Sequence[Node]) -> dict[str, int]:
        """Do these steps; the capacities that must grow first, where one is too small."""
        for node in nodes:
            made = self._made(place, node)
            if more := outgrown({**place.sizes, **place.capacities}):
                return more
            self._put(place, node, made)
            for dead in self.deaths.get(node, ()):
                place.poison(dead, unless=self.plan.in_place.get(node))
        return {}

    def _outputs(self, place: Place, *, is_late: bool) -> list[Array | None]:
        wanted = ((i in self.interface.late) is is_late for i in range(len(self.graph.outputs)))
        return [
            _delivered(place.read(node), None) if is_wanted else None
            for node, is_wanted in zip(self.graph.outputs, wanted)
        ]

    def _step(self, place: Place, node: Node) -> None:
        self._put(place, node, self._made(place, node))

    def _made(self, place: Place, node: Node) -> Any:
        return evaluate_node(node, [place.read(i) for i in node.inputs], place.sizes)

    def _put(self, place: Place, node: Node, made: Any) -> None:
        if not node.has_items:
            place.write(node, made)
            return
        for item in self.items.get(node, ()):
            place.write(item, made[item.attrs["index"]])


@dataclass(frozen=True, slots=True)
class State:
    """What a step leaves to the Epilogue."""

    place: Place
    weights: Weights
    inputs: Sequence[Array]
    sizes: Mapping[str, int]


class Place:
    """Where the values of one call lie: an arena, the weights, and the sizes of named dims.

    Sizes that nodes measure are added as they run. Capacities say where values lie, and nothing of
    what they are, so nodes do not see them.
    """

    def __init__(
        self,
        program: ReferenceProgram,
        arena: Array,
        weights: Array,
        sizes: dict[str, int],
        capacities: Mapping[str, int] | None = None,
    ) -> None:
        self.plan, self.sizes, self.capacities = program.plan, sizes, capacities or {}
        self.memory = {Space.ARENA: arena, Space.WEIGHTS: weights}
        self.states: dict[Node, Array] = {}
        """The bytes of a session's states, which are written in place."""

    def _int(self, dim: DimLike) -> int:
        if not isinstance(dim, Dim):
            return dim
        return evaluate(dim, {**self.sizes, **self.capacities})

    def read(self, node: Node) -> Array:
        """The value in place: an array over the plan's bytes."""
        view = self.plan.views.get(node)
        root = view.root if view else node
        slot = self.plan.assignments[root]
        shape: Shape = node.shape.bind(self.sizes) if self.sizes else node.shape
        itemsize = shape.dtype.itemsize
        layout = view.layout if view else Layout.contiguous(shape.dims)
        if shape.num_elements == 0:
            return np.empty(shape.static_dims, shape.dtype.numpy)
        buffer = self._buffer(node, root, slot)
        return np.ndarray(
            shape.static_dims,
            shape.dtype.numpy,
            buffer,
            self._int(layout.offset) * itemsize,
            tuple(self._int(s) * itemsize for s in layout.strides),
        )

    def _buffer(self, node: Node, root: Node, slot: Slot) -> Array:
        """The bytes of a slot."""
        if slot.space is Space.STATE:
            return self.states[root]
        memory, size = self.memory[slot.space], self._int(slot.size)
        start = self._int(slot.offset)
        buffer = memory[start : start + size]
        if buffer.nbytes < size:
            raise Error(f"{node.label}: its slot ends past the memory")
        return buffer

    def write(self, node: Node, value: Array) -> None:
        self.read(node)[...] = value

    def poison(self, root: Node, unless: Node | None) -> None:
        """Overwrite a dead buffer; one that was reused in place is alive as its successor."""
        if unless is not None and self.plan.root(unless) is root:
            return
        slot = self.plan.assignments[root]
        start = self._int(slot.offset)
        self.memory[slot.space][start : start + self._int(slot.size)] = POISON


def _is_stale(
    node: Node, params: Mapping[str, Array], old: Weights | None, changed: set[Node]
) -> bool:
    """Must the value be made anew, given the set of weights before?"""
    if old is None:
        return True
    if node.op == "param":
        return old.params.get(node.attrs["name"]) is not params[node.attrs["name"]]
    return any(i in changed for i in node.inputs)


def _items_of(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    items: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "item":
            items.setdefault(node.inputs[0], []).append(node)
    return items


def _aligned(size: int, alignment: int = 64) -> Array:
    """`size` poisoned bytes whose address is a multiple of `alignment`."""
    require_memory(size + alignment, "the arena")
    raw = np.full(size + alignment, POISON, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


def _delivered(value: Array, out: Array | None) -> Array:
    if out is None:
        return np.array(value, order="C", copy=True)
    out[...] = value
    return out
