"""One door opens a plan, whoever made it: a plan is run as its graph means, or refused in one
error."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.isa import WASM
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.kernels import CpuKernels
from rlx.backends.cpu.wasm.export import wasm_plan
from rlx.backends.engine.module import Module
from rlx.backends.reference import backend as reference
from rlx.backends.registry import find_backend
from rlx.ir.lir import LirModule, Slot
from rlx.kernel.program.interpret import run
from rlx.pipeline import CompilePipeline, select_kernels
from rlx.plan.lir_text import lir_text
from tests.effort import tries
from tests.unit.plan_models import MODELS
from tests.unit.plan_mutations import Model, corrupted

Results = list[dict[str, bytes]]


@cache
def planned(build: Callable[[], Model], target: str) -> tuple[Model, LirModule, Results]:
    """A model, its plan for a target, and what its calls give."""
    model, session = build(), session_of(target)
    lir = CompilePipeline(session.target).compile(model.graph).lir
    return model, lir, results(session, lir, model)


def session_of(target: str) -> rlx.Session:
    name, _, like = target.partition(" like ")
    return rlx.Session(name, like=like or None, cache=False)


def results(session: rlx.Session, lir: LirModule, model: Model) -> Results:
    """The bytes of every output and state, call by call."""
    exe = session.compile(lir)
    params = {n.attrs["name"] for n in model.graph.params}
    held = exe.session() if model.graph.states else None
    found: Results = []
    for values in model.calls:
        if params:
            exe.set_params({k: v for k, v in values.items() if k in params})
        inputs = {k: v for k, v in values.items() if k not in params}
        made = held.run(inputs) if held else exe.run(inputs)
        found.append({name: _bits(value) for name, value in made.items()})
        if held:
            found.append({name: _bits(held.state(name)) for name in held.states})
    return found


def _bits(value: Any) -> bytes:
    return repr(value.shape).encode() + np.asarray(value).tobytes()


# -- random corruptions ---------------------------------------------------------------------------


def verdict(build: Callable[[], Model], target: str, seed: int) -> str:
    """What becomes of one corruption: refused, right, or wrong."""
    model, lir, expected = planned(build, target)
    try:
        made = results(session_of(target), corrupted(lir, seed), model)
    except rlx.Error:
        return "refused"
    return "right" if made == expected else "wrong"


@pytest.mark.parametrize("target", ["reference", "reference like cuda", "cpu"])
@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_a_corrupted_plan_is_refused_or_right(build: Callable[[], Model], target: str) -> None:
    if target == "cpu":
        pytest.importorskip("llvmlite")
    many = 150 if target == "cpu" else 1000
    seeds = range(tries(2 if target == "cpu" else 12, many))
    verdicts = {seed: verdict(build, target, seed) for seed in seeds}
    assert "wrong" not in verdicts.values(), verdicts
    assert "refused" in verdicts.values()


@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_selected_kernels_of_a_corrupted_plan_compute_what_it_means(
    build: Callable[[], Model],
) -> None:
    """Those of CUDA, in NumPy: what reaches a device has gone through the same door."""
    model, backend = build(), find_backend("cuda").configured("sm_90", None)
    if model.graph.states:
        pytest.skip("sessions hold states")
    lir = CompilePipeline(backend.target()).compile(model.graph).lir
    expected = [_ran(backend, lir, values) for values in model.calls]
    for seed in range(tries(2, 60)):
        try:
            found = [_ran(backend, corrupted(lir, seed), values) for values in model.calls]
        except rlx.Error:
            continue
        assert found == expected, seed


def _ran(backend: Any, lir: LirModule, values: Mapping[str, Any]) -> list[bytes]:
    return [_bits(made) for made in run(backend.program(lir), values)]


READS: dict[str, Callable[[LirModule], Any]] = {
    "fingerprint": lambda lir: lir.fingerprint,
    "report": lambda lir: (
        lir.plan.report(),
        lir.plan.report_svg(),
        rlx.GraphModule(lir).inspect(),
    ),
    "bind": lambda lir: lir.plan.bind({"n": 3, "m": 4}),
    "slots": lambda lir: [lir.plan.slot(n) for n in lir.mir.graph.nodes if not n.has_items],
    "phases": lambda lir: [lir.plan.phase_of(n) for n in lir.mir.graph.nodes],
    "text": lir_text,
    "copies": lambda lir: pickle.loads(pickle.dumps(lir)) == lir,
    "profile": rlx.profile_graph_io,
}


@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_reading_a_corrupted_plan_gives_an_answer_or_one_error(build: Callable[[], Model]) -> None:
    lir = CompilePipeline("cpu").compile(build().graph).lir
    for seed in range(tries(6, 300)):
        with suppress(rlx.Error):
            bad = corrupted(lir, seed)
            for read in READS.values():
                with suppress(rlx.Error):
                    read(bad)


# -- every door -----------------------------------------------------------------------------------


def layered(target: str = "cpu") -> LirModule:
    g = rlx.Graph("layered")
    x, w = g.input("x", [8, 16]), g.param("w", [16, 16])
    g.set_outputs([g.cumsum(g.cumsum(x @ w, axis=0), axis=1)])
    return CompilePipeline(target).compile(g).lir


def aliased(lir: LirModule) -> LirModule:
    """The last step writes over the operand that it reads."""
    plan = lir.plan
    first, last = plan.schedule[-2:]
    slots = {**plan.assignments, last: replace(plan.slot(last), offset=plan.slot(first).offset)}
    return replace(lir, plan=replace(plan, assignments=slots))


def named_arena() -> LirModule:
    """64 bytes for values of any size."""
    g = rlx.Graph("named")
    x = g.input("x", [rlx.Dim("n", 1), 4])
    g.set_outputs([g.cumsum(g.cumsum(x, axis=0), axis=1)])
    lir = CompilePipeline("cpu").compile(g).lir
    slots = {n: replace(s, offset=0, size=64) for n, s in lir.plan.assignments.items()}
    small = replace(lir.plan, assignments=slots, arena_bytes=64, arena_formula=64)
    return replace(lir, plan=small)


def _rewritten(lir: LirModule, folder: Path) -> Any:
    rlx.save(lir, folder / "m.lir")
    return rlx.load(folder / "m.lir")


MACHINE = CpuMachine.of(WASM)
DOORS: dict[str, Callable[[LirModule, Path], Any]] = {
    "rlx.compile": lambda lir, _: rlx.compile(lir, "cpu"),
    "rlx.compile on NumPy": lambda lir, _: rlx.compile(lir, "reference"),
    "Session.compile": lambda lir, _: rlx.Session("reference", cache=False).compile(lir),
    "GraphModule": lambda lir, _: rlx.compile(rlx.GraphModule(lir), "reference"),
    "from_lir": lambda lir, _: rlx.compile(rlx.GraphModule.from_lir(lir), "reference"),
    "compile_module": lambda lir, _: CompilePipeline("cpu").compile_module(lir),
    "compile": lambda lir, _: CompilePipeline("cpu").compile(rlx.GraphModule(lir)),
    "adopt_plan": lambda lir, _: CompilePipeline("cpu").adopt_plan(lir.mir, lir.plan),
    "a file": _rewritten,
    "Backend.compile": lambda lir, _: reference.compile(lir),
    "Backend.timed": lambda lir, _: find_backend("cpu").timed(lir),
    "Backend.description": lambda lir, _: find_backend("cpu").description(lir),
    "select_kernels": lambda lir, _: select_kernels(lir, CpuKernels(MACHINE)),
    "an engine": lambda lir, _: Module.of(lir),
    "a file for browsers": lambda lir, _: wasm_plan(lir, {}, lambda _: 0),
    **{
        name: lambda lir, _, name=name: find_backend(name).program(lir)
        for name in ("cpu", "cuda", "rocm", "wgpu", "metal")
    },
}


@pytest.mark.parametrize("corrupt", [aliased, lambda _: named_arena()], ids=["aliased", "small"])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_a_plan_that_is_not_sound(
    door: str, corrupt: Callable[[LirModule], LirModule], tmp_path: Path
) -> None:
    with pytest.raises(rlx.Error, match="the plan is not sound"):
        DOORS[door](corrupt(layered()), tmp_path)


READ_OF_A_PLAN = frozenset({"representative", "schedule", "phases"})
"""What backends may read of a plan that no door has opened: none of it leads to memory."""


def test_backends_take_plans_from_the_checker() -> None:
    root = Path(rlx.__file__).parent
    files = [p for layer in ("backends", "kernel") for p in (root / layer).rglob("*.py")]
    found = [f"{path.relative_to(root)}:{line}" for path in files for line in _plans_read(path)]
    assert len(files) > 200
    assert found == []


def _plans_read(path: Path) -> Iterator[int]:
    """The lines that take the plan of a module for more than its schedule and sizes."""
    text = path.read_text()
    tree = ast.parse(text if "lir.plan" in text else "")
    harmless = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in READ_OF_A_PLAN
    }
    for node in ast.walk(tree):
        is_plan = isinstance(node, ast.Attribute) and node.attr == "plan"
        if is_plan and ast.unparse(node.value).endswith("lir") and id(node) not in harmless:
            yield node.lineno


# -- nothing changes behind the door ---------------------------------------------------------------


CHANGES: dict[str, Callable[[LirModule], Any]] = {
    "a slot": lambda lir: lir.plan.assignments.__setitem__(lir.plan.schedule[0], Slot(0, 64)),  # pyright: ignore
    "no slots": lambda lir: lir.plan.assignments.clear(),  # pyright: ignore
    "a phase": lambda lir: lir.plan.phases.update({}),  # pyright: ignore
    "a view": lambda lir: lir.plan.views.pop(None, None),  # pyright: ignore
    "in place": lambda lir: lir.plan.in_place.setdefault(*lir.mir.graph.nodes[:2]),  # pyright: ignore
    "sizes": lambda lir: lir.plan.representative.__ior__({"n": 3}),  # pyright: ignore
    "split": lambda lir: lir.split.popitem(),  # pyright: ignore
    "outputs": lambda lir: lir.mir.graph.set_outputs([lir.mir.graph.nodes[0]]),
    "a node": lambda lir: lir.mir.graph.exp(lir.mir.graph.nodes[0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_and_its_graph_stay_as_they_were_checked(change: str) -> None:
    lir = layered()
    before = lir.fingerprint
    with pytest.raises(rlx.Error):
        CHANGES[change](lir)
    assert replace(lir).fingerprint == before


def test_a_graph_that_was_compiled_may_grow() -> None:
    g = rlx.Graph("g")
    y = g.exp(g.input("x", [8]))
    g.set_outputs([y])
    exe = rlx.compile(g, "reference")
    g.set_outputs([g.neg(y)])
    zeros = np.zeros(8, np.float32)
    np.testing.assert_array_equal(exe(zeros), np.exp(zeros))
    np.testing.assert_array_equal(rlx.compile(g, "reference")(zeros), -np.exp(zeros))


@pytest.mark.parametrize(("build", "message"), [
    (lambda: Slot("64", 64), r"Slot\.offset is '64'\. Give a whole number"),
    (lambda: Slot(0, 64, "arena"), r"Slot\.space is 'arena'\. Give a Space"),
    (lambda: rlx.BufferPlan(64, assignments={None: Slot(0, 64)}), r"a key of .* is None"),
    (lambda: rlx.BufferPlan(64, alignment=48), "alignment 48 is not a power of two"),
    (lambda: rlx.BufferPlan(64, schedule=3), "schedule is 3. Give a list"),
    (lambda: rlx.IoManifest(inputs=["x"]), "Give a list"),
    (lambda: replace(layered(), plan=None), r"LirModule\.plan is None\. Give a BufferPlan"),
    (lambda: replace(layered(), target="cuda"), "Give a Target"),
])  # fmt: skip
def test_fields_of_plans_have_their_types(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(rlx.Error, match=message):
        build()


def test_kernels_that_count_on_alignment_refuse_a_plan_without() -> None:
    g = rlx.Graph("odd")
    x = g.input("x", [3], rlx.DType.U8)
    g.set_outputs([g.cumsum(x, axis=0), g.cumsum(g.cast(x, rlx.DType.F32), axis=0)])
    lir = CompilePipeline("cuda", alignment=1).compile(g).lir
    with pytest.raises(rlx.Error, match=r"aligns slots to 1 bytes.*Plan it with alignment=64"):
        find_backend("cuda").program(lir)


# -- a plan made by hand, from file to file --------------------------------------------------------


def test_a_cached_program_has_the_plan_that_it_runs(tmp_path: Path) -> None:
    """Not the one that the planner would make of its graph."""
    lir = layered("cpu")
    at, slots = 0, dict[Any, Slot]()
    for node, slot in lir.plan.assignments.items():
        is_arena = slot.space is rlx.Space.ARENA
        slots[node] = replace(slot, offset=at) if is_arena else slot
        at += int(slot.size) if is_arena else 0
    spread = replace(
        lir.plan, assignments=slots, in_place={}, arena_bytes=at + 64, arena_formula=at + 64
    )
    other = replace(lir, plan=spread)
    for _ in range(2):
        exe = rlx.Session("cpu", cache=tmp_path / "cache").compile(other)
        assert exe.lir.fingerprint == other.fingerprint != lir.fingerprint
    exe.set_params({"w": np.eye(16, dtype=np.float32)})
    exe.save(tmp_path / "m.rlx")
    assert rlx.load(tmp_path / "m.rlx").lir.fingerprint == other.fingerprint
