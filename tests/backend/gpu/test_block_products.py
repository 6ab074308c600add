"""Products of quantised blocks on a GPU: packed once, decoded where they are read, by rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.task import Choice, GpuTask
from rlx.core.dim import Dim
from rlx.kernel.program.program import KernelSequence
from rlx.kernel.program.schedule import Schedule
from rlx.ops.quant.gguf_encoding import encoded
from rlx.pipeline import CompilePipeline
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs

BACKENDS = {"all": SimulatedBackend(), "webgpu": SimulatedBackend(laws.WEBGPU)}
PACKED = {"q4_0": 2, "q4_k": 1, "q5_0": 2, "q6_k": 2, "q8_0": 2, "f16": 0}
"""What is packed of each format: scales, decoded, and bytes, where they are out of line."""
COLUMNS, INNER = 24, 512


def product(scheme: str, rows: Dim | int) -> tuple[rlx.Graph, dict[str, Any]]:
    """The graph, and its weights."""
    drawn = np.random.default_rng(3).standard_normal((COLUMNS, INNER)).astype(np.float32)
    weights = encoded(drawn, scheme)
    g = rlx.Graph("product")
    x = g.input("x", rlx.Shape([rows, INNER]))
    w = g.param("w", rlx.Shape(weights.shape, rlx.DType.U8))
    g.set_outputs([g.gguf_matmul(x, w, scheme=scheme)])
    return g, {"w": weights}


def schedule_of(graph: rlx.Graph, backend: SimulatedBackend) -> Schedule[GpuTask]:
    program = backend.program(CompilePipeline(backend.target()).compile(graph).lir)
    (main,) = program.subprograms.values()
    (made,) = (s.lowering for s in main.calls if isinstance(s.lowering, KernelSequence))
    return made.schedule


@pytest.mark.parametrize("scheme", PACKED)
def test_steps_of_few_rows_have_kernels_of_their_own(scheme: str) -> None:
    """Whatever is packed is packed alike for all sizes: one row streams the matrix."""
    made = schedule_of(product(scheme, Dim("rows", 1))[0], BACKENDS["all"])
    (task,) = made.tasks
    assert isinstance(task, Choice)
    for rows in (1, 4, 8, 16):
        (launch,) = task.alternatives[task.buckets.at(lambda _, r=rows: r)]
        assert launch.note.startswith(f"gemv of {rows} rows"), launch.note
    assert len(made.packed) == PACKED[scheme]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("scheme", PACKED)
@pytest.mark.parametrize("rows", [1, 5, 18])
def test_decoded_scales_give_the_products(scheme: str, name: str, rows: int) -> None:
    graph, weights = product(scheme, rows)
    x = np.random.default_rng(4).standard_normal((rows, INNER)).astype(np.float32)
    values = {"x": x, **weights}
    assert differences(graph, values, outputs(graph, values, BACKENDS[name])) == []
