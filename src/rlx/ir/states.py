"""States of a graph: memory of a session, its versions, and which of them are read.

A state is a leaf. An update (`append`, `assign`) of a version gives the next one, so that versions
form a chain from the leaf on. All of them lie in one buffer: a version may be read until the next
one is written. A version that nothing reads later is written at the end of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.errors import GraphError
from rlx.core.layout import Layout
from rlx.core.public_calls import public_class
from rlx.core.shape import Shape, ShapeLike
from rlx.ir.walk import users_of

if TYPE_CHECKING:
    from rlx.ir.mir import Graph, Node


@public_class
class States:
    """What a graph does for its states."""

    _states: list[Node]
    _updates: tuple[Node, ...]
    _versions: dict[Node, Node]
    """Every version of a state, that state first → the state."""
    inputs: Any
    outputs: Any

    def state(self, name: str, shape: ShapeLike, dtype: Any = None, *, init: float = 0.0) -> Node:
        """Memory that a session keeps from call to call, `init` in every element at first; of dims
        alone the dtype is f32. `append` and `assign` give its next version, in place."""
        graph: Any = self
        return graph._leaf("state", name, Shape.of(shape, dtype), {"init": init})

    @property
    def states(self) -> tuple[Node, ...]:
        """What a session keeps from call to call."""
        return tuple(self._states)

    @property
    def given(self) -> tuple[Node, ...]:
        """What a call is given: inputs, then states."""
        return (*self.inputs, *self._states)

    @property
    def updates(self) -> tuple[Node, ...]:
        """The last version of each state that is updated, in the order of states."""
        return self._updates

    @property
    def results(self) -> tuple[Node, ...]:
        """All that a call computes: outputs, then the last versions of states."""
        return (*self.outputs, *self._updates)

    def set_results(self, results: Sequence[Node], before: Graph) -> None:
        """Outputs and updates that a pass made of those of `before`, in the same order."""
        graph: Any = self
        count = len(before.outputs)
        graph._return(results[:count])
        self._updates = tuple(results[count:])

    def find_updates(self) -> None:
        """Take every update of a state in the graph for one of the program's."""
        graph: Any = self
        chains = chains_of(graph.nodes) if self._states else []
        self._updates = tuple(c.versions[-1] for c in chains if len(c.versions) > 1)

    def _note_version(self, node: Node) -> None:
        """Of a node that is added, whose inputs were: chains may have thousands of versions."""
        if node.op == "state":
            self._versions[node] = node
        elif node.decl.is_update and node.inputs[0] in self._versions:
            self._versions[node] = self._versions[node.inputs[0]]


def state_of(node: Node) -> Node | None:
    """The state of which a node is a version, if it is one."""
    graph: Any = node.graph
    return graph._versions.get(node)


def is_state_update(node: Node) -> bool:
    """Does it write a state?"""
    return node.decl.is_update and state_of(node.inputs[0]) is not None


@dataclass(frozen=True, slots=True)
class Chain:
    """A state with its versions, the leaf first, and who reads each of them beside its update."""

    state: Node
    versions: tuple[Node, ...]
    readers: tuple[tuple[Node, ...], ...]

    @property
    def update(self) -> str:
        """How calls change the state: `append`, `assign`, or not at all."""
        ops = {v.op for v in self.versions[1:]}
        return "assign" if "assign" in ops else next(iter(ops), "")

    def last_read(self, returned: AbstractSet[Node] = frozenset()) -> int:
        """The number of the last version that is read, or returned; the state itself, if none."""
        read = (i for i, v in enumerate(self.versions) if self.readers[i] or v in returned)
        return max(read, default=0)


def chains_of(nodes: Sequence[Node]) -> list[Chain]:
    """The chain of every state among `nodes`; a GraphError where a version has two successors."""
    if not any(n.op == "state" for n in nodes):
        return []
    users = users_of(nodes)
    return [_chain(n, users) for n in nodes if n.op == "state"]


def _chain(state: Node, users: dict[Node, list[Node]]) -> Chain:
    versions = [state]
    readers: list[tuple[Node, ...]] = []
    while True:
        last = versions[-1]
        updates = [u for u in users[last] if u.decl.is_update and u.inputs[0] is last]
        readers.append(tuple(n for n in _readers(last, users) if n not in updates))
        if len(updates) > 1:
            raise GraphError(
                f"{updates[1].label}: {updates[0].label} has written {state.label} already, and a "
                f"version of a state has one successor. Update what that gives"
            )
        if not updates:
            return Chain(state, tuple(versions), tuple(readers))
        versions.append(updates[0])


def _readers(version: Node, users: dict[Node, list[Node]]) -> list[Node]:
    """The nodes that read a version's bytes: its users, and those of its views."""
    found: dict[Node, None] = {}
    stack = [version]
    while stack:
        for user in users[stack.pop()]:
            if user not in found:
                found[user] = None
                stack += [user] if _aliases(user) else []
    return list(found)


def _aliases(node: Node) -> bool:
    """May its value be that of its operand, in place?"""
    return node.op in ("cast", "item") or node.decl.view_rule is not None


def deferred_updates(nodes: Sequence[Node], returned: Sequence[Node]) -> list[Node]:
    """Updates of which no later version is read: they are written when all else is done."""
    found: list[Node] = []
    outputs = frozenset(returned)
    for chain in chains_of(nodes):
        found += chain.versions[chain.last_read(outputs) + 1 :]
    place = {n: i for i, n in enumerate(nodes)}
    return sorted(found, key=place.__getitem__)


def with_isolated_updates(graph: Graph) -> Graph:
    """The graph with copies of what updates read of states in place, and of what is returned before
    it is overwritten: two states may each become what the other was, and an update may move what
    it writes over."""
    order = graph.order()
    chains, outputs = chains_of(order), frozenset(graph.outputs)
    read = {n for chain in chains for each in chain.readers for n in each if _aliases(n)}
    held = read | {n for n in order if state_of(n) is not None}
    wanted = {i for n in order if is_state_update(n) for i in n.inputs[1:] if i in held}
    returned = {o for chain in chains for o in _overwritten(chain) if o in outputs}
    if not wanted and not returned:
        return graph
    made = graph.rebuild(lambda new, n, i: _isolated(new, n, i, wanted))
    pairs = list(zip(graph.outputs, made.outputs))
    copied = {new: _copy(made, new) for old, new in pairs if old in returned}
    made.set_results([*(copied.get(new, new) for _, new in pairs), *made.updates], graph)
    return made


def _overwritten(chain: Chain) -> Iterator[Node]:
    """Versions that another follows, and what aliases them."""
    for number, version in enumerate(chain.versions[:-1]):
        yield version
        yield from (n for n in chain.readers[number] if _aliases(n))


def _isolated(new: Graph, node: Node, inputs: tuple[Node, ...], wanted: set[Node]) -> Node | None:
    if not is_state_update(node) or not any(i in wanted for i in node.inputs[1:]):
        return None
    given = [_copy(new, x) if i in wanted else x for i, x in zip(node.inputs[1:], inputs[1:])]
    return new.node(node.decl, (inputs[0], *given), node.attrs)


def _copy(new: Graph, x: Node) -> Node:
    made = new.node("where", (new.constant(np.True_), x, x))
    new.add_origins(made, x.origins)
    return made


def verify_states(graph: Graph, nodes: Sequence[Node]) -> None:
    """An old version is read before the next one is written: where a later one is read, too, each
    reader of the old one must be one that the update depends on."""
    chains = chains_of(nodes)
    if not chains:
        return
    expected = {c.versions[-1] for c in chains if len(c.versions) > 1}
    if expected != set(graph.updates):
        raise GraphError(f"{graph.name}: an update of a state is not one of the graph's updates")
    late, outputs = late_readers(chains, nodes), frozenset(graph.outputs)
    for chain in chains:
        last_read = chain.last_read(outputs)
        for version, update in islice(pairwise(chain.versions), last_read):
            _verify_readers(version, update, late.get(version, ()))
        for version, update in islice(pairwise(chain.versions), last_read):
            if version in outputs:
                raise GraphError(
                    f"{version.label} is returned, but {update.label} overwrites it, and what that "
                    "gives is read. Return that, or a value computed from it"
                )


def _verify_readers(version: Node, update: Node, late: Sequence[Node]) -> None:
    if late:
        raise GraphError(
            f"{late[0].label} reads {version.label}, which {update.label} overwrites, and what "
            "that gives is read, too. Read one of them, or compute the update from what reads it"
        )


def late_readers(chains: Iterable[Chain], nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """By version: who reads it though the next one may be written by then, as that does not depend
    on the reader. `nodes` has inputs before users."""
    followed = [
        (version, update, readers)
        for chain in chains
        for (version, update), readers in zip(pairwise(chain.versions), chain.readers)
        if readers
    ]
    bits = _bits({reader for *_, readers in followed for reader in readers})
    reached = _reached(bits, nodes)
    return {
        version: late
        for version, update, readers in followed
        if (late := [r for r in readers if not bits[r] & reached.get(update, 0)])
    }


def _bits(nodes: Iterable[Node]) -> dict[Node, int]:
    """A bit for each."""
    return {node: 1 << number for number, node in enumerate(nodes)}


def _reached(bits: Mapping[Node, int], nodes: Sequence[Node]) -> dict[Node, int]:
    """The bits of each node, and of all that it depends on, where there are some."""
    found: dict[Node, int] = {}
    if not bits:
        return found
    for node in nodes:
        made = bits.get(node, 0)
        for operand in node.inputs:
            made |= found.get(operand, 0)
        if made:
            found[node] = made
    return found


def rows_of(update: Node) -> Layout:
    """Where the elements that an update writes lie in its state: rows along an axis, which begin at
    the update's position, or all."""
    whole = Layout.contiguous(update.shape.dims)
    return Layout(update.inputs[1].shape.dims, whole.strides)
