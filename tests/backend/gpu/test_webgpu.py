"""Every form of kernel on a machine of WebGPU's kind: no warps, small blocks, indices of 32 bits,
no f64. `python -m tests.backend.gpu.all --machine webgpu` has all laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.capabilities import verify_on
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.quant.gguf_formats import SCHEMES
from rlx.pipeline import CompilePipeline
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.errors import ProgramError
from rlx.program.expand.integers import narrow_integers
from rlx.program.interpret.run import launch
from rlx.program.parse import parse
from rlx.program.verify import verify
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs

WEBGPU, SOFTWARE = SimulatedBackend(laws.WEBGPU), SimulatedBackend(laws.SOFTWARE)
SAMPLE = (
    *("softmax", "transpose", "sum", "matmul", "conv", "attention", "lstm", "cumsum", "rfft"),
    *("sort", "top_k", "nonzero", "non_max_suppression", "gather", "triangular_solve"),
    *("tree_ensemble", "lgamma", "unique", "gated_delta_net", "max_pool", "arange"),
)
"""Ops of each form of kernel."""


def _drawn(name: str, first: int = 0) -> laws.Applied:
    """The first of some draws that asks for no f64."""
    numbers = range(first, first + 9)
    found = (a for n in numbers for a in laws.drawn(table.lookup(name), n, 1, has_weights=n > 0))
    wide = {"float64", "complex128"}
    return next(a for a in found if not wide & {str(v.dtype) for v in a.values.values()})


@pytest.mark.parametrize("name", SAMPLE)
def test_forms_run_without_warps(name: str) -> None:
    """The simulated device refuses what the machine does not have."""
    made = _drawn(name)
    assert not differences(made.graph, made.values, outputs(made.graph, made.values, WEBGPU))


WITHOUT_BARRIERS = ("softmax", "layer_norm", "transpose", "sum", "matmul", "conv", "attention")


@pytest.mark.parametrize("name", WITHOUT_BARRIERS)
@pytest.mark.parametrize("number", [0, 2])
def test_software_adapters_run_without_barriers(name: str, number: int) -> None:
    """Where a barrier costs more than the loads it saves, threads never meet."""
    made = _drawn(name, number)
    program = SOFTWARE.program(CompilePipeline(SOFTWARE.target()).compile(made.graph).lir)
    written = [parse(c.binary.decode()) for c in SOFTWARE.build(program).codes]
    assert not [n for p in written for n in p.nodes if isinstance(n, ir.Barrier | ir.Reduce)]
    assert all(not p.shared for p in written)
    assert not differences(made.graph, made.values, outputs(made.graph, made.values, SOFTWARE))


def test_f64_is_refused_with_its_node() -> None:
    graph = Graph("wide")
    x = graph.input("x", Shape((4,), DType.F64))
    graph.set_outputs([graph.node("exp", (x,), {})])
    with pytest.raises(rlx.UnsupportedError, match=r"^exp at .*no 64-bit floats"):
        CompilePipeline(WEBGPU.target()).compile(graph)


def _program(write: str) -> Builder:
    b = Builder("k", block=64, warp=32)
    x, y = b.input("x", DType.F32), b.output("y", DType.F32)
    given = x[b.thread]
    made = {
        "warps": lambda: b.warp_reduce("add", given),
        "index of 64 bits": lambda: x[b.thread.to(DType.I64)],
        "f64": lambda: given.to(DType.F64).to(DType.F32),
    }
    y[b.thread] = made[write]()
    return b


@pytest.mark.parametrize("what", ["warps", "index of 64 bits", "f64"])
def test_missing_capabilities_are_named(what: str) -> None:
    program = _program(what).program()
    assert verify_on(program, GpuMachine()) is program
    with pytest.raises(ProgramError, match=f"the machine has no {what}"):
        verify_on(program, laws.WEBGPU)


def test_integers_that_fit_are_computed_in_32_bits() -> None:
    """A place plus a number is known to fit, an element of i64 is not."""
    b = Builder("k", block=64, grid=(4,))
    x, y = b.input("x", DType.I64), b.output("y", DType.I64)
    place = (b.block_index() * 64 + b.thread).to(DType.I64)
    last = (place * 3 + 5).min(700)
    y[b.thread] = last.where(place < 70, x[b.thread] + place)
    program = b.program()
    made = verify(narrow_integers(program))
    wide = [n for n in made.nodes if isinstance(n, ir.Binary) and n.result.type is DType.I64]
    assert [n.op for n in wide] == ["add"]
    assert all(n.args[0].type is DType.I32 for n in made.nodes if isinstance(n, ir.Compare))
    given = np.arange(64, dtype=np.int64) << 40
    for p in (program, made):
        held = {"x": given, "y": np.zeros(64, np.int64)}
        launch(replace(p, grid=(1, 1, 1)), held, {})
        own = np.arange(64)
        assert (held["y"] == np.minimum(own * 3 + 5, 700)).all()


def test_sums_that_may_not_fit_stay_wide() -> None:
    b = Builder("k", block=64)
    x, y = b.input("x", DType.I32), b.output("y", DType.I64)
    y[b.thread] = x[b.thread].to(DType.I64) + x[b.thread + 64].to(DType.I64)
    made = narrow_integers(b.program())
    held = {"x": np.full(128, 2**31 - 1, np.int32), "y": np.zeros(64, np.int64)}
    launch(made, held, {})
    assert (held["y"] == 2**32 - 2).all()


def test_blocks_beyond_the_machine_are_refused() -> None:
    b = Builder("k", block=512)
    b.output("y", DType.F32)[b.thread] = b.const(0.0, DType.F32)
    with pytest.raises(ProgramError, match="512 threads, and a block has at most 256"):
        verify_on(b.program(), laws.WEBGPU)


def test_a_weight_that_is_broadcast_is_not_packed_again_and_again() -> None:
    """Packed or not, it is no vector along the columns."""
    graph = Graph("broadcast")
    x = graph.input("x", Shape((1, 5), DType.F32))
    w = graph.param("w", Shape((1, 1), DType.F32))
    wide = graph.node("expand", (w,), {"dims": (5, 4)})
    graph.set_outputs([graph.node("matmul", (x, wide), {})])
    values = {"x": np.arange(5, dtype=np.float32)[None], "w": np.full((1, 1), 2, np.float32)}
    assert not differences(graph, values, outputs(graph, values, SOFTWARE))


@pytest.mark.parametrize("backend", [WEBGPU, SOFTWARE])
@pytest.mark.parametrize("scheme", ["q4_0", "q8_0", "q5_1", "q4_k", "q6_k", "iq4_nl"])
def test_weights_in_blocks_are_decoded(scheme: str, backend: SimulatedBackend) -> None:
    """As weights they are packed once, decoded or with their bytes in line; never without both."""
    block, rng = SCHEMES[scheme], np.random.default_rng(2)
    graph = Graph("quantised")
    x = graph.input("x", Shape((2, 2 * block.weights)))
    w = graph.param("w", Shape((8, 2 * block.block_bytes), DType.U8))
    graph.set_outputs([ops.gguf_matmul(x, w, scheme=scheme)])
    values = {
        "x": rng.normal(size=(2, 2 * block.weights)).astype(np.float32),
        "w": rng.integers(0, 60, (8, 2 * block.block_bytes)).astype(np.uint8),
    }
    assert not differences(graph, values, outputs(graph, values, backend))
