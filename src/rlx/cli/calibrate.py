"""`rlx calibrate`: measure the gate's prices on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlx.cli import options
from rlx.cli.progress import progress

EXAMPLE = "rlx calibrate --target cpu"


def verb(
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            callback=options.backend_target,
            help="Whose prices: cpu, or one with a backend of its own.",
        ),
    ] = "cpu",
    is_json: options.Json = False,
) -> int:
    """Measure what kernels, memory and arithmetic cost on this machine, and keep it.

    Compiles use the numbers from then on; without them they use documented ones. It takes some
    seconds: leave the machine alone meanwhile.
    """
    from rlx.runtime.calibrate import calibrate

    with progress("measuring") as report:
        made = calibrate(target, progress=report)
    if is_json:
        options.print_json({k: v for k, v in json.loads(made.text()).items() if k != "hash"})
    else:
        print(made)
    return 0
