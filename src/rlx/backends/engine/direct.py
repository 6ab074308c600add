"""Calls of a program that is one function of fixed sizes: little more than the engine's call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.engine.functions import Checks
from rlx.backends.engine.steps import Segment

if TYPE_CHECKING:
    from rlx.backends.engine.program import EngineProgram, Weights

Direct = Callable[[Sequence[Any]], Any]


def direct_call(program: EngineProgram, weights: Weights) -> Direct | None:
    """Inputs in order → the output or a tuple of them, or None for what it does not take; no
    function where the program is not one segment of fixed sizes that makes all outputs, or has
    states."""
    steps, graph = program.steps.call, program.graph
    segment = steps[0] if len(steps) == 1 else None
    if not isinstance(segment, Segment) or segment.symbols or graph.states:
        return None
    is_held = all(program.engine.holds(n.shape.dtype) for n in graph.inputs)
    if not is_held or not set(graph.outputs) <= set(segment.outputs):
        return None
    return _of_segment(program, weights, segment)


def _of_segment(program: EngineProgram, weights: Weights, segment: Segment) -> Direct:
    """Weights evict code and objects from the caches between calls, so each Python function that a
    call enters is read from memory: there are as few of them as may be."""
    engine, graph, name = program.engine, program.graph, program.interface.name
    function = program.functions.of(segment, {})
    run, count = function.call, function.num_outputs
    arguments = [weights.values.get(n) for n in segment.inputs]
    numbers = {n: i for i, n in enumerate(graph.inputs)}
    places = [(p, numbers[n]) for p, n in enumerate(segment.inputs) if n in numbers]
    takes = engine.acceptor([n.shape for n in graph.inputs])
    results_of = {n: i for i, n in enumerate(segment.outputs)}
    order = [results_of[o] for o in graph.outputs]
    is_single, scope, numpy = len(order) == 1, engine.scope, engine.numpy

    def call(inputs: Sequence[Any]) -> Any:
        if not takes(inputs):
            return None
        given, is_host = arguments.copy(), not inputs
        for array in inputs:
            is_host = is_host or isinstance(array, np.ndarray)
        for place, number in places:
            given[place] = inputs[number]
        if is_host:
            with scope():
                return results(given, is_host)
        return results(given, is_host)

    def results(given: Sequence[Any], is_host: bool) -> Any:
        try:
            made = run(*given)
        except Exception:  # the long way says what it is
            return None
        try:
            arrays = [numpy(made[i]).copy() for i in order] if is_host else [made[i] for i in order]
            has_failed = len(made) > count and any(numpy(made[-1]).tolist())
        except Exception as error:  # whatever an engine raises while it computes
            raise engine.error(name, error) from error
        if has_failed:
            Checks(engine, [(function, made[-1])]).raise_first(name)
        return arrays[0] if is_single else tuple(arrays)

    return call
