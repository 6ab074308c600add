"""A model of a file, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rlx.backends.registry import find_backend, has_backend
from rlx.cli.inputs import (
    Wanted,
    loaded,
    reading_inputs,
    sizes_in,
)
from rlx.cli.options import reading
from rlx.cli.progress import progress
from rlx.core.disk_cache import CacheLike
from rlx.core.shape import Shape
from rlx.core.tune import Tune
from rlx.cost.decision import Decision
from rlx.cost.target import Target
from rlx.frontends.files import load
from rlx.frontends.made_up_inputs import inputs_of, made_up_inputs
from rlx.frontends.onnx.model import Model as OnnxModel
from rlx.frontends.onnx.model import Read
from rlx.ir.bundle import Bundle
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult
from rlx.runtime.executable import Executable
from rlx.runtime.fitting_inputs import MadeUp, fitting_inputs
from rlx.runtime.random_inputs import dims_for
from rlx.runtime.session import Session

SCALE = 0.1
"""Of random weights: large enough to matter, small enough that layers of them stay finite."""


def compiled(
    model: str,
    target: str | None,
    threads: int | None,
    wanted: Wanted,
    cache: CacheLike = None,
    *,
    is_weighed: bool = False,
    tune: Tune = "bitwise",
    f64: Literal["f32"] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Executable:
    """The model of a file, with all of its weights; `cache` as `rlx.compile` takes it. Decisions
    are weighed at the sizes of what it is run on, if so asked, and else at usual ones."""
    weighed = wanted if is_weighed else None
    exe = program(model, target, threads, cache, weighed, tune=tune, f64=f64, mesh=mesh)
    given = {name: loaded(path) for name, path in wanted.params.items()}
    rest = {n: exe.params[n] for n in exe.missing_params if n not in given}
    with reading():
        exe.set_params({**_random(rest, wanted), **given})
    return exe


def program(
    model: str,
    target: str | None,
    threads: int | None,
    cache: CacheLike = None,
    weighed: Wanted | None = None,
    dump: str | None = None,
    *,
    tune: Tune = "bitwise",
    f64: Literal["f32"] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Executable:
    """The program of a file, with the weights that the file has."""
    with reading():
        found = load(model, threads=threads)
    if isinstance(found, Executable):
        return found
    if isinstance(found, LirModule):
        runs = target or _runs(found)
        session = Session(runs, threads=threads, cache=cache, tune=tune, mesh=mesh)
        return session.compile(found)
    with progress(f"compiling {model}"):
        options = _weighed(found, weighed) if weighed else None
        session = Session(target, threads=threads, cache=cache, dump=dump, tune=tune, mesh=mesh)
        return session.compile(found, options=options, f64=f64)


def _runs(planned: LirModule) -> str:
    """What runs a plan: its own backend where that can run here, else NumPy."""
    name = planned.target.name
    is_here = has_backend(name) and find_backend(name).missing() is None
    return name if is_here else "reference"


def planned(
    model: str,
    target: str,
    wanted: Wanted,
    dump: str | None = None,
    f64: Literal["f32"] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> tuple[CompileResult, tuple[Decision, ...], MadeUp | None]:
    """What compiling gives, or gave, what was decided before it by a front end, and the inputs that
    it is for; where a backend is there, for what it claims."""
    with reading():
        found = load(model)
    if isinstance(found, Executable):
        return found.result, (), None
    if isinstance(found, LirModule):
        return CompilePipeline(found.target).compile(found), (), None
    before = found.decisions if isinstance(found, OnnxModel) else ()
    with progress(f"compiling {model}"):
        graph, made = _made_for(found, wanted)
        options = FusionOptions(sizes=_run_sizes(made, _inputs(graph)), f64=f64)
        pipeline = CompilePipeline(target_of(target, mesh), options=options, dump=dump)
        return pipeline.compile(graph), before, made


def _made_for(model: Any, wanted: Wanted) -> tuple[Any, MadeUp]:
    """What is compiled of a model, and what it is run on."""
    if isinstance(model, OnnxModel):
        read, made = read_of(model, wanted)
        return read.graph, made
    graph: Any = model.graph if isinstance(model, Bundle) else model
    with reading_inputs(wanted):
        return graph, fitting_inputs(declared := _inputs(graph), wanted.given(declared))


def _weighed(model: Any, wanted: Wanted) -> FusionOptions:
    graph, made = _made_for(model, wanted)
    return FusionOptions(sizes=_run_sizes(made, _inputs(graph)))


def _run_sizes(made: MadeUp, declared: Mapping[str, Shape]) -> dict[str, int]:
    """Of the named dims of these inputs, in what a model is run on: those at which decisions are
    priced."""
    known = {n: a for n, a in made.arrays.items() if n in declared}
    return sizes_in(known, declared)


def _inputs(model: Any) -> dict[str, Shape]:
    """The shapes of the inputs of what is compiled."""
    lowered = model.lower() if isinstance(model, HirModule) else model
    graph = lowered if isinstance(lowered, Graph) else lowered.graph
    return {n.attrs["name"]: n.shape for n in graph.inputs}


def target_of(name: str, mesh: Mapping[str, int] | None = None) -> Target:
    """The target as it is on this machine, where its backend is there; else as documented."""
    is_here = has_backend(name.partition(":")[0])
    return Session(name, mesh=mesh).target if is_here else Target.of(name)


def read_of(model: OnnxModel, wanted: Wanted) -> tuple[Read, MadeUp]:
    """The model of a file, or what it is for the inputs that are given or made up, and those."""
    with reading_inputs(wanted):
        made = made_up_inputs(model, wanted.given(inputs_of(model)))
    return model.specialised(list(made.arrays.values())), made


def with_weights(model: str, wanted: Wanted) -> tuple[Any, Mapping[str, Array], MadeUp | None]:
    """The model of a file, its weights, and the inputs that it is for where it is another for
    others."""
    from rlx.frontends.web import plain_parts

    with reading():
        found = load(model)
    if isinstance(found, OnnxModel):
        with progress(f"reading {model}"):
            read, made = read_of(found, wanted)
            return *plain_parts(read, found.name), made if found.is_static else None
    if isinstance(found, Bundle):
        return found.graph, found.params, None
    return found, {}, None


def _random(declared: Mapping[str, Shape], wanted: Wanted) -> dict[str, Array]:
    rng = np.random.default_rng(wanted.seed)
    return {n: _weight(s, wanted.sizes, rng) for n, s in declared.items()}


def _weight(shape: Shape, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    dims = dims_for(shape, sizes)
    if shape.dtype.is_float or shape.dtype.is_complex:
        return (rng.standard_normal(dims) * SCALE).astype(shape.dtype.numpy)
    return rng.integers(0, 2, dims).astype(shape.dtype.numpy)
