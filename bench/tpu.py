"""`python -m bench.tpu`: models compiled for TPUs that are not here, on one device and split over
four; with `--run`, the same splits on four processors of jax's against target cpu.

Compiling needs libtpu (pip install 'jax[tpu]'), running jax alone. `--write` puts the tables into
bench/results/tpu.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from bench.workload import Workload
from bench.workloads import llama, minilm

PAGE = Path(__file__).parent / "results" / "tpu.md"
TARGETS = ("tpu:v5e:2x2", "tpu:v5p")
MESHES: tuple[Mapping[str, int], ...] = ({"model": 1}, {"model": 4})
FOUR = "--xla_force_host_platform_device_count=4"
COLUMNS = (
    "model", "target", "products", "devices", "code", "arguments", "temporary", "traffic",
    "at least", "collectives",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |"
RUN_HEAD = (
    "| model | mesh | largest difference from target cpu, over the largest number | collectives |"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One compile. Numbers are those of a device."""

    model: str
    target: str
    precision: str
    facts: Any

    def __str__(self) -> str:
        f = self.facts
        shared = ", ".join(f"{n} {kind}" for kind, n in sorted(f.collectives.items())) or "none"
        sizes = (f.code_bytes, f.argument_bytes, f.temporary_bytes, f.traffic_bytes)
        cells = [f"{s / 1e6:,.2f} MB" for s in sizes]
        names = (self.model, self.target, self.precision, str(f.devices))
        least = f"{f.optimal_ns / 1e3:,.0f} µs" if f.optimal_ns else "–"
        return f"| {' | '.join([*names, *cells, least, shared])} |"


def workloads() -> dict[str, Workload]:
    """MiniLM on eight sentences, and both phases of the benchmark's Llama."""
    params = llama.llama_params()
    return {
        "MiniLM-L6, 8×128": minilm.minilm(8, 128, minilm.random_params()),
        "Llama 8×1024, prompt of 128": llama.prefill(params),
        "Llama 8×1024, one token after 512": llama.decode(params),
    }


def compiled(precision: str | None) -> Iterator[Row]:
    for name, work in workloads().items():
        model = work.model(work.rlx_params())
        for target in TARGETS:
            for mesh in MESHES:
                exe: Any = rlx.compile(model, target, mesh=mesh, precision=precision, cache=False)
                yield Row(name, target, precision or "f32", exe.code_facts())


def ran() -> Iterator[str]:
    """On four processors, which jax was told to have before it started."""
    for name, work in workloads().items():
        params = work.rlx_params()
        alone = rlx.compile(work.model(params), "cpu", params=params)(*work.inputs)
        for mesh in ({"model": 4}, {"data": 2, "model": 2}):
            exe: Any = rlx.compile(
                work.model(params), "tpu:cpu", mesh=mesh, params=params, cache=False
            )
            error = difference(alone, exe(*work.inputs))
            shared = exe.code_facts().collectives
            counted = ", ".join(f"{n} {kind}" for kind, n in sorted(shared.items())) or "none"
            axes = ", ".join(f"{k}={v}" for k, v in mesh.items())
            yield f"| {name} | {axes} | {error:.1e} | {counted} |"


def difference(expected: Any, found: Any) -> float:
    pairs = zip(*(a if isinstance(a, tuple) else (a,) for a in (expected, found)), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def table(head: str, rows: Iterator[Any]) -> list[str]:
    print(head)
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for row in rows:
        print(row, flush=True)
        lines.append(str(row))
    return lines


def page(tables: Sequence[list[str]]) -> str:
    """The results, and what they are."""
    parts = [
        "# TPUs that are not here\n",
        "`python -m bench.tpu` compiled these with libtpu, without a TPU: nothing was run on one. "
        "Numbers are those of one device, as XLA counts them: `traffic` is what its instructions "
        "read and write, `at least` what a call takes by its cost model, – where that states "
        "nothing. Params and inputs are arguments.\n",
        "\n".join(tables[0]) + "\n",
        "## On four processors\n",
        "`python -m bench.tpu --run`: the same splits, run on four virtual devices of jax's CPU.\n",
        "\n".join(tables[1]) + "\n",
    ]
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.tpu", description=__doc__)
    parser.add_argument("--run", action="store_true", help="Run on four processors of jax's.")
    parser.add_argument("--precision", help="Of products: bf16, int8. (default: the model's f32)")
    parser.add_argument("--write", action="store_true", help=f"Write {PAGE.name}.")
    given = parser.parse_args(argv)
    if given.run:
        table(RUN_HEAD, ran())
        return 0
    first = table(HEAD, compiled(given.precision))
    made = subprocess.run(
        [sys.executable, "-m", "bench.tpu", "--run"], capture_output=True, text=True, check=True,
        env={**os.environ, "XLA_FLAGS": FOUR},
    )  # fmt: skip
    head, *rows = made.stdout.splitlines()
    second = table(head, iter(rows))
    if given.write:
        PAGE.write_text(page([first, second]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
