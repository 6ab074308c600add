"""f64 on targets that have none: what only one imported operator computes in it becomes f32.

A front end may compute in f64 inside of an operator whose operands and results are all narrower, as
coordinates of a resize or a transform of real numbers. No value that the model names is f64 then,
and other runtimes compute it in f32. What the model itself states to be f64 stays so, and is
refused by name, unless the option `f64` asks for f32. Inputs, params and outputs keep their dtype:
they are converted by their bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlx.core.attrs import Data
from rlx.core.dim import is_static
from rlx.core.dtype import DType
from rlx.core.errors import InternalError, UnsupportedError
from rlx.core.shape import Shape
from rlx.ir.mir import NAMED_LEAVES, Graph, Node, Origin
from rlx.ops.op import Kind
from rlx.passes.bodies import bodies_of, nodes_within, with_bodies
from rlx.passes.context import Context
from rlx.passes.double_bits import narrowed, widened
from rlx.rules.constants import fold_constants
from rlx.rules.engine import rewrite, ruleset

NARROW = {DType.F64: DType.F32, DType.C128: DType.C64}
WHOLE_UP_TO = 1 << 24
"""f32 has every whole number up to here."""
INSIDE = "computed in f32: the target has no f64, and no value of the model is f64 here"
ASKED = "asked for: computed in f32, as the target has no f64"
CONVERTED = Origin("pass", "f64 as f32")
EXACT = {DType.BOOL, DType.I8, DType.U8}
"""Dtypes of whole numbers of which f32 has all products, and all sums of 2¹⁶ terms. Sums of 2⁸
numbers of 16 bits, as a pool of 16×16 has, are the most that f32 would have."""


def narrow_doubles(graph: Graph, ctx: Context) -> Graph:
    """The graph with f64 inside of imported operators computed in f32, and all f64 where the
    options ask for it, if the target has no f64; in branches and loops too."""
    if DType.F64 not in ctx.target.missing_dtypes:
        return graph
    if ctx.options.f64 == "f32":
        return _all_narrowed(graph, ctx)
    return with_bodies(graph, lambda each: _narrowed(each, ctx))


def _all_narrowed(graph: Graph, ctx: Context) -> Graph:
    found = _touching(nodes_within(graph))
    if not found:
        return graph
    _require_real_interface(graph, ctx)
    ctx.log.note("f64_as_f32", found, True, ASKED, kind="precision")
    return _with_wide_interface(graph)


def _require_real_interface(graph: Graph, ctx: Context) -> None:
    """What is given and returned has the dtype that the model says."""
    leaves = [n.label for n in graph.leaves if _is_complex(n)]
    outputs = [f"output {k!r}" for k, o in zip(graph.output_names, graph.outputs) if _is_complex(o)]
    if leaves or outputs:
        raise UnsupportedError(
            f"{graph.name}: {', '.join([*leaves, *outputs])}: target {ctx.target.name} has no "
            "c128, and the option f64='f32' converts inputs, params and outputs of f64 alone. Make "
            "those c64 in the model, or compile for another target."
        )


def _is_complex(node: Node) -> bool:
    return node.shape.dtype is DType.C128


def _narrowed(graph: Graph, ctx: Context) -> Graph:
    if not _touching(graph.order()):
        return graph
    folded = rewrite(graph, ruleset((fold_constants,)), ctx.rewrites, ask=ctx.log.rewrites)
    chosen = _internal(folded)
    if not chosen:
        return graph
    ctx.log.note("f64_as_f32", tuple(chosen), True, INSIDE, kind="precision")
    return _rewritten(folded, chosen)


# -- which nodes ----------------------------------------------------------------------------------


def _is_wide(node: Node) -> bool:
    return any(s.dtype in NARROW for s in node.shapes)


def _is_table(node: Node) -> bool:
    """A constant, or a node without operands, such as an iota: made anew for each of its users."""
    return not node.inputs and node.op not in NAMED_LEAVES and not node.has_items


def _touching(order: Iterable[Node]) -> list[Node]:
    """The nodes that give or take f64, but for tables."""
    return [n for n in order if not _is_table(n) and (_is_wide(n) or any(map(_is_wide, n.inputs)))]


def _internal(graph: Graph) -> dict[Node, None]:
    """The nodes of all chains of f64 of which none leaves its operator, in order."""
    nodes = _touching(graph.order())
    chain = {n: n for n in nodes}

    def root(node: Node) -> Node:
        while chain[node] is not node:
            chain[node] = node = chain[chain[node]]
        return node

    for node in nodes:
        for given in node.inputs:
            if given in chain and _is_wide(given):
                chain[root(given)] = root(node)
    outputs = set(graph.results)
    stated = {root(n) for n in nodes if not _is_internal(n, n in outputs)}
    return dict.fromkeys(n for n in nodes if root(n) not in stated)


def _is_internal(node: Node, is_output: bool) -> bool:
    """Is what this node gives and takes in f64 known to its operator alone, and may it be f32?

    An operand that another operator made is a value that the model names: the operator that uses
    it is none of its origins then. Operators may share a name, so that such values are marked too.
    """
    own = _operators(node)
    if any(o.kind == "value" for n in (node, *node.inputs) if _is_wide(n) for o in n.origins):
        return False
    if not own or node.decl.kind is Kind.CONTROL or (is_output and _is_wide(node)):
        return False
    wide = [i for i in node.inputs if _is_wide(i)]
    if not all(own <= _operators(i) for i in wide):
        return False
    tables = [i for i in wide if _is_table(i)]
    return all(map(_is_held, tables)) and not _takes_integers(node)


def _operators(node: Node) -> frozenset[Origin]:
    """The operators of a model's file that it comes from."""
    return frozenset(o for o in node.origins if o.kind == "onnx")


def _takes_integers(node: Node) -> bool:
    """Does it make floats of whole numbers that f32 may not have?"""
    if node.op != "cast" or not _is_wide(node):
        return False
    given = node.inputs[0].shape.dtype
    return not (given.is_float or given.is_complex or given in EXACT)


def _is_held(table: Node) -> bool:
    """Is it near enough in f32? Whole numbers must be exact. Named dims count elements of one axis,
    and are taken to be below 2²⁴."""
    if table.op != "constant":
        sizes = [d for s in table.shapes for d in s.dims if is_static(d)]
        return all(int(d) <= WHOLE_UP_TO for d in sizes)
    wide = table.attrs["value"].array
    with np.errstate(over="ignore", under="ignore"):
        made = wide.astype(NARROW[table.shape.dtype].numpy)
    is_whole = np.isfinite(wide) & (wide == np.rint(wide))
    is_lost = np.isfinite(wide) & (~np.isfinite(made) | ((made == 0) & (wide != 0)))
    return not bool((is_lost | (is_whole & (made != wide))).any())


# -- rewriting ------------------------------------------------------------------------------------


def _with_wide_interface(graph: Graph) -> Graph:
    """The graph in f32 between inputs, params and outputs, which are of the dtypes that they were;
    an output that is an input is not converted."""
    narrow: dict[Node, Node] = {}

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        given = tuple(narrow.get(i, i) for i in inputs)
        if node.op in NAMED_LEAVES:
            made = new.copy(node, ())
            if _is_wide(node):
                with new.scope(*node.origins, CONVERTED):
                    narrow[made] = narrowed(made)
            return made
        return _as_narrow(new, node, given) if _is_touched(node) else None

    made = graph.rebuild(make)
    outputs = list[Node]()
    for old, new in zip(graph.outputs, made.outputs):
        with made.scope(*new.origins, CONVERTED):
            is_converted = _is_wide(old) and not _is_wide(new)
            outputs.append(widened(new) if is_converted else new)
    made.set_outputs(dict(zip(graph.output_names, outputs)))
    return made


def _in_f32(graph: Graph) -> Graph:
    """The graph with no f64 at all, nor its bodies."""
    return graph.rebuild(
        lambda new, n, given: _as_narrow(new, n, given) if _is_touched(n) else None
    )


def _is_touched(node: Node) -> bool:
    return _is_wide(node) or any(map(_is_wide, node.inputs)) or bool(bodies_of(node))


def _rewritten(graph: Graph, chosen: Mapping[Node, None]) -> Graph:
    tables: dict[Node, Node] = {}

    def table(new: Graph, node: Node) -> Node:
        if node not in tables:
            tables[node] = _as_narrow(new, node, ())
            new.add_origins(tables[node], node.origins)
        return tables[node]

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node not in chosen:
            return None
        pairs = zip(node.inputs, inputs, strict=True)
        given = tuple(table(new, i) if _is_table(i) and _is_wide(i) else m for i, m in pairs)
        return _as_narrow(new, node, given)

    return graph.rebuild(make)


def _as_narrow(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
    """`node` with f32 in the place of f64, in what its attributes say too."""
    made = new.node(node.decl, inputs, {k: _attribute(v) for k, v in node.attrs.items()})
    wanted = tuple(map(_narrow_shape, node.shapes))
    if made.shapes != wanted:
        raise InternalError(f"{node.label}: in f32 it gives {made.shapes}, not {wanted}")
    return made


def _narrow_shape(shape: Shape) -> Shape:
    return Shape(shape.dims, NARROW.get(shape.dtype, shape.dtype))


def _attribute(value: Any) -> Any:
    match value:
        case DType():
            return NARROW.get(value, value)
        case Shape():
            return _narrow_shape(value)
        case Graph():
            return _in_f32(value)
        case Data() if DType.of(value.array.dtype) in NARROW:
            with np.errstate(over="ignore", under="ignore"):
                return value.array.astype(NARROW[DType.of(value.array.dtype)].numpy)
        case _:
            return value
