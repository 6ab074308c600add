"""Leaves: inputs, params, states, constants, and the item of a multi-result op."""

from __future__ import annotations

from rlx.core.attrs import Data
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ops.op import Array, Kind, op

_GIVEN = "a leaf is given, not computed"


def _declared(*, name: str, shape: Shape, init: float = 0.0) -> Shape:
    if not name:
        raise GraphError("the name is empty. Give one")
    if shape.dtype.is_integer and not init.is_integer():
        raise GraphError(f"init is {init}, which is no {shape.dtype}")
    return shape


@op(" -> a[...]", kind=Kind.LEAF, shape=_declared, why_no_lowering=_GIVEN, why_no_cases=_GIVEN)
def input_(*, name: str, shape: Shape) -> Array:
    """A value given anew on every call."""
    raise Error(f"input {name!r} has no value. Give it by its name")


@op(" -> a[...]", kind=Kind.LEAF, shape=_declared, why_no_lowering=_GIVEN, why_no_cases=_GIVEN)
def param(*, name: str, shape: Shape) -> Array:
    """A weight: given once, the same for every call."""
    raise Error(f"param {name!r} has no value. Give it by its name")


@op(" -> a[...]", kind=Kind.LEAF, shape=_declared, why_no_lowering=_GIVEN, why_no_cases=_GIVEN)
def state(*, name: str, shape: Shape, init: float = 0.0) -> Array:
    """Memory that a session keeps from call to call, `init` in every element at first. A call reads
    it, and may write it in place by `append` and `assign`, which give its next version."""
    raise Error(f"state {name!r} has no value")


@op(
    " -> a[...]",
    kind=Kind.LEAF,
    shape=lambda *, value: Shape(value.array.shape, value.array.dtype),
    why_no_lowering=_GIVEN,
    why_no_cases=_GIVEN,
)
def constant(*, value: Data) -> Array:
    """A value known when the graph is built."""
    return value.array


def _chosen(*shapes: Shape, index: int) -> Shape:
    if not 0 <= index < len(shapes):
        raise GraphError(f"there is no result {index}: the node has {len(shapes)}")
    return shapes[index]


@op(
    "_[...]+ -> _[...]",
    kind=Kind.MOVEMENT,
    shape=_chosen,
    why_no_lowering="a result is where its node put it",
    why_no_cases="it reads a node of several results, which no array is; laws of those ops use it",
)
def item(*results: Array, index: int) -> Array:
    """One result of a node that has several."""
    return results[index]
