"""`rlx explain MODEL`: compile a model and say what was decided, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.cli.progress import progress
from rlx.cli.signals import terminated_as_interrupt

if TYPE_CHECKING:
    from rlx.backends.code_facts import CodeFacts
    from rlx.cli.inputs import Wanted
    from rlx.explain.measure_journal import Journal
    from rlx.explain.report import Report
    from rlx.explain.trace import Trace
    from rlx.ir.lir import BufferPlan
    from rlx.ops.op import Array
    from rlx.pipeline import CompileResult
    from rlx.runtime.executable import Executable
    from rlx.runtime.fitting_inputs import MadeUp

Why = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="NODE",
        help="Follow one node: its name in the model, a block, a line, or a kernel such as k3.",
    ),
]
Measured = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Time the kernels, and (not of language models) builds with decisions reversed.",
    ),
]
Most = Annotated[
    int | None,
    typer.Option("--most", min=1, help="Decisions that are reversed at most. (default: 40)"),
]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", min=0.01, help="How long each build is timed. (default: 1)"),
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML page.")
]
Svg = Annotated[
    str | None, typer.Option("--svg", metavar="FILE", help="Write the arena's timeline, as SVG.")
]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", min=1, help="Of a language model's step, each sequence. (default: 1)"),
]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, help="Sequences of a step. (default: 1)")
]
Depth = Annotated[
    int | None, typer.Option("--depth", min=0, help="Tokens cached before a step. (default: 512)")
]
SECONDS, MOST, TOKENS, BATCH, DEPTH = 1.0, 40, 1, 1, 512
EXAMPLE = "rlx explain model.onnx --measure --html report.html"


def verb(
    model: options.ModelFile,
    target: options.PlannedFor = "cpu",
    node: Why = None,
    is_measured: Measured = False,
    most: Most = None,
    seconds: Seconds = None,
    html: Html = None,
    svg: Svg = None,
    has_all: Annotated[
        bool, typer.Option("--all", help="Every decision and kernel, however small.")
    ] = False,
    has_plan: Annotated[bool, typer.Option("--plan", help="The buffer plan as well.")] = False,
    tokens: Tokens = None,
    batch: Batch = None,
    depth: Depth = None,
    kv: options.KvCache = None,
    threads: options.Threads = None,
    f64: options.Doubles = None,
    mesh: options.Mesh = None,
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
    those of the inputs that are made up, as in every verb.
    A language model is explained as a step of its decoder: --tokens of each of --batch sequences,
    behind --depth tokens, against the time that reading weights and caches takes at the memory's
    bandwidth; on targets without sessions, or with --dim or --input, as the program of the file.
    What --json prints is described in docs/explain.md.
    """
    from rlx.cli import inputs

    wanted, axes = inputs.Wanted.of(files, params, dims, seed), options.mesh_of(mesh)
    is_step = not (files or params or dims) and _is_step(model, target)
    is_timed = is_measured or bool(html and _times_kernels(target))
    of_step = {"--tokens": tokens, "--batch": batch, "--depth": depth, "--kv": kv}
    _refuse_idle(is_step, is_measured, is_timed, {"--most": most, "--seconds": seconds, **of_step})
    if is_step:
        step = tokens or TOKENS, batch or BATCH, depth
        report, plan, trace = _step(
            (model, target, threads, kv), step, (is_timed, bool(html), seconds or SECONDS)
        )
        made: MadeUp | None = None
    elif is_timed:
        run = _Run.of(model, target, threads, wanted, axes, f64)
        report = run.report(is_measured, most or MOST, seconds or SECONDS)
        plan = run.program.lir.plan
        made = run.made
        trace = run.trace() if html else None
    else:
        report, plan, made = _planned(model, target, wanted, axes, f64)
        trace = None
    inputs.print_made_up(made, is_json=is_json)
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
    return _noted(report)


def _refuse_idle(
    is_step: bool, is_measured: bool, is_timed: bool, given: Mapping[str, object]
) -> None:
    """Options that would do nothing are refused."""
    from rlx.core.errors import Error

    idle = {
        "--most": (not is_measured, "decisions are reversed with --measure alone. Add it"),
        "--seconds": (not is_timed, "nothing is timed. Add --measure"),
    }
    if is_step:
        idle["--most"] = True, "decisions of language models are not reversed. Leave it out"
    else:
        why = "this is no step of a language model with caches of its own. Leave it out"
        idle |= dict.fromkeys(("--tokens", "--batch", "--depth", "--kv"), (True, why))
    for name, (is_idle, why) in idle.items():
        if is_idle and given[name] is not None:
            raise Error(f"explain {name}: {why}.")


def _noted(report: Report) -> int:
    """What disturbed the measurement, on stderr; 130 where a signal ended it."""
    from rlx.core.other_load import is_busy, warning

    found = report.timings
    if is_busy(found.get("busy_cores", 0.0)):
        print(warning(found["busy_cores"]), file=sys.stderr)
    if found.get("interrupted"):
        print(f"interrupted: {found['interrupted']} were not timed", file=sys.stderr)
        return 130
    return 0


def _times_kernels(target: str) -> bool:
    """Can kernels of the target be timed here, for the timeline of a page?"""
    from rlx.backends.registry import find_backend, has_backend

    name = target.partition(":")[0]
    if not has_backend(name):
        return False
    backend = find_backend(name)
    return backend.times_kernels and backend.missing() is None


def _is_step(model: str, target: str) -> bool:
    """Is it a language model, on a target that holds its caches?"""
    from rlx.backends.registry import has_backend, target_of
    from rlx.frontends.gguf.source import is_language_model_file

    name = target.partition(":")[0]
    return is_language_model_file(Path(model)) and has_backend(name) and target_of(name).holds_state


def _step(
    asked: tuple[str, str, int | None, str | None],
    step: tuple[int, int, int | None],
    how: tuple[bool, bool, float],
) -> tuple[Report, BufferPlan, Trace | None]:
    """The report of a decoder's step; measured where that is asked for, or a page shows it. What is
    not timed needs no device."""
    from rlx import lm
    from rlx.backends.registry import find_backend, target_of
    from rlx.frontends.gguf.architecture import architecture_of
    from rlx.frontends.gguf.source import language_model_file
    from rlx.lm.model import DEFAULT_CONTEXT, kv_format
    from rlx.lm.step_report import planned_step

    (model, target, threads, kv), (is_timed, has_page, seconds) = asked, how
    tokens, batch, depth = step
    most = architecture_of(language_model_file(Path(model))).context
    depth = max(0, min(DEPTH, most - tokens)) if depth is None else depth
    context = max(tokens + depth, min(DEFAULT_CONTEXT, most))
    name = target.partition(":")[0]
    if not is_timed and name != "cpu" and find_backend(name).missing() is not None:
        whole, cached = (tokens, batch, depth), kv_format(kv)
        return *planned_step(Path(model), target_of(name), whole, context, cached), None
    made = lm.load(
        model, target=target, threads=threads, slots=1, kv=kv,
        context=context if context > DEFAULT_CONTEXT else None,
    )  # fmt: skip
    reports = made.step_reports(tokens, batch, depth)
    report = reports.measured(seconds) if is_timed else reports.planned()
    return report, made.executable.lir.plan, reports.trace() if has_page and is_timed else None


def _planned(
    model: str, target: str, wanted: Wanted, mesh: dict[str, int] | None, f64: options.Doubles
) -> tuple[Report, BufferPlan, MadeUp | None]:
    """What is known without running anything; for a device that is not here, also what its compiler
    says."""
    from rlx.cli.models import planned
    from rlx.explain.build import report_of

    result, before, made = planned(model, target, wanted, f64=f64, mesh=mesh)
    code = _code_of(result, target, mesh) if ":" in target else None
    return report_of(result, before, code=code), result.lir.plan, made


def _code_of(result: CompileResult, target: str, mesh: dict[str, int] | None) -> CodeFacts | None:
    from rlx.runtime.session import Session

    backend = Session(target, mesh=mesh).backend
    if not backend.is_compile_only:
        return None
    sizes = {**result.lir.plan.representative, **result.options.sizes}
    return backend.compile(result.lir).code_facts(sizes)


@dataclass(frozen=True, slots=True)
class _Run:
    """A program, and what it is run on."""

    program: Executable
    given: Sequence[Array]
    made: MadeUp
    call: Callable[[], Any]
    """What a user calls: the program, or what finds it for each shape."""

    @classmethod
    def of(
        cls,
        model: str,
        target: str,
        threads: int | None,
        wanted: Wanted,
        mesh: dict[str, int] | None,
        f64: options.Doubles,
    ) -> _Run:
        from rlx.cli import inputs, models

        how: dict[str, Any] = {"is_weighed": True, "f64": f64, "mesh": mesh}
        exe = models.compiled(model, target, threads, wanted, **how)
        made, _ = inputs.ran(exe, wanted)
        arrays = list(made.arrays.values())
        return cls(*exe.settled(made.arrays), made, lambda: exe(*arrays))

    def report(self, is_measured: bool, most: int, seconds: float) -> Report:
        if not is_measured:
            from rlx.explain.with_measurements import timed_report

            return timed_report(self.program, self.given, seconds=seconds, call=self.call)
        from rlx.explain.with_measurements import measured_report

        journal = self._journal(seconds)
        how: dict[str, Any] = {"most": most, "seconds": seconds, "journal": journal}
        with terminated_as_interrupt(), progress("measuring") as report:
            return measured_report(self.program, self.given, **how, progress=report)

    def _journal(self, seconds: float) -> Journal:
        """Rows are in the cache until all are measured: the same command goes on after them."""
        from rlx.core.disk_cache import Cache
        from rlx.explain.measure_journal import Journal

        sizes, cache = self.program.sizes(self.given), Cache.of(None, os.environ)
        found = Journal.of(self.program, sizes, seconds, cache)
        if found.rows:
            print(
                f"{len(found.rows)} decisions were measured by a run that did not end: going on "
                f"after them ({found.path})",
                file=sys.stderr,
            )
        return found

    def trace(self) -> Trace:
        from rlx.explain.trace import OF_REPORT

        return self.program.trace(self.given, calls=OF_REPORT).median_call()


def _write_page(path: str, report: Report, trace: Trace | None, is_json: bool) -> None:
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
