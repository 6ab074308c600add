"""The backend protocol: every method exists, says what it is for, and answers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import rlx
from rlx.backends import base
from rlx.backends.base import Backend, KernelBackend, Program, Runner, Serializer
from rlx.backends.registry import find_backend
from rlx.backends.state_memory import HostStates
from rlx.backends.timing import Timed
from rlx.core.errors import UnsupportedError
from rlx.cost.target import Target
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule
from rlx.ops.op import Array

ROOT = Path(rlx.__file__).parent
CALLERS = ("explain", "runtime", "frontends", "fuzz", "cli")
"""The layers above backends."""
PROBES = ("getattr", "hasattr")


def members(cls: type) -> dict[str, Any]:
    """What a class says by itself, beside what every program has."""
    of_all = ("interface", "why_not_copied")
    return {n: m for n, m in vars(cls).items() if not n.startswith("_") and n not in of_all}


class LeastProgram(Program):
    """What must be there, and no more."""

    interface = Interface("least", (), (), ())

    def prepare(self, params: Mapping[str, Array], old: Any | None) -> Any:
        return None

    def run(
        self, weights: Any, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        return []


class LeastBackend(Backend):
    """What must be there, and no more."""

    name: ClassVar[str] = "least"

    def target(self) -> Target:
        return Target.of("cpu")

    def configured(self, variant: str, threads: int | None, cache: Any = None) -> Backend:
        return self

    def compile(self, lir: LirModule) -> Program:
        return LeastProgram()


BACKEND, PROGRAM = LeastBackend(), LeastProgram()
NOTHING: Any = None
"""A plan, weights or a state that no default looks at."""
ANSWERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "missing": (BACKEND.missing, None),
    "num_threads": (lambda: BACKEND.num_threads, 1),
    "identity": (lambda: BACKEND.identity, "least"),
    "serializer": (BACKEND.serializer, None),
    "program": (lambda: BACKEND.program(NOTHING), None),
    "generate": (lambda: BACKEND.generate(NOTHING), None),
    "description": (lambda: BACKEND.description(NOTHING), {}),
    "splits": (lambda: BACKEND.splits(NOTHING, {}), {}),
    "timed": (lambda: BACKEND.timed(NOTHING), "target 'least' does not time its kernels"),
    "architecture": (lambda: BACKEND.architecture, ""),
    "tuned": (lambda: BACKEND.tuned("off"), BACKEND),
    "meshed": (lambda: BACKEND.meshed({"x": 2}), "target 'least' runs a program on one device"),
    "donating": (lambda: BACKEND.donating(["x"]), "target 'least' writes no results over inputs"),
    "asked_threads": (lambda: BACKEND.asked_threads, None),
    "why_never_here": (lambda: BACKEND.why_never_here(), None),
    "call_path": (lambda: BACKEND.call_path(), ""),
    "is_compile_only": (lambda: BACKEND.is_compile_only, False),
    "code_facts": (lambda: PROGRAM.code_facts({}), None),
    "hardware": (lambda: BACKEND.hardware, ""),
    "measure": (lambda: BACKEND.measure(print), "target 'least' cannot be calibrated"),
    "calibrated": (lambda: BACKEND.calibrated(1), None),
    "devices": (BACKEND.devices, ()),
    "summary": (lambda: BACKEND.summary, ""),
    "runs_any_plan": (lambda: BACKEND.runs_any_plan, False),
    "has_devices": (lambda: BACKEND.has_devices, False),
    "updates_host_arrays": (lambda: BACKEND.updates_host_arrays, False),
    "compiler_modules": (lambda: BACKEND.compiler_modules, ()),
    "is_default": (lambda: BACKEND.is_default, False),
    "runner": (BACKEND.runner, Runner("least")),
    "standing_in": (lambda: BACKEND.standing_in("it is not here"), BACKEND),
    "times_kernels": (lambda: BACKEND.times_kernels, False),
    "bind": (lambda: PROGRAM.bind(NOTHING, []), "least: LeastProgram binds no calls"),
    "takes": (lambda: PROGRAM.takes(NOTHING), False),
    "copied_params": (lambda: PROGRAM.copied_params, frozenset()),
    "digests": (lambda: PROGRAM.digests([]).is_unchanged(), True),
    "submit": (lambda: PROGRAM.submit(NOTHING, ()), None),
    "quick": (lambda: PROGRAM.quick(NOTHING), None),
    "exchange": (lambda: PROGRAM.exchange(NOTHING, NOTHING, NOTHING), None),
    "step": (lambda: PROGRAM.step(NOTHING, []), "least: LeastProgram does not run SteadyState"),
    "finish": (lambda: PROGRAM.finish(NOTHING), "least: LeastProgram does not run SteadyState"),
    "states": (lambda: type(PROGRAM.states), HostStates),
    "streams_params": (lambda: PROGRAM.streams_params, False),
    "scratch_bytes": (lambda: PROGRAM.scratch_bytes({}, 0), 0),
    "threads": (lambda: PROGRAM.threads, 1),
    "codegen_spans": (lambda: PROGRAM.codegen_spans, ()),
}
REFUSED = frozenset(("timed", "measure", "meshed", "donating", "bind", "step", "finish"))


@pytest.mark.parametrize("cls", [Backend, KernelBackend, Program, Serializer, Timed])
def test_every_method_says_what_it_is_for(cls: type) -> None:
    for name, member in members(cls).items():
        if callable(member) or isinstance(member, property):
            assert member.__doc__, f"{cls.__name__}.{name}"


@pytest.mark.parametrize("cls", [Backend, KernelBackend, Program])
def test_the_overview_names_every_member(cls: type) -> None:
    for name in members(cls):
        assert name in str(base.__doc__), name


def test_every_optional_member_has_an_answer() -> None:
    optional = {n for c in (Backend, Program) for n in members(c)}
    optional -= Backend.__abstractmethods__ | Program.__abstractmethods__
    assert optional == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_backend_with_the_least_answers_everything(name: str) -> None:
    ask, answer = ANSWERS[name]
    if name not in REFUSED:
        assert ask() == answer
        return
    with pytest.raises(UnsupportedError, match=answer):
        ask()


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_the_built_in_ones_implement_it(name: str) -> None:
    backend = find_backend(name)
    assert isinstance(backend, Backend)
    assert backend.name == name
    assert backend.summary
    assert backend.missing() is None
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", rlx.Shape([2])) + 1.0])
    lir = rlx.CompilePipeline(backend.target()).compile(g).lir
    assert isinstance(backend.compile(lir), Program)
    assert set(backend.description(lir)) <= set(lir.plan.schedule)


def test_like_needs_a_backend_that_runs_any_plan() -> None:
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", rlx.Shape([2])) + 1.0])
    assert rlx.compile(g, "reference", like="cuda").lir.target.name == "cuda"
    with pytest.raises(rlx.Error, match="target 'cpu' runs plans that are made for it"):
        rlx.compile(g, "cpu", like="cuda")


def test_nobody_above_looks_for_methods_by_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for layer in CALLERS
        for path in sorted((ROOT / layer).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and is_probe(node)
    ]
    assert not found


def is_probe(call: ast.Call) -> bool:
    """`getattr(backend, ...)`, `hasattr(program, ...)`, `isinstance(backend, ...)`."""
    by = call.func.id if isinstance(call.func, ast.Name) else ""
    asked = ast.unparse(call.args[0]).lower() if call.args else ""
    return by in (*PROBES, "isinstance") and any(w in asked for w in ("backend", "program"))
