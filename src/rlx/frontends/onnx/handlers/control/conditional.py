"""If: with a known condition one side is imported; else it is a branch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.id_tensors import element_of
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.rank_flow import is_seen
from rlx.frontends.onnx.scope import Scope
from rlx.frontends.onnx.subgraphs import applied, captures_of, closed, graph_of
from rlx.frontends.onnx.values import (
    Absent,
    Coded,
    Items,
    Sizes,
    Value,
    flattened,
    is_plain,
    like,
)
from rlx.ir.mir import Graph, Node, Origin
from rlx.ops.control import is_settled

SIDES = ("then_branch", "else_branch")


@handles("If")
def branch(call: Call) -> Any:
    known = call.importer.as_array(call.value(0))
    if known is not None:
        taken = SIDES[0] if known.reshape(()) else SIDES[1]
        return tuple(call.importer.inlined(call, call.required(taken), []))
    found = [_read(call, name) for name in SIDES]
    (then, made), (other, rest) = _both(call, found)
    if call.scope.proto is not None and len(made) == len(rest):
        columns = enumerate(zip(made, rest))
        pairs = [_of_one_rank(call, i, (then, a), (other, b)) for i, (a, b) in columns]
        made, rest = [a for a, _ in pairs], [b for _, b in pairs]
    if not _are_alike(made, rest):
        raise call.unknown(call.value(0), "its sides give values of different kinds or ranks")
    flat = _joined(call, (then, other), [_flat(s, v) for s, v in ((then, made), (other, rest))])
    left = iter(flat)
    return tuple(like(value, left) for value in made)


def _read(call: Call, name: str) -> tuple[Scope, list[Value]] | GraphError:
    """A side; where sizes are known, a side that does not fit them is one that may not be taken."""
    try:
        return call.importer.body(call, call.required(name), [])
    except GraphError as error:
        if not call.importer.is_exact:
            raise
        return error


def _both(call: Call, found: Sequence[Any]) -> list[tuple[Scope, list[Value]]]:
    errors = [f for f in found if isinstance(f, GraphError)]
    if len(errors) == 2:
        raise errors[0]
    if not errors:
        return list(found)
    at = 0 if isinstance(found[0], GraphError) else 1
    scope, values = found[1 - at]
    shapes = [v.shape for v in _flat(scope, values)]
    trap = _refused(call, shapes, at, str(found[at]))
    likes = iter(trap[1])
    pair = [(scope, values), (trap[0], [like(v, likes) for v in values])]
    return pair if at else pair[::-1]


def _refused(call: Call, shapes: Sequence[Shape], at: int, why: str) -> tuple[Scope, list[Node]]:
    """A side that fails where it is run: an index that its condition puts out of range."""
    graph = Graph(f"{call.op}.{SIDES[at]}")
    graph.traces_lines = False
    scope = Scope(graph, call.importer, call.scope)
    inside = graph.input("condition", call.node(0).shape)
    scope.captured[call.node(0)] = inside
    side = f"{call.name or call.op}, whose {SIDES[at]} does not fit inputs of these shapes ({why})"
    with graph.scope(Origin("onnx", side)):
        chosen = ops.cast(ops.reshape(inside, dims=()), to=DType.I64)
        where = chosen if at == 0 else ops.sub(chosen, np.int64(1))
        nothing = ops.gather(graph.constant(np.zeros(1, np.float32)), where, axis=0)
        made = [ops.expand(ops.cast(nothing, to=s.dtype), dims=s.dims) for s in shapes]
    return scope, made


# -- results of both sides ------------------------------------------------------------------------


def _are_alike(one: Sequence[Value], other: Sequence[Value]) -> bool:
    """The same sequences and optionals, of tensors of the same ranks."""
    if len(one) != len(other):
        raise GraphError(f"its sides give {len(one)} and {len(other)} values")
    return all(map(_is_alike, one, other))


def _of_one_rank(
    call: Call, number: int, one: tuple[Scope, Value], other: tuple[Scope, Value]
) -> tuple[Value, Value]:
    """A result of both sides inside of a body, with the greater of their ranks, where each has one
    element and nothing sees its rank."""
    values = one[1], other[1]
    if not all(map(_has_one_element, (one, other))) or _rank(values[0]) == _rank(values[1]):
        return values
    scope = call.scope
    if call.wants(number) and is_seen(scope.proto, call.outputs[number], partial(_has_rank, scope)):
        return values
    dims = (1,) * max(map(_rank, values))
    first, second = (ops.reshape(scope.as_node(value), dims=dims) for scope, value in (one, other))
    return first, second


def _has_rank(scope: Scope, name: str) -> bool:
    """Is a value that is known so far a tensor, and no scalar?"""
    around: Scope | None = scope
    while around is not None and name not in around.values:
        around = None if around.is_closed else around.parent
    value = None if around is None else around.values[name]
    return value is not None and (is_plain(value) or isinstance(value, Coded)) and _rank(value) > 0


def _has_one_element(side: tuple[Scope, Value]) -> bool:
    scope, value = side
    return is_plain(value) and scope.as_node(value).shape.num_elements == 1


def _is_alike(one: Value, other: Value) -> bool:
    if isinstance(one, Items) or isinstance(other, Items):
        if not isinstance(one, Items) or not isinstance(other, Items):
            return False
        return len(one.values) == len(other.values) and _are_alike(one.values, other.values)
    if isinstance(one, Absent) or isinstance(other, Absent):
        return isinstance(one, Absent) and isinstance(other, Absent)
    if element_of(one) != element_of(other):
        raise GraphError("its sides give tensors of different types")
    return _rank(one) == _rank(other)


def _rank(value: Any) -> int:
    match value:
        case Sizes(shape=dims):
            return len(dims)
        case Coded(codes=codes):
            return codes.shape.rank
        case Node():
            return value.shape.rank
        case _:
            return value.array.ndim


def _flat(scope: Scope, values: Sequence[Value]) -> list[Node]:
    return [scope.as_node(v) for value in values for v in flattened(value)]


def _joined(call: Call, scopes: tuple[Scope, Scope], sides: Sequence[Sequence[Node]]) -> list[Node]:
    """A branch. Where the sides' sizes differ, those of the side that ran are the results'."""
    if not sides[0]:
        return []
    for a, b in zip(*sides):
        if a.shape.dtype is not b.shape.dtype:
            raise GraphError(f"its sides give {a.shape} and {b.shape}")
    for scope, nodes in zip(scopes, sides):
        closed(scope, nodes)
    captures = captures_of(*scopes)
    then, other = (_body(call, scope, captures) for scope in scopes)
    pairs = [
        d for a, b in zip(then.outputs, other.outputs) for d in zip(a.shape.dims, b.shape.dims)
    ]
    is_open = not all(is_settled(d, e, (then, other)) for d, e in pairs)
    extent = call.graph.extents.fresh("if") if is_open else ""
    return list(ops.if_(call.node(0), *captures, then=then, else_=other, extent=extent))


def _body(call: Call, scope: Scope, captures: Sequence[Node]) -> Graph:
    shapes = [c.shape for c in captures]
    return graph_of(
        call, "side", shapes, lambda graph, given: applied(graph, scope, (), captures, given)
    )
