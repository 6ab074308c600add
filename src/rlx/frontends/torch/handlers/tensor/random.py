"""Random numbers: seeded by torch's generator, drawn by ours.

Each call draws one number from torch's default generator, so that `torch.manual_seed` governs what
follows; the numbers are Philox's, of that key, and another stream for each op. Distributions are
torch's, the numbers are others.
"""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node


def _uniform(call: Call, low: float = 0.0, high: float = 1.0, dtype: DType | None = None) -> Node:
    return ops.random_uniform(
        call.importer.random_state(), dims=call.dims, low=low, high=high,
        stream=call.importer.next_stream(), dtype=dtype or call.dtype,
    )  # fmt: skip


def _normal(call: Call, mean: float = 0.0, scale: float = 1.0) -> Node:
    """Parts of complex numbers have half the variance each."""
    if call.dtype.is_complex:
        half = scale * math.sqrt(0.5)
        return ops.make_complex(_real_normal(call, mean, half), _real_normal(call, 0.0, half))
    return _real_normal(call, mean, scale)


def _real_normal(call: Call, mean: float, scale: float) -> Node:
    return ops.random_normal(
        call.importer.random_state(), dims=call.dims, mean=mean, scale=scale,
        stream=call.importer.next_stream(), dtype=call.dtype.real,
    )  # fmt: skip


@handles("rand", "rand_like")
def rand(call: Call, *_: Any) -> Node:
    if call.dtype.is_complex:
        return ops.make_complex(*(_uniform(call, dtype=call.dtype.real) for _ in range(2)))
    return _uniform(call)


@handles("randn", "randn_like")
def randn(call: Call, *_: Any) -> Node:
    return _normal(call)


@handles("uniform")
def uniform(call: Call, x: Node, **range_: Any) -> Node:
    return _uniform(call, float(range_.get("from", 0.0)), float(range_.get("to", 1.0)))


@handles("normal", "normal_functional")
def normal(call: Call, x: Any, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> Node:
    """Of tensors of means and deviations, or of one mean and deviation."""
    if call.overload.startswith(("Tensor", "float")):
        mean, std = call.args.get("mean", 0.0), call.args.get("std", 1.0)
    if isinstance(mean, Node) or isinstance(std, Node):
        return ops.add(
            call.node(mean, call.dtype), ops.mul(_normal(call), call.node(std, call.dtype))
        )
    return _normal(call, float(mean), float(std))


@handles("randint", "randint_like", "random")
def randint(call: Call, *_: Any) -> Node:
    low = call.args.get("low", call.args.get("from", 0)) or 0
    high = call.args.get("high", call.args.get("to"))
    call.require(isinstance(low, int) and isinstance(high, int), "bounds that are data or missing")
    return ops.random_integers(
        call.importer.random_state(), dims=call.dims, low=low, high=high,
        stream=call.importer.next_stream(), dtype=DType.I64,
    )  # fmt: skip


@handles("bernoulli")
def bernoulli(call: Call, x: Node, p: Any = None) -> Node:
    chance = x if p is None else ops.expand(call.node(p, DType.F32), dims=call.dims)
    state, stream = call.importer.random_state(), call.importer.next_stream()
    return ops.bernoulli(chance, state, stream=stream, to=call.dtype)


@handles("exponential")
def exponential(call: Call, x: Node, lambd: float = 1.0) -> Node:
    return ops.div(ops.neg(ops.log1p(ops.neg(_uniform(call)))), float(lambd))


@handles("cauchy")
def cauchy(call: Call, x: Node, median: float = 0.0, sigma: float = 1.0) -> Node:
    turned = ops.mul(ops.sub(_uniform(call), 0.5), math.pi)
    return ops.add(ops.mul(ops.tan(turned), float(sigma)), float(median))


@handles("log_normal")
def log_normal(call: Call, x: Node, mean: float = 1.0, std: float = 2.0) -> Node:
    return ops.exp(_normal(call, float(mean), float(std)))


@handles("geometric")
def geometric(call: Call, x: Node, p: float) -> Node:
    drawn = _uniform(call, dtype=DType.F32)
    return ops.ceil(ops.div(ops.log1p(ops.neg(drawn)), math.log1p(-p)))


@handles("randperm")
def randperm(call: Call, *_: Any) -> Node:
    """The order in which random bits would be sorted."""
    bits = ops.random_bits(
        call.importer.random_state(), dims=call.dims, stream=call.importer.next_stream()
    )
    return ops.argsort(bits, axis=0)


@handles("multinomial")
def multinomial(call: Call, x: Node, num_samples: int, replacement: bool = False) -> Node:
    """With replacement by inversion; without, the greatest of log p - log(-log u), which draws
    them one after the other."""
    wide = ops.cast(x, to=x.shape.dtype.compute)
    if not replacement:
        drawn = ops.random_uniform(
            call.importer.random_state(), dims=x.shape.dims, dtype=wide.shape.dtype,
            stream=call.importer.next_stream(),
        )  # fmt: skip
        noise = ops.neg(ops.log(ops.neg(ops.log(drawn))))
        return ops.top_k(ops.add(ops.log(wide), noise), k=num_samples, axis=-1)[1]
    logits = ops.log(wide)
    return ops.multinomial(
        logits, call.importer.random_state(), count=num_samples, stream=call.importer.next_stream()
    )


@handles("rrelu_with_noise", "rrelu_with_noise_functional")
def rrelu(call: Call, *_: Any) -> Node:
    call.refuse("leaky slopes that are drawn")


@handles("rrelu")
def rrelu_plain(call: Call, x: Node, lower: float = 0.125, upper: float = 1 / 3,
                training: bool = False) -> Node:  # fmt: skip
    if not training:
        return ops.leaky_relu(x, alpha=(lower + upper) / 2)
    slope = _uniform(call, float(lower), float(upper))
    return ops.where(ops.less(x, 0.0), ops.mul(x, slope), x)
