"""Programs printed as WGSL and run on software adapters, against the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlx.backends.gpu.interpret.run import launch
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.verify import verify
from rlx.backends.wgpu.wgsl.printer import module_of
from rlx.core.dim import evaluate
from tests.backend.gpu import kernels
from tests.backend.wgpu.adapter import Adapter, Array, Dispatch


def both(adapter: Adapter, program: Program, **arguments: Any) -> list[tuple[Array, Array]]:
    """Each buffer after a launch on the adapter and by the interpreter, with bindings of their
    own and with one for all."""
    program = verify(replace(program, warp=1))
    module = module_of(program)
    buffers = {k: v.reshape(-1).copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
    sizes = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
    x, y, z = (evaluate(d, sizes) for d in program.grid)
    scalars = tuple(evaluate(s.dim, sizes) for s in program.scalars if s.dim is not None)
    arrays = tuple(buffers[b.name] for b in program.buffers)
    work = Dispatch(module, arrays, scalars, (x, y, z))
    answers = adapter.run(work, replace(work, bindings=module.merged))
    launch(program, buffers, sizes)
    wanted = [buffers[b.name] for b in program.buffers]
    return [pair for got in answers for pair in zip(got, wanted, strict=True)]


def normal(*dims: int) -> Array:
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32)


def test_elementwise_with_a_tail(adapter: Adapter) -> None:
    x = normal(1000)
    for got, wanted in both(adapter, kernels.scaled(), x=x, y=np.zeros_like(x), n=1000):
        np.testing.assert_array_equal(got, wanted)


def test_transpose_through_shared_memory(adapter: Adapter) -> None:
    x = normal(37, 50)
    for got, wanted in both(adapter, kernels.transpose(), x=x, y=np.zeros_like(x), m=37, n=50):
        np.testing.assert_array_equal(got, wanted)


def test_softmax_by_block_reductions(adapter: Adapter) -> None:
    """Exponentials are within 2 units on both sides, and a sum of 130 terms is in the same
    order."""
    x = normal(5, 130)
    for got, wanted in both(adapter, kernels.softmax(), x=x, y=np.zeros_like(x), m=5, n=130):
        np.testing.assert_allclose(got, wanted, rtol=8 * 2.0**-23)
