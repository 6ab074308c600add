"""`rlx fuzz`: random graphs through every pipeline."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlx.cli import options
from rlx.cli.progress import progress
from rlx.core.errors import Error

EXAMPLE = "rlx fuzz --graphs 200 --backend cpu"


def verb(
    graphs: Annotated[int, typer.Option("--graphs", min=1, help="How many graphs.")] = 200,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Ops drawn for a graph.")] = 12,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 2,
    targets: Annotated[
        str | None,
        typer.Option("--targets", metavar="NAMES", help="Whose pipelines. (default: all seven)"),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAMES",
            help="Judge these backends' own code instead, such as cpu,cpu:avx2.",
        ),
    ] = None,
    is_guarded: Annotated[
        bool,
        typer.Option(
            "--guard",
            help="With --backend cpu: every buffer between pages that may not be touched.",
        ),
    ] = False,
    is_large: Annotated[
        bool, typer.Option("--large", help="Sizes up to 45, which fill vectors and tiles.")
    ] = False,
    is_json: options.Json = False,
) -> int:
    """Random graphs through every pipeline, each result compared with what the ops mean.

    Exit 1 if one differs or, from 2,000 graphs on, if an op hardly occurred.
    """
    from rlx.fuzz.campaign import Campaign, Tally

    pipelines, backends = _targets(targets), _backends(backend)
    if is_guarded and {b.partition(":")[0] for b in backends} != {"cpu"}:
        raise typer.BadParameter("it is for native code: give --backend cpu", param_hint="--guard")
    campaign = Campaign(graphs, first, steps, pipelines, backends, is_guarded, is_large)
    with progress("graphs") as report:

        def advance(tally: Tally, lines: list[str]) -> None:
            for line in lines:
                print(line, file=sys.stderr if is_json else sys.stdout, flush=True)
            report(tally.graphs, graphs, f"{tally.graphs}/{graphs}, {tally.wrong} wrong")

        tally = campaign.run(jobs, advance)
    if is_json:
        options.print_json(tally.facts())
    else:
        print(tally)
    return 0 if tally.is_good else 1


def _targets(text: str | None) -> tuple[str, ...]:
    known = options.names_of_targets()
    names = tuple(text.split(",")) if text else tuple(known)
    for name in names:
        if name not in known:
            unknown = f"{name!r} is not one of: {', '.join(known)}"
            raise typer.BadParameter(unknown, param_hint="--targets")
    return names


def _backends(text: str | None) -> tuple[str, ...]:
    from rlx.runtime.session import Session

    names = tuple(text.split(",")) if text else ()
    for name in names:
        try:
            Session(name)
        except Error as error:
            raise typer.BadParameter(str(error), param_hint="--backend") from None
    return names
