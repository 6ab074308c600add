"""mlx, compiled by `mx.compile`, weights and inputs on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.dialects import for_mlx
from bench.dialects.for_mlx import mx
from bench.peers import Runner, listed
from bench.workload import Array, Workload


def traced(workload: Workload) -> tuple[Callable[..., Any], dict[str, Any]]:
    """fn(params, *inputs), compiled, and the params as mlx's arrays."""
    held = {k: mx.array(_laid_out(k, v)) for k, v in workload.params.items()}
    mx.eval(held)
    return mx.compile(lambda p, *given: workload.function(for_mlx, p, *given)), held


def _laid_out(name: str, weight: Array) -> Array:
    return np.ascontiguousarray(weight.T) if name.endswith(".w") else weight


def on_host(made: Any) -> list[Array]:
    return [np.array(a) for a in listed(made)]


def prepare(workload: Workload, threads: int) -> Runner:
    function, held = traced(workload)
    given = [mx.array(a) for a in workload.inputs]

    def call() -> Any:
        made = function(held, *given)
        mx.eval(made)
        return made

    return Runner(call, on_host)
