"""Graphs of any number of nodes: chains, ladders, trees, stars, and what models repeat.

Each is of about `nodes` nodes. The bench of compile time and the tests of its growth share them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import rlx
from rlx.core.dim import Dim
from rlx.ir.mir import Graph, Node

Step = Callable[[Graph, Node, int], Node]
Family = Callable[[int], Graph]

UNARY = ("exp", "neg", "tanh", "abs", "sin", "sigmoid", "floor", "cos", "relu", "square")
BINARY = ("add", "mul", "sub", "maximum", "minimum")
MATRIX = rlx.Shape([4, 8], "f32")
IMAGE = rlx.Shape([1, 4, 6, 6], "f32")
SEQ = Dim("seq", 1, 4096)


def repeated(step: Step, nodes_each: float, shape: rlx.Shape = MATRIX) -> Family:
    """Graphs that apply a step of so many nodes over and over."""

    def family(nodes: int) -> Graph:
        g = rlx.Graph("repeated")
        y = g.input("x", shape)
        for i in range(max(1, int(nodes / nodes_each))):
            y = step(g, y, i)
        g.set_outputs([y])
        return g

    return family


# -- chains -------------------------------------------------------------------------------------


def unary(g: Graph, y: Node, i: int) -> Node:
    return g.node(UNARY[i * 7 % len(UNARY)], (y,))


def mixed(g: Graph, y: Node, i: int) -> Node:
    other = g.find("x") if i % 3 else g.constant(np.full((4, 8), i + 0.5, "f4"))
    return g.node(BINARY[i % len(BINARY)], (g.node(UNARY[i % len(UNARY)], (y,)), other))


def scalars(g: Graph, y: Node, i: int) -> Node:
    return g.tanh(g.mul(y, float(i + 1)))


def casts(g: Graph, y: Node, i: int) -> Node:
    return g.cast(g.neg(g.cast(y, ("i32", "f16", "i64", "bf16")[i % 4])), "f32")


def reshapes(g: Graph, y: Node, i: int) -> Node:
    turned = g.transpose(g.reshape(y, [8, 4] if i % 2 else [2, 4, 4]))
    return g.reshape(g.sin(turned), [4, 8])


def slices(g: Graph, y: Node, i: int) -> Node:
    return g.slice(g.pad(g.tanh(y), [0, 1], [0, 2]), [0, 2], [4, 10])


def matmuls(g: Graph, y: Node, i: int) -> Node:
    return g.relu(g.add(g.matmul(y, g.param(f"w{i}", [8, 8])), g.param(f"b{i}", [8])))


def shared_matmuls(g: Graph, y: Node, i: int) -> Node:
    w = g.find("w") if i else g.param("w", [8, 8])
    return g.tanh(g.matmul(y, w))


def softmaxes(g: Graph, y: Node, i: int) -> Node:
    return g.softmax(g.mul(y, 3.0), axis=i % 2)


def norms(g: Graph, y: Node, i: int) -> Node:
    return g.add(y, g.layer_norm(y, g.param(f"s{i}", [8]), g.param(f"b{i}", [8])))


def reductions(g: Graph, y: Node, i: int) -> Node:
    return g.sub(y, g.mean(g.square(y), [i % 2], keepdims=True))


def gathers(g: Graph, y: Node, i: int) -> Node:
    return g.tanh(g.gather(y, g.constant(np.array([3, 1, 0, i % 4]))))


def scans(g: Graph, y: Node, i: int) -> Node:
    return g.tanh(g.cumsum(y, axis=i % 2))


def sorts(g: Graph, y: Node, i: int) -> Node:
    return g.sin(g.sort(y, axis=i % 2))


def convolutions(g: Graph, y: Node, i: int) -> Node:
    w = g.param(f"w{i}", [4, 4, 3, 3])
    return g.relu(g.conv(y, w, padding=[1, 1, 1, 1]))


def splits(g: Graph, y: Node, i: int) -> Node:
    low, high = g.split(y, [4, 4], axis=1)
    return g.concat([g.tanh(high), low], axis=1)


def top_ks(g: Graph, y: Node, i: int) -> Node:
    values, _ = g.top_k(y, 8)
    return g.neg(values)


# -- ladders ------------------------------------------------------------------------------------


def diamond(g: Graph, y: Node, i: int) -> Node:
    return g.add(g.tanh(y), g.sin(y))


def doubling(g: Graph, y: Node, i: int) -> Node:
    return g.add(y, y) if i % 2 else g.mul(y, g.abs(y))


def select(g: Graph, y: Node, i: int) -> Node:
    return g.where(g.greater(y, g.sin(y)), g.tanh(y), g.abs(y))


def concat_twice(g: Graph, y: Node, i: int) -> Node:
    return g.slice(g.concat([y, y], axis=1), [0, 3], [4, 11])


def concat_sum(g: Graph, y: Node, i: int) -> Node:
    return g.mean(g.reshape(g.concat([y, g.tanh(y)], axis=0), [2, 4, 8]), [0])


def pad_ladder(g: Graph, y: Node, i: int) -> Node:
    return g.add(g.slice(g.pad(y, [0, 1], [0, 0]), [0, 0], [4, 8]), y)


def fibonacci(nodes: int) -> Graph:
    """Each node reads the two before it."""
    g = rlx.Graph("fibonacci")
    a, b = g.input("a", MATRIX), g.input("b", MATRIX)
    for i in range(nodes):
        a, b = b, g.node(BINARY[i % 5], (a, b))
    g.set_outputs([b])
    return g


def skips(nodes: int) -> Graph:
    """Each node reads the one before it and one from far before."""
    g = rlx.Graph("skips")
    made = [g.input("x", MATRIX)]
    for i in range(nodes // 2):
        made.append(g.add(g.tanh(made[-1]), made[i * 7919 % len(made)]))
    g.set_outputs([made[-1]])
    return g


def grid(nodes: int) -> Graph:
    """Rows of 16 nodes: each reads its neighbours above and to the left."""
    g = rlx.Graph("grid")
    row = [g.input("x", MATRIX)] * 16
    for i in range(max(1, nodes // 16)):
        left = row[0]
        for j, above in enumerate(row):
            row[j] = left = g.node(BINARY[(i + j) % 5], (above, left))
    g.set_outputs([row[-1]])
    return g


def tangle(nodes: int) -> Graph:
    """Each node reads any two of the 64 before it."""
    g = rlx.Graph("tangle")
    rng = np.random.default_rng(0)
    recent = [g.input(f"x{i}", MATRIX) for i in range(64)]
    for i in range(nodes):
        first, second = (recent[j] for j in rng.integers(64, size=2))
        recent[i % 64] = g.node(BINARY[i % 5], (first, second))
    g.set_outputs(recent)
    return g


def interleaved(nodes: int) -> Graph:
    """Eight chains, built in turns, each of which now and then reads its neighbour."""
    g = rlx.Graph("interleaved")
    ends = [g.input(f"x{i}", MATRIX) for i in range(8)]
    for i in range(nodes):
        at = i % 8
        reads = (ends[at], ends[at - 1]) if i % 5 == 0 else (ends[at],)
        ends[at] = g.node((BINARY if len(reads) == 2 else UNARY)[i % 5], reads)
    g.set_outputs(ends)
    return g


# -- trees and stars ----------------------------------------------------------------------------


def _combined(g: Graph, level: list[Node], op: str) -> Node:
    while len(level) > 1:
        pairs = [g.node(op, tuple(level[i : i + 2])) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def tree_of_inputs(nodes: int) -> Graph:
    g = rlx.Graph("tree_of_inputs")
    g.set_outputs([_combined(g, [g.input(f"x{i}", MATRIX) for i in range(nodes // 2)], "add")])
    return g


def tree_of_params(nodes: int) -> Graph:
    """A sum of weights, which runs once, added to an input."""
    g = rlx.Graph("tree_of_params")
    total = _combined(g, [g.param(f"w{i}", MATRIX) for i in range(nodes // 2)], "maximum")
    g.set_outputs([g.add(g.input("x", MATRIX), total)])
    return g


def tree_of_slices(nodes: int) -> Graph:
    """Rows of one input, transformed and combined."""
    g = rlx.Graph("tree_of_slices")
    x = g.input("x", [nodes // 3, 8])
    rows = [g.sin(g.slice(x, [i, 0], [i + 1, 8])) for i in range(nodes // 3)]
    g.set_outputs([_combined(g, rows, "maximum")])
    return g


def outputs(nodes: int) -> Graph:
    """One input, read by all nodes, which are all outputs."""
    g = rlx.Graph("outputs")
    x = g.input("x", MATRIX)
    g.set_outputs([g.mul(x, float(i + 2)) for i in range(nodes // 2)])
    return g


def star_of_sums(nodes: int) -> Graph:
    """One value that all nodes read, summed again."""
    g = rlx.Graph("star_of_sums")
    x = g.input("x", MATRIX)
    total = x
    for i in range(nodes // 3):
        total = g.add(total, g.sin(g.mul(x, float(i + 2))))
    g.set_outputs([total])
    return g


def star_of_matmuls(nodes: int) -> Graph:
    """One value, and products of it with many weights."""
    g = rlx.Graph("star_of_matmuls")
    x = g.input("x", MATRIX)
    made = [g.matmul(x, g.param(f"w{i}", [8, 8])) for i in range(nodes // 3)]
    g.set_outputs([_combined(g, made, "add")])
    return g


def concat_of_inputs(nodes: int) -> Graph:
    g = rlx.Graph("concat_of_inputs")
    g.set_outputs([g.concat([g.input(f"x{i}", MATRIX) for i in range(nodes)], axis=0)])
    return g


def concat_of_values(nodes: int) -> Graph:
    """One input, values of it, concatenated."""
    g = rlx.Graph("concat_of_values")
    x = g.input("x", MATRIX)
    g.set_outputs([g.concat([g.sin(g.mul(x, float(i))) for i in range(nodes // 3)], axis=0)])
    return g


def wide_split(nodes: int) -> Graph:
    """All results of one split, each transformed, and one concat of them."""
    g = rlx.Graph("wide_split")
    count = nodes // 4
    parts = g.split(g.input("x", [count, 8]), [1] * count)
    g.set_outputs([g.concat([g.tanh(part) for part in parts], axis=0)])
    return g


def slices_of_concat(nodes: int) -> Graph:
    """A concat of inputs, and slices of it that each are inside of one."""
    g = rlx.Graph("slices_of_concat")
    count = nodes // 3
    whole = g.concat([g.input(f"x{i}", MATRIX) for i in range(count)], axis=0)
    rows = [g.slice(whole, [4 * i + 1, 0], [4 * i + 3, 8]) for i in range(count)]
    g.set_outputs([g.tanh(row) for row in rows])
    return g


def growing_concat(nodes: int) -> Graph:
    """Each step appends a row to those before it."""
    g = rlx.Graph("growing_concat")
    row = g.input("x", [1, 1])
    whole = row
    for i in range(nodes // 3):
        whole = g.concat([whole, g.tanh(g.mul(row, float(i + 2)))], axis=0)
    g.set_outputs([whole])
    return g


def parallel_chains(nodes: int) -> Graph:
    """Many short chains, each from an input to an output."""
    g = rlx.Graph("parallel_chains")
    made: list[Node] = []
    for i in range(nodes // 5):
        x = g.input(f"x{i}", MATRIX)
        made.append(g.softmax(g.exp(g.neg(g.mul(x, float(i + 2))))))
    g.set_outputs(made)
    return g


def many_params(nodes: int) -> Graph:
    g = rlx.Graph("many_params")
    y = g.input("x", MATRIX)
    for i in range(nodes // 2):
        y = g.add(y, g.param(f"b{i}", [8]))
    g.set_outputs([y])
    return g


def all_outputs(nodes: int) -> Graph:
    """A chain whose every node is an output."""
    g = rlx.Graph("all_outputs")
    made = [g.input("x", MATRIX)]
    for i in range(nodes):
        made.append(unary(g, made[-1], i))
    g.set_outputs(made[1:])
    return g


def unread(nodes: int) -> Graph:
    """A chain that nothing reads."""
    g = rlx.Graph("unread")
    x = y = g.input("x", MATRIX)
    for i in range(nodes):
        y = unary(g, y, i)
    g.set_outputs([g.exp(x)])
    return g


# -- control flow -------------------------------------------------------------------------------


def _body(i: int) -> Graph:
    body = rlx.Graph("body")
    body.set_outputs([body.tanh(body.mul(body.input("x", MATRIX), float(i + 2)))])
    return body


def branches(g: Graph, y: Node, i: int) -> Node:
    return g.if_(g.greater(g.sum(y), 0.0), y, then=_body(i), else_=_body(i + 1))[0]


def loops(g: Graph, y: Node, i: int) -> Node:
    return g.scan(y, body=_body(i), length=3, num_carries=1)[0]


def nested(nodes: int) -> Graph:
    """A body in a body, 20 deep, each with its part of the nodes."""
    inner: Graph | None = None
    for depth in range(20):
        g = rlx.Graph(f"depth{depth}")
        y = g.input("x", MATRIX)
        for i in range(nodes // 20):
            y = unary(g, y, i)
        if inner is not None:
            (y,) = g.scan(y, body=inner, length=2, num_carries=1)
        g.set_outputs([y])
        inner = g
    assert inner is not None
    return inner


# -- states -------------------------------------------------------------------------------------


def states(nodes: int) -> Graph:
    """Memory of a session for each step: a row appended to it, and its sum read."""
    g = rlx.Graph("states")
    at, y = g.input("at", [], "i32"), g.input("x", [1, 8])
    for i in range(nodes // 4):
        rows = g.append(g.state(f"s{i}", [16, 8]), y, at)
        y = g.tanh(g.sum(rows, axis=0, keepdims=True))
    g.set_outputs([y])
    return g


def versions(nodes: int) -> Graph:
    """One state, written over and over."""
    g = rlx.Graph("versions")
    at, x, rows = g.input("at", [], "i32"), g.input("x", [1, 8]), g.state("rows", [16, 8])
    for i in range(nodes // 3):
        rows = g.append(rows, g.mul(x, float(i + 2)), at)
    g.set_outputs([g.sum(rows)])
    return g


def training(nodes: int) -> Graph:
    """Weights that are states: one number reads all of them, and all follow from it anew."""
    g = rlx.Graph("training")
    y = g.input("x", MATRIX)
    weights = [g.state(f"w{i}", MATRIX) for i in range(nodes // 6)]
    for w in weights:
        y = g.add(y, w)
    norm = g.sum(g.square(y))
    for w in weights:
        y = g.add(y, g.assign(w, g.sub(w, g.mul(norm, 0.1))))
    g.set_outputs([y])
    return g


# -- named dims ---------------------------------------------------------------------------------

FREE = rlx.Shape([SEQ, 8], "f32")


def free_concat(g: Graph, y: Node, i: int) -> Node:
    return g.slice(g.concat([y, g.tanh(y)], axis=0), [0, 0], [SEQ, 8])


def free_reshape(g: Graph, y: Node, i: int) -> Node:
    return g.reshape(g.sin(g.transpose(g.reshape(y, [SEQ * 2, 4]))), [SEQ, 8])


def free_parts(nodes: int) -> Graph:
    """Rows of a named number, each input one row longer, concatenated."""
    g = rlx.Graph("free_parts")
    made = [g.input(f"x{i}", [SEQ + i, 4]) for i in range(nodes)]
    g.set_outputs([g.concat(made, axis=0)])
    return g


def measured(nodes: int) -> Graph:
    """Sizes that are found out from data, each with a name of its own."""
    g = rlx.Graph("measured")
    x = g.input("x", [16])
    found = [g.nonzero(g.greater(x, float(i))) for i in range(nodes // 4)]
    g.set_outputs([g.sum(g.cast(each, "f32")) for each in found])
    return g


# -- blocks -------------------------------------------------------------------------------------


def blocks(nodes: int) -> rlx.HirModule:
    m = rlx.HirModule("blocks")
    x = m.input("x", MATRIX)
    for i in range(nodes // 8):
        up, gate = m.param(f"up{i}", [8, 16]), m.param(f"gate{i}", [8, 16])
        down, norm = m.param(f"down{i}", [16, 8]), m.param(f"norm{i}", [8])
        x = m.residual_rms_norm(m.swiglu_ffn(x, up, gate, down), x, norm, m.param(f"b{i}", [8]))
    m.set_outputs([x])
    return m


FAMILIES: dict[str, Callable[[int], Graph | rlx.HirModule]] = {
    "chain": repeated(unary, 1),
    "mixed": repeated(mixed, 2.3),
    "scalars": repeated(scalars, 3),
    "casts": repeated(casts, 3),
    "reshapes": repeated(reshapes, 4),
    "slices": repeated(slices, 3),
    "matmuls": repeated(matmuls, 5),
    "shared_matmuls": repeated(shared_matmuls, 2),
    "softmaxes": repeated(softmaxes, 2),
    "norms": repeated(norms, 4),
    "reductions": repeated(reductions, 3),
    "gathers": repeated(gathers, 2),
    "scans": repeated(scans, 2),
    "sorts": repeated(sorts, 2),
    "convolutions": repeated(convolutions, 3, IMAGE),
    "splits": repeated(splits, 4),
    "top_ks": repeated(top_ks, 3),
    "diamond": repeated(diamond, 3),
    "doubling": repeated(doubling, 1.5),
    "select": repeated(select, 5),
    "concat_twice": repeated(concat_twice, 2),
    "concat_sum": repeated(concat_sum, 4),
    "pad_ladder": repeated(pad_ladder, 3),
    "fibonacci": fibonacci,
    "skips": skips,
    "grid": grid,
    "tangle": tangle,
    "interleaved": interleaved,
    "tree_of_inputs": tree_of_inputs,
    "tree_of_params": tree_of_params,
    "tree_of_slices": tree_of_slices,
    "outputs": outputs,
    "star_of_sums": star_of_sums,
    "star_of_matmuls": star_of_matmuls,
    "concat_of_inputs": concat_of_inputs,
    "concat_of_values": concat_of_values,
    "wide_split": wide_split,
    "slices_of_concat": slices_of_concat,
    "growing_concat": growing_concat,
    "parallel_chains": parallel_chains,
    "many_params": many_params,
    "all_outputs": all_outputs,
    "unread": unread,
    "branches": repeated(branches, 6),
    "loops": repeated(loops, 3),
    "nested": nested,
    "states": states,
    "versions": versions,
    "training": training,
    "free_chain": repeated(unary, 1, FREE),
    "free_concat": repeated(free_concat, 3, FREE),
    "free_reshape": repeated(free_reshape, 4, FREE),
    "free_parts": free_parts,
    "measured": measured,
    "blocks": blocks,
}
