"""`rlx explain FILE`: compile a model and say what was decided, and why."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlx.backends.base import BUILT_IN, find_backend
from rlx.cost.target import FusionTarget, Target
from rlx.loading import load
from rlx.pipeline import CompilePipeline, CompileResult
from rlx.runtime.bundle import Bundle
from rlx.runtime.executable import Executable


def main(arguments: list[str]) -> int:
    """Prints the report; with --svg, writes the arena's timeline as well."""
    parser = argparse.ArgumentParser(
        "rlx explain", description=__doc__, epilog="example: rlx explain model.ir --target cuda"
    )
    parser.add_argument(
        "model", help="an .onnx or .ir file, or a .rlx program, which has its own target"
    )
    parser.add_argument("--target", default="cpu", choices=[t.value for t in FusionTarget])
    parser.add_argument("--json", action="store_true", help="decisions as JSON")
    parser.add_argument("--plan", action="store_true", help="the buffer plan as well")
    parser.add_argument("--svg", metavar="FILE", help="write the arena's timeline as SVG")
    args = parser.parse_args(arguments)
    result = _result(load(args.model), args.target)
    if args.svg:
        Path(args.svg).write_text(result.lir.plan.report_svg(), encoding="utf-8")
    print(_json(result) if args.json else _text(result, args.plan))
    return 0


def _result(model: Any, target: str) -> CompileResult:
    """What compiling gives, or gave; where a backend is there, for what it claims."""
    if isinstance(model, Executable):
        return model.result
    if isinstance(model, Bundle):
        model = model.graph
    known = find_backend(target).target() if target in BUILT_IN else Target.of(target)
    return CompilePipeline(known).compile(model)


def _json(result: CompileResult) -> str:
    lir = result.lir
    return json.dumps(
        {
            "name": lir.name,
            "target": lir.target.name,
            "fingerprint": lir.fingerprint,
            "arena_bytes": lir.arena_bytes,
            "weight_bytes": lir.plan.weight_bytes,
            "decisions": [asdict(d) for d in result.decisions],
        },
        indent=2,
    )


def _text(result: CompileResult, with_plan: bool) -> str:
    from rlx.explain.text import explain

    parts = [explain(result)]
    if with_plan:
        parts.append(result.lir.plan.report())
    return "\n".join(parts)
