"""Programs compiled in units: the same code whatever compiles it, and no function twice."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.isa import NEON, Isa, host
from rlx.backends.cpu.llvm import compile_units as units
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program import assemble, build
from rlx.backends.cpu.program.build import built
from rlx.backends.cpu.program.module import assembled
from rlx.backends.cpu.runtime.linker import undefined
from rlx.backends.cpu.schedule.kernels import CpuKernels
from rlx.core.shape import Shape
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph
from rlx.kernel.program.program import KernelProgram
from rlx.pipeline import CompilePipeline, select_kernels
from rlx.runtime.session import Session


def model(layers: int = 3) -> Graph:
    """Products of several sizes with what follows from weights alone before them."""
    g = Graph("layers")
    x = g.input("x", Shape([5, 8]))
    for i in range(layers):
        w = g.param(f"w{i}", Shape([8 + 8 * i, 16 + 8 * i]))
        scale = g.param(f"s{i}", Shape([16 + 8 * i]))
        x = g.softmax(g.matmul(x, w * g.rsqrt(scale + 0.5)) + g.neg(scale), axis=1)
    g.set_outputs([x])
    return g


def selected(lir: LirModule, isa: Isa) -> KernelProgram:
    return select_kernels(lir, CpuKernels(CpuMachine.of(isa)))


def planned(graph: Graph) -> LirModule:
    return CompilePipeline(Session("cpu", cache=False).target).compile(graph).lir


@pytest.mark.parametrize("isa", [host(), NEON], ids=lambda i: i.name)
def test_code_does_not_depend_on_threads(isa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_CHARS", 4000)
    lir = planned(model())
    made = set[bytes]()
    for threads in (1, 2, 5):
        monkeypatch.setattr(build, "default_threads", lambda count=threads: count)
        made.add(built(selected(lir, isa), isa)[1].to_bytes())
    assert len(made) == 1


def test_units_of_any_size_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    graph = model()
    params = {n.attrs["name"]: rng.uniform(0, 1, n.shape.dims).astype(np.float32)
              for n in graph.params}  # fmt: skip
    x = rng.normal(size=(5, 8)).astype(np.float32)
    found = set[bytes]()
    for chars in (1, 4000, 10**9):
        monkeypatch.setattr(units, "UNIT_CHARS", chars)
        exe = rlx.compile(graph, "cpu", cache=False, params=params)
        found.add(exe(x).tobytes())
        again = {**params, "s1": params["s1"] + 1}
        exe.set_params({"s1": again["s1"]})
        assert np.array_equal(exe(x), rlx.compile(graph, "cpu", cache=False, params=again)(x))
    assert len(found) == 1


def test_without_threads_it_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    lir = planned(model(1))
    expected = built(selected(lir, host()), host())[1]

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert built(selected(lir, host()), host())[1].to_bytes() == expected.to_bytes()


def test_a_program_asks_nothing_of_others_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_CHARS", 1)
    seen: list[bytes] = []

    def watched(text: str, isa: Any) -> bytes:
        seen.append(kept(text, isa))
        return seen[-1]

    kept = build.object_of
    monkeypatch.setattr(build, "object_of", watched)
    blob = built(selected(planned(model()), host()), host())[1]
    assert len(seen) > 10
    assert any(undefined(o) for o in seen)
    assert list(blob.exports) == ["run"]


def test_equal_functions_are_written_once() -> None:
    made = assembled(selected(planned(model()), host()), host())
    texts = [f.text.partition("(")[2] for f in made.kernels]
    assert len(set(texts)) == len(texts)


def test_what_runs_once_shares_its_code() -> None:
    """Three sizes of the same work on weights: one function for each kind of it."""

    def once(count: int) -> int:
        made = assembled(selected(planned(model(count)), host()), host())
        tasks = itertools.chain(*(w.lowering.schedule.tasks for w in made.main.prologue))  # pyright: ignore
        return len({made.names.of(t) for t in tasks})

    assert once(3) == once(1)


def slices(width: int, starts: list[int]) -> Graph:
    """Running sums of slices of one input, each a kernel of its own."""
    g = Graph("slices")
    x = g.input("x", Shape([4, 256]))
    g.set_outputs([g.cumsum(x[:, s : s + width], axis=1) for s in starts])
    return g


def test_kernels_on_slices_of_one_buffer_are_one_function() -> None:
    """The whole cache lines of an offset are part of the address that a kernel is called with."""
    lines, odd = slices(64, [0, 64, 128]), slices(64, [1, 66, 131])
    assert len(assembled(selected(planned(lines), host()), host()).kernels) == 1
    assert len(assembled(selected(planned(odd), host()), host()).kernels) == 3
    x = np.random.default_rng(0).integers(-9, 9, (4, 256)).astype(np.float32)
    for graph, starts in ((lines, [0, 64, 128]), (odd, [1, 66, 131])):
        made = rlx.compile(graph, "cpu", cache=False)(x)
        for got, start in zip(made, starts, strict=True):
            assert np.array_equal(got, np.cumsum(x[:, start : start + 64], axis=1))


def test_long_programs_run_from_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    graph = model()
    params = {n.attrs["name"]: rng.uniform(0, 1, n.shape.dims).astype(np.float32)
              for n in graph.params}  # fmt: skip
    x = rng.normal(size=(5, 8)).astype(np.float32)
    written_out = rlx.compile(graph, "cpu", cache=False, params=params)(x)
    assert not any("@perform(" in f.text for f in _parts(graph))
    monkeypatch.setattr(assemble, "TABLED_STEPS", 1)
    assert any("@perform(" in f.text for f in _parts(graph))
    exe = rlx.compile(graph, "cpu", cache=False, params=params)
    assert exe(x).tobytes() == written_out.tobytes()


def _parts(graph: Graph) -> list[Any]:
    made = assembled(selected(planned(graph), host()), host()).subprograms
    return [f for f in made if f.name not in ("perform", "prepare")]
