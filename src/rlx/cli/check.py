"""`rlx check MODEL`: what of a model runs natively, what is lowered, and what is missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli import options
from rlx.core.errors import Error, InputError
from rlx.core.printable import one_line

if TYPE_CHECKING:
    from rlx.backends.code_facts import CodeFacts
    from rlx.cli.inputs import Wanted
    from rlx.frontends.onnx.model import Model
    from rlx.frontends.onnx.support_report import Report
    from rlx.passes.context import Context
    from rlx.passes.options import FusionOptions
    from rlx.runtime.fitting_inputs import MadeUp

    Examined = tuple[Report, Model | None, MadeUp | None, CodeFacts | None]
    """What of a model runs how, the model, the inputs that were made up to read it, and what a
    compiler says of its code."""

MEANING = {
    "folded": "folded into constants or other kernels",
    "native": "run by native kernels",
    "lowered": "lowered to simpler ops",
    "host": "run by Python on the host",
    "missing": "not supported",
}
"""How a node runs, for the first line."""
PER_CALL = {
    "compile_per_shapes": "compiled for each new shape of its inputs",
    "compile_per_values": "compiled for each new value of its inputs",
}
EXAMPLE = "rlx check model.onnx --target cuda"


def verb(
    model: options.ModelFile,
    target: options.PlannedFor = "cpu",
    f64: options.Doubles = None,
    mesh: options.Mesh = None,
    files: options.InputFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Say what of a model runs natively, what is lowered to simpler ops, and what is missing.

    By the names of its nodes. Exit 1 if the target cannot run it, 2 if it cannot be read, or is
    another for other inputs, and none were found that fit it. With -t tpu:v5e (v4, v5p, v6e; a grid
    as in tpu:v5e:2x2), the size of its code, its arithmetic and its memory on such a TPU, which
    need not be here.
    """
    from rlx.cli import inputs
    from rlx.cli.inputs import Wanted

    goal = _Goal(target, options.mesh_of(mesh), Wanted.of(files, None, dims, seed), f64)
    report, found, made, code = _examined(model, goal)
    if is_json:
        facts = _facts(model, target, report, found)
        compiled = None if code is None else code.to_dict()
        made_up = inputs.made_up_facts(made)
        options.print_json({**facts, "made_up": made_up, "compiled": compiled})
    else:
        print(_text(model, target, report, found))
        inputs.print_made_up(made)
        if code is not None:
            print(code)
    if report.bug is not None:
        raise report.bug
    return 0 if report.runs else 1


@dataclass(frozen=True, slots=True)
class _Goal:
    """What a model is examined for."""

    target: str
    mesh: dict[str, int] | None
    wanted: Wanted
    f64: options.Doubles = None

    @property
    def options(self) -> FusionOptions:
        """Those of `rlx run`: what is compiled here, it finds in the cache."""
        from rlx.passes.options import FusionOptions

        return FusionOptions(f64=self.f64)


def _examined(path: str, goal: _Goal) -> Examined:
    if path.lower().endswith(".onnx"):
        return _examined_file(path, goal)
    from rlx.frontends.files import load
    from rlx.frontends.onnx.support_report import dispatched_graph
    from rlx.ir.bundle import Bundle
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph
    from rlx.runtime.executable import Executable

    with options.reading():
        found = load(path)
    if isinstance(found, Executable):
        raise InputError(f"{path} is compiled already, for {found.lir.target.name}: rlx run {path}")
    if isinstance(found, LirModule):
        raise InputError(f"{path} is planned already, for {found.target.name}: rlx explain {path}")
    held = found.graph if isinstance(found, Bundle) else found
    module = held.lower() if isinstance(held, HirModule) else held
    graph = module if isinstance(module, Graph) else module.graph
    report, code = _compiled(dispatched_graph(graph, _context(goal)), held, goal)
    return report, None, None, code


def _examined_file(path: str, goal: _Goal) -> Examined:
    """All unknown operators at once; else the first thing that rlx lacks, if there is one."""
    from rlx.cli.models import read_of
    from rlx.frontends.onnx.files import ModelFile
    from rlx.frontends.onnx.model import model_of, reader_of
    from rlx.frontends.onnx.support_report import Report, dispatched, unknown

    with options.reading():
        reader = reader_of(ModelFile.open(path))
        missing = unknown(reader)
    if missing.rows:
        return missing, None, None, None
    model = None
    try:
        with options.reading():
            model = model_of(reader, Path(path).stem)
            read, made = read_of(model, goal.wanted)
        report = dispatched(reader, read.graph, _context(goal), read.steps)
    except InputError:
        raise
    except Error as error:
        return Report((), error), model, None, None
    report, code = _compiled(report, read.graph, goal)
    return report, model, made, code


def _context(goal: _Goal) -> Context:
    from rlx.cli.models import target_of
    from rlx.passes.context import Context

    return Context.of(target_of(goal.target, goal.mesh), goal.options)


def _compiled(report: Report, graph: Any, goal: _Goal) -> tuple[Report, CodeFacts | None]:
    """Whatever only a compile finds out; for targets that are not here, as far as their plan."""
    from rlx.backends.registry import has_backend
    from rlx.cli.progress import progress
    from rlx.cost.target import Target
    from rlx.pipeline import CompilePipeline

    if report.count("missing"):
        return report, None
    try:
        with progress("compiling"):
            if has_backend(goal.target.partition(":")[0]):
                return report, _generate(graph, goal)
            CompilePipeline(Target.of(goal.target), options=goal.options).compile(graph)
    except Exception as error:
        return replace(report, failure=error), None
    return report, None


def _generate(graph: Any, goal: _Goal) -> CodeFacts | None:
    """The code of a graph, also where there is no device: for an architecture then. What is known
    of it, where a compiler says so."""
    from rlx.pipeline import CompilePipeline
    from rlx.runtime.session import Session

    session = Session(goal.target, mesh=goal.mesh)
    if session.backend.missing() is None:
        exe = session.executable(graph, {}, options=goal.options)
        return exe.code_facts(**goal.wanted.sizes) if session.backend.is_compile_only else None
    pipeline = CompilePipeline(session.target, options=goal.options)
    session.backend.generate(pipeline.compile(graph).lir)
    return None


def _facts(path: str, target: str, report: Report, model: Model | None) -> dict[str, Any]:
    from rlx.frontends.onnx.support_report import PATHS

    is_static = bool(model and model.is_static)
    return {
        "model": path,
        "target": target,
        "runs": report.runs,
        "failure": str(report.failure or ""),
        "is_bug": report.bug is not None,
        "static": list(model.static) if model else [],
        "is_static": is_static,
        "why_static": model.why_static if model and is_static else "",
        "counts": {p: report.count(p) for p in PATHS},
        "nodes": [asdict(r) for r in report.rows],
    }


def _text(path: str, target: str, report: Report, model: Model | None) -> str:
    from rlx.core.units import counted
    from rlx.frontends.onnx.support_report import PATHS

    counts = ", ".join(f"{report.count(p):,} {MEANING[p]}" for p in PATHS if report.count(p))
    nodes = [f"of {counted(len(report.rows), 'node')}, {counts}"] if counts else []
    said = nodes or ["nothing to compute"]
    if report.failure is not None:
        why = one_line(str(report.failure))
        said = ["compiling it meets a bug of rlx" if report.bug else why, *nodes]
    lines = [f"{path} {'runs' if report.runs else 'cannot run'} on {target}: {said[0]}", *said[1:]]
    if model and model.is_static:
        lines += [f"{PER_CALL.get(d.what, d.what)}: {one_line(d.reason)}" for d in model.decisions]
    for kind in ("lowered", "host", "missing"):
        rows = report.of(kind)
        lines += [f"{MEANING[kind]}:"] if rows else []
        lines += [one_line(f"  {r.op} {r.name!r}: {r.reason}") for r in rows]
    return "\n".join(lines)
