"""What the last calls of a session have overwritten, so that they can be undone: all of a state
that `assign` replaces, and of one that `append` writes to the rows alone.

Where rows are appended is known before a call if their position follows from its inputs by integer
arithmetic, which any target carries out alike; of other states all is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.state_memory import Region
from rlx.core.arrays import as_array
from rlx.ir.interpret import checked_array, evaluate_node
from rlx.ir.mir import Node
from rlx.ir.states import chains_of
from rlx.ops.op import Array
from rlx.runtime.loaded_program import LoadedProgram


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A part of a state, and its value before a call; all of it where there is no region."""

    state: int
    region: Region | None
    value: Any


class CallHistory:
    """How the states of a program are read before a call, and written to undo it."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._loaded, self._memory = loaded, loaded.program.states
        numbers = {n.name: i for i, n in enumerate(loaded.interface.states)}
        self._replaced: list[int] = []
        self._appends: list[tuple[int, Node]] = []
        for chain in chains_of(loaded.result.lir.mir.graph.order()):
            number, updates = numbers[chain.state.attrs["name"]], chain.versions[1:]
            if all(u.op == "append" and _is_known(u) for u in updates):
                self._appends += [(number, u) for u in updates]
            else:
                self._replaced.append(number)

    def before(self, inputs: Sequence[Any], states: Sequence[Any]) -> list[Overwritten]:
        """What a call on these inputs will overwrite."""
        made = [Overwritten(i, None, self._memory.copied(states[i])) for i in self._replaced]
        if not self._appends:
            return made
        sizes = self._loaded.sizes([*inputs, *states])
        values = _Values(self._loaded, inputs, states, sizes)
        for number, append in self._appends:
            for region in _regions(append, states[number].shape, values, sizes):
                held = self._memory.part(states[number], region)
                made.append(Overwritten(number, region, held))
        return made

    def restore(self, overwritten: Sequence[Overwritten], states: Sequence[Any]) -> None:
        """Let states be what they were before the call."""
        for each in overwritten:
            if each.region is None:
                self._memory.copy(each.value, states[each.state])
            else:
                self._memory.set_part(states[each.state], each.region, each.value)


class _Values:
    """Values of a graph's nodes, computed on the host as they are asked for."""

    def __init__(
        self,
        loaded: LoadedProgram,
        inputs: Sequence[Any],
        states: Sequence[Any],
        sizes: Mapping[str, int],
    ) -> None:
        held = zip((n.name for n in loaded.interface.states), states)
        self._inputs, self._states = dict(zip(loaded.inputs, inputs)), dict(held)
        self._loaded, self._sizes = loaded, dict(sizes)
        self._done: dict[Node, Array] = {}

    def __getitem__(self, node: Node) -> Array:
        if node not in self._done:
            is_given = node.is_given or node.op == "param"
            self._done[node] = self._given(node) if is_given else self._computed(node)
        return self._done[node]

    def _computed(self, node: Node) -> Array:
        return np.asarray(evaluate_node(node, [self[i] for i in node.inputs], self._sizes))

    def _given(self, node: Node) -> Array:
        name = node.attrs["name"]
        if node.op == "state":
            return np.array(self._loaded.program.states.read(self._states[name]))
        if node.op == "param":
            return np.asarray(self._loaded.given[name])
        array = as_array(self._inputs[name], f"input {name!r}", node.shape.dtype)
        return checked_array(node, array, self._sizes)


def _is_known(append: Node) -> bool:
    """Do its positions follow from inputs by integer arithmetic?"""
    stack, seen = list(append.inputs[2:]), set[Node]()
    while stack:
        node = stack.pop()
        if node.has_items or node.decl.is_update or node.shape.is_measured:
            return False
        if node.shape.dtype.is_float or node.shape.dtype.is_complex:
            return False
        stack += [i for i in node.inputs if i not in seen]
        seen.update(node.inputs)
    return True


def _regions(
    append: Node, dims: Sequence[int], values: _Values, sizes: Mapping[str, int]
) -> Iterator[Region]:
    """The parts of a state that it writes; what is outside of the state the call refuses."""
    axis, (_, rows, at, *slots) = append.attrs["axis"], append.inputs
    count, starts = int(rows.shape.bind(sizes).static_dims[axis]), values[at]
    entries = values[slots[0]] if slots else np.arange(starts.size)
    for entry, start in zip(entries.tolist(), starts.reshape(-1).tolist()):
        every = [slice(None)] * axis
        if starts.ndim:
            every[0] = slice(entry, entry + 1)
        if 0 <= entry < dims[0] and 0 <= start <= dims[axis] - count:
            yield (*every, slice(start, start + count))
