"""The parts of a recurrent layer: the GEMM of all its inputs, its packed recurrent weights, and
passes over the hidden columns, each the sums of some gates and the cell arithmetic on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.program.task import Step
from rlx.backends.cpu.schedule.gemm_tiling import parts_of
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Accumulator, Contract, collapsed
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Store
from rlx.ops.nn.recurrent import GRU, LSTM, RNN, Cell, Layer, cell_of, gru_gates, gru_new, lstm_cell
from rlx.ops.nn.recurrent import sizes_of as dims_of_layer
from rlx.ops.op import lookup

LAYERS: dict[str, Layer] = {"lstm": LSTM, "gru": GRU, "rnn": RNN}
Values = Mapping[str, Any]
MAX_TILE_ROWS = 6
"""Rows of a register tile at most: more reuse a load of the weights with no more gain."""
MAX_UNIT_TILES = 8
"""Tiles of rows in a unit at most: their state stays in the L1 and L2 caches."""
MIN_UNITS = 16


@dataclass(frozen=True, slots=True)
class Pass:
    """The sums of `count` gates from the first on over a state vector, and new values."""

    first: int
    count: int
    source: str
    """What is multiplied: `h`, or `seen`, the part of it that a GRU's reset gate lets through."""
    build: Callable[[Cell, Values], dict[str, Any]]
    """The new values by name; x, past, h, c, peep and z are inputs, the gates' with their
    number."""


def _lstm(cell: Cell, v: Values) -> dict[str, Any]:
    sums = [ops.add(v[f"x{k}"], v[f"past{k}"]) for k in range(4)]
    peep = [v[f"peep{k}"] for k in range(3)] if "peep0" in v else None
    h, c = lstm_cell(cell, sums, v["c"], peep)
    return {"h": h, "c": c}


def _rnn(cell: Cell, v: Values) -> dict[str, Any]:
    return {"h": cell.activated(ops.add(v["x0"], v["past0"]), 0)}


def _gates(cell: Cell, v: Values) -> tuple[Any, ...]:
    return gru_gates(cell, [v["x0"], v["x1"]], [v["past0"], v["past1"]])


def _gru_linear(cell: Cell, v: Values) -> dict[str, Any]:
    update, reset = _gates(cell, v)
    return {"h": gru_new(cell, v["x2"], ops.mul(reset, v["past2"]), update, v["h"])}


def _gru_first(cell: Cell, v: Values) -> dict[str, Any]:
    update, reset = _gates(cell, v)
    return {"z": update, "seen": ops.mul(reset, v["h"])}


def _gru_second(cell: Cell, v: Values) -> dict[str, Any]:
    return {"h": gru_new(cell, v["x2"], v["past2"], v["z"], v["h"])}


def _passes(op: str, attrs: Mapping[str, Any]) -> tuple[Pass, ...]:
    if op == "lstm":
        return (Pass(0, 4, "h", _lstm),)
    if op == "rnn":
        return (Pass(0, 1, "h", _rnn),)
    if attrs["linear_before_reset"]:
        return (Pass(0, 3, "h", _gru_linear),)
    return Pass(0, 2, "h", _gru_first), Pass(2, 1, "seen", _gru_second)


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A recurrent step: its sizes, and the layouts of its values."""

    step: Step
    layer: Layer
    length: DimLike
    batch: DimLike
    directions: int
    hidden: DimLike

    @classmethod
    def of(cls, step: Step) -> RecurrentSpec:
        x, _, r = (n.shape for n in step.node.inputs[:3])
        sizes = dims_of_layer(x, r, step.node.attrs)
        return cls(step, LAYERS[step.node.op], *sizes)

    @property
    def isa(self) -> Isa:
        return self.step.isa

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.step.node.attrs

    @property
    def dtype(self) -> DType:
        return self.step.node.inputs[0].shape.dtype

    @property
    def kind(self) -> DType:
        """The compute dtype: half precision is rounded at the end only."""
        return self.dtype.compute

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.dtype)

    @property
    def columns(self) -> DimLike:
        return self.layer.gates * self.hidden

    @property
    def padded(self) -> DimLike:
        """Hidden columns in whole vectors, which is their scratch layout."""
        return parts_of(self.hidden, self.lanes) * self.lanes

    @property
    def passes(self) -> tuple[Pass, ...]:
        return _passes(self.step.node.op, self.attrs)

    def extra(self, name: str) -> int | None:
        """The index of an optional operand."""
        names = self.attrs["extras"]
        return 3 + names.index(name) if name in names else None

    def cells(self) -> list[Cell]:
        return [cell_of(self.layer, d, self.hidden, self.attrs) for d in range(self.directions)]

    # -- layouts --------------------------------------------------------------------------------

    def state(self, layout: Layout) -> Layout:
        """[directions, batch, hidden]."""
        return layout.permuted((1, 0, 2)) if self.attrs["batch_first"] else layout

    def output(self) -> Layout:
        """[length, directions, batch, hidden]."""
        layout = self.step.results[0]
        return layout.permuted((1, 2, 0, 3)) if self.attrs["batch_first"] else layout

    def seen(self) -> Layout:
        """[length, batch, directions, columns] of the input projections, in the order of x."""
        p, q = self.step.node.inputs[0].shape.dims[:2]
        layout = Layout.contiguous((p, q, self.directions, self.columns))
        return layout.permuted((1, 0, 2, 3)) if self.attrs["batch_first"] else layout

    @property
    def seen_bytes(self) -> DimLike:
        """With a vector more: the last one of a row is read whole."""
        count = self.length * self.batch * self.directions * self.columns
        return (count + self.lanes) * self.kind.itemsize

    # -- tiles ----------------------------------------------------------------------------------

    def vectors(self, one: Pass) -> int:
        """Vectors of columns of each gate at a time: few gates alone would be bound by the latency
        of their sums."""
        wanted = {4: 1, 3: 2 if self.isa.registers >= 32 else 1, 2: 2, 1: 4}[one.count]
        if not is_static(self.hidden):
            return wanted
        return max(1, min(wanted, int(parts_of(self.hidden, self.lanes))))

    def width(self, one: Pass) -> int:
        return self.vectors(one) * self.lanes

    def rows(self, one: Pass) -> tuple[int, ...]:
        """Rows of register tiles, most first."""
        used = self.vectors(one) * one.count
        most = max(1, min(MAX_TILE_ROWS, (self.isa.registers - 1 - used) // used))
        if is_static(self.batch):
            most = max(1, min(most, int(self.batch)))
        return (most, *(s for s in (4, 2, 1) if s < most))

    @property
    def row_block(self) -> int:
        """Rows of a unit: as even as whole tiles allow."""
        most = min(self.rows(p)[0] for p in self.passes)
        if not is_static(self.batch):
            return most
        tiles = -(-int(self.batch) // most)
        each = max(1, min(MAX_UNIT_TILES, tiles * self.directions // MIN_UNITS))
        blocks = max(1, -(-tiles // each))
        return max(1, -(-int(self.batch) // blocks))


def affine(layout: Layout, axes: Sequence[Axis]) -> Affine:
    return Affine(tuple((a, s) for a, s in zip(axes, layout.strides) if s != 0), layout.offset)


def _as(exprs: Exprs, x: Expr, kind: DType) -> Expr:
    return x if x.dtype is kind else exprs.apply(lookup("cast"), [x], {"to": kind}, kind)


def input_projection(form: RecurrentSpec) -> Contract:
    """The input projections of all time steps at once. Where time and batch do not merge into one
    axis, time steps are the rows: there are more of them."""
    step, kind, exprs = form.step, form.kind, Exprs()
    shapes = tuple(n.shape for n in step.node.inputs)
    p, q, i = (Axis(n, d) for n, d in zip("pqi", shapes[0].dims))
    d, n = Axis("d", form.directions), Axis("n", form.columns)
    left = exprs.load(0, affine(step.operands[0], (p, q, i)), form.dtype)
    right = exprs.load(1, affine(step.operands[1], (d, n, i)), form.dtype)
    value: Expr = Accumulator(kind, free=frozenset((d, p, q, n)))
    bias = form.extra("bias")
    if bias is not None:
        added = exprs.load(bias, affine(step.operands[bias], (d, n)), form.dtype)
        value = exprs.apply(lookup("add"), [value, _as(exprs, added, kind)], {}, kind)
    made = Shape((p.extent, q.extent, d.extent, n.extent), kind)
    store = Store(0, affine(Layout.contiguous(made.dims), (p, q, d, n)), value)
    whole = Contract("inputs", (d, p), q, n, (i,), left, right, kind, (store,), shapes, (made,))
    joined = collapsed(whole)
    if len(joined.batch) < 2:
        return joined
    time, other = (q, p) if form.attrs["batch_first"] else (p, q)
    return collapsed(replace(whole, batch=(d, other), rows=time))


def packed_recurrent_weights(form: RecurrentSpec, one: Pass) -> Kernel:
    """The recurrent weights of a pass: [direction, block, step, gate, column of the block]."""
    exprs, width, shapes = Exprs(), form.width(one), [n.shape for n in form.step.node.inputs]
    d, block = Axis("d", form.directions), Axis("block", parts_of(form.hidden, width))
    k, gate, column = Axis("k", form.hidden), Axis("gate", one.count), Axis("column", width)
    place = Affine.of(block) * width + Affine.of(column)
    row = place + Affine.of(gate) * form.hidden + one.first * form.hidden
    steps = form.step.operands[2].strides
    at = Affine.of(d) * steps[0] + row * steps[1] + Affine.of(k) * steps[2]
    value = _as(exprs, exprs.load(2, at + form.step.operands[2].offset, form.dtype), form.kind)
    zero = exprs.const(np.zeros((), form.kind.numpy), form.kind)
    axes = (d, block, k, gate, column)
    made = Shape(tuple(a.extent for a in axes), form.kind)
    inside = exprs.inside(place, 0, form.hidden)
    to = affine(Layout.contiguous(made.dims), axes)
    store = Store(0, to, exprs.choose(inside, value, zero))
    return Kernel("panels", axes, (store,), tuple(shapes), (made,))
