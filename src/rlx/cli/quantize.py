"""`rlx quantize IN OUT TYPE`: a language model in smaller block formats, and what that costs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.cli.progress import progress
from rlx.core.errors import UnsupportedError
from rlx.core.printable import one_line
from rlx.core.units import size_text

if TYPE_CHECKING:
    from rlx.frontends.gguf.quantize import Quantised

EXAMPLE = "rlx quantize model-f16.gguf model-q4.gguf Q4_K_M"


def verb(
    model: Annotated[
        str, typer.Argument(metavar="IN", help=options.LANGUAGE_MODEL)
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The .gguf file to write.")],
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="Such as Q4_K_M, Q8_0, F16; `rlx quantize` lists "
                                                 "them where it does not know one.")
    ],
    threads: options.Threads = None,
    is_all: Annotated[bool, typer.Option("--all", help="List every tensor.")] = False,
    is_json: options.Json = False,
) -> int:  # fmt: skip
    """Write a language model in another block format.

    Scales are searched for the least error. The table has the error of the tensors: the root of the
    mean square of what changed, relative to that of the weights.
    """
    from rlx.frontends.gguf.quantize import quantize
    from rlx.frontends.gguf.source import language_model_file
    from rlx.frontends.gguf.type_rules import mixture_of

    try:
        mixture = mixture_of(kind)
    except UnsupportedError as error:
        raise typer.BadParameter(str(error), param_hint="TYPE") from None
    with options.reading():
        source = language_model_file(Path(model))
    cores = threads or os.cpu_count() or 1
    with options.reading(), progress(f"quantising {model}") as report:
        rows = quantize(
            source, out, mixture, threads=cores, done=lambda n, of, row: report(n, of, row.name)
        )
    if is_json:
        options.print_json(_facts(model, out, kind, rows))
    else:
        _print(out, rows, is_all)
    return 0


def _facts(model: str, out: str, kind: str, rows: list[Quantised]) -> dict[str, Any]:
    return {
        "model": model, "out": out, "type": kind.upper(),
        "bytes_before": sum(r.nbytes_before for r in rows), "bytes": sum(r.nbytes for r in rows),
        "tensors": [
            {"name": r.name, "dims": list(r.dims), "before": r.before, "after": r.after,
             "bytes": r.nbytes, "relative_error": r.relative_error, "max_error": r.max_error}
            for r in rows
        ],
    }  # fmt: skip


def _print(out: str, rows: list[Quantised], is_all: bool) -> None:
    changed = [r for r in rows if r.before != r.after]
    shown = changed if is_all else sorted(changed, key=lambda r: -r.relative_error)[:10]
    if shown:
        print(f"{'tensor':32} {'from':>7} {'to':>7} {'error':>9} {'greatest':>10}")
    for r in shown:
        name = one_line(r.name)
        print(f"{name:32} {r.before:>7} {r.after:>7} {r.relative_error:9.2e} {r.max_error:10.2e}")
    if len(changed) > len(shown):
        print(f"… and {len(changed) - len(shown)} of less error (--all lists them)")
    formats = sorted({r.after for r in rows})
    counts = ", ".join(f"{sum(r.after == f for r in rows)} {f}" for f in formats)
    before, after = (sum(n) for n in zip(*((r.nbytes_before, r.nbytes) for r in rows)))
    weights = sum(math.prod(r.dims) for r in rows)
    print(f"{out}: {size_text(after)} of {size_text(before)}, "
          f"{8 * after / weights:.2f} bits a weight ({counts})")  # fmt: skip
