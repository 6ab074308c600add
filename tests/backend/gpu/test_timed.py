"""Times of GPU programs on the simulated device, whose clock is the interpreter's: what is told of
every step, and of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda import backend as cuda
from rlx.backends.gpu.runtime.timed import TimedProgram
from rlx.cli import bench
from rlx.cli.app import run
from rlx.core.dim import Dim
from rlx.core.disk_cache import Cache
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.core.tune import Tune
from rlx.cost.calibrate import Calibration, Numbers, machine, note_name
from rlx.explain.trace import trace
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from rlx.runtime.executable import Executable
from rlx.runtime.loaded_program import LoadedProgram
from tests.backend.gpu.simulated_backend import SimulatedBackend

RNG = np.random.default_rng(0)
NUMBERS = Numbers(1, 900.0, 9000.0, 900.0, (), 3500.0, 40.0, 2000.0, {DType.F32: 50_000.0})


def model() -> Graph:
    """Kernels, and a step that the host runs between them."""
    graph = Graph("steps")
    x = graph.input("x", Shape((Dim("rows", 1, 64), 8), DType.F32))
    y = ops.matmul(ops.transpose(x, perm=(1, 0)), x)
    values, _ = ops.eigh(y)
    graph.set_outputs([ops.softmax(values, axis=0)])
    return graph


def executable(backend: SimulatedBackend) -> Executable:
    graph = model()
    result = CompilePipeline(backend.target()).compile(graph)
    return Executable(LoadedProgram(result, backend.compile(result.lir), backend, {}), source=graph)


def test_times_and_rates_of_every_step() -> None:
    exe = executable(SimulatedBackend())
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    program, weights = exe.loaded.timed()
    assert isinstance(program, TimedProgram)
    run = program.run_timed(weights, [x])
    np.testing.assert_array_equal(run.outputs[0], exe(x))
    assert {s.step for s in run.spans} == set(range(len(program.steps)))
    ends = [(s.start_ns, s.stop_ns) for s in run.spans]
    assert all(a <= b for a, b in ends)
    assert [a for a, _ in ends] == sorted(a for a, _ in ends)
    assert run.start_ns <= ends[0][0]
    assert ends[-1][1] <= run.stop_ns
    events = trace(exe.loaded, [x], calls=1).events
    written = [e.name for e in events if e.category == "codegen"]
    assert [w.split(" ")[0] for w in written] == ["write"] * (len(written) - 1) + ["assemble"]
    kernels = [e for e in events if e.category == "kernel"]
    assert {dict(e.args)["step"] for e in kernels} == set(range(len(program.steps)))
    assert all({"GB/s", "GFLOP/s", "of the roofline"} <= dict(e.args).keys() for e in kernels)
    strategies = {k.strategy for k in exe.explain().kernels}
    assert {"GEMM", "loop nest", "dedicated kernel"} <= strategies


def test_measured_prices_are_those_of_the_device(tmp_path: object) -> None:
    cache = Cache.of(str(tmp_path), {})
    assert cache is not None
    backend = SimulatedBackend(cache=cache)
    documented = rlx.Target.of("cuda").machine
    assert backend.target().machine == documented
    for device, expected in (("another GPU", documented), ("simulated", NUMBERS)):
        made = Calibration("cuda", machine(f"{device} simulated"), (NUMBERS,))
        assert cache.write_note(note_name("cuda"), made.text())
        gate = backend.target().machine.gate
        price = expected.dispatch_ns if isinstance(expected, Numbers) else expected.gate.dispatch_ns
        assert gate.dispatch_ns == price


def test_verbs_on_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Found(SimulatedBackend):
        def tuned(self, tune: Tune) -> Found:
            return self

    monkeypatch.setattr(cuda, "backend", Found())
    monkeypatch.setattr(bench, "ROUND_S", 1e-4)
    monkeypatch.setattr(bench, "DEVICE_CALLS", 1)
    graph = Graph("g")
    graph.set_outputs([ops.exp(graph.input("x", Shape((8,), DType.F32)))])
    path, traced = str(tmp_path / "g.ir"), str(tmp_path / "t.json")
    rlx.save(graph, path)
    said: dict[str, str] = {}
    for verb, more in (
        ("bench", ["--rounds", "1"]),
        ("trace", ["--calls", "1", "-o", traced]),
        ("explain", ["--measure", "--seconds", "0.01", "--most", "1"]),
    ):
        assert run([verb, path, "--target", "cuda", *more]) == 0
        said[verb] = capsys.readouterr().out
    assert "device" in said["bench"]
    assert "1 calls" in said["trace"]
    assert "kernels by measured time" in said["explain"]
    assert "GB/s" in Path(traced).read_text()
