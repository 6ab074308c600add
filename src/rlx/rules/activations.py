"""Recognition of activations from their formulas, with factors in any order.

A recognised activation rounds once where its decomposition rounds at every step; nothing else
differs.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from rlx import ops
from rlx.core.dtype import FLOATS
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.rules.common import is_float
from rlx.rules.engine import rule
from rlx.rules.match import scalar_of

_ROUNDINGS = "the decomposition rounds at every step, the activation once; f16 and bf16 coarsely"


def factors(node: Node, stop: Node | None = None) -> tuple[float, list[Node]]:
    """`node` as a number times nodes: products, squares, cubes, signs and quotients by numbers
    taken apart, but not `stop`."""
    scale, found, stack = 1.0, list[Node](), [node]
    while stack and len(stack) + len(found) < 9:
        n = stack.pop()
        value = None if n is stop else scalar_of(n)
        if value is not None:
            scale *= float(value)
        elif n is stop or (parts := _parts(n)) is None:
            found.append(n)
        else:
            scale *= parts[0]
            stack += parts[1]
    return scale, found + stack


def _parts(n: Node) -> tuple[float, list[Node]] | None:
    """One product taken apart."""
    if n.op == "mul":
        return 1.0, [*n.inputs]
    if n.op == "neg":
        return -1.0, [*n.inputs]
    if n.op == "square":
        return 1.0, [n.inputs[0]] * 2
    value = scalar_of(n.inputs[1]) if n.op in ("div", "pow") else None
    if value is None:
        return None
    if n.op == "pow":
        return (1.0, [n.inputs[0]] * 3) if float(value) == 3.0 else None
    return (1.0 / float(value), [n.inputs[0]]) if float(value) else None


def is_near(value: float, wanted: float, like: Node) -> bool:
    """Is `value` what rounding leaves of `wanted` in the dtype of `like`?"""
    eps = float(ml_dtypes.finfo(like.dtype.numpy).eps)
    return abs(value - wanted) <= 2 * eps * abs(wanted)


def _one_plus(gate: Node, op: str) -> Node | None:
    """The operand y of 1 + op(y)."""
    if gate.op != "add":
        return None
    for one, other in (gate.inputs, gate.inputs[::-1]):
        if other.op == op and scalar_of(one) == 1:
            return other.inputs[0]
    return None


def _gated(node: Node, gate: Node, x: Node) -> bool:
    """Is `node` x/2 times `gate`?"""
    scale, found = factors(node, stop=x)
    return (
        is_near(scale, 0.5, node)
        and len(found) == 2
        and gate in found
        and x in found
        and x.shape == node.shape
    )


def _sample(draw: Draw, parts: Any) -> Node:
    """A product over a sampled input: `parts(x, draw)` are its factors, in any order."""
    graph = Graph("sample")
    x = graph.input("x", Shape(draw.dims(), draw.choice(sorted(FLOATS, key=str))))
    made = parts(x, draw)
    order = [made[int(i)] for i in draw.rng.permutation(len(made))]
    while len(order) > 1:
        spot = draw.integer(0, len(order) - 2)
        order[spot : spot + 2] = [ops.mul(order[spot], order[spot + 1])]
    return order[0]


def _sample_gelu(draw: Draw) -> Node:
    def parts(x: Node, draw: Draw) -> list[Node]:
        inner = x * math.sqrt(0.5) if draw.coin() else ops.div(x, math.sqrt(2.0))
        gate = ops.add(ops.erf(inner), 1.0)
        halves = [ops.mul(x, 0.5), gate] if draw.coin() else [x, gate * 0.5]
        return halves if draw.coin() else [x, gate, x.graph.constant(_like(0.5, x))]

    return _sample(draw, parts)


def _like(value: float, x: Node) -> Any:
    return x.dtype.numpy.type(value)


def _has_gate(node: Node) -> bool:
    """Is a sum with an erf or a tanh a factor, at most two products down?"""
    level = [node]
    for _ in range(3):
        level = [i for n in level if n.op in ("mul", "div") for i in n.inputs]
        if any(i.op == "add" and any(j.op in ("erf", "tanh") for j in i.inputs) for i in level):
            return is_float(node)
    return False


@rule(
    lambda: ops.mul,
    lambda: ops.div,
    sample=_sample_gelu,
    slack=8.0,
    refines=True,
    why=_ROUNDINGS,
    when=_has_gate,
)
def gelu_formula(node: Node) -> Any:
    """x/2 · (1 + erf(x/√2)) is gelu."""
    for gate in factors(node)[1]:
        inner = _one_plus(gate, "erf")
        if inner is not None:
            for x in _candidates(inner):
                scale, found = factors(inner, stop=x)
                if found == [x] and is_near(scale, math.sqrt(0.5), x) and _gated(node, gate, x):
                    return ops.gelu(x)
    return None


def _candidates(inner: Node) -> list[Node]:
    """What could be the x of a scaled x: the node and its operands, not the numbers."""
    around = [*inner.inputs, *(i for n in inner.inputs for i in n.inputs)]
    return [n for n in dict.fromkeys([*around, inner]) if scalar_of(n) is None]


def _sample_gelu_tanh(draw: Draw) -> Node:
    def parts(x: Node, draw: Draw) -> list[Node]:
        gate = ops.add(ops.tanh(_cubic(x, draw)), 1.0)
        return [ops.mul(x, 0.5), gate] if draw.coin() else [x, ops.mul(gate, 0.5)]

    return _sample(draw, parts)


def _cubic(x: Node, draw: Draw) -> Node:
    c, a = math.sqrt(2 / math.pi), 0.044715
    if draw.coin(0.3):
        return ops.mul(ops.mul(x, c), ops.add(1.0, ops.mul(ops.square(x), a)))
    cube = draw.choice((ops.pow(x, 3.0), ops.mul(ops.square(x), x)))
    return ops.mul(ops.add(x, ops.mul(cube, a)), c)


@rule(
    lambda: ops.mul,
    lambda: ops.div,
    sample=_sample_gelu_tanh,
    slack=16.0,
    refines=True,
    why=_ROUNDINGS,
    when=_has_gate,
)
def gelu_tanh_formula(node: Node) -> Any:
    """x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) is gelu by tanh."""
    for gate in factors(node)[1]:
        inner = _one_plus(gate, "tanh")
        x = None if inner is None else _cubic_of(inner)
        if x is not None and _gated(node, gate, x):
            return ops.gelu_tanh(x)
    return None


def _cubic_of(inner: Node) -> Node | None:
    """The x of √(2/π) · (x + 0.044715 x³), or of √(2/π) · x · (1 + 0.044715 x²)."""
    scale, found = factors(inner)
    total = next((n for n in found if n.op == "add"), None)
    if total is None or not is_near(scale, math.sqrt(2 / math.pi), inner):
        return None
    for first, second in (total.inputs, total.inputs[::-1]):
        is_one = scalar_of(first) == 1
        x = first if not is_one else next((n for n in found if n is not total), None)
        if x is None:
            continue
        power, cubed = factors(second, stop=x)
        rest = [x, total] if is_one else [total]
        if (
            is_near(power, 0.044715, inner)
            and cubed == [x] * (2 if is_one else 3)
            and _same(factors(inner, stop=x)[1], rest)
        ):
            return x
    return None


def _same(found: list[Node], wanted: list[Node]) -> bool:
    return len(found) == len(wanted) and all(n in found for n in wanted)


# -- gates ----------------------------------------------------------------------------------------


@rule(
    lambda x: ops.reciprocal(ops.add(ops.exp(ops.neg(x)), 1)),
    slack=4.0,
    why=_ROUNDINGS,
)
def sigmoid_formula(x: Node, node: Node) -> Any:
    """1 / (1 + e⁻ˣ) is the sigmoid."""
    return ops.sigmoid(x) if x.shape == node.shape else None


@rule(
    lambda x: ops.mul(x, ops.sigmoid(x)),
    slack=2.0,
    why="in half precision the decomposition rounds the sigmoid first",
)
def silu_formula(x: Node) -> Any:
    """x · sigmoid(x) is silu."""
    return ops.silu(x)


@rule(lambda x: ops.div(x, ops.add(ops.exp(ops.neg(x)), 1)), slack=4.0, why=_ROUNDINGS)
def silu_from_quotient(x: Node, node: Node) -> Any:
    """x / (1 + e⁻ˣ) is silu."""
    return ops.silu(x) if x.shape == node.shape else None


@rule(
    lambda x: ops.mul(x, ops.tanh(ops.softplus(x))),
    slack=4.0,
    why="in half precision the decomposition rounds softplus and tanh first",
)
def mish_formula(x: Node) -> Any:
    """x · tanh(softplus(x)) is mish."""
    return ops.mish(x)


@rule(
    lambda x: ops.add(ops.relu(x), ops.log1p(ops.exp(ops.neg(ops.abs(x))))),
    slack=2.0,
    why="in half precision the decomposition rounds each step",
)
def softplus_formula(x: Node) -> Any:
    """max(x, 0) + log(1 + e^-|x|) is softplus."""
    return ops.softplus(x)


def _sample_hard_sigmoid(draw: Draw) -> Node:
    graph = Graph("sample")
    x = graph.input("x", Shape(draw.dims(), draw.choice(sorted(FLOATS, key=str))))
    if draw.coin():
        return ops.clamp(ops.add(ops.mul(x, 0.25), 0.5), min=0.0, max=1.0)
    bounded = ops.clamp(ops.add(x, 3.0), min=0.0, max=6.0)
    return ops.mul(bounded, 1 / 6) if draw.coin() else ops.div(bounded, 6.0)


@rule(
    lambda x, a, b: ops.clamp(ops.add(ops.mul(x, a), b), min=0.0, max=1.0),
    sample=_sample_hard_sigmoid,
    slack=2.0,
    why="in half precision the decomposition rounds each step",
)
def hard_sigmoid_formula(x: Node, a: Node, b: Node, node: Node) -> Any:
    """a · x + b between 0 and 1 is the hard sigmoid."""
    alpha, beta = scalar_of(a), scalar_of(b)
    if alpha is None or beta is None or not is_float(x) or x.shape != node.shape:
        return None
    return ops.hard_sigmoid(x, alpha=float(alpha), beta=float(beta))


@rule(
    lambda x, c: ops.mul(ops.clamp(ops.add(x, 3), min=0.0, max=6.0), c),
    lambda x, c: ops.div(ops.clamp(ops.add(x, 3), min=0.0, max=6.0), c),
    sample=_sample_hard_sigmoid,
    slack=4.0,
    why="the quotient by 6 is taken before the bounds, not after",
)
def hard_sigmoid_from_relu6(x: Node, c: Node, node: Node) -> Any:
    """(x + 3 between 0 and 6) / 6 is the hard sigmoid."""
    value = scalar_of(c)
    if value is None or not is_float(x) or x.shape != node.shape:
        return None
    is_six = is_near(float(value), 6.0 if node.op == "div" else 1 / 6, x)
    return ops.hard_sigmoid(x, alpha=1 / 6, beta=0.5) if is_six else None


@rule(
    lambda x, a, b: ops.mul(x, ops.hard_sigmoid(x, alpha=1 / 6, beta=0.5)),
    slack=2.0,
    why="in half precision the decomposition rounds the gate first",
)
def hard_swish_formula(x: Node) -> Any:
    """x · hard_sigmoid(x) is the hard swish."""
    return ops.hard_swish(x)


def _sample_leaky(draw: Draw) -> Node:
    graph = Graph("sample")
    x = graph.input("x", Shape(draw.dims(), draw.choice(sorted(FLOATS, key=str))))
    scaled = ops.mul(x, draw.choice((0.25, 0.01, 0.0)))
    test = draw.choice((ops.greater, ops.greater_equal))
    return ops.where(test(x, 0.0), x, scaled) if draw.coin() else ops.where(x < 0.0, scaled, x)


@rule(
    lambda x, a: ops.where(ops.less(x, 0), ops.mul(x, a), x),
    lambda x, a: ops.where(ops.greater(x, 0), x, ops.mul(x, a)),
    lambda x, a: ops.where(ops.greater_equal(x, 0), x, ops.mul(x, a)),
    sample=_sample_leaky,
    slack=1.0,
    why="in halves the slope was rounded when it became a constant, and the product after it",
)
def leaky_relu_formula(x: Node, a: Node, node: Node) -> Any:
    """x from 0 on, else a · x, is the leaky relu; a zero keeps its sign only where a > 0."""
    alpha = scalar_of(a)
    if alpha is None or not is_float(x) or x.shape != node.shape or not float(alpha) > 0.0:
        return None
    return ops.leaky_relu(x, alpha=float(alpha))


def _sample_elu(draw: Draw) -> Node:
    graph = Graph("sample")
    x = graph.input("x", Shape(draw.dims(), draw.choice(sorted(FLOATS, key=str))))
    return ops.where(ops.greater(x, 0.0), x, ops.mul(ops.expm1(x), draw.choice((1.5, 0.5))))


@rule(
    lambda x, a: ops.where(ops.greater(x, 0), x, ops.mul(ops.expm1(x), a)),
    sample=_sample_elu,
    slack=2.0,
    why="in half precision the decomposition rounds each step",
)
def elu_formula(x: Node, a: Node, node: Node) -> Any:
    """x above 0, else a · (eˣ - 1), is elu."""
    alpha = scalar_of(a)
    if alpha is None or not is_float(x) or x.shape != node.shape:
        return None
    return ops.elu(x, alpha=float(alpha))
