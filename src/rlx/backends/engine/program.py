"""A plan on an engine: weights that stay there, and calls of compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.base import Program
from rlx.backends.engine.direct import direct_call
from rlx.backends.engine.engine import Engine
from rlx.backends.engine.functions import Checks, Functions
from rlx.backends.engine.module import Module
from rlx.backends.engine.run import Runner, Sizes, Values, value_of
from rlx.backends.engine.states import EngineState, EngineStates
from rlx.backends.engine.steps import ControlStep, Segment, Step, Steps
from rlx.backends.state_memory import StateMemory
from rlx.core.arrays import as_array, stand
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir.interpret import infer_binding, mismatch
from rlx.ir.mir import Node
from rlx.ir.states import chains_of
from rlx.ops.op import Array


@dataclass(frozen=True, slots=True)
class Weights:
    """Params, and all that calls read of what follows from them, on the engine."""

    params: Mapping[str, Array]
    values: Mapping[Node, Any]
    sizes: Mapping[str, int]
    """Of named dims, with what the Prologue measured."""


@dataclass(frozen=True, slots=True)
class State:
    """What a step leaves to the Epilogue."""

    values: Mapping[Node, Any]
    sizes: Mapping[str, int]
    is_own: bool


class EngineProgram(Program):
    """The steps of a plan with the functions that were compiled for them."""

    def __init__(self, module: Module, engine: Engine) -> None:
        self.module, self.engine, self.graph = module, engine, module.graph
        self.interface = module.interface
        self.steps = Steps(module, engine)
        self.functions = Functions(engine, module.name)
        self.runner = Runner(engine, self.functions, module.name)
        self._prologues: dict[tuple[Node, ...], tuple[Step, ...]] = {}
        self._num_inputs = len(self.graph.inputs)
        numbers = {leaf: i for i, leaf in enumerate(self.graph.given)}
        chains = [c for c in chains_of(self.graph.order()) if c.update]
        self._versions = {numbers[c.state]: c.versions[::-1] for c in chains}
        """The versions of each state that calls update, the last one first, by the state's number
        among what calls are given."""

    @property
    def states(self) -> StateMemory:
        return EngineStates(self.engine)

    def build(self) -> None:
        """Compile what does not depend on sizes that only calls know."""
        for step in (*self.prologue_steps, *self.steps.call):
            if isinstance(step, Segment) and not step.symbols:
                self.functions.of(step, {})

    # -- weights -----------------------------------------------------------------------------------

    def prepare(self, params: Mapping[str, Array], old: Weights | None) -> Weights:
        """Params on the engine, and the Prologue: what depends on those that changed."""
        sizes = infer_binding(self.graph.params, params)
        kept = old if old is not None and sizes.items() <= old.sizes.items() else None
        values: Values = dict(kept.values) if kept else {}
        changed = set[Node]()
        for node in self.graph.params:
            name = node.attrs["name"]
            if kept is None or kept.params.get(name) is not params[name]:
                changed.add(node)
                values[node] = params[name]
        found = {**kept.sizes, **sizes} if kept else dict(sizes)
        self._run(self._prologue(self._stale(changed, values, kept)), values, found)
        return Weights(dict(params), self._held(values, found), found)

    def _stale(
        self, changed: set[Node], values: Mapping[Node, Any], kept: Weights | None
    ) -> tuple[Node, ...]:
        """What has to be computed: what depends on what changed, and what that needs besides."""
        order = self.steps.prologue_nodes
        if kept is None:
            return order
        for node in order:
            if any(i in changed for i in node.inputs):
                changed.add(node)
        every = set(order)
        wanted = changed & every
        for node in reversed(order):
            if node in wanted:
                wanted |= {i for i in node.inputs if i in every and i not in values}
        return tuple(n for n in order if n in wanted)

    @property
    def prologue_steps(self) -> tuple[Step, ...]:
        """All that follows from params alone."""
        return self._prologue(self.steps.prologue_nodes)

    def _prologue(self, nodes: tuple[Node, ...]) -> tuple[Step, ...]:
        if nodes not in self._prologues:
            self._prologues[nodes] = self.steps.prologue(nodes)
        return self._prologues[nodes]

    def _held(self, values: Values, sizes: Mapping[str, int]) -> Values:
        """What calls and later Prologues read, where they read it from."""
        read = {i for s in self.steps.call for i in _read(s) if self.engine.holds(i.shape.dtype)}
        wanted = dict.fromkeys([*self.steps.weights, *self.graph.params])
        held: Values = {}
        with self.engine.scope():
            for node in wanted:
                value = value_of(values, node)
                is_moved = node in read and isinstance(value, np.ndarray)
                held[node] = self.engine.weight(node, value, sizes) if is_moved else value
        return held

    def _run(self, steps: Sequence[Step], values: Values, sizes: Sizes) -> None:
        """Steps, and all that may have failed."""
        checks = Checks(self.engine)
        self.runner.run(steps, values, sizes, checks)
        checks.raise_first(self.interface.name)

    # -- calls -------------------------------------------------------------------------------------

    def takes(self, value: Any) -> bool:
        return self.engine.is_own(value)

    def run(
        self, weights: Weights, inputs: Sequence[Any], outputs: Sequence[Array | None]
    ) -> list[Any]:
        """Results are NumPy's, or the engine's where all inputs are and no array is given."""
        interface, is_own = self.interface, self._is_own(inputs, outputs)
        if any(o is not None for o in outputs):
            interface.check_no_overlap(outputs, [a for a in inputs if isinstance(a, np.ndarray)])
        values, sizes = self.given(weights, inputs)
        interface.check_outs(outputs, sizes, is_measured=False)
        self._update(self.steps.call, values, sizes, inputs)
        made = self.results(values, is_own=is_own)
        interface.check_found(outputs, made)
        return [_delivered(m, o) for m, o in zip(made, outputs)]

    def _update(
        self, steps: Sequence[Step], values: Values, sizes: Sizes, inputs: Sequence[Any]
    ) -> None:
        """Run steps, and let states be their last versions."""
        try:
            self._run(steps, values, sizes)
        except Error:
            self._rescue(values, inputs)
            raise
        for number, versions in self._versions.items():
            inputs[number].array = value_of(values, versions[0])

    def _rescue(self, values: Values, inputs: Sequence[Any]) -> None:
        """States of a call that failed are as they were; those that it consumed are the last
        version that it has made."""
        for number, versions in self._versions.items():
            array = inputs[number].array
            if self.engine.is_own(array) and self.engine.is_consumed(array):
                inputs[number].array = next(values[v] for v in versions if v in values)

    def submit(self, weights: Weights, inputs: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """What the engine can compute by itself is under way when it returns."""
        is_own, checks = self._is_own(inputs, ()), Checks(self.engine)
        values, sizes = self.given(weights, inputs)
        self.runner.run(self.steps.call, values, sizes, checks)
        begun = [value_of(values, o) for o in self.graph.outputs]
        self.engine.begin([a for a in begun if not isinstance(a, np.ndarray)])
        return partial(self._finished, values, checks, is_own=is_own)

    def _finished(self, values: Values, checks: Checks, *, is_own: bool) -> list[Any]:
        checks.raise_first(self.interface.name)
        made = self.results(values, is_own=is_own)
        self.engine.wait([m for m in made if not isinstance(m, np.ndarray)])
        return made

    def _is_own(self, inputs: Sequence[Any], outputs: Sequence[Array | None]) -> bool:
        is_free, given = all(o is None for o in outputs), inputs[: self._num_inputs]
        return is_free and bool(given) and all(map(self.engine.is_own, given))

    def given(self, weights: Weights, inputs: Sequence[Any]) -> tuple[Values, Sizes]:
        """Inputs, and states behind them, checked, among the weights; and the sizes of named
        dims."""
        sizes = {**weights.sizes, **self.interface.bind(weights.params, [*map(stand, inputs)])}
        values: Values = dict(weights.values)
        for node, given in zip(self.graph.given, inputs, strict=True):
            array = given.array if isinstance(given, EngineState) else given
            if self._shape_of(array) != node.shape.bind(sizes):
                raise mismatch(node, self._stand_in(array))
            values[node] = array
        return values, sizes

    def _shape_of(self, array: Any) -> Shape | None:
        """Dims and dtype; None of an array that no graph has, such as one of swapped bytes."""
        if not isinstance(array, np.ndarray):
            return self.engine.shape_of(array)
        try:
            found = DType.of(array.dtype)
        except GraphError:
            return None
        return Shape(array.shape, found) if array.dtype == found.numpy else None

    def _stand_in(self, array: Any) -> Array:
        """A host array like it, for an error text."""
        if isinstance(array, np.ndarray):
            return array
        shape = self.engine.shape_of(array)
        return np.broadcast_to(np.zeros((), shape.dtype.numpy), shape.static_dims)

    def results(self, values: Values, *, is_own: bool) -> list[Any]:
        """All outputs, once the steps of a call were run."""
        with self.engine.scope():
            return [self._result(values, o, is_own=is_own) for o in self.graph.outputs]

    def _result(self, values: Values, node: Node, *, is_own: bool) -> Any:
        """An output that is the caller's: nothing else writes it, or reads what he writes; what a
        session keeps, the next call may consume."""
        found = value_of(values, node)
        if not is_own:
            return np.array(self.runner.numpy(found), order="C")
        if isinstance(found, np.ndarray) and self.engine.holds(node.shape.dtype):
            return self.engine.array(np.array(found))
        is_kept = node in self.graph.updates and self.engine.is_own(found)
        return self.engine.copied(found) if is_kept else found

    def quick(self, weights: Weights) -> Callable[..., Any]:
        """Inputs and arrays for outputs in order. A graph that is one function of fixed sizes is
        called at once; whatever is not as it takes it goes the long way, which says what is."""
        leaves = self.interface.inputs
        engine, count = self.engine, len(leaves)
        at_once = direct_call(self, weights)

        def call(*arrays: Any) -> Any:
            if at_once is not None and len(arrays) == count:
                made = at_once(arrays)
                if made is not None:
                    return made
            given = [
                a
                if isinstance(a, EngineState) or engine.is_own(a)
                else as_array(a, f"input {n.name!r}", n.shape.dtype)
                for a, n in zip(arrays, leaves)
            ]
            outs = list(arrays[count:]) or [None] * len(self.interface.outputs)
            results = self.run(weights, given, outs)
            return results[0] if len(results) == 1 else tuple(results)

        return call

    # -- phases ------------------------------------------------------------------------------------

    def step(self, weights: Weights, inputs: Sequence[Any]) -> tuple[list[Any], State]:
        is_own = self._is_own(inputs, ())
        held = [np.array(a) if isinstance(a, np.ndarray) else a for a in inputs]
        values, sizes = self.given(weights, held)
        self._update(self.steps.steady, values, sizes, held)
        return self._outputs(values, is_own, is_late=False), State(values, sizes, is_own)

    def finish(self, state: State) -> list[Any]:
        values, sizes = dict(state.values), dict(state.sizes)
        self._run(self.steps.epilogue, values, sizes)
        return self._outputs(values, state.is_own, is_late=True)

    def _outputs(self, values: Values, is_own: bool, *, is_late: bool) -> list[Any]:
        late = self.interface.late
        with self.engine.scope():
            return [
                self._result(values, o, is_own=is_own) if (i in late) is is_late else None
                for i, o in enumerate(self.graph.outputs)
            ]


def _read(step: Step) -> Sequence[Node]:
    """What functions of the engine read: a segment's own, and those of the bodies that a branch or
    a loop holds."""
    if isinstance(step, Segment):
        return step.inputs
    return step.node.inputs if isinstance(step, ControlStep) else ()


def _delivered(made: Any, out: Array | None) -> Any:
    if out is None:
        return made
    out[...] = made
    return out
