"""Recurrent layers as ONNX defines them: LSTM, GRU and the plain RNN.

x is [length, batch, inputs], weights [directions, gates · hidden, inputs] and recurrent weights
[directions, gates · hidden, hidden]. What else a layer has is named in `extras` and follows in
this order: `bias` [directions, 2 · gates · hidden] (for the input, then for the state), `lengths`
[batch], `initial_h` and `initial_c` [directions, batch, hidden], `peepholes` [directions, 3 ·
hidden]. With `batch_first` (ONNX's layout 1) x is [batch, length, inputs], states are [batch,
directions, hidden].

A row ends after its length: later outputs are zeros, the last state is that at its end, and
`reverse` starts there. Each direction has its own `activations`, which have an alpha and a beta
each (what ONNX leaves out is its default); `clip` bounds what goes into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, dims_differ
from rlx.ops.compose import dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, Op, op

Direction = Literal["forward", "reverse", "bidirectional"]
Extra = Literal["bias", "lengths", "initial_h", "initial_c", "peepholes"]
ActivationName = Literal[
    "relu", "tanh", "sigmoid", "affine", "leaky_relu", "thresholded_relu", "scaled_tanh",
    "hard_sigmoid", "elu", "softsign", "softplus",
]  # fmt: skip

_ORDER = ("bias", "lengths", "initial_h", "initial_c", "peepholes")
_DEFAULTS: dict[str, tuple[float, float]] = {
    "leaky_relu": (0.01, 0.0),
    "thresholded_relu": (1.0, 0.0),
    "hard_sigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
    "affine": (1.0, 0.0),
    "scaled_tanh": (1.0, 1.0),
}
"""The alpha and beta that ONNX's own ops have."""


def _activated(x: Any, name: str, alpha: float, beta: float) -> Any:
    match name:
        case "affine":
            return ops.add(ops.mul(x, alpha), beta)
        case "leaky_relu" | "elu":
            return getattr(ops, name)(x, alpha=alpha)
        case "thresholded_relu":
            return ops.where(ops.greater(x, alpha), x, 0.0)
        case "scaled_tanh":
            return ops.mul(ops.tanh(ops.mul(x, beta)), alpha)
        case "hard_sigmoid":
            return ops.hard_sigmoid(x, alpha=alpha, beta=beta)
        case "softsign":
            return ops.div(x, ops.add(ops.abs(x), 1.0))
        case _:
            return getattr(ops, name)(x)


# -- shapes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of recurrent layer."""

    gates: int
    activations: tuple[str, ...]
    step: Callable[..., Any]
    states: int = 1
    extras: tuple[str, ...] = ("bias", "lengths", "initial_h")


def sizes_of(x: Any, r: Any, attrs: Mapping[str, Any]) -> tuple[DimLike, DimLike, int, DimLike]:
    """Length, batch, directions and hidden."""
    length, batch = dims_of(x)[:2]
    if attrs["batch_first"]:
        length, batch = batch, length
    return length, batch, _directions(attrs), dims_of(r)[2]


def _directions(attrs: Mapping[str, Any]) -> int:
    return 2 if attrs["direction"] == "bidirectional" else 1


def _by_batch(dims: tuple[DimLike, ...], attrs: Mapping[str, Any]) -> tuple[DimLike, ...]:
    """[…, directions, batch, hidden] as the layout has it."""
    if not attrs["batch_first"]:
        return dims
    return (dims[-2], *dims[:-2], dims[-1])


def _wanted(layer: Layer, x: Shape, r: Shape, attrs: Mapping[str, Any]) -> dict[str, Any]:
    _, batch, directions, hidden = sizes_of(x, r, attrs)
    state = _by_batch((directions, batch, hidden), attrs)
    return {
        "bias": (directions, 2 * layer.gates * hidden),
        "lengths": (batch,),
        "initial_h": state,
        "initial_c": state,
        "peepholes": (directions, 3 * hidden),
    }


def _check_extras(layer: Layer, x: Shape, r: Shape, rest: Sequence[Shape], attrs: Any) -> None:
    names, wanted = attrs["extras"], _wanted(layer, x, r, attrs)
    known = [n for n in _ORDER if n in names and n in layer.extras]
    if list(names) != known or len(rest) != len(names):
        raise GraphError(
            f"extras {names} do not name the {len(rest)} operands after the first three: they are "
            f"some of {', '.join(layer.extras)}, in this order"
        )
    for i, (name, shape) in enumerate(zip(names, rest), 3):
        if shape.dims != wanted[name]:
            what = f"operand {i} ({name}) is {shape}, expected [{_listed(wanted[name])}]"
            raise dims_differ(what, shape.dims, wanted[name])
        fits = shape.dtype.is_integer if name == "lengths" else shape.dtype is x.dtype
        if not fits:
            kind = "whole numbers" if name == "lengths" else f"{x.dtype}"
            raise GraphError(f"operand {i} ({name}) is {shape}, expected {kind}")


def _listed(dims: Sequence[DimLike]) -> str:
    return ", ".join(map(str, dims))


def _shaped(layer: Layer) -> Callable[..., tuple[Shape, ...]]:
    def shape(x: Shape, w: Shape, r: Shape, *rest: Shape, **attrs: Any) -> tuple[Shape, ...]:
        length, batch, directions, hidden = sizes_of(x, r, attrs)
        rows = layer.gates * hidden
        for i, (given, last) in enumerate(((w, x.dims[2]), (r, hidden)), 1):
            wanted = directions, rows, last
            if given.dims != wanted:
                what = f"operand {i} is {given}, expected [{_listed(wanted)}]"
                raise dims_differ(what, given.dims, wanted)
        _check_extras(layer, x, r, rest, attrs)
        _check_activations(layer, attrs)
        states = [x.with_dims(_by_batch((directions, batch, hidden), attrs))] * layer.states
        return x.with_dims(_by_batch((length, directions, batch, hidden), attrs)), *states

    return shape


def _check_activations(layer: Layer, attrs: Mapping[str, Any]) -> None:
    count = len(layer.activations) * _directions(attrs)
    for name in ("activations", "alphas", "betas"):
        if len(attrs[name]) != count:
            raise GraphError(f"{name}: expected {count}, got {len(attrs[name])}")
    if attrs["clip"] is not None and not attrs["clip"] >= 0:
        raise GraphError(f"clip is {attrs['clip']}, expected a number from 0")


def _normal(layer: Layer) -> Callable[..., dict[str, Any]]:
    """Activations that are left out are the layer's own, alphas and betas those of ONNX's ops."""

    def normal(*_: Shape, **attrs: Any) -> dict[str, Any]:
        names = attrs["activations"] or layer.activations * _directions(attrs)
        usual = [_DEFAULTS.get(n, (0.0, 0.0)) for n in names]
        return {
            "activations": names,
            "alphas": attrs["alphas"] or tuple(a for a, _ in usual),
            "betas": attrs["betas"] or tuple(b for _, b in usual),
        }

    return normal


def _flops(layer: Layer) -> Callable[..., DimLike]:
    def flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Any) -> DimLike:
        length, batch, directions, hidden = sizes_of(shapes[0], shapes[2], attrs)
        steps = directions * length * batch
        return steps * layer.gates * hidden * (2 * (shapes[0].dims[2] + hidden) + 6)

    return flops


# -- cells ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of one direction, but for its kind: its activations, and what it always sees."""

    attrs: Mapping[str, Any]
    activations: tuple[tuple[str, float, float], ...]
    hidden: DimLike

    def activated(self, x: Any, index: int) -> Any:
        """x, clipped, through the activation of this number."""
        clip = self.attrs["clip"]
        bounded = x if clip is None else ops.clamp(x, min=-clip, max=clip)
        return _activated(bounded, *self.activations[index])

    def gate(self, x: Any, index: int) -> Any:
        """One gate's part of the last axis."""
        last = len(dims_of(x)) - 1
        return ops.narrow(x, axis=last, start=index * self.hidden, length=self.hidden)


def lstm_cell(cell: Cell, sums: Sequence[Any], c: Any, peep: Sequence[Any] | None) -> Any:
    """The new states of the gates' sums: input, output, forget and cell. Peepholes let the first
    three see the cell."""

    def gate(index: int, seen: Any) -> Any:
        own = sums[index] if peep is None else ops.add(sums[index], ops.mul(peep[index], seen))
        return cell.activated(own, 0)

    into = gate(0, c)
    kept = ops.sub(1.0, into) if cell.attrs["input_forget"] else gate(2, c)
    new = ops.add(ops.mul(kept, c), ops.mul(into, cell.activated(sums[3], 1)))
    return ops.mul(gate(1, new), cell.activated(new, 2)), new


def _lstm_step(cell: Cell, x: Any, states: Sequence[Any], fixed: Mapping[str, Any]) -> Any:
    (h, c), peep = states, fixed.get("peepholes")
    sums = ops.add(x, _recurrent(h, fixed))
    seen = None if peep is None else [cell.gate(peep, k) for k in range(3)]
    return lstm_cell(cell, [cell.gate(sums, k) for k in range(4)], c, seen)


def gru_gates(cell: Cell, x: Sequence[Any], past: Sequence[Any]) -> tuple[Any, ...]:
    """How much of the state is kept, and how much of it the new one sees."""
    return tuple(cell.activated(ops.add(a, b), 0) for a, b in zip(x, past))


def gru_new(cell: Cell, x: Any, seen: Any, update: Any, h: Any) -> Any:
    """The new state of the last gate's two parts."""
    new = cell.activated(ops.add(x, seen), 1)
    return ops.add(ops.mul(ops.sub(1.0, update), new), ops.mul(update, h))


def _gru_step(cell: Cell, x: Any, states: Sequence[Any], fixed: Mapping[str, Any]) -> Any:
    """Gates are update, reset and hidden."""
    (h,), past = states, _recurrent(states[0], fixed)
    first = [[cell.gate(v, k) for k in range(2)] for v in (x, past)]
    update, reset = gru_gates(cell, *first)
    if cell.attrs["linear_before_reset"]:
        seen = ops.mul(reset, cell.gate(past, 2))
    else:
        own = {k: cell.gate(v, 2) for k, v in fixed.items()}
        seen = _recurrent(ops.mul(reset, h), own)
    return (gru_new(cell, cell.gate(x, 2), seen, update, h),)


def _rnn_step(cell: Cell, x: Any, states: Sequence[Any], fixed: Mapping[str, Any]) -> Any:
    return (cell.activated(ops.add(x, _recurrent(states[0], fixed)), 0),)


def _recurrent(h: Any, fixed: Mapping[str, Any]) -> Any:
    """The state's part of the gates."""
    product = ops.matmul(h, fixed["r"])
    return ops.add(product, fixed["bias"]) if "bias" in fixed else product


# -- a layer --------------------------------------------------------------------------------------


def looped(
    body: Callable[..., Any], init: Any, xs: Any, whole: Any, *, row: Any, reverse: bool = False
) -> Any:
    """`scanned` in NumPy."""
    carry, steps = init, range(len(xs[0]))
    rows = np.empty((len(steps), *row), xs[0].dtype)
    for t in reversed(steps) if reverse else steps:
        carry, rows[t] = body(carry, tuple(x[t] for x in xs), *whole)
    return carry, rows


def scanned(
    body: Callable[..., Any], init: Any, xs: Any, whole: Any, *, row: Any, reverse: bool = False
) -> Any:
    """The last carries, and one result a step, of dims `row`, stacked."""
    from rlx.ops.control_flow import scan_loop

    return scan_loop(body, init, xs, whole, reverse=reverse)


def _run(loop: Callable[..., Any], layer: Layer, operands: Sequence[Any], attrs: Any) -> Any:
    """The layer's results, with its steps run by `loop`."""
    x, w, r, *rest = operands
    named = dict(zip(attrs["extras"], rest)) | {"w": w, "r": r}
    _, batch, directions, hidden = sizes_of(x, r, attrs)
    if attrs["batch_first"]:
        x = ops.transpose(x, perm=(1, 0, 2))
    made: list[list[Any]] = []
    for d in range(directions):
        own = {k: _part(k, v, d, attrs) for k, v in named.items()}
        states = [own.get(k) for k in ("initial_h", "initial_c")[: layer.states]]
        nothing = ops.expand(_zero(x), dims=(batch, hidden))
        init = tuple(nothing if s is None else s for s in states)
        reverse = attrs["direction"] == "reverse" or d == 1
        last, y = _direction(loop, layer, x, init, own, reverse, cell_of(layer, d, hidden, attrs))
        made.append([ops.expand_dims(y, axes=(1,)), *(ops.expand_dims(s, axes=(0,)) for s in last)])
    ys, *lasts = zip(*made)
    y, states = ops.concat(list(ys), axis=1), [ops.concat(list(s), axis=0) for s in lasts]
    if attrs["batch_first"]:
        y = ops.transpose(y, perm=(2, 0, 1, 3))
        states = [ops.transpose(s, perm=(1, 0, 2)) for s in states]
    return (y, *states)


def _zero(x: Any) -> Any:
    return nullary(x, "constant", value=np.zeros((1, 1), dtype_of(x).numpy))


def _part(name: str, value: Any, direction: int, attrs: Mapping[str, Any]) -> Any:
    """What one direction has of an operand."""
    if name == "lengths":
        return ops.expand_dims(ops.cast(value, to="i64"), axes=(1,))
    axis = 1 if attrs["batch_first"] and name.startswith("initial") else 0
    return ops.squeeze(ops.narrow(value, axis=axis, start=direction, length=1), axes=(axis,))


def cell_of(layer: Layer, direction: int, hidden: DimLike, attrs: Mapping[str, Any]) -> Cell:
    every = zip(attrs["activations"], attrs["alphas"], attrs["betas"])
    count = len(layer.activations)
    return Cell(attrs, tuple(every)[direction * count : (direction + 1) * count], hidden)


def _direction(
    loop: Callable[..., Any], layer: Layer, x: Any, init: Any, own: Mapping[str, Any],
    reverse: bool, cell: Cell,
) -> tuple[Any, Any]:  # fmt: skip
    """The last states and all outputs of one direction. Every step's input is projected at once."""
    seen = ops.matmul(x, ops.transpose(own["w"], perm=(1, 0)))
    fixed = {"r": ops.transpose(own["r"], perm=(1, 0))}
    if "bias" in own:
        rows = dims_of(own["w"])[0]
        for_x, fixed["bias"] = (
            ops.narrow(own["bias"], axis=0, start=k * rows, length=rows) for k in range(2)
        )
        seen = ops.add(seen, for_x)
    fixed |= {k: own[k] for k in ("peepholes", "lengths") if k in own}
    steps = (nullary(x, "iota", dims=dims_of(x)[:1], axis=0),) if "lengths" in own else ()

    def body(states: Any, row: Any, *whole: Any) -> Any:
        given = dict(zip(fixed, whole))
        lengths = given.pop("lengths", None)
        new = layer.step(cell, row[0], states, given)
        if lengths is None:
            return new, new[0]
        is_inside = ops.less(row[1], lengths)
        kept = tuple(ops.where(is_inside, n, s) for n, s in zip(new, states))
        return kept, ops.where(is_inside, new[0], 0.0)

    whole, row = tuple(fixed.values()), dims_of(init[0])
    return loop(body, init, (seen, *steps), whole, row=row, reverse=reverse)


LSTM = Layer(4, ("sigmoid", "tanh", "tanh"), _lstm_step, 2, _ORDER)
GRU = Layer(3, ("sigmoid", "tanh"), _gru_step)
RNN = Layer(1, ("tanh",), _rnn_step)
_OPERANDS = "f[p q i], f[d g i], f[d g h], _[...]?, _[...]?, _[...]?"


def _facts(layer: Layer) -> dict[str, Any]:
    return {"kind": Kind.SPECIAL, "shape": _shaped(layer), "flops": _flops(layer)}


@op(f"{_OPERANDS}, _[...]?, _[...]? -> f[...], f[...], f[...]", **_facts(LSTM))
def lstm(
    *operands: Array,
    extras: tuple[Extra, ...] = (),
    direction: Direction = "forward",
    activations: tuple[ActivationName, ...] = (),
    alphas: tuple[float, ...] = (),
    betas: tuple[float, ...] = (),
    clip: float | None = None,
    input_forget: bool = False,
    batch_first: bool = False,
) -> tuple[Array, ...]:
    """The outputs [length, directions, batch, hidden], the last state and the last cell of
    i, o, f = σ(Wx + Rh + b + p·c), C = f·c + i·tanh(Wx + Rh + b), H = o·tanh(C), where o sees the
    new C. `input_forget` has f = 1 - i."""
    attrs = {"extras": extras, "direction": direction, "activations": activations,
             "alphas": alphas, "betas": betas, "clip": clip, "input_forget": input_forget,
             "batch_first": batch_first}  # fmt: skip
    return _run(looped, LSTM, operands, attrs)


@op(f"{_OPERANDS} -> f[...], f[...]", **_facts(GRU))
def gru(
    *operands: Array,
    extras: tuple[Extra, ...] = (),
    direction: Direction = "forward",
    activations: tuple[ActivationName, ...] = (),
    alphas: tuple[float, ...] = (),
    betas: tuple[float, ...] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    batch_first: bool = False,
) -> tuple[Array, ...]:
    """The outputs [length, directions, batch, hidden] and the last state of
    z, r = σ(Wx + Rh + b), H = (1 - z)·tanh(Wx + R(r·h) + b) + z·h. With `linear_before_reset`,
    r weighs the product and its bias instead: r·(Rh + b)."""
    attrs = {"extras": extras, "direction": direction, "activations": activations,
             "alphas": alphas, "betas": betas, "clip": clip,
             "linear_before_reset": linear_before_reset, "batch_first": batch_first}  # fmt: skip
    return _run(looped, GRU, operands, attrs)


@op(f"{_OPERANDS} -> f[...], f[...]", **_facts(RNN))
def rnn(
    *operands: Array,
    extras: tuple[Extra, ...] = (),
    direction: Direction = "forward",
    activations: tuple[ActivationName, ...] = (),
    alphas: tuple[float, ...] = (),
    betas: tuple[float, ...] = (),
    clip: float | None = None,
    batch_first: bool = False,
) -> tuple[Array, ...]:
    """The outputs [length, directions, batch, hidden] and the last state of
    H = tanh(Wx + Rh + b)."""
    attrs = {"extras": extras, "direction": direction, "activations": activations,
             "alphas": alphas, "betas": betas, "clip": clip,
             "batch_first": batch_first}  # fmt: skip
    return _run(looped, RNN, operands, attrs)


def _draw_layer(layer: Layer, own: str | None) -> Callable[[Draw], Any]:
    def sample(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
        length, batch, inputs, hidden = (draw.size(), *(draw.integer(0, 3) for _ in range(3)))
        dtype, direction = draw.dtype("f"), draw.choice(get_args(Direction))
        extras = tuple(e for e in _ORDER if e in layer.extras and draw.coin())
        attrs = {"direction": direction, "extras": extras, "batch_first": draw.coin()}
        attrs |= {own: draw.coin()} if own else {}
        attrs |= {"clip": draw.choice((None, 0.5, 3.0))}
        d, rows = _directions(attrs), layer.gates * hidden
        if draw.coin():
            count = len(layer.activations) * d
            attrs["activations"] = tuple(draw.choice(_SMOOTH) for _ in range(count))
        outer = (batch, length) if attrs["batch_first"] else (length, batch)
        x, r = Shape((*outer, inputs), dtype), Shape((d, rows, hidden), dtype)
        wanted = _wanted(layer, x, r, attrs)
        dims = [x.dims, (d, rows, inputs), r.dims]
        specs = [Spec(tuple(map(int, ds)), dtype, "plain") for ds in dims]
        for name in extras:
            is_count = name == "lengths"
            domain = f"index:{length + 1}" if is_count else "plain"
            specs.append(Spec(wanted[name], draw.dtype("i") if is_count else dtype, domain))
        return specs, attrs

    return sample


_SMOOTH = tuple(n for n in get_args(ActivationName) if n not in ("thresholded_relu", "affine"))
"""Activations that keep a state bounded or near: a jump or a growing state magnifies roundings."""


def _declare(layer: Layer, made: Op, own: str | None = None) -> None:
    """The properties that all three share."""
    made.normal(_normal(layer))
    made.sample(_draw_layer(layer, own))
    made.lowering(lambda *operands, **attrs: _run(scanned, layer, operands, attrs))


_declare(LSTM, lstm, "input_forget")
_declare(GRU, gru, "linear_before_reset")
_declare(RNN, rnn)
