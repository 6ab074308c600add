"""`rlx diff A B`: the differences of two compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlx.cli import options

if TYPE_CHECKING:
    from rlx.cli.inputs import Wanted
    from rlx.explain.report import Report

EXAMPLE = "rlx diff model.onnx model.onnx --target cpu --other cuda"
Compile = Annotated[
    str,
    typer.Argument(help="A model, or a report of rlx explain --json, as of another version."),
]


def verb(
    first: Compile,
    second: Compile,
    target: options.PlannedFor = "cpu",
    other: Annotated[
        str | None,
        typer.Option(
            "--other",
            metavar="TARGET",
            callback=options.known_target,
            help="Of the second. (default: the same)",
        ),
    ] = None,
    files: options.InputFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Compare two compiles: kernels, bytes, arena, time, decisions.

    Of two models, of one for two targets, or of reports written earlier. Exit 1 if they
    differ.
    """
    from rlx.cli.inputs import Wanted
    from rlx.explain.compare import compare

    wanted = Wanted.of(files, None, dims, seed)
    found = compare(_report(first, target, wanted), _report(second, other or target, wanted))
    if is_json:
        options.print_json(found.to_dict())
    else:
        print(found, end="")
    return 0 if found.is_same else 1


def _report(path: str, target: str, wanted: Wanted) -> Report:
    from rlx.cli.models import planned
    from rlx.explain.build import report_of
    from rlx.explain.report import Report

    if path.lower().endswith(".json"):
        with options.reading():
            return Report.from_json(options.read_text(path))
    return report_of(*planned(path, target, wanted)[:2])
