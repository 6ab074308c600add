"""Structured control flow from Python functions: each is traced once, into its own graph.

What a function takes are its arguments alone. A node of the outer graph that it merely closes
over is an error that says so: pass it as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.core.arguments import FUNCTION
from rlx.core.attrs import array_of
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.public_calls import public
from rlx.core.shape import Shape
from rlx.ops import op as table
from rlx.ops.graphs import NodeBase, empty_graph
from rlx.ops.operands import is_weak, scalar

Function = Callable[..., Any]


@public
def cond(pred: Any, then_fn: Function, else_fn: Function, *captures: Any) -> Any:
    """`then_fn(*captures)` where `pred` is true, else `else_fn(*captures)`: only one of them runs.

    The results must have equal shapes and dtypes on both sides.
    """
    given = [_value(c) for c in captures]
    shapes = [_shape_of(c) for c in given]
    then, is_single = _traced(then_fn, given, shapes, "then")
    other, _ = _traced(else_fn, given, shapes, "else")
    made = table.lookup("if")(_value(pred), *given, then=then, else_=other)
    return made[0] if is_single else made


@public
def while_loop(
    cond_fn: Function, body_fn: Function, *carries: Any, max_iterations: int | None = None
) -> Any:
    """`carries = body_fn(*carries)` for as long as `cond_fn(*carries)` is true.

    Gives the carries; a bare value where there is one.
    """
    given = [_value(c) for c in carries]
    shapes = [_shape_of(c) for c in given]
    condition, _ = _traced(cond_fn, given, shapes, "cond")
    body, _ = _traced(body_fn, given, shapes, "body")
    made = table.lookup("while")(*given, cond=condition, body=body, max_iterations=max_iterations)
    return made[0] if len(made) == 1 else made


@public
def scan_loop(
    body_fn: Function,
    init: Any,
    xs: Any,
    bcasts: Sequence[Any] = (),
    length: DimLike | None = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`carry, y = body_fn(carry, x, *bcasts)` for each slice x of `xs` along its first axis.

    `init` and `xs` are one value or a tuple of them, and the function gets them so; `xs` may be
    None, with a `length`. Gives the last carry and the ys stacked, each as the function had them.
    """
    FUNCTION.check("the function of body", body_fn, GraphError)
    carries, whole, sliced = (list(map(_value, _listed(v))) for v in (init, bcasts, xs))
    steps = _length(length, sliced)
    shapes = [_shape_of(v) for v in (*carries, *whole)]
    shapes += [_without_first(_shape_of(x)) for x in sliced]
    kinds: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        end = len(carries) + len(whole)
        carry, x = _like(init, values[: len(carries)]), _like(xs, values[end:])
        made = body_fn(carry, x, *values[len(carries) : end])
        if not isinstance(made, tuple) or len(made) != 2:
            raise GraphError("the body of a scan returns a pair: the next carry and the step's y")
        kinds.append(made[1])
        return [*_listed(made[0]), *_listed(made[1])]

    body, _ = _traced(flat, [*carries, *whole, *sliced], shapes, "body")
    made = table.lookup("scan")(
        *carries, *whole, *sliced, body=body, length=steps, num_carries=len(carries),
        num_bcasts=len(whole), reverse=reverse,
    )  # fmt: skip
    return _like(init, made[: len(carries)]), _like(kinds[0], made[len(carries) :])


def _traced(
    function: Function, given: Sequence[Any], shapes: Sequence[Shape], name: str
) -> tuple[Any, bool]:
    """The graph of a function of values of `shapes`, and whether it gave one bare value. It keeps
    source lines where the graphs of what the loop or branch is given do."""
    graph = empty_graph(name)
    owners: list[Any] = [v.graph for v in given if isinstance(v, NodeBase)]
    graph.traces_lines = all(g.traces_lines for g in owners)
    FUNCTION.check(f"the function of {name}", function, GraphError)
    inputs = [graph.input(f"x{i}", s) for i, s in enumerate(shapes)]
    with graph.tracing():
        made = function(*inputs)
    is_single = not isinstance(made, tuple | list)
    graph.set_outputs([_result(graph, r, name) for r in ([made] if is_single else made)])
    return graph, is_single


def _result(graph: Any, value: Any, name: str) -> Any:
    if not isinstance(value, NodeBase):
        return graph.constant(value)
    node: Any = value
    if node.graph is not graph:
        raise GraphError(
            f"{name} returns {node.label} of {node.graph.name!r}, which it was not given. "
            "Pass it as an argument (a capture, carry or bcast)."
        )
    return value


def _value(value: Any) -> Any:
    """A node, or an array; Python scalars have their default dtypes."""
    if isinstance(value, NodeBase | np.ndarray | np.generic):
        return value
    if is_weak(value):
        return scalar(value)
    return array_of(value)


def _shape_of(value: Any) -> Shape:
    return value.shape if isinstance(value, NodeBase) else Shape(value.shape, DType.of(value.dtype))


def _without_first(shape: Shape) -> Shape:
    if shape.rank == 0:
        raise GraphError(f"a scan goes along the first axis, but {shape} has none")
    return shape.with_dims(shape.dims[1:])


def _length(length: DimLike | None, sliced: Sequence[Any]) -> DimLike:
    if length is not None:
        return length
    if not sliced:
        raise GraphError("a scan over nothing needs a length")
    shape = _shape_of(sliced[0])
    _without_first(shape)
    return shape.dims[0]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]


def _like(model: Any, values: Sequence[Any]) -> Any:
    """`values` in the form of `model`: none, a bare value, or a tuple."""
    if model is None:
        return None
    return tuple(values) if isinstance(model, tuple | list) else values[0]
