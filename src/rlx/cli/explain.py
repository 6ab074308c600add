"""`rlx explain MODEL`: compile a model and say what was decided, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.cli.progress import progress

if TYPE_CHECKING:
    from rlx.cli.inputs import Wanted
    from rlx.explain.report import Report
    from rlx.explain.trace import Trace
    from rlx.ir.lir import BufferPlan
    from rlx.ops.op import Array
    from rlx.runtime.executable import Executable

EXAMPLE = "rlx explain model.onnx --measure --html report.html"


def verb(
    model: options.ModelFile,
    target: options.PlannedFor = "cpu",
    node: Annotated[
        str | None,
        typer.Option(
            "--why",
            metavar="NODE",
            help="Follow one node: its name in the model, a block, a line, or a kernel such as k3.",
        ),
    ] = None,
    is_measured: Annotated[
        bool,
        typer.Option("--measure", help="Time the kernels; reverse decisions, and time that, too."),
    ] = False,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Decisions that are reversed at most.")
    ] = 40,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, help="How long each of them is timed.")
    ] = 1.0,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write the report as one HTML page."),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option("--svg", metavar="FILE", help="Write the arena's timeline, as SVG."),
    ] = None,
    has_all: Annotated[
        bool, typer.Option("--all", help="Every decision and kernel, however small.")
    ] = False,
    has_plan: Annotated[bool, typer.Option("--plan", help="The buffer plan as well.")] = False,
    threads: options.Threads = None,
    files: options.InputFiles = None,
    params: options.ParamFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Compile a model and say what was decided, why, and what it should save.

    With --measure, on a target that is installed, measured times are reported beside predicted
    ones. A .rlx program has its own target. Inputs matter where the model is run, and where shapes
    depend on their values. Decisions are priced at the sizes given by --dim or by inputs; else at
    representative ones, as in any compile.
    What --json prints is described in docs/explain.md.
    """
    from rlx.cli.inputs import Wanted

    wanted = Wanted.of(files, params, dims, seed)
    if is_measured or (html and _times_kernels(target)):
        run = _Run.of(model, target, threads, wanted)
        report, plan = run.report(is_measured, most, seconds), run.program.lir.plan
        trace = run.trace() if html else None
    else:
        report, plan = _planned(model, target, wanted)
        trace = None
    if svg:
        options.write_text(svg, plan.report_svg())
    if html:
        _write_page(html, report, trace, is_json)
    if node is not None:
        _follow(report, node, is_json)
    elif is_json:
        print(report.to_json(indent=2))
    elif not html or is_measured:
        _show(report, has_all, plan.report() if has_plan else "")
    return 0


def _times_kernels(target: str) -> bool:
    """Can kernels of the target be timed here, for the timeline of a page?"""
    from rlx.backends.base import find_backend, has_backend

    if not has_backend(target):
        return False
    backend = find_backend(target)
    return backend.times_kernels and backend.missing() is None


def _planned(model: str, target: str, wanted: Wanted) -> tuple[Report, BufferPlan]:
    """What is known without running anything."""
    from rlx.cli.models import planned
    from rlx.explain.build import report_of

    result, before = planned(model, target, wanted)
    return report_of(result, before), result.lir.plan


@dataclass(frozen=True, slots=True)
class _Run:
    """A program, and what it is run on."""

    program: Executable
    given: Sequence[Array]

    @classmethod
    def of(cls, model: str, target: str, threads: int | None, wanted: Wanted) -> _Run:
        from rlx.cli import inputs, models

        exe = models.compiled(model, target, threads, wanted, is_weighed=True)
        return cls(*models.settled(exe, inputs.inputs_of(exe, wanted)))

    def report(self, is_measured: bool, most: int, seconds: float) -> Report:
        if not is_measured:
            return self.program.explain()
        how: dict[str, Any] = {"most": most, "seconds": seconds}
        with progress("measuring") as report:
            return self.program.explain(self.given, measure=True, **how, progress=report)

    def trace(self) -> Trace:
        return self.program.trace(self.given, calls=1)


def _write_page(path: str, report: Report, trace: Trace | None, is_json: bool) -> None:
    import sys

    from rlx.explain.html import page_of

    options.write_text(path, page_of(report, trace))
    print(f"wrote {path}", file=sys.stderr if is_json else sys.stdout)


def _follow(report: Report, node: str, is_json: bool) -> None:
    from rlx.explain.node_history import follow

    found = follow(report, node)
    if is_json:
        options.print_json(asdict(found))
    else:
        print(found, end="")


def _show(report: Report, has_all: bool, plan: str) -> None:
    from rlx.cli.tables import show
    from rlx.explain.text import MOST

    show(report, None if has_all else MOST)
    if plan:
        print(plan)
