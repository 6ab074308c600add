"""Random numbers: seeded, and the same in every call.

They are Philox numbers of rlx's own (`ops/math/random.py`), not those that onnxruntime's engine or
NumPy's Mersenne Twister would draw: the distribution is the operator's, the numbers are others (but
for a Dropout with a seed, whose mask ONNX's own cases fix). The
key is the node's `seed`; a node without one has a stream of its own, so that two of them do not
draw the same numbers. In loops the counter follows from the numbers of the steps, so that every
step draws others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Weight
from rlx.ir.mir import Node

STEP_STRIDE = 0x9E3779B97F4A7C15
"""Counters of steps are this far apart, mod 2⁶⁴: the golden ratio spreads any number of them."""

DRAWING = frozenset({
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial",
})  # fmt: skip


def draws(model: Any) -> bool:
    """Does a node of this ModelProto draw random numbers? A Dropout may, where an operand says
    whether it is in training mode."""
    bodies = [model.graph, *model.functions]
    for body in bodies:
        for node in body.node:
            is_seeded = any(a.name == "seed" for a in node.attribute)
            is_dropout = node.op_type == "Dropout" and any(node.input[2:]) and not is_seeded
            if node.domain in ("", "ai.onnx") and (is_dropout or node.op_type in DRAWING):
                return True
            bodies += [g for a in node.attribute for g in (a.g, *a.graphs)]
    return False


def _key(call: Call) -> dict[str, int]:
    """The bits of a seed; without one, a stream that no other node has."""
    seed = call.attr("seed")
    if seed is None:
        return {"seed": 0, "stream": call.importer.next_stream()}
    return {"seed": int(np.float32(seed).view(np.uint32)), "stream": 0}


def _counter(call: Call) -> Node:
    """Where the numbers begin: another place in each step of the loops around."""
    counter = call.graph.constant(np.uint64(0))
    for step in call.scope.steps():
        number = ops.cast(ops.reshape(call.as_node(step), dims=()), to=DType.U64)
        ahead = ops.add(ops.add(counter, number), call.graph.constant(np.uint64(1)))
        counter = ops.mul(ahead, call.graph.constant(np.uint64(STEP_STRIDE)))
    return counter


@handles("RandomNormal", "RandomUniform")
def random(call: Call) -> Node:
    dtype = call.importer.reader.dtype(call.attr("dtype", 1), call.label)
    return _numbers(call, call.required("shape"), dtype)


@handles("RandomNormalLike", "RandomUniformLike")
def random_like(call: Call) -> Node:
    x = call.shape(0)
    return _numbers(call, x.dims, _dtype(call, x))


def _dtype(call: Call, like: Shape) -> DType:
    given = call.attr("dtype")
    return like.dtype if given is None else call.importer.reader.dtype(given, call.label)


def _numbers(call: Call, dims: tuple[DimLike, ...], dtype: DType) -> Node:
    how: dict[str, Any] = {"dims": tuple(dims), "dtype": dtype, **_key(call)}
    if call.op.startswith("RandomNormal"):
        spread = {"mean": call.attr("mean", 0.0), "scale": call.attr("scale", 1.0)}
        return ops.random_normal(_counter(call), **spread, **how)
    ends = {"low": call.attr("low", 0.0), "high": call.attr("high", 1.0)}
    return ops.random_uniform(_counter(call), **ends, **how)


@handles("Bernoulli")
def bernoulli(call: Call) -> Node:
    x = call.node(0)
    return ops.bernoulli(x, _counter(call), **_key(call), to=_dtype(call, x.shape))


@handles("Multinomial")
def multinomial(call: Call) -> Node:
    """Classes [batch, samples] of unnormalised log-probabilities [batch, classes]: the first class
    whose cumulated probability exceeds a uniform number."""
    x = call.node(0)
    dtype = call.importer.reader.dtype(call.attr("dtype", 6), call.label)
    batch, classes = x.shape.dims
    count = call.attr("sample_size", 1)
    wide = ops.softmax(ops.cast(x, to=x.shape.dtype.compute), axis=1)
    cumulated = ops.cumsum(wide, axis=1)
    total = ops.narrow(cumulated, axis=1, start=classes - 1, length=1)
    u = ops.random_uniform(
        _counter(call), dims=(batch, count), dtype=wide.shape.dtype, **_key(call)
    )
    passed = ops.less_equal(
        ops.expand_dims(cumulated, axes=(1,)), ops.expand_dims(ops.mul(u, total), axes=(2,))
    )
    return ops.cast(ops.sum(ops.cast(passed, to=DType.I64), axes=(2,)), to=dtype)


# -- dropout --------------------------------------------------------------------------------------


@handles("Dropout")
def dropout(call: Call) -> tuple[Node, ...]:
    """In training mode, which an operand says, elements are 0 with probability `ratio`, and the
    rest is scaled so that the mean stays. Else it does nothing. The mask of what is kept has x's
    dtype before opset 10."""
    x = call.node(0)
    mode = call.importer.as_array(call.value(2)) if call.has(2) else np.array(False)
    if mode is None or np.any(mode):
        return _dropped(call, x)
    one = np.ones((), np.bool_ if call.version >= 10 else x.shape.dtype.numpy)
    kept = ops.expand(call.graph.constant(one), dims=x.shape.dims)
    return (x, kept) if call.wants(1) else (x,)


MOST_SEEDED = 1 << 26
"""Numbers of a Mersenne Twister that are part of a program."""


def _seeded(call: Call, shape: Shape) -> Node:
    """What ONNX says by its cases that a Dropout with a seed keeps, in every call the same: by the
    numbers of a Mersenne Twister, which are drawn while the model is read."""
    if not shape.is_static:
        raise call.needs_shape(f"what its seed drops depends on the size of {shape}")
    if int(shape.num_elements) > MOST_SEEDED:  # pyright: ignore[reportArgumentType]
        raise call.unsupported(f"its seed is for {shape}. Leave it out")
    seed = int(call.attr("seed")) & 0xFFFFFFFF
    numbers = np.random.RandomState(seed).uniform(0.0, 1.0, shape.static_dims)
    return call.as_node(Weight(f"{call.name}.u", numbers))


def _dropped(call: Call, x: Node) -> tuple[Node, ...]:
    wide = x.shape.dtype.compute
    half = call.graph.constant(np.array(0.5, wide.numpy))
    ratio = ops.cast(ops.reshape(call.node(1), dims=()), to=wide) if call.has(1) else half
    trains = ops.reshape(call.node(2), dims=())
    none = call.graph.constant(np.zeros((), wide.numpy))
    ratio = ops.where(trains, ratio, none)
    if call.attr("seed") is not None:
        kept = ops.greater_equal(_seeded(call, x.shape), ops.cast(ratio, to=DType.F64))
    else:
        u = ops.random_uniform(_counter(call), dims=x.shape.dims, dtype=wide, **_key(call))
        kept = ops.greater_equal(u, ratio)
    scaled = ops.div(ops.cast(x, to=wide), ops.sub(1.0, ratio))
    made = ops.cast(ops.where(kept, scaled, none), to=x.shape.dtype)
    return (made, kept) if call.wants(1) else (made,)
