"""Recurrent layers as scans: the inputs of all time steps are one contraction; a step is a
contraction of the state with the recurrent weights, and the cell on its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract, collapsed
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Load, Store, strided
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.rewrite import Rewriter
from rlx.kernel.scan import Before, Direction, Leaf, Memory, Scan, Value
from rlx.ops.nn.recurrent import GRU, LSTM, RNN, Cell, Layer, cell_of, gru_gates, gru_new, lstm_cell
from rlx.ops.nn.recurrent import sizes_of as dims_of_layer

LAYERS: dict[str, Layer] = {"lstm": LSTM, "gru": GRU, "rnn": RNN}
Values = Mapping[str, Any]

# -- cells ----------------------------------------------------------------------------------------


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

    @property
    def sums(self) -> str:
        return f"past{self.first}"


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


def _cell_kernel(
    build: Callable[[Values], dict[str, Any]], names: Sequence[str], kind: DType
) -> tuple[Kernel, tuple[str, ...]]:
    """What `build` makes of numbers with these names, as a kernel of rank 0, and the names of its
    results."""
    body = Graph("cell")
    body.traces_lines = False
    given = {n: body.input(n, Shape((), kind)) for n in names}
    made = build(given)
    body.set_outputs(list(made.values()))
    outside = Graph("step")
    outside.traces_lines = False
    operands = [outside.input(n, Shape((), kind)) for n in names]
    node = outside.node("elementwise_region", operands, {"body": body})
    return loop_kernel(node), tuple(made)


# -- layers ---------------------------------------------------------------------------------------


def recurrent_scan(node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> Scan:
    return _Layer.of(node, given, made).scan()


@dataclass(frozen=True, slots=True)
class _Layer:
    """A recurrent layer, and the axes of its steps: batch, hidden column, and column of the state
    that is contracted."""

    node: Node
    given: Sequence[Layout]
    made: Sequence[Layout]
    time: Axis
    direction: Axis
    b: Axis
    j: Axis
    k: Axis

    @classmethod
    def of(cls, node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> _Layer:
        x, _, r = (n.shape for n in node.inputs[:3])
        length, batch, directions, hidden = dims_of_layer(x, r, node.attrs)
        extents = length, directions, batch, hidden, hidden
        return cls(node, given, made, *(Axis(n, d) for n, d in zip("tdbjk", extents)))

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.node.attrs

    @property
    def layer(self) -> Layer:
        return LAYERS[self.node.op]

    @property
    def dtype(self) -> DType:
        return self.node.inputs[0].shape.dtype

    @property
    def kind(self) -> DType:
        """The compute dtype: half precision is rounded at the end only."""
        return self.dtype.compute

    @property
    def hidden(self) -> DimLike:
        return self.j.extent

    @property
    def passes(self) -> tuple[Pass, ...]:
        return _passes(self.node.op, self.attrs)

    @property
    def carries(self) -> tuple[Value, ...]:
        return tuple(Value(n, (self.b, self.j), self.kind) for n in "hc"[: self.layer.states])

    @property
    def values(self) -> tuple[Value, ...]:
        """The projected inputs, in the order of x, the sums of each pass, and what a GRU carries
        from its first to its second."""
        outer = (self.b, self.time) if self.attrs["batch_first"] else (self.time, self.b)
        columns = Axis("n", self.layer.gates * self.hidden)
        found = [Value("projected", (*outer, self.direction, columns), self.kind)]
        for one in self.passes:
            axes = Axis("g", one.count), self.b, self.j
            found.append(Value(one.sums, axes, self.kind))
        if len(self.passes) == 2:
            found += [Value(n, (self.b, self.j), self.kind) for n in ("z", "seen")]
        if "lengths" in self.attrs["extras"]:
            found.append(Value("inside", (self.b,), DType.BOOL))
        return tuple(found)

    @property
    def memory(self) -> Memory:
        shapes = tuple(n.shape for n in self.node.inputs), self.node.shapes
        return Memory(*shapes, (*self.carries, *self.values))

    def extra(self, name: str) -> int | None:
        """The number of an optional operand."""
        names = self.attrs["extras"]
        return 3 + names.index(name) if name in names else None

    def scan(self) -> Scan:
        memory = self.memory
        cells = [cell_of(self.layer, d, self.hidden, self.attrs)
                 for d in range(int(self.direction.extent))]  # fmt: skip
        steps = [self._steps(memory, cells[0])]
        for cell in cells[1:]:
            is_same = cell.activations == cells[0].activations
            steps.append(steps[0] if is_same else self._steps(memory, cell))
        way = self.attrs["direction"]
        reverse = [way == "reverse", True]
        return Scan(
            self.node.op, self.time, self.direction, self.carries, self.values,
            (Before(self._projection(), "projected"),), (self._start(memory),), False,
            tuple(Direction(r, s) for r, s in zip(reverse, steps)), (self._finish(memory),),
            memory.operands, memory.results, tuple(self._leaves(memory)),
        )  # fmt: skip

    # -- index maps -----------------------------------------------------------------------------

    def _state(self, layout: Layout) -> Affine:
        """Of [directions, batch, hidden]."""
        layout = layout.permuted((1, 0, 2)) if self.attrs["batch_first"] else layout
        return strided(layout, (self.direction, self.b, self.j))

    def _output(self) -> Affine:
        """Of [length, directions, batch, hidden]."""
        layout = self.made[0]
        layout = layout.permuted((1, 2, 0, 3)) if self.attrs["batch_first"] else layout
        return strided(layout, (self.time, self.direction, self.b, self.j))

    def _column(self, number: int, row: Affine) -> Affine:
        """Of [directions, columns]."""
        across, step = self.given[number].strides
        start = Affine.of(self.direction) * across + self.given[number].offset
        return start + row * step

    def _gate(self, first: DimLike, gate: Affine) -> Affine:
        """A hidden column of a gate, with so many gates before."""
        return Affine.of(self.j) + gate * self.hidden + first * self.hidden

    def _leaves(self, memory: Memory) -> list[Leaf]:
        """The loads of the cells."""
        found: list[Leaf] = []
        outer = [self.b, self.time] if self.attrs["batch_first"] else [self.time, self.b]
        for gate in range(self.layer.gates):
            index = (*outer, self.direction, self._gate(0, Affine((), gate)))
            found.append(Leaf("x", gate, *memory.at("projected", *index)))
        for one in self.passes:
            found += [Leaf("past", one.first + k, *memory.at(one.sums, k, self.b, self.j))
                      for k in range(one.count)]  # fmt: skip
        alone = [v.name for v in memory.values if v.axes == (self.b, self.j)]
        found += [Leaf(n, 0, *memory.at(n, self.b, self.j)) for n in alone]
        peep = self.extra("peepholes")
        if peep is not None:
            found += [Leaf("peep", k, peep, self._column(peep, self._gate(0, Affine((), k))))
                      for k in range(3)]  # fmt: skip
        if "lengths" in self.attrs["extras"]:
            found.append(Leaf("inside", 0, *memory.at("inside", self.b)))
        return found

    # -- kernels --------------------------------------------------------------------------------

    def _projection(self) -> Contract:
        """The input projections of all time steps at once. Where time and batch do not merge into
        one axis, time steps are the rows: there are more of them."""
        e, kind, shapes = Exprs(), self.kind, tuple(n.shape for n in self.node.inputs)
        p, q, i = (Axis(n, d) for n, d in zip("pqi", shapes[0].dims))
        d, n = Axis("d", self.direction.extent), Axis("n", self.layer.gates * self.hidden)
        left = e.load(0, strided(self.given[0], (p, q, i)), self.dtype)
        right = e.load(1, strided(self.given[1], (d, n, i)), self.dtype)
        value: Expr = Accumulator(kind, free=frozenset((d, p, q, n)))
        bias = self.extra("bias")
        if bias is not None:
            added = e.load(bias, strided(self.given[bias], (d, n)), self.dtype)
            value = e.op("add", value, e.cast(added, kind))
        made = Shape((p.extent, q.extent, d.extent, n.extent), kind)
        store = Store(0, strided(Layout.contiguous(made.dims), (p, q, d, n)), value)
        whole = Contract("inputs", (d, p), q, n, (i,), left, right, kind, (store,), shapes, (made,))
        joined = collapsed(whole)
        if len(joined.batch) < 2:
            return joined
        time, other = (q, p) if self.attrs["batch_first"] else (p, q)
        return collapsed(replace(whole, batch=(d, other), rows=time))

    def _start(self, memory: Memory) -> Kernel:
        """The initial states, or zeros."""
        e, stores = Exprs(), list[Store]()
        for v in self.carries:
            number = self.extra(f"initial_{v.name}")
            value = e.const(np.zeros((), self.kind.numpy), self.kind)
            if number is not None:
                load = e.load(number, self._state(self.given[number]), self.dtype)
                value = e.cast(load, self.kind)
            stores.append(memory.store(v.name, value, self.b, self.j))
        return memory.kernel("start", (self.b, self.j), stores)

    def _finish(self, memory: Memory) -> Kernel:
        e = Exprs()
        stores = [
            Store(i, self._state(self.made[i]), e.cast(self._own(e, memory, v.name), self.dtype))
            for i, v in enumerate(self.carries, 1)
        ]
        return memory.kernel("finish", (self.b, self.j), stores)

    def _own(self, e: Exprs, memory: Memory, name: str) -> Expr:
        return memory.load(e, name, self.b, self.j)

    def _steps(self, memory: Memory, cell: Cell) -> tuple[Contract | Kernel, ...]:
        found: list[Contract | Kernel] = []
        lengths = self.extra("lengths")
        if lengths is not None:
            found.append(self._inside(memory, lengths))
        for one in self.passes:
            found += [self._sums(memory, one), self._cell(memory, one, cell)]
        return (*found, self._deliver(memory))

    def _inside(self, memory: Memory, lengths: int) -> Kernel:
        """Is the position before the row's length?"""
        e = Exprs()
        load = e.load(
            lengths, strided(self.given[lengths], (self.b,)), memory.operands[lengths].dtype
        )
        is_inside = e.op("less", e.index(Affine.of(self.time)), e.cast(load, DType.I64))
        return memory.kernel("inside", (self.b,), [memory.store("inside", is_inside, self.b)])

    def _sums(self, memory: Memory, one: Pass) -> Contract:
        """The state times the recurrent weights of the gates of a pass."""
        e, g = Exprs(), Axis("g", one.count)
        across, row, step = self.given[2].strides
        column = self._gate(one.first, Affine.of(g))
        at = Affine.of(self.direction) * across + column * row + Affine.of(self.k) * step
        right = e.load(2, at + self.given[2].offset, self.dtype)
        left = memory.load(e, one.source, self.b, self.k)
        value: Expr = Accumulator(self.kind, free=frozenset((g, self.b, self.j)))
        bias = self.extra("bias")
        if bias is not None:
            start = self._column(bias, self._gate(self.layer.gates + one.first, Affine.of(g)))
            value = e.op("add", value, e.cast(e.load(bias, start, self.dtype), self.kind))
        store = memory.store(one.sums, value, g, self.b, self.j)
        return Contract(
            one.sums, (g,), self.b, self.j, (self.k,), left, right, self.kind, (store,),
            *memory.shapes(),
        )  # fmt: skip

    def _names(self, one: Pass) -> list[str]:
        """The values that the cell of a pass may read."""
        gates = range(one.first, one.first + one.count)
        peeps = [f"peep{k}" for k in range(3)] if self.extra("peepholes") is not None else []
        held = {v.name for v in self.memory.values}
        alone = [n for n in ("h", "c", "z") if n in held]
        return [*(f"x{k}" for k in gates), *(f"past{k}" for k in gates), *alone, *peeps]

    def _cell(self, memory: Memory, one: Pass, cell: Cell) -> Kernel:
        """New values of the gates' sums; past its length, a row keeps its states."""
        names = self._names(one)
        scalar, made = _cell_kernel(lambda v: one.build(cell, v), names, self.kind)
        e, leaves = Exprs(), {f"{x.name}{x.number}": x for x in self._leaves(memory)}
        given: dict[Expr, Expr] = {}
        for load in (n for n in scalar.nodes if isinstance(n, Load)):
            name = names[load.operand]
            leaf = leaves[name if name[-1].isdigit() else f"{name}0"]
            given[load] = e.cast(e.load(leaf.operand, leaf.at, self._dtype(leaf)), self.kind)
        copy, stores = Rewriter(e, replaced=given), list[Store]()
        for store in scalar.stores:
            name = made[store.result]
            value = copy(store.value)
            if "lengths" in self.attrs["extras"] and name in ("h", "c"):
                inside = memory.load(e, "inside", self.b)
                value = e.op("where", inside, value, self._own(e, memory, name))
            stores.append(memory.store(name, value, self.b, self.j))
        return memory.kernel("cell", (self.b, self.j), stores)

    def _dtype(self, leaf: Leaf) -> DType:
        return self.dtype if leaf.name == "peep" else self.kind

    def _deliver(self, memory: Memory) -> Kernel:
        """The output of a step: zeros past a row's length."""
        e = Exprs()
        value = self._own(e, memory, "h")
        if "lengths" in self.attrs["extras"]:
            value = e.op("where", memory.load(e, "inside", self.b), value, 0.0)
        store = Store(0, self._output(), e.cast(value, self.dtype))
        return memory.kernel("output", (self.b, self.j), [store])
