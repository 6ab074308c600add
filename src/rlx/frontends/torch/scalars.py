"""Arithmetic of Python numbers in an FX graph: sizes stay dims, values become scalar nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.frontends.torch.namespaces import torch
from rlx.ir.mir import Graph, Node

if TYPE_CHECKING:
    from rlx.frontends.torch.importer import Importer

_ARITHMETIC: Mapping[Any, Callable[..., Any]] = {
    operator.add: ops.add,
    operator.sub: ops.sub,
    operator.mul: ops.mul,
    operator.floordiv: ops.floor_div,
    operator.mod: ops.mod,
    operator.pow: ops.pow,
    operator.neg: ops.neg,
    operator.eq: ops.equal,
    operator.ne: ops.not_equal,
    operator.lt: ops.less,
    operator.le: ops.less_equal,
    operator.gt: ops.greater,
    operator.ge: ops.greater_equal,
}
_REAL: Mapping[Any, Callable[..., Any]] = {
    operator.truediv: ops.div,
    math.ceil: ops.ceil,
    math.floor: ops.floor,
    math.trunc: ops.trunc,
    math.sqrt: ops.sqrt,
    round: ops.round,
}


def is_scalar_function(target: Any) -> bool:
    """Is it a function of Python numbers, not an op on tensors?"""
    if target in _ARITHMETIC or target in _REAL:
        return True
    return getattr(target, "__name__", "").startswith(("sym_", "_sym_")) and not hasattr(
        target, "_schema"
    )


def scalar_result(importer: Importer, node: Any, args: Any) -> Any:
    """A dim where the result is a size, else a number or a scalar node."""
    value = node.meta.get("val")
    has_nodes = any(isinstance(a, Node) for a in args)
    if isinstance(value, torch.SymInt) and not has_nodes:
        return importer.sizes.of(value)
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    return _as_nodes(importer.graph, node.target, args)


def _as_nodes(graph: Graph, target: Any, args: Any) -> Node:
    name = getattr(target, "__name__", "")
    if name == "sym_not":
        return ops.logical_not(scalar_node(graph, args[0]))
    if name in ("sym_float", "_sym_float"):
        return ops.cast(scalar_node(graph, args[0]), to=DType.F64)
    if name in ("sym_int", "_sym_int"):
        return ops.cast(scalar_node(graph, args[0]), to=DType.I64)
    if name in ("sym_max", "sym_min"):
        function = ops.maximum if name == "sym_max" else ops.minimum
        return function(*(scalar_node(graph, a) for a in args))
    if target in _REAL:
        wide = [ops.cast(scalar_node(graph, a), to=DType.F64) for a in args]
        made = _REAL[target](*wide)
        return made if target in (operator.truediv, math.sqrt) else ops.cast(made, to=DType.I64)
    if target not in _ARITHMETIC:
        raise UnsupportedError(f"rlx has no op for {name or target} of Python numbers")
    given = [scalar_node(graph, a) for a in args]
    if any(g.shape.dtype.is_float for g in given):
        given = [ops.cast(g, to=DType.F64) for g in given]
    return _ARITHMETIC[target](*given)


def scalar_node(graph: Graph, value: Any) -> Node:
    """A Python number or size as a node: whole numbers are i64, others f64."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Dim):
        return graph.node("extent", (), {"dim": value, "dtype": DType.I64})
    kind = np.float64 if isinstance(value, float) else None
    return graph.constant(np.asarray(value, kind))
