"""Tensors that a program writes as states of its graph, which are written where they are.

A model from torch computes what a written tensor becomes as one more output, which a call copies
back. Where the target writes states in place, such a tensor is a state instead: rows that are
written are appended to it, and what else becomes of it is assigned at the end of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlx import ops
from rlx.core.errors import GraphError
from rlx.frontends.torch.model import TorchModel
from rlx.frontends.torch.row_writes import RowWrite, plain, row_write
from rlx.frontends.torch.signature import Result, Signature, Source, Write
from rlx.ir.mir import Graph, Node
from rlx.ir.states import chains_of, late_readers


def in_place(model: TorchModel) -> TorchModel:
    """The model with the tensors that it writes as states; itself where there are none."""
    graph, signature = model.graph, model.signature
    if not signature.writes or _is_measured(graph):
        return model
    leaves = {n.attrs["name"]: n for n in graph.inputs}
    found = {leaves[w.source.name]: w for w in signature.writes}
    values = {leaf: graph.outputs[w.output] for leaf, w in found.items()}
    values = {leaf: v for leaf, v in values.items() if v.shape == leaf.shape}
    chains = {leaf: chain for leaf, v in values.items() if (chain := _chain(v, leaf))}
    kept = _Kept.of(signature, [found[leaf] for leaf in values])
    if not kept.outputs:
        return model
    while True:
        build = _Build(graph, values, chains)
        made = build.run(kept.outputs)
        refused = build.refused | _stale(made, chains)
        if not refused:
            return model.with_states(made, kept.signature)
        chains = {leaf: c for leaf, c in chains.items() if leaf.attrs["name"] not in refused}


def _is_measured(graph: Graph) -> bool:
    """Has it a size that follows from data? Such a call may be run twice."""
    return any(s.is_measured for n in graph.order() for s in n.shapes)


def _chain(value: Node, leaf: Node) -> dict[Node, RowWrite] | None:
    """The versions of a tensor to which nothing but rows is written, each with how it is made of
    the one before."""
    found: dict[Node, RowWrite] = {}
    node = plain(value)
    while node is not leaf:
        write = row_write(node)
        if write is None:
            return None
        found[node] = write
        node = plain(write.base)
    return found


def _stale(graph: Graph, chains: Mapping[Node, object]) -> set[str]:
    """States to which rows are written while what was there is still to be read."""
    names, outputs = {leaf.attrs["name"] for leaf in chains}, frozenset(graph.outputs)
    found = [c for c in chains_of(graph.order()) if c.state.attrs["name"] in names]
    late = late_readers(found, graph.order())
    return {
        c.state.attrs["name"]
        for c in found
        if any(v in late for v in c.versions[: c.last_read(outputs)])
    }


@dataclass(slots=True)
class _Build:
    """The graph with states in the place of inputs that are written."""

    graph: Graph
    values: Mapping[Node, Node]
    """Input → what it becomes."""
    chains: Mapping[Node, Mapping[Node, RowWrite]]
    refused: set[str] = field(default_factory=set[str])
    """States whose rows cannot be appended."""
    _made: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def run(self, outputs: Sequence[int]) -> Graph:
        writes = {n: (leaf, w) for leaf, chain in self.chains.items() for n, w in chain.items()}
        new = self.graph.successor()
        for node in self.graph.order():
            self._made[node] = self._node(new, node, writes)
            new.add_origins(self._made[node], node.origins)
        for leaf, value in self.values.items():
            if leaf not in self.chains:
                with new.scope(*value.origins):
                    ops.assign(self._made[leaf], self._made[value])
        names = self.graph.output_names
        new.set_outputs({names[i]: self._made[self.graph.outputs[i]] for i in outputs})
        return new.rebuild()  # what nothing needs would count as a reader of states

    def _node(self, new: Graph, node: Node, writes: Mapping[Node, tuple[Node, RowWrite]]) -> Node:
        inner = plain(node)
        if inner is not node and inner in writes:
            return self._made[inner]
        if node in self.values:
            return new.state(node.attrs["name"], node.shape)
        if node in writes:
            leaf, write = writes[node]
            try:
                with new.scope(*node.origins):
                    return write.append(new, self._made.__getitem__)
            except GraphError:
                self.refused.add(leaf.attrs["name"])
        return new.copy(node, tuple(self._made[i] for i in node.inputs))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Outputs of the graph that remain, and the signature that reads them."""

    outputs: tuple[int, ...]
    signature: Signature

    @classmethod
    def of(cls, signature: Signature, writes: Sequence[Write]) -> _Kept:
        """Without the outputs of `writes`, which are states, and of results that show them."""
        written = {w.source for w in writes}
        results = [_shown(r, written) for r in signature.results]
        others = tuple(w for w in signature.writes if w not in writes)
        kept = sorted({o for r in results for o in r.outputs} | {w.output for w in others})
        number = {old: new for new, old in enumerate(kept)}
        inputs = tuple(s for s in signature.inputs if s not in written)
        states = tuple(s for s in signature.inputs if s in written)
        made = replace(
            signature, inputs=inputs, states=states,
            results=tuple(r.renumbered(number) for r in results),
            writes=tuple(replace(w, output=number[w.output]) for w in others),
        )  # fmt: skip
        return cls(tuple(kept), made)


def _shown(result: Result, written: set[Source]) -> Result:
    """A result in the memory of a tensor that is written needs no output."""
    is_view = result.views is not None and result.views.source in written
    return replace(result, output=None, perm=None) if is_view else result
