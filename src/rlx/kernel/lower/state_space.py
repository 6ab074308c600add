"""State-space layers as scans (selective scan, Mamba-2, linear attention, delta rule):

    S[n, m] ← decay · S[n, m] + key[n] · change[m]
    o[m]    = scale · Σ_n query[n] · S[n, m]

A delta rule changes the state by (value - Σ_n key[n] · S[n, m]) · strength, the others by the
value. The columns m of a state are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlx.core.dim import DimLike, exact_div
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Store
from rlx.kernel.scan import Direction, Memory, Scan, Value

Heads = tuple[Axis, ...]
"""The heads of states; two axes where groups of heads share an operand: group, and head of it."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer, and its axes: batch, time, heads of states, rows, columns, query heads of one."""

    node: Node
    given: Sequence[Layout]
    made: Sequence[Layout]
    b: Axis
    t: Axis
    heads: Heads
    n: Axis
    m: Axis
    q: Axis
    e: Exprs = field(default_factory=Exprs)

    @property
    def dtype(self) -> DType:
        return self.node.inputs[0].shape.dtype

    @property
    def kind(self) -> DType:
        return self.dtype.compute

    def load(self, number: int, at: Affine) -> Expr:
        return self.e.cast(self.e.load(number, at, self.dtype), self.kind)

    def at(self, layout: Layout, *axes: Axis | Affine | None) -> Affine:
        """The index of an element; an axis that is None does not move it."""
        total = Affine((), layout.offset)
        for axis, stride in zip(axes, layout.strides, strict=True):
            if axis is not None:
                total = total + (Affine.of(axis) if isinstance(axis, Axis) else axis) * stride
        return total

    def read(self, number: int, *axes: Axis | Affine | None) -> Expr:
        return self.load(number, self.at(self.given[number], *axes))

    @property
    def head(self) -> Affine:
        """The number of a head."""
        total = Affine()
        for axis in self.heads:
            total = total * axis.extent + Affine.of(axis)
        return total

    @property
    def query_head(self) -> Affine:
        return self.head * self.q.extent + Affine.of(self.q)


@dataclass(frozen=True, slots=True)
class _Update:
    """The values of a step, over the axes they vary with."""

    key: Expr
    value: Expr
    query: Expr
    output: Affine
    first: Expr | None
    """The initial state."""
    last: Affine
    decay: Expr | None = None
    strength: Expr | None = None
    scale: float | None = None


def _axes(
    node: Node, heads: Sequence[DimLike], rows: DimLike, columns: DimLike, queries: int = 1
) -> tuple[Axis, Axis, Heads, Axis, Axis, Axis]:
    batch, length = node.inputs[0].shape.dims[:2]
    names = ("h",) if len(heads) == 1 else ("g", "h")
    own = tuple(Axis(n, d) for n, d in zip(names, heads))
    states = Axis("n", rows), Axis("m", columns), Axis("q", queries)
    return Axis("b", batch), Axis("t", length), own, *states


def _selective(
    node: Node, given: Sequence[Layout], made: Sequence[Layout]
) -> tuple[_Layer, _Update]:
    columns, rows = given[2].dims
    x = _Layer(node, given, made, *_axes(node, (1,), rows, columns))
    b, t, n, m, e = x.b, x.t, x.n, x.m, x.e
    time = x.read(1, b, t, m)
    return x, _Update(
        x.read(3, b, t, n), e.op("mul", time, x.read(0, b, t, m)), x.read(4, b, t, n),
        x.at(made[0], b, t, m), x.read(5, b, m, n) if len(given) == 6 else None,
        x.at(made[1], b, m, n), e.op("exp", e.op("mul", time, x.read(2, m, n))),
    )  # fmt: skip


def _mamba2(node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> tuple[_Layer, _Update]:
    heads, columns = given[0].dims[2:]
    groups, rows = given[3].dims[2:]
    each = exact_div(heads, groups)
    assert each is not None
    split = (heads,) if 1 in (groups, each) else (groups, each)
    x = _Layer(node, given, made, *_axes(node, split, rows, columns))
    b, t, n, m, e = x.b, x.t, x.n, x.m, x.e
    group = None if groups == 1 else x.heads[0]
    time = x.read(1, b, t, x.head)
    return x, _Update(
        x.read(3, b, t, group, n), e.op("mul", time, x.read(0, b, t, x.head, m)),
        x.read(4, b, t, group, n), x.at(made[0], b, t, x.head, m),
        x.read(5, b, x.head, m, n) if len(given) == 6 else None, x.at(made[1], b, x.head, m, n),
        e.op("exp", e.op("mul", time, x.read(2, x.head))),
    )  # fmt: skip


def _delta(node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> tuple[_Layer, _Update]:
    heads, rows = given[0].dims[2:]
    x = _Layer(node, given, made, *_axes(node, (heads,), rows, given[2].dims[3]))
    b, t, h, n, m = x.b, x.t, x.head, x.n, x.m
    gate = (b, t, h, n)[: len(given[3].dims)]
    strength = (b, t, h, m)[: len(given[4].dims)]
    return x, _Update(
        x.read(1, b, t, h, n), x.read(2, b, t, h, m), x.read(0, b, t, h, n),
        x.at(made[0], b, t, h, m), x.read(5, b, h, n, m) if len(given) == 6 else None,
        x.at(made[1], b, h, n, m), x.e.op("exp", x.read(3, *gate)), x.read(4, *strength),
        _scale(node, rows),
    )  # fmt: skip


def _linear(node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> tuple[_Layer, _Update]:
    attrs, (q, k, v, *_) = node.attrs, given
    heads, kv, rule = (attrs[name] for name in ("num_heads", "kv_heads", "rule"))
    queries, keys, values = _by_head(q, heads), _by_head(k, kv), _by_head(v, kv)
    rows, columns = keys.dims[3], values.dims[3]
    x = _Layer(node, given, made, *_axes(node, (kv,), rows, columns, heads // kv))
    b, t, h, n, m = x.b, x.t, x.head, x.n, x.m
    number, decay, strength = 3, None, None
    if rule.startswith("gated"):
        gate = _by_head(given[number], kv)
        along = None if gate.dims[3] == 1 else n
        decay = x.e.op("exp", x.load(number, x.at(gate, b, t, h, along)))
        number += 1
    if rule.endswith("delta"):
        strength = x.read(number, b, t, None if given[number].dims[2] == 1 else h)
        number += 1
    return x, _Update(
        x.load(1, x.at(keys, b, t, h, n)), x.load(2, x.at(values, b, t, h, m)),
        x.load(0, x.at(queries, b, t, x.query_head, n)),
        x.at(_by_head(made[0], heads), b, t, x.query_head, m),
        x.read(number, b, h, n, m) if number < len(given) else None,
        x.at(made[1], b, h, n, m), decay, strength, _scale(node, rows),
    )  # fmt: skip


def _scale(node: Node, rows: DimLike) -> float:
    scale = node.attrs["scale"]
    return float(int(rows)) ** -0.5 if scale is None else scale


def _by_head(layout: Layout, heads: int) -> Layout:
    """[batch, length, heads · index] with heads as an axis."""
    (b, s, w), (x, y, z) = layout.dims, layout.strides
    size = w // heads
    return Layout((b, s, heads, size), (x, y, size * z, z), layout.offset)


Lower = Callable[[Node, Sequence[Layout], Sequence[Layout]], tuple[_Layer, _Update]]
STATE_SPACES: dict[str, Lower] = {
    "selective_scan": _selective, "mamba2": _mamba2, "gated_delta_net": _delta,
    "linear_attention": _linear,
}  # fmt: skip


def state_space_scan(node: Node, given: Sequence[Layout], made: Sequence[Layout]) -> Scan:
    layer, update = STATE_SPACES[node.op](node, given, made)
    return _scan(layer, update)


def _scan(x: _Layer, u: _Update) -> Scan:
    state = Value("state", (x.b, *x.heads, x.n, x.m), x.kind)
    change = Value("change", (x.b, *x.heads, x.m), x.kind)
    values = () if u.strength is None else (change,)
    memory = Memory(tuple(i.shape for i in x.node.inputs), x.node.shapes, (state, *values))
    before = memory.load(x.e, "state", *state.axes)
    kept = before if u.decay is None else x.e.op("mul", before, u.decay)
    if u.strength is None:
        steps = (_update(x, u, memory, kept, u.value),)
    else:
        change_now = memory.load(x.e, "change", *change.axes)
        own = _correct(x, u, memory, kept, before)
        steps = (own, _update(x, u, memory, before, change_now))
    first = x.e.number(0, x.kind) if u.first is None else u.first
    last = Store(1, u.last, x.e.cast(before, x.dtype))
    return Scan(
        x.node.op, x.t, Axis("d", 1), (state,), values, (),
        (memory.kernel("start", state.axes, [memory.store("state", first, *state.axes)]),), False,
        (Direction(False, steps),), (memory.kernel("finish", state.axes, [last]),),
        memory.operands, memory.results,
    )  # fmt: skip


def _correct(x: _Layer, u: _Update, memory: Memory, kept: Expr, before: Expr) -> Kernel:
    """Delta rule: the state decays, and the change is the value less what the state has at the
    key, times the strength."""
    assert u.strength is not None
    e, axes = x.e, (x.b, *x.heads, x.n, x.m)
    known = e.reduce("sum", x.n, e.op("mul", kept, u.key))
    change = e.op("mul", e.op("sub", u.value, known), u.strength)
    stores = [memory.store("change", change, x.b, *x.heads, x.m)]
    if kept is not before:
        stores = [memory.store("state", kept, *axes), *stores]
    return memory.kernel("correct", axes, stores)


def _update(x: _Layer, u: _Update, memory: Memory, kept: Expr, change: Expr) -> Kernel:
    """The new state, and what each query reads of it."""
    e, axes = x.e, (x.b, *x.heads, x.n, x.m)
    new = e.op("add", e.op("mul", u.key, change), kept)
    total = e.reduce("sum", x.n, e.op("mul", new, u.query))
    made = total if u.scale is None else e.op("mul", total, u.scale)
    stores = [memory.store("state", new, *axes), Store(0, u.output, e.cast(made, x.dtype))]
    return memory.kernel("update", (*axes, x.q), stores)
