"""onnxruntime's LSTM with quantised weights, which quantises inputs and states as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.nn.recurrent import activations
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Graph, Node
from rlx.ops.control_flow import scan_loop
from rlx.ops.nn.recurrent import Cell

SMOOTH = ("sigmoid", "tanh", "tanh")


@handles("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantised_lstm(call: Call) -> tuple[Node, ...]:
    """Outputs [length, directions, batch, hidden], and the last states and cells."""
    direction = call.attr("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    given = activations(call, 3 * count) or {"activations": SMOOTH * count}
    zeros = (0.0,) * 3 * count
    every = list(zip(given["activations"], given.get("alphas", zeros), given.get("betas", zeros)))
    hidden = call.shape(2).dims[1]
    made: list[tuple[Node, ...]] = []
    for d in range(count):
        cell = Cell({"clip": call.attr("clip")}, tuple(every[3 * d : 3 * d + 3]), hidden)
        made.append(_direction(call, d, cell, direction == "reverse" or d == 1))
    outputs, states, cells = zip(*made)
    y: Any = ops.concat([ops.expand_dims(v, axes=(1,)) for v in outputs], axis=1)
    return y, *(_stacked(v) for v in (states, cells))


def _stacked(parts: Sequence[Node]) -> Node:
    return ops.concat([ops.expand_dims(v, axes=(0,)) for v in parts], axis=0)


def _part(call: Call, number: int, d: int) -> Node | None:
    """What a direction has of an operand."""
    if not call.has(number):
        return None
    x = call.node(number)
    return ops.squeeze(ops.narrow(x, axis=0, start=d, length=1), axes=(0,))


def _product(x: Any, w: Any, scale: Any, zero: Any) -> Any:
    """x, quantised by its own values, times quantised weights."""
    whole, x_scale, x_zero = ops.dynamic_quantize_linear(x)
    sums = ops.matmul_integer(whole, w, x_zero, zero)
    return ops.mul(ops.cast(sums, to=DType.F32), ops.mul(x_scale, scale))


def _direction(call: Call, d: int, cell: Cell, reverse: bool) -> tuple[Node, ...]:
    """One direction's outputs, last state and last cell. What is quantised together decides its
    range: all inputs up to the longest sequence, and the states of one step, where those of
    sequences that have ended are 0, or, where nobody reads the outputs, as they were. So a reversed
    direction reverses each sequence by itself."""
    lengths = _lengths(call)
    x = _reversed(call, _cut(call.node(0), lengths), reverse)
    w, w_scale, w_zero, r, r_scale, r_zero = (_part(call, i, d) for i in (1, 8, 9, 2, 10, 11))
    bias, peepholes = _part(call, 3, d), _part(call, 7, d)
    seen = _product(x, w, w_scale, w_zero)
    if bias is not None:
        halves = ops.split(bias, sizes=(4 * cell.hidden, 4 * cell.hidden), axis=0)
        seen = ops.add(seen, ops.add(*halves))
    fixed = {"r": r, "scale": r_scale, "zero": r_zero, "peepholes": peepholes, "lengths": lengths}
    fixed = {k: v for k, v in fixed.items() if v is not None}
    length, batch = x.shape.dims[:2]

    def body(carry: Any, row: Any, *whole: Any) -> Any:
        return _step(call, cell, carry, row, dict(zip(fixed, whole)))

    h, c = (_initial(call, i, d, (batch, cell.hidden)) for i in (5, 6))
    init = (h, c) if lengths is None else (h, *(_zeros(call, h.shape.dims) for _ in range(2)), c)
    steps = _numbers(call.graph, length)
    carry, y = scan_loop(body, init, (seen, steps), tuple(fixed.values()))
    last, cell_state = carry if lengths is None else carry[1:3]
    return _reversed(call, y, reverse), last, cell_state


def _numbers(graph: Graph, length: DimLike) -> Node:
    return graph.node("iota", (), {"dims": (length,), "axis": 0, "dtype": DType.I64})


def _cut(x: Node, lengths: Node | None) -> Node:
    """x [length, batch, …] with 0, which no range leaves out, past the longest sequence."""
    if lengths is None:
        return x
    longest = ops.max(ops.reshape(lengths, dims=(x.shape.dims[1],)), axes=(0,))
    inside = ops.less(_numbers(x.graph, x.shape.dims[0]), longest)
    return ops.where(ops.expand_dims(inside, axes=(1, 2)), x, 0.0)


def _reversed(call: Call, x: Node, reverse: bool) -> Node:
    """x [length, batch, …] with each sequence from its end to its start."""
    if not reverse:
        return x
    if not call.has(4):
        return ops.flip(x, axes=(0,))
    lengths = ops.cast(call.node(4), to=DType.I64)
    return ops.reverse_sequence(x, lengths, batch_axis=1, time_axis=0)


def _lengths(call: Call) -> Node | None:
    if not call.has(4):
        return None
    return ops.expand_dims(ops.cast(call.node(4), to=DType.I64), axes=(1,))


def _initial(call: Call, number: int, d: int, dims: tuple[DimLike, ...]) -> Node:
    given = _part(call, number, d)
    return _zeros(call, dims) if given is None else given


def _zeros(call: Call, dims: tuple[DimLike, ...]) -> Node:
    return ops.expand(call.graph.constant(np.zeros((), np.float32)), dims=dims)


def _step(call: Call, cell: Cell, carry: Any, row: Any, fixed: dict[str, Any]) -> Any:
    """Gates are input, output, forget and cell."""
    h, c = carry[0], carry[-1]
    sums = ops.add(row[0], _product(h, fixed["r"], fixed["scale"], fixed["zero"]))
    peep = fixed.get("peepholes")

    def gate(index: int, seen: Any) -> Any:
        own = cell.gate(sums, index)
        own = own if peep is None else ops.add(own, ops.mul(cell.gate(peep, index), seen))
        return cell.activated(own, 0)

    into = gate(0, c)
    kept = ops.sub(1.0, into) if call.attr("input_forget", 0) else gate(2, c)
    new = ops.add(ops.mul(kept, c), ops.mul(into, cell.activated(cell.gate(sums, 3), 1)))
    free = replace(cell, attrs={"clip": None})  # onnxruntime clips gates, but no cell
    out = ops.mul(gate(1, new), free.activated(new, 2))
    if "lengths" not in fixed:
        return (out, new), out
    is_inside = ops.less(row[1], fixed["lengths"])
    ended = [ops.where(is_inside, a, b) for a, b in ((out, carry[1]), (new, carry[2]), (new, c))]
    here = ops.where(is_inside, out, 0.0)
    return (here if call.wants(0) else ops.where(is_inside, out, h), *ended), here
