"""The two graphs of a report's page: kernels as they run, and the model as it was given.

A node has a key (`k3` a kernel, `n12` a node of the model, `i0` an input, `o0` an output), an edge
the shape of what flows along it. Weights and constants are no nodes: they are listed with the
kernels that read them. The page draws both, folded by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.explain.naming import layers_of
from rlx.explain.op_families import family_of
from rlx.explain.report import NOT_NAMES
from rlx.explain.shapes import sized
from rlx.explain.text import is_counted, op_count

if TYPE_CHECKING:
    from rlx.explain.report import From, Report, ReportNode, SourceNode

Edge = tuple[str, str, str]
CONSTANT = ("param", "constant")
ONCE = "prologue"


def kernel_graph(report: Report) -> dict[str, Any]:
    """Kernels, inputs and outputs."""
    shown = sized(report)
    inputs = {v.node: f"i{i}" for i, v in enumerate(report.model.inputs)}
    edges: dict[Edge, None] = {}
    for kernel in report.kernels:
        for node in report.nodes[kernel.node].inputs:
            for maker, _ in _makers(report.nodes, node, inputs):
                edges[maker, f"k{kernel.id}", shown(report.nodes[node].shape)] = None
    for i, value in enumerate(report.model.outputs):
        for maker, _ in _makers(report.nodes, value.node, inputs):
            edges[maker, f"o{i}", shown(value.shape)] = None
    return {"layers": _layers(report, list(edges)), "edges": list(edges)}


def _layers(report: Report, edges: Sequence[Edge]) -> list[str]:
    """Of kernels; what runs once is in the layer of the first kernel that reads it."""
    called = [k for k in report.kernels if k.phase != ONCE]
    found = layers_of([k.where for k in called], [k.id for k in called])
    held = {f"k{k.id}": layer for k, layer in zip(called, found)}
    return _with_readers([f"k{k.id}" for k in report.kernels], held, edges)


def _with_readers(keys: Sequence[str], held: Mapping[str, str], edges: Sequence[Edge]) -> list[str]:
    """Layers of nodes in the order they run; one that has none is in its first reader's."""
    reader: dict[str, str] = {}
    for maker, key, _ in edges:
        reader.setdefault(maker, key)
    layers = dict(held)
    for key in reversed(keys):
        layers.setdefault(key, layers.get(reader.get(key, ""), ""))
    return [layers[key] for key in keys]


def weights_of(report: Report, kernel: int) -> list[str]:
    """Names and shapes of the weights that a kernel reads."""
    held: dict[str, None] = {}
    for node in report.nodes[report.kernels[kernel].node].inputs:
        for _, leaf in _makers(report.nodes, node, {}):
            if leaf.op in CONSTANT and leaf.name:
                held[f"{leaf.name} {leaf.shape}"] = None
    return list(held)


def _makers(
    nodes: Sequence[ReportNode], node: int, inputs: dict[int, str]
) -> Iterator[tuple[str, ReportNode]]:
    """What a value comes from, through views: a kernel, an input, or a weight, which has no key
    among `inputs` and yields none but to who asks for weights."""
    stack, seen = [node], {node}
    while stack:
        at = stack.pop()
        found = nodes[at]
        if found.kernel is not None:
            yield f"k{found.kernel}", found
        elif at in inputs:
            yield inputs[at], found
        elif found.op in CONSTANT and not inputs:
            yield "", found
        else:
            fresh = [i for i in found.inputs if i not in seen]
            seen.update(fresh)
            stack += fresh


def source_graph(report: Report) -> dict[str, Any]:
    """The nodes of the model that follow from its inputs, and what flows between them."""
    nodes, shown = [n for n in report.source if n.op not in CONSTANT], sized(report)
    inputs = {n.id: n for n in nodes if n.op == "input"}
    own = [n for n in nodes if n.id not in inputs]
    names = [_names(n.origins) for n in own]
    key = {n.id: f"i{_input(report, n, i)}" for i, n in enumerate(inputs.values())}
    key |= {n.id: f"n{i}" for i, n in enumerate(own)}
    shapes = {n.id: shown(n.shape) for n in nodes}
    edges = [(key[i], key[n.id], shapes[i]) for n in own for i in n.inputs if i in key]
    ends = [(a, b, shown(shape)) for a, b, shape in _ends(report, own, key)]
    ops = [i for i, n in enumerate(own) if is_counted(n)]
    found = layers_of([names[i] for i in ops], ops)
    layers = _with_readers(list(key.values()), {f"n{i}": x for i, x in zip(ops, found)}, edges)
    layers = layers[len(inputs) :]
    return {
        "nodes": [
            {
                "op": n.op,
                "shape": shapes[n.id],
                "names": where,
                "layer": layer,
                "kind": family_of(n.op),
                "isOp": is_counted(n),
            }
            for n, where, layer in zip(own, names, layers)
        ],
        "ops": op_count(report),
        "edges": [*dict.fromkeys(edges), *ends],
    }


def _input(report: Report, node: SourceNode, otherwise: int) -> int:
    """Its number among the inputs of the model."""
    names = [v.name for v in report.model.inputs]
    return names.index(node.name) if node.name in names else otherwise


def _ends(report: Report, own: Sequence[SourceNode], key: dict[int, str]) -> list[Edge]:
    """Edges to outputs: from nodes that nothing reads, as many as there are outputs."""
    read = {i for n in report.source for i in n.inputs}
    last = [n for n in own if n.id not in read]
    outputs = report.model.outputs
    return [(key[n.id], f"o{i}", v.shape) for i, (v, n) in enumerate(zip(outputs, last))]


def _names(origins: Sequence[From]) -> list[str]:
    """As kernels list them."""
    own = [o for o in origins if o.kind not in NOT_NAMES]
    return [o.text if o.kind == "line" else f"{o.kind} {o.text}" for o in own]
