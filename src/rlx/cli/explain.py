"""`rlx explain MODEL`: compile a model and say what was decided, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options

if TYPE_CHECKING:
    from rlx.pipeline import CompileResult

EXAMPLE = "rlx explain model.onnx --target cuda"


def verb(
    model: options.ModelFile,
    target: options.PlannedFor = "cpu",
    has_plan: Annotated[bool, typer.Option("--plan", help="The buffer plan as well.")] = False,
    svg: Annotated[
        str | None,
        typer.Option("--svg", metavar="FILE", help="Write the arena's timeline, as SVG."),
    ] = None,
    files: options.InputFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Compile a model and say what was decided, why, and what it should save.

    A .rlx program has its own target. Inputs count where shapes follow from their values.
    """
    from rlx.cli.inputs import Wanted
    from rlx.cli.models import planned

    result = planned(model, target, Wanted.of(files, None, dims, seed))
    if svg:
        options.write_text(svg, result.lir.plan.report_svg())
    if is_json:
        options.print_json(_facts(result))
    else:
        print(_text(result, has_plan))
    return 0


def _facts(result: CompileResult) -> dict[str, Any]:
    lir = result.lir
    return {
        "name": lir.name,
        "target": lir.target.name,
        "fingerprint": lir.fingerprint,
        "arena_bytes": lir.arena_bytes,
        "weight_bytes": lir.plan.weight_bytes,
        "decisions": [asdict(d) for d in result.decisions],
    }


def _text(result: CompileResult, has_plan: bool) -> str:
    from rlx.explain.text import explain

    parts = [explain(result)]
    if has_plan:
        parts.append(result.lir.plan.report())
    return "\n".join(parts)
