"""`rlx check MODEL`: what of a model runs natively, what is lowered, and what is missing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli import options
from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.backends.base import Backend
    from rlx.cli.inputs import Wanted
    from rlx.frontends.onnx.model import Model
    from rlx.frontends.onnx.support_report import Report
    from rlx.passes.context import Context

EXAMPLE = "rlx check model.onnx --target cuda"


def verb(
    model: options.ModelFile,
    target: options.PlannedFor = "cpu",
    files: options.InputFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Say what of a model runs natively, what is lowered to simpler ops, and what is missing.

    By the names of its nodes. Exit 1 if the target cannot run it.
    """
    from rlx.cli.inputs import Wanted

    report, found = _examined(model, target, Wanted.of(files, None, dims, seed))
    if is_json:
        options.print_json(_facts(model, target, report, found))
    else:
        print(_text(model, target, report, found))
    return 1 if report.count("missing") else 0


def _examined(path: str, target: str, wanted: Wanted) -> tuple[Report, Model | None]:
    if path.lower().endswith(".onnx"):
        return _examined_file(path, target, wanted)
    from rlx.frontends.files import load
    from rlx.frontends.onnx.support_report import dispatched_graph
    from rlx.ir.bundle import Bundle
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph
    from rlx.runtime.executable import Executable

    found = load(path)
    if isinstance(found, Executable):
        raise Error(f"{path} is compiled already, for {found.lir.target.name}: rlx run {path}")
    if isinstance(found, LirModule):
        raise Error(f"{path} is planned already, for {found.target.name}: rlx explain {path}")
    held = found.graph if isinstance(found, Bundle) else found
    module = held.lower() if isinstance(held, HirModule) else held
    graph = module if isinstance(module, Graph) else module.graph
    return _compiled(dispatched_graph(graph, _context(target)), held, target), None


def _examined_file(path: str, target: str, wanted: Wanted) -> tuple[Report, Model | None]:
    """All unknown operators at once; else the first thing that goes wrong, if any does."""
    from rlx.cli.models import read_of
    from rlx.frontends.onnx.files import ModelFile
    from rlx.frontends.onnx.model import model_of, reader_of
    from rlx.frontends.onnx.support_report import Report, dispatched, failed, unknown

    reader = reader_of(ModelFile.open(path))
    missing = unknown(reader)
    if missing.rows:
        return missing, None
    model = None
    try:
        model = model_of(reader, Path(path).stem)
        read = read_of(model, wanted)
        report = dispatched(reader, read.graph, _context(target), read.steps)
    except Error as error:
        return Report((failed(error),)), model
    return _compiled(report, read.graph, target), model


def _context(target: str) -> Context:
    from rlx.cli.models import target_of
    from rlx.passes.context import Context
    from rlx.passes.options import FusionOptions

    return Context.of(target_of(target), FusionOptions())


def _compiled(report: Report, graph: Any, target: str) -> Report:
    """Whatever only a compile finds out; for targets that are not here, as far as their plan."""
    from rlx.backends.base import find_backend, has_backend
    from rlx.cli.progress import progress
    from rlx.cost.target import Target
    from rlx.frontends.onnx.support_report import Report, failed
    from rlx.pipeline import CompilePipeline

    if report.count("missing"):
        return report
    try:
        with progress("compiling"):
            if has_backend(target):
                _generate(graph, find_backend(target))
            else:
                CompilePipeline(Target.of(target)).compile(graph)
    except Error as error:
        return Report((failed(error),))
    return report


def _generate(graph: Any, backend: Backend) -> None:
    """The code of a graph, also where there is no device: for an architecture then."""
    from rlx.pipeline import CompilePipeline
    from rlx.runtime.session import Session

    if backend.missing() is None:
        Session(backend.name).executable(graph, {})
        return
    backend.generate(CompilePipeline(backend.target()).compile(graph).lir)


def _facts(path: str, target: str, report: Report, model: Model | None) -> dict[str, Any]:
    from rlx.frontends.onnx.support_report import PATHS

    is_static = bool(model and model.is_static)
    return {
        "model": path,
        "target": target,
        "runs": not report.count("missing"),
        "static": list(model.static) if model else [],
        "is_static": is_static,
        "why_static": model.why_static if model and is_static else "",
        "counts": {p: report.count(p) for p in PATHS},
        "nodes": [asdict(r) for r in report.rows],
    }


def _text(path: str, target: str, report: Report, model: Model | None) -> str:
    from rlx.frontends.onnx.support_report import PATHS

    counts = ", ".join(f"{report.count(p)} {p}" for p in PATHS if report.count(p))
    verdict = "cannot run" if report.count("missing") else "runs"
    lines = [f"{path} {verdict} on {target}: {counts or 'nothing to compute'}"]
    if model and model.is_static:
        lines += [f"compiled per call: {d.reason}" for d in model.decisions]
    for kind in ("lowered", "host", "missing"):
        rows = report.of(kind)
        lines += [f"{kind}:"] if rows else []
        lines += [f"  {r.op} {r.name!r}: {r.reason}" if r.op else f"  {r.reason}" for r in rows]
    return "\n".join(lines)
