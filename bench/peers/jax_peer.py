"""JAX, compiled by XLA, weights and inputs on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.dialects import for_jax
from bench.dialects.for_jax import jax
from bench.peers import Runner, listed
from bench.workload import Array, Workload


def traced(workload: Workload) -> tuple[Callable[..., Any], dict[str, Array], list[Array]]:
    """fn(params, *inputs), and both as JAX's libraries lay them out."""
    params = {k: _laid_out(k, v) for k, v in workload.params.items()}
    inputs = [_image(a) if workload.has_images else _narrow(a) for a in workload.inputs]
    return lambda p, *given: workload.function(for_jax, p, *given), params, inputs


def _laid_out(name: str, weight: Array) -> Array:
    if name.endswith(".w"):
        return np.ascontiguousarray(weight.T)
    if name.endswith(".cw"):
        return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))
    return weight


def _image(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def _narrow(array: Array) -> Array:
    """JAX's integers are of 32 bits."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def prepare(workload: Workload, threads: int) -> Runner:
    function, params, inputs = traced(workload)
    fast = jax.jit(function)
    held, given = jax.device_put(params), [jax.device_put(a) for a in inputs]
    return Runner(
        lambda: jax.block_until_ready(fast(held, *given)),
        lambda made: [np.asarray(a) for a in listed(made)],
    )
