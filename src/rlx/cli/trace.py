"""`rlx trace MODEL -o FILE`: a trace of passes, code generation and kernels."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rlx.cli import options

EXAMPLE = "rlx trace model.onnx -o trace.json"


def verb(
    model: options.ModelFile,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace.")
    ] = "trace.json",
    target: options.RunOn = None,
    threads: options.Threads = None,
    tune: options.Tuning = "bitwise",
    f64: options.Doubles = None,
    calls: Annotated[int, typer.Option("--calls", min=1, help="How many calls to show.")] = 3,
    files: options.InputFiles = None,
    params: options.ParamFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Write a trace of the compile and of some calls, for Perfetto or Chrome.

    Shows every compile pass, code generation kernel by kernel, and every kernel on the thread that
    ran it. Open the file in ui.perfetto.dev or chrome://tracing.
    """
    from rlx.cli import inputs, models

    wanted = inputs.Wanted.of(files, params, dims, seed)
    exe = models.compiled(
        model, target, threads, wanted, cache=False, is_weighed=True, tune=tune, f64=f64
    )
    taken, _ = inputs.ran(exe, wanted)
    program, given = exe.settled(taken.arrays)
    made = program.trace(given, calls=calls)
    made.save(output)
    facts: dict[str, Any] = {
        "model": model, "file": output, "calls": calls, "events": len(made.events),
        "passes": sum(e.category == "pass" for e in made.events),
        "units": sum(e.category == "codegen" and e.thread > 0 for e in made.events),
        "threads": len({e.thread for e in made.events if e.category == "kernel"}),
    }  # fmt: skip
    if is_json:
        options.print_json(facts)
    else:
        inputs.print_made_up(taken)
        print(
            "wrote {file}: {passes} passes, {units} compile units, {calls} calls on {threads} "
            "threads, {events} events".format(**facts)
        )
    return 0
