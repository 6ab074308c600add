"""Host calls: a handler runs Python at import time on known operands, else when the model runs.

In the model's own graph it is a host step between two programs. In the body of a branch or loop,
which is part of one program, it is a call out of native code, of work whose results have the shape
of its operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape, broadcast
from rlx.frontends.onnx.host_steps import HostStep
from rlx.frontends.onnx.id_tensors import in_codes, meaning
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import Strings, current_strings
from rlx.frontends.onnx.values import Element, Value, Weight
from rlx.ir.mir import Node
from rlx.ops.custom_ops import CustomOp, custom_op

Array = np.ndarray[Any, Any]
Work = Callable[..., Sequence[Array]]
"""Of a table of strings, then arrays of codes or numbers, and options."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the host gives; a dim that is None is data-dependent."""

    kind: Element | DType
    dims: tuple[DimLike | None, ...]

    @property
    def dtype(self) -> DType:
        return self.kind if isinstance(self.kind, DType) else self.kind.storage

    @property
    def element(self) -> Element | None:
        return None if isinstance(self.kind, DType) else self.kind


def on_host(
    call: Call, work: Work, operands: Sequence[Value], results: Sequence[Result], why: str,
    **options: Any,
) -> tuple[Value, ...]:  # fmt: skip
    """What `work` gives. Options are what JSON can hold."""
    strings = call.importer.strings
    held = [in_codes(v, strings) for v in operands]
    known = [call.importer.as_array(v) for v in held]
    if all(k is not None for k in known):
        made = [np.asarray(a) for a in work(strings, *known, **options)]
        return tuple(_weight(call, i, a, r) for i, (a, r) in enumerate(zip(made, results)))
    nodes = tuple(call.as_node(v) for v in held)
    if not call.importer.is_outermost(call.graph):
        return _called_out(call, work, nodes, results, options)
    inputs = tuple(_input(call, i, r) for i, r in enumerate(results))

    def run(table: Strings, arrays: Sequence[Array]) -> Sequence[Array]:
        return work(table, *arrays, **options)

    call.importer.steps.append(HostStep(call.label, call.name, call.op, why, run, nodes, inputs))
    return tuple(meaning(n, r.element) for n, r in zip(inputs, results))


def _weight(call: Call, number: int, array: Array, result: Result) -> Value:
    name = f"{call.name}.{number}"
    return meaning(call.as_node(Weight(name, array.astype(result.dtype.numpy))), result.element)


def _input(call: Call, number: int, result: Result) -> Node:
    """The input that stands for a result. A data-dependent size is a named dim."""
    count = len(call.importer.steps)
    dims = tuple(
        Dim(f"host{count}_{number}_{axis}") if d is None or _is_measured(d) else d
        for axis, d in enumerate(result.dims)
    )
    return call.graph.input(f"host.{count}.{number}", Shape(dims, result.dtype))


def _is_measured(dim: DimLike) -> bool:
    return isinstance(dim, Dim) and dim.is_measured


def _called_out(
    call: Call, work: Work, nodes: tuple[Node, ...], results: Sequence[Result], options: Any
) -> tuple[Value, ...]:
    dims = broadcast(*(n.shape.dims for n in nodes))
    if any(r.dims != dims for r in results):
        raise call.unsupported("in a branch or loop, what it gives has no shape known before")
    made = _custom(call.op, work)(*nodes, dtypes=[r.dtype.value for r in results], **options)
    flat = made if isinstance(made, tuple) else (made,)
    return tuple(meaning(n, r.element) for n, r in zip(flat, results))


@functools.cache
def _custom(op: str, work: Work) -> CustomOp:
    """One registration for each operator."""
    return custom_op(f"onnx.{op}.{work.__name__}", partial(_in_call, work), _shapes)


def _in_call(work: Work, *arrays: Array, dtypes: Sequence[str], **options: Any) -> Any:
    made = work(current_strings(), *arrays, **options)
    return tuple(np.asarray(a).astype(DType.of(d).numpy) for a, d in zip(made, dtypes))


def _shapes(*shapes: Shape, dtypes: Sequence[str], **_: Any) -> tuple[Shape, ...]:
    dims = broadcast(*(s.dims for s in shapes))
    return tuple(Shape(dims, DType.of(d)) for d in dtypes)
