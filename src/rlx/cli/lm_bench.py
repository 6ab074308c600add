"""`rlx lm-bench MODEL`: tokens a second of prompts and of decoding."""

from __future__ import annotations

import csv
import enum
import io
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.cli.progress import progress
from rlx.core.errors import InputError
from rlx.core.other_load import OtherLoad, is_busy, warning

if TYPE_CHECKING:
    from rlx.lm.bench import Rate, Workload

EXAMPLE = "rlx lm-bench model.gguf -p 128,512 -n 64 --depth 0,2048 --threads 1,2"
Row = dict[str, Any]


class Form(enum.Enum):
    """How rates are printed."""

    MARKDOWN = "md"
    CSV = "csv"
    JSON = "json"


def _list(short: str, long: str, what: str) -> Any:
    return typer.Option(short, long, metavar="N,N", help=what)


Prompts = Annotated[str, _list("-p", "--prompt", "Tokens of prompts; 0: none.")]
Decodes = Annotated[str, _list("-n", "--decode", "Tokens that are decoded; 0: none.")]
Depths = Annotated[str, _list("-d", "--depth", "Tokens that are there before.")]
Batches = Annotated[str, _list("-b", "--batch", "Sequences at once.")]
Cores = Annotated[str, _list("-t", "--threads", "Cores that a step may use. (default: all)")]
RunOn = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", callback=options.backend_target,
                 help="Such as cpu, cuda, reference."),
]  # fmt: skip


def verb(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.LANGUAGE_MODEL)],
    prompt: Prompts = "512",
    decode: Decodes = "128",
    depth: Depths = "0",
    batch: Batches = "1",
    threads: Cores = "",
    repetitions: Annotated[
        int, typer.Option("-r", "--repetitions", min=1, help="Of each test.")
    ] = 5,
    form: Annotated[
        Form, typer.Option("-o", "--output", help="How rates are printed.")
    ] = Form.MARKDOWN,
    precision: options.Activations = "file",
    kv: options.KvCache = None,
    target: RunOn = None,
) -> int:
    """Tokens a second, in the columns of llama-bench.

    ppN is a prompt of N tokens, tgN are N steps of decoding, @ dN is behind N tokens, xN is with N
    sequences at once (all of their tokens are counted). Lists are separated by commas; every
    combination is measured, after one repetition that is not counted.
    """
    from rlx.lm.bench import workloads_of

    cores = _numbers(threads, "--threads", least=1) or [os.cpu_count() or 1]
    tests = workloads_of(
        _numbers(prompt, "--prompt"), _numbers(decode, "--decode"), _numbers(depth, "--depth"),
        _numbers(batch, "--batch", least=1),
    )  # fmt: skip
    if not tests:
        raise typer.BadParameter("nothing to measure: give -p or -n")
    load, rows = OtherLoad(), list[Row]()
    with progress(f"timing {model}") as report:
        for count in cores:
            how = {"threads": count, "target": target, "precision": precision, "kv": kv}
            for rate in _rates(model, tests, repetitions, how):
                rows.append(_row(model, target, count, rate))
                report(len(rows), len(cores) * len(tests), rate.test.name)
    print(_text(rows, form), end="")
    if is_busy(busy := load.cores()):
        typer.echo(f"rlx lm-bench: {warning(busy)}".replace("marked * ", ""), err=True)
    return 0


def _numbers(text: str, option: str, least: int = 0) -> list[int]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not all(p.isdecimal() and int(p) >= least for p in parts):
        raise typer.BadParameter(f"{text!r} is no list of numbers from {least}", param_hint=option)
    return [int(p) for p in parts]


def _rates(
    model: str, tests: Sequence[Workload], repetitions: int, how: dict[str, Any]
) -> Iterator[Rate]:
    from rlx import lm
    from rlx.lm.bench import measured
    from rlx.lm.model import DEFAULT_CONTEXT

    most = max(t.context for t in tests)
    with options.reading():
        made = lm.load(
            model, slots=max(t.sequences for t in tests),
            context=None if most < DEFAULT_CONTEXT else most, **how,
        )  # fmt: skip
    if most > made.context:
        raise InputError(
            f"{model} has a context of {made.context:,} tokens, and a test needs {most:,}. Give "
            "smaller lengths of -p, -n or -d."
        )
    return measured(made.decoder, len(made.tokenizer.texts), tests, repetitions)


def _row(model: str, target: str | None, threads: int, rate: Rate) -> Row:
    from rlx.frontends.gguf.source import language_model_file

    file = language_model_file(Path(model))
    tensors = file.tensors.values()
    t = rate.test
    return {
        "model": str(file.metadata.get("general.name") or Path(model).name),
        "model_size": sum(i.nbytes for i in tensors),
        "model_n_params": sum(i.count for i in tensors),
        "backend": target or "cpu", "n_threads": threads,
        "n_prompt": t.tokens if t.is_prompt else 0, "n_gen": 0 if t.is_prompt else t.tokens,
        "n_depth": t.depth, "n_sequences": t.sequences, "test": t.name,
        "test_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "avg_ts": rate.mean, "stddev_ts": rate.deviation, "samples_ts": list(rate.rates),
    }  # fmt: skip


def _text(rows: list[Row], form: Form) -> str:
    if form is Form.JSON:
        import json

        return json.dumps(rows, indent=2) + "\n"
    if form is Form.CSV:
        out = io.StringIO()
        names = [n for n in rows[0] if n != "samples_ts"]
        writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()
    return _markdown(rows)


def _markdown(rows: list[Row]) -> str:
    """llama-bench's table."""
    head = ("model", "size", "params", "backend", "threads", "test", "t/s")
    lines = [
        (r["model"], f"{r['model_size'] / 2**20:.2f} MiB", f"{r['model_n_params'] / 1e6:.2f} M",
         r["backend"], str(r["n_threads"]), r["test"], f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}")
        for r in rows
    ]  # fmt: skip
    wide = [max(len(row[i]) for row in (head, *lines)) for i in range(len(head))]
    rule = ("-" * wide[0], *("-" * (w - 1) + ":" for w in wide[1:]))
    return "".join(_line(row, wide) for row in (head, rule, *lines))


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    """The first column to the left, figures to the right."""
    rest = (c.rjust(w) for c, w in zip(cells[1:], wide[1:]))
    return f"| {' | '.join((cells[0].ljust(wide[0]), *rest))} |\n"
