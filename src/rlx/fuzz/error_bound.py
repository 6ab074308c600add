"""How far two right programs may differ: a running error bound, computed in f64.

Each value of a graph is shadowed by its f64 value and a bound on the error of any program that
rounds each step once. A step adds 8·eps·Σ|terms|: the terms of a sum are the products or addends;
elsewhere they are the result itself, or the operands' largest number where an op mixes a whole row.
Errors of operands are carried through by evaluating the step with operands moved by their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.core.attrs import HeldGraph, bind
from rlx.core.dtype import DType
from rlx.core.errors import Error, UnsupportedError
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate_node, infer_binding
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Array, Kind

FACTOR = 8.0
WAVES = ("sin", "cos", "tan", "sinc", "polar")
SUMS = (Kind.CONTRACTION, Kind.CONVOLUTION, Kind.REDUCTION)


@dataclass(frozen=True, slots=True)
class Shadow:
    """A value in f64, the bound on its error, and where there is no bound (overflow)."""

    value: Array
    error: Array
    is_lost: bool = False

    @classmethod
    def exact(cls, array: Array) -> Shadow:
        wide = _wide(array)
        return cls(wide, np.zeros(wide.shape))


def shadows(graph: Graph, values: Mapping[str, Array]) -> list[Shadow]:
    """The shadow of every output."""
    given = {n: Shadow.exact(values[n.attrs["name"]]) for n in graph.leaves}
    plain = {n: values[n.attrs["name"]] for n in graph.leaves}
    return _shadows(graph, given, plain)


def _shadows(
    graph: Graph, leaves: Mapping[Node, Shadow], values: Mapping[Node, Array]
) -> list[Shadow]:
    done: dict[Node, Any] = dict(leaves)
    plain: dict[Node, Any] = dict(values)
    sizes = infer_binding(graph.leaves, {n.attrs["name"]: values[n] for n in graph.leaves})
    for node in graph.order():
        if node in done:
            continue
        plain[node] = evaluate_node(node, [plain[i] for i in node.inputs], sizes)
        if node.op == "item":
            done[node] = done[node.inputs[0]][node.attrs["index"]]
        else:
            operands = [done[i] for i in node.inputs]
            made = _shadow(node, operands, [plain[i] for i in node.inputs], plain[node], sizes)
            done[node] = made if node.has_items else made[0]
    return [done[o] for o in graph.outputs]


def _shadow(
    node: Node,
    operands: Sequence[Shadow],
    plain: Sequence[Array],
    made: Any,
    sizes: Mapping[str, int],
) -> list[Shadow]:
    """One step: f64 value, carried error, and the error of its own roundings."""
    given = made if node.has_items else (made,)
    if not any(_is_inexact(s.dtype) for s in node.shapes) or node.op == "constant":
        return [Shadow.exact(a) for a in given]
    if _is_open(node, operands):
        return [Shadow(_wide(a), np.zeros(a.shape), True) for a in given]
    values = _apply(node, [o.value for o in operands], given, sizes)
    eps = max(
        rounding(s.dtype)
        for s in (*node.shapes, *(i.shape for i in node.inputs))
        if _is_inexact(s.dtype)
    )
    moved = [_apply(node, xs, given, sizes) for xs in _moves(node, operands, eps)]
    terms = _terms(node, operands, values, given, sizes)
    lost = any(o.is_lost for o in operands) or _mixes_infinities(node, operands)
    steps = _spelled(node, operands, plain) if node.decl.lower is not None else [None] * len(given)
    return [
        _bounded(values[i], [m[i] for m in moved], eps * FACTOR * terms[i], shape, lost, steps[i])
        if _is_inexact(shape.dtype)
        else Shadow.exact(given[i])
        for i, shape in enumerate(node.shapes)
    ]


def _is_open(node: Node, operands: Sequence[Shadow]) -> bool:
    """Has the result no bound in f64? So it is with factors of matrices, whose bases
    are free where values repeat, and with waves of an angle that is not known to a quarter."""
    factors = node.decl.kind is Kind.SPECIAL and node.decl.jumps(
        [i.shape for i in node.inputs], node.shapes
    )
    return factors or (node.op in WAVES and any(np.any(o.error > 0.25) for o in operands))


def _mixes_infinities(node: Node, operands: Sequence[Shadow]) -> bool:
    """Sums of products in another order make other NaNs of infinities: transforms and products
    of what is not finite are not judged."""
    mixing = (Kind.SPECIAL, Kind.CONTRACTION, Kind.CONVOLUTION)
    return node.decl.kind in mixing and any(
        _is_inexact(i.shape.dtype) and not np.all(np.isfinite(o.value))
        for i, o in zip(node.inputs, operands)
    )


def _spelled(
    node: Node, operands: Sequence[Shadow], plain: Sequence[Array]
) -> Sequence[Shadow | None]:
    """The shadows of the op's decomposition into simpler ops, whose sums are explicit."""
    graph = Graph(node.op)
    inputs = [graph.input(f"x{i}", n.shape) for i, n in enumerate(node.inputs)]
    if not inputs and node.decl.signature.operands:
        return [None] * len(node.shapes)
    try:
        graph.set_outputs(list(node.decl.lowered(inputs, node.attrs, graph)))
    except UnsupportedError:
        return [None] * len(node.shapes)
    return _shadows(graph, dict(zip(inputs, operands)), dict(zip(inputs, plain)))


def _bounded(
    value: Array,
    moved: Sequence[Array],
    own: Array,
    shape: Shape,
    is_lost: bool,
    decomposed: Shadow | None,
) -> Shadow:
    with np.errstate(all="ignore"):
        carried = np.max([_distance(m, value) for m in moved], axis=0, initial=0.0)
        rounded = np.where(np.isfinite(value) | np.iscomplexobj(value), own, 0.0)
        error = 2.0 * carried + rounded + FACTOR * _smallest(shape.dtype)
        if decomposed is not None:
            error, is_lost = np.maximum(error, decomposed.error), is_lost or decomposed.is_lost
        size = np.abs(value) + error
        over = np.isfinite(np.abs(value)) & ~(size < _largest(shape.dtype))
    return Shadow(value, error, is_lost or bool(np.any(over)))


def _distance(moved: Array, value: Array) -> Array:
    """How far a moved value is from the other: not at all where both are the same infinity or
    NaN, and beyond all bounds where one of them is another."""
    same = (moved == value) | (np.isnan(moved) & np.isnan(value))
    return np.where(same, 0.0, np.nan_to_num(np.abs(moved - value), nan=np.inf, posinf=np.inf))


def _moves(node: Node, operands: Sequence[Shadow], eps: float) -> list[list[Array]]:
    """Operands moved by what they may be wrong by, up, down, and each way at random."""
    rng = np.random.default_rng(node.index)
    return [
        [_moved(node, i, o, eps, sign, rng) for i, o in enumerate(operands)]
        for sign in (1.0, -1.0, 0.0, 0.0)
    ]


def _moved(
    node: Node, i: int, operand: Shadow, eps: float, sign: float, rng: np.random.Generator
) -> Array:
    if not _is_inexact(node.inputs[i].shape.dtype):
        return operand.value
    with np.errstate(all="ignore"):
        size = np.abs(operand.value)
        finite = size[np.isfinite(size)]
        is_local = node.decl.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT, *SUMS)
        reach = 0.0 if is_local else eps * FACTOR * (finite.max() if finite.size else 0.0)
        step = operand.error + reach
        move = np.where(np.isfinite(step), step, 0.0) * _signs(sign, step.shape, rng)
        if np.iscomplexobj(operand.value):
            return operand.value + move + 1j * np.abs(move) * _signs(sign, step.shape, rng)
        return operand.value + move


def _signs(sign: float, dims: tuple[int, ...], rng: np.random.Generator) -> Array:
    """One direction for all, or each its own at random, of sizes that cancel nowhere."""
    if sign:
        return np.full(dims, sign)
    return rng.choice((-1.0, 1.0), dims) * rng.uniform(0.5, 1.0, dims)


def _terms(
    node: Node,
    operands: Sequence[Shadow],
    values: Sequence[Array],
    given: Sequence[Array],
    known: Mapping[str, int],
) -> list[Array]:
    """The size of what is added up at each element of each result."""
    sizes = [np.abs(v.astype(np.complex128)) for v in values]
    if node.decl.kind not in SUMS:
        return sizes
    positive = [
        np.abs(o.value) if _is_inexact(n.shape.dtype) else o.value
        for o, n in zip(operands, node.inputs)
    ]
    made = _apply(node, positive, given, known)
    return [np.maximum(np.abs(a), s) for a, s in zip(made, sizes)]


def _apply(
    node: Node, operands: Sequence[Array], given: Sequence[Array], sizes: Mapping[str, int]
) -> list[Array]:
    """The step in f64; a step that holds typed graphs runs in its own dtypes.

    Where moved operands change what is measured, values do not correspond: no error is propagated.
    """
    if node.op == "cast":
        return [_cast(operands[0], node.shape.dtype)]
    holds_graphs = any(isinstance(v, HeldGraph) for v in node.attrs.values())
    try:
        if holds_graphs:
            typed = [_narrow(o, n.shape.dtype) for o, n in zip(operands, node.inputs)]
            made = evaluate_node(node, typed, dict(sizes))
        else:
            made = node.decl.run(
                [_admitted(o, n) for o, n in zip(operands, node.inputs)],
                {k: bind(v, sizes) for k, v in node.attrs.items()},
            )
    except Error:
        return [_wide(g) for g in given]
    results = made if isinstance(made, tuple) else (made,)
    return [_wide(m if m.shape == g.shape else g) for m, g in zip(results, given)]


def _cast(operand: Array, to: DType) -> Array:
    """To an inexact dtype, without the rounding."""
    if to.is_complex:
        return operand.astype(np.complex128)
    return np.real(operand).astype(np.float64)


def _admitted(operand: Array, source: Node) -> Array:
    dtype: DType = source.shape.dtype
    return operand if _is_inexact(dtype) else operand.astype(dtype.numpy)


def _narrow(operand: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return operand.astype(dtype.numpy)


def _wide(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    is_float = _is_inexact(DType.of(array.dtype))
    with np.errstate(all="ignore"):  # a signalling NaN is a NaN
        return array.astype(np.float64) if is_float else array


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex


def rounding(dtype: DType) -> float:
    """The relative distance of neighbouring numbers."""
    return {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23}.get(dtype.real, 2.0**-52)


def _smallest(dtype: DType) -> float:
    """The spacing of the least numbers: an underflow is wrong by as much."""
    return {DType.F16: 2.0**-24, DType.BF16: 2.0**-133, DType.F32: 2.0**-149}.get(
        dtype.real, 5e-324
    )


def _largest(dtype: DType) -> float:
    return {DType.F16: 65504.0, DType.BF16: 3.38e38, DType.F32: 3.4e38}.get(dtype.real, 1.79e308)
