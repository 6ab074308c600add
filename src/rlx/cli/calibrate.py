"""`rlx calibrate`: measure the gate's prices on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rlx.cli import options
from rlx.cli.progress import progress
from rlx.core.other_load import OtherLoad, is_busy, warning

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

    load = OtherLoad()
    with progress("measuring") as report:
        made = calibrate(target, progress=report)
    busy = load.cores()
    if is_json:
        facts = {k: v for k, v in json.loads(made.text()).items() if k != "hash"}
        options.print_json({**facts, "busy_cores": busy})
    else:
        head, *rows = str(made).splitlines()
        print("\n".join([head, *(f"{row}{' *' if is_busy(busy) else ''}" for row in rows)]))
    if is_busy(busy):
        print(f"{warning(busy)}. Calibrate again when it is idle.", file=sys.stderr)
    return 0
