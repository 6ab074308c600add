"""What backends of engines tell: files, the cache, times, prices, what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, Shape, ops
from rlx.backends.engine import calibration
from rlx.backends.engine.module import Module
from rlx.backends.mlx import backend as mlx
from rlx.backends.tpu import backend as tpu
from rlx.core.sections import Sections, packed
from rlx.explain.build import report_of
from rlx.ir.lir import Phase
from rlx.pipeline import CompilePipeline
from tests.backend.engine.numpy_engine import NumpyBackend

RNG = np.random.default_rng(61)


def model() -> Graph:
    g, n = Graph("model"), Dim("n")
    x, w = g.input("x", Shape((n, 4))), g.param("w", Shape((4, 8)))
    y = ops.sin(ops.matmul(x, ops.exp(w)))
    values, indices = ops.top_k(y, k=2)
    g.set_outputs([ops.neg(y), values, indices])
    return g


def arrays() -> dict[str, Any]:
    shapes = {"x": (3, 4), "w": (4, 8)}
    return {k: RNG.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def test_a_program_is_written_and_read(tmp_path: Path) -> None:
    backend, values = NumpyBackend(), arrays()
    program = backend.compile(CompilePipeline(backend.target()).compile(model()).lir)
    files = backend.serializer()
    head, sections = files.stored(program)
    path = tmp_path / "it"
    path.write_bytes(b"".join(bytes(p) for p in packed(head, sections)))
    opened = files.opened(head, Sections.open(path))
    assert opened.interface == program.interface
    made = [
        p.run(p.prepare({"w": values["w"]}, None), [values["x"]], [None] * 3)
        for p in (program, opened)
    ]
    for got, want in zip(*made, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_module_keeps_phases_and_the_names_of_nodes() -> None:
    backend = NumpyBackend()
    module = Module.of(CompilePipeline(backend.target()).compile(model()).lir)
    again = Module.unpacked(module.packed(), "it")
    both = list(zip(module.graph.order(), again.graph.order(), strict=True))
    assert all(module.phases[a] is again.phases[b] and a.label == b.label for a, b in both)
    assert {Phase.PROLOGUE, Phase.STEADY_STATE, Phase.EPILOGUE} == set(again.phases.values())


@pytest.mark.parametrize("data", [b"", b"no", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_damaged_modules_are_errors(data: bytes) -> None:
    with pytest.raises(rlx.Error, match="it holds no planned graph"):
        Module.unpacked(data, "it")


def test_each_step_has_a_time() -> None:
    backend, values = NumpyBackend(), arrays()
    lir = CompilePipeline(backend.target()).compile(model()).lir
    timed = backend.timed(lir)
    weights = timed.prepare({"w": values["w"]}, None)
    run = timed.run_timed(weights, [values["x"]])
    assert [s.step for s in run.spans] == list(range(len(timed.steps)))
    assert {"matmul", "sin", "top_k", "neg"} <= {n.op for n in timed.steps}
    assert all(run.start_ns <= s.start_ns <= s.stop_ns <= run.stop_ns for s in run.spans)
    for got, want in zip(run.outputs, timed.run(weights, [values["x"]], [None] * 3)):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_reports_say_what_the_host_runs_and_why() -> None:
    """Of the steps of a call, and of branches and loops, which a plan splits into no tasks."""
    backend = NumpyBackend()
    g = model()
    c, xs = g.param("c", Shape((4,))), g.input("xs", Shape((40, 4)))
    _, rows = rlx.scan_loop(lambda c, x: (ops.sin(ops.add(c, x)),) * 2, c, xs)
    g.set_outputs([*g.outputs, rows])
    made = report_of(CompilePipeline(backend.target()).compile(g), backend=backend)
    found = {d.where[0].split()[0]: d for d in made.decisions if d.what == "run_on_host"}
    assert found.keys() == {"sin", "top_k", "scan"}
    reason = found["scan"].reason
    assert reason.startswith("numpy has no scan")
    assert "sin at test_backend" in reason
    assert all(d.id in made.cuts for d in found.values())


def test_prices_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    small = calibration.Effort(1, 1, 2, 1 << 8, 8)
    told: list[tuple[int, int, str]] = []
    (found,) = calibration.measure(NumpyBackend(), lambda *step: told.append(step), small)
    assert [t[0] for t in told] == list(range(told[0][1]))
    assert found.threads == 1
    assert min(found.dispatch_ns, found.roundtrip_ns, found.memory_gb_s) > 0
    assert {"f32", "f64", "f16", "bf16", "c64"} <= {d.value for d in found.gflops}


@pytest.mark.parametrize("module", [mlx, tpu], ids=["mlx", "tpu"])
def test_a_missing_package_is_said_with_its_command(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    backend = module.backend
    missing = backend.missing()
    assert missing is not None
    assert missing.command == f"pip install 'rlx[{backend.name}]'"
    g = Graph("g")
    g.set_outputs([ops.exp(g.input("x", Shape((2,))))])
    with pytest.raises(rlx.UnsupportedError, match=f"target '{backend.name}': .* not installed"):
        rlx.compile(g, target=backend.name)
    with pytest.raises(rlx.Error, match="no variant 'x'"):
        backend.configured("x", None)
