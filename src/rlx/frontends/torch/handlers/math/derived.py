"""Handlers that follow from the op table: elementwise ops whose names and meanings agree."""

from __future__ import annotations

import functools
import math
from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import Handler
from rlx.frontends.torch.handlers.math.complex_functions import FUNCTIONS
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node
from rlx.ops import op as table
from rlx.ops.op import Kind, Op

OTHER_NAMES = {
    "hardswish": "hard_swish",
    "isnan": "is_nan",
    "isinf": "is_inf",
    "isfinite": "is_finite",
    "log_sigmoid_forward": "log_sigmoid",
    "special_expit": "sigmoid",
    "special_gammaln": "lgamma",
    "special_modified_bessel_i0": "i0",
    "special_modified_bessel_i1": "i1",
    "special_modified_bessel_k0": "k0",
    "special_modified_bessel_k1": "k1",
    "special_scaled_modified_bessel_k0": "k0e",
    "special_scaled_modified_bessel_k1": "k1e",
    "bessel_i0": "i0",
    "bessel_i0e": "i0e",
    "bessel_i1": "i1",
    "bessel_i1e": "i1e",
}
"""ATen name → the table's, where they differ and the meaning is the same."""
OTHER_MEANINGS = frozenset({"sign", "real", "imag", "relu", "heaviside", "angle", "shrink"})
"""Names that agree where the meaning does not for some dtype: these have handlers."""

NAN_AT_INFINITY = frozenset({
    "i0", "i1", "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
})  # fmt: skip
"""Functions that have a limit at infinity, and NaN in torch."""


@functools.cache
def derived_handler(name: str) -> Handler | None:
    """The handler of an elementwise op of the table without attributes."""
    found = _op_called(name)
    if found is None:
        return None
    count = len(found.signature.operands)
    if count == 1:
        return functools.partial(_unary, found)
    return functools.partial(_binary, found) if count == 2 else None


def _op_called(name: str) -> Op | None:
    bare = name.removeprefix("special_")
    if bare in OTHER_MEANINGS:
        return None
    found = table.find(OTHER_NAMES.get(name, bare)) if not bare.endswith("_") else None
    if found is None or found.kind is not Kind.ELEMENTWISE or found.attr_specs:
        return None
    return found


def _unary(found: Op, call: Call, x: Any) -> Any:
    made = _applied(found, call, x)
    if isinstance(call.value, tuple | list):  # log_sigmoid_forward has a buffer beside its result
        return [made, call.filled(0, call.value[1])]
    return made


def _binary(found: Op, call: Call, x: Any, other: Any) -> Node:
    if call.dtype is DType.BOOL and call.promoted("self", "other") is not DType.BOOL:
        return found(*call.nodes(x, other, dtype=call.promoted("self", "other")))
    return found(*call.nodes(x, other))


def _applied(found: Op, call: Call, x: Any) -> Node:
    if call.dtype.is_complex and found.signature.operand(0).letter == "f":
        function = FUNCTIONS.get(found.name)
        call.require(function is not None, f"{found.name} of complex numbers")
        assert function is not None
        return function(call.node(x, call.dtype))
    operand = _operand(found, call, x)
    made = found(operand)
    if found.name in NAN_AT_INFINITY:
        return ops.where(ops.is_inf(operand), math.nan, made)
    return made


def _operand(found: Op, call: Call, x: Any) -> Node:
    """The operand in the dtype of the computation: that of the result, but for predicates."""
    node = call.node(x)
    if call.dtype is DType.BOOL or node.shape.dtype.is_complex:
        return node if _takes(found, node.shape.dtype) else ops.cast(node, to=DType.F32)
    return call.node(node, call.dtype)


def _takes(found: Op, dtype: DType) -> bool:
    letter = found.signature.operand(0).letter
    return dtype.is_float or letter not in ("f", "x") or (letter == "x" and dtype.is_complex)
