"""`rlx check FILE`: what of a model runs natively, what is lowered, and what is missing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from rlx.backends.base import BUILT_IN, find_backend
from rlx.cli import inputs
from rlx.cost.target import FusionTarget, Target
from rlx.errors import Error
from rlx.onnx.checking import PATHS, Report, dispatched, failed, unknown
from rlx.onnx.files import ModelFile
from rlx.onnx.model import Model, Read, model_of, reader_of
from rlx.onnx.running import Specialising
from rlx.passes.context import Context
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline
from rlx.runtime.session import Session


def main(arguments: list[str]) -> int:
    """Exit 0 if the target runs the model, 1 if not."""
    parser = argparse.ArgumentParser(
        "rlx check",
        description="Says what of an ONNX model runs natively, what is lowered to simpler ops, "
        "and what is missing, by the names of its nodes. Exit 1 if it cannot run.",
        epilog="example: rlx check model.onnx --target cuda",
    )
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("--target", default="cpu", choices=[t.value for t in FusionTarget])
    parser.add_argument("--json", action="store_true", help="every node, as JSON")
    inputs.add_options(parser)
    args = parser.parse_args(arguments)
    found = _examined(args)
    print(_json(args, *found) if args.json else _text(args, *found))
    return 1 if found[0].count("missing") else 0


def _examined(args: argparse.Namespace) -> tuple[Report, Model | None]:
    """All unknown operators at once; else the first thing that goes wrong, if any does."""
    reader = reader_of(ModelFile.open(args.model))
    missing = unknown(reader)
    if missing.rows:
        return missing, None
    model = None
    try:
        model = model_of(reader, args.model)
        graph = _read(model, args).graph
        context = Context.of(_target(args.target), FusionOptions())
        report = dispatched(reader, graph, context)
        if not report.count("missing"):
            _compile(graph, args.target)
        return report, model
    except Error as error:
        return Report((failed(error),)), model


def _read(model: Model, args: argparse.Namespace) -> Read:
    """The model, or what it is for the inputs that are given or made up."""
    if not model.is_static:
        return model.whole()
    exe = Specialising(model, Session("reference"), None)
    return model.specialised(list(inputs.inputs_of(exe, args).values()))


def _target(name: str) -> Target:
    return find_backend(name).target() if name in BUILT_IN else Target.of(name)


def _compile(graph: Any, target: str) -> None:
    """Whatever only a compile finds out; for targets that are not here, as far as their plan."""
    if target in BUILT_IN:
        Session(target).executable(graph, {})
    else:
        CompilePipeline(Target.of(target)).compile(graph)


def _json(args: argparse.Namespace, report: Report, model: Model | None) -> str:
    return json.dumps(
        {
            "model": args.model,
            "target": args.target,
            "runs": not report.count("missing"),
            "static": list(model.static) if model else [],
            "is_static": bool(model and model.is_static),
            "why_static": model.why_static if model and model.is_static else "",
            "counts": {p: report.count(p) for p in PATHS},
            "nodes": [asdict(r) for r in report.rows],
        },
        indent=2,
    )


def _text(args: argparse.Namespace, report: Report, model: Model | None) -> str:
    counts = ", ".join(f"{report.count(p)} {p}" for p in PATHS if report.count(p))
    verdict = "cannot run" if report.count("missing") else "runs"
    lines = [f"{args.model} {verdict} on {args.target}: {counts}"]
    if model and model.is_static:
        lines += [f"compiled per call: {d.reason}" for d in model.decisions]
    for path in ("lowered", "host", "missing"):
        rows = report.of(path)
        lines += [f"{path}:"] if rows else []
        lines += [f"  {r.op} {r.name!r}: {r.reason}" if r.op else f"  {r.reason}" for r in rows]
    return "\n".join(lines)
