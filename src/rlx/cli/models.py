"""A model of a file, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rlx.backends.base import find_backend, has_backend
from rlx.cli.inputs import (
    Wanted,
    arrays_for,
    inputs_of,
    loaded,
    sizes_asked,
    sizes_in,
)
from rlx.cli.progress import progress
from rlx.core.disk_cache import CacheLike
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.core.tune import Tune
from rlx.cost.decision import Decision
from rlx.cost.target import Target
from rlx.frontends.files import load
from rlx.frontends.onnx.model import Model as OnnxModel
from rlx.frontends.onnx.model import Read
from rlx.frontends.onnx.specialise import Specialising
from rlx.ir.bundle import Bundle
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult
from rlx.runtime.executable import Executable
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
) -> Any:
    """The model of a file, with all of its weights; `cache` as `rlx.compile` takes it. Decisions
    are weighed at the sizes of what it is run on, if so asked, and else at usual ones."""
    weighed = wanted if is_weighed else None
    exe = program(model, target, threads, cache, weighed, tune=tune, f64=f64)
    if not isinstance(exe, Executable):
        return exe
    given = {name: loaded(path) for name, path in wanted.params.items()}
    for name in given:
        if name not in exe.params:
            raise Error(f"there is no param {name!r}. It has: {', '.join(exe.params) or 'none'}.")
    rest = {n: exe.params[n] for n in exe.missing_params if n not in given}
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
) -> Any:
    """The program of a file, with the weights that the file has."""
    found = load(model, threads=threads)
    if isinstance(found, Executable):
        return found
    if isinstance(found, LirModule):
        session = Session(target or _runs(found), threads=threads, cache=cache, tune=tune)
        return session.compile(found)
    with progress(f"compiling {model}"):
        options = FusionOptions(sizes=_run_sizes(found, weighed)) if weighed else None
        session = Session(target, threads=threads, cache=cache, dump=dump, tune=tune)
        return session.compile(found, options=options, f64=f64)


def _runs(planned: LirModule) -> str:
    """What runs a plan: its own backend where that can run here, else NumPy."""
    name = planned.target.name
    is_here = has_backend(name) and find_backend(name).missing() is None
    return name if is_here else "reference"


def settled(
    exe: Executable | Specialising, given: Mapping[str, Array]
) -> tuple[Executable, list[Array]]:
    """The program for these inputs, and what it takes of them, in order."""
    return (exe, exe.arrays(given)) if isinstance(exe, Executable) else exe.settled(given)


def planned(
    model: str,
    target: str,
    wanted: Wanted,
    dump: str | None = None,
    f64: Literal["f32"] | None = None,
) -> tuple[CompileResult, tuple[Decision, ...]]:
    """What compiling gives, or gave, and what was decided before it by a front end; where a
    backend is there, for what it claims."""
    found = load(model)
    if isinstance(found, Executable):
        return found.result, ()
    if isinstance(found, LirModule):
        return CompilePipeline(found.target).compile(found), ()
    before = found.decisions if isinstance(found, OnnxModel) else ()
    with progress(f"compiling {model}"):
        graph = graph_of(found, wanted)
        options = FusionOptions(sizes=sizes_asked(_inputs(graph), wanted), f64=f64)
        pipeline = CompilePipeline(target_of(target), options=options, dump=dump)
        return pipeline.compile(graph), before


def _run_sizes(model: Any, wanted: Wanted) -> dict[str, int]:
    """Of named dims, in what a model is run on."""
    if isinstance(model, OnnxModel) and model.is_static:
        return dict(wanted.sizes)  # what is compiled has no named dims, for the most part
    declared = _inputs(graph_of(model, wanted))
    return sizes_in(arrays_for(declared, wanted), declared)


def _inputs(model: Any) -> dict[str, Shape]:
    """The shapes of the inputs of what is compiled."""
    lowered = model.lower() if isinstance(model, HirModule) else model
    graph = lowered if isinstance(lowered, Graph) else lowered.graph
    return {n.attrs["name"]: n.shape for n in graph.inputs}


def target_of(name: str) -> Target:
    """The target as it is on this machine, where its backend is there; else as documented."""
    return Session(name).target if has_backend(name) else Target.of(name)


def graph_of(model: Any, wanted: Wanted) -> Any:
    """What is compiled of a model: its graph, or its graph for the inputs that are asked for."""
    if isinstance(model, OnnxModel):
        return read_of(model, wanted).graph
    return model.graph if isinstance(model, Bundle) else model


def read_of(model: OnnxModel, wanted: Wanted) -> Read:
    """The model of a file, or what it is for the inputs that are given or made up."""
    if not model.is_static:
        return model.whole()
    exe = Specialising(model, Session("reference"), None)
    return model.specialised(list(inputs_of(exe, wanted).values()))


def with_weights(model: str, wanted: Wanted) -> tuple[Any, Mapping[str, Array]]:
    """The model of a file for the inputs that are asked for, and its weights."""
    from rlx.frontends.web import plain_parts

    found = load(model)
    if isinstance(found, OnnxModel):
        with progress(f"reading {model}"):
            return plain_parts(read_of(found, wanted), found.name)
    return (found.graph, found.params) if isinstance(found, Bundle) else (found, {})


def _random(declared: Mapping[str, Shape], wanted: Wanted) -> dict[str, Array]:
    rng = np.random.default_rng(wanted.seed)
    return {n: _weight(s, wanted.sizes, rng) for n, s in declared.items()}


def _weight(shape: Shape, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    dims = dims_for(shape, sizes)
    if shape.dtype.is_float or shape.dtype.is_complex:
        return (rng.standard_normal(dims) * SCALE).astype(shape.dtype.numpy)
    return rng.integers(0, 2, dims).astype(shape.dtype.numpy)
