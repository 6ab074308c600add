"""PyTorch models in turns with eager and inductor: `python -m bench.torch [names]`.

Calls: each model runs by eager, inductor, frozen inductor, `torch.compile(backend="rlx")` and as an
exported program of rlx, in one process, in turns: calls for 20 ms that are not counted and for
20 ms that are, at least one of each. The time is the median. Compiled code may come from caches.

`--first`: first calls, each engine in a process of its own that has torch imported and nothing
compiled, without caches. `--tiny`: calls of a tiny model, in µs. `--save` writes what was measured
to `bench/results/torch.json`, and the page of all that is there to `torch.md`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlx
from bench.torch_models import MODELS, tiny
from bench.torch_page import ENGINES, RESULTS, page, ratio
from rlx.core.other_load import OtherLoad, is_busy

RIGHT = 2e-4
"""Relative to the greatest element: f32 sums in another order."""
POOL_SECONDS = 0.02
"""libgomp's workers spin for some milliseconds."""


def runners(
    module: Any, args: tuple[Any, ...], cache: bool
) -> dict[str, Callable[[], Callable[..., Any]]]:
    """How each engine makes a function of the module."""
    import torch

    from rlx.frontends.torch.dynamo.backend import rlx as backend

    how = {} if cache else {"cache": False}
    return {
        "eager": lambda: module,
        "inductor": lambda: torch.compile(module),
        "frozen": lambda: torch.compile(module, options={"freezing": True}),
        "rlx": lambda: torch.compile(module, backend=backend, options=how),
        "exported": lambda: rlx.compile(module, args, target="cpu", threads=2, **how),
    }


def built(name: str, build: Callable[[], Any], args: Any) -> Any:
    """The function of an engine, called once."""
    import torch
    import torch._inductor.config

    with torch._inductor.config.patch(freezing=name == "frozen"):  # Dynamo reads it, too
        function = build()
        function(*args)
    return function


# -- calls ----------------------------------------------------------------------------------------
def measured(name: str, seconds: float) -> dict[str, Any]:
    """Milliseconds of a call and errors, by engine; how busy others kept the machine."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    module, args = MODELS[name]()
    module.eval()
    functions = {n: built(n, b, args) for n, b in runners(module, args, cache=True).items()}
    want = module(*args)
    errors = {n: _error(f(*args), want) for n, f in functions.items()}
    load = OtherLoad()
    times = in_turns(functions, args, seconds)
    return {"ms": times, "error": errors, "other_cores": round(load.cores(), 2)}


def _error(got: Any, want: Any) -> float:
    return float((got - want).abs().max() / want.abs().max())


def in_turns(functions: dict[str, Any], args: Any, seconds: float) -> dict[str, float]:
    """The median of each, in rounds of some calls each."""
    times: dict[str, list[float]] = {n: [] for n in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["eager"]) < 5:
        for name, function in functions.items():
            _calls(function, args, [])
            _calls(function, args, times[name])
    return {n: statistics.median(t) for n, t in times.items()}


def _calls(function: Any, args: Any, times: list[float]) -> None:
    """Calls for as long as a pool of threads waits actively for work after the last call: OpenMP's
    workers of the engine before would take the cores from this one."""
    begin = last = time.perf_counter()
    while last - begin < POOL_SECONDS:
        function(*args)
        now = time.perf_counter()
        times.append((now - last) * 1e3)
        last = now


# -- first calls ----------------------------------------------------------------------------------
def first_call(name: str, engine: str) -> float:
    """Seconds from the module to the first result, in this process."""
    import torch
    import torch._inductor.config

    torch._inductor.config.force_disable_caches = True
    torch.manual_seed(0)
    module, args = MODELS[name]()
    module.eval()
    module(*args)
    build = runners(module, args, cache=False)[engine]
    begin = time.perf_counter()
    built(engine, build, args)
    return time.perf_counter() - begin


def first_calls(name: str) -> dict[str, float]:
    """Each in a process of its own; rlx has its bytecode, as an installed package does."""
    compileall.compile_dir(Path(rlx.__file__).parent, quiet=1)
    made: dict[str, float] = {}
    for engine in ENGINES[1:]:
        command = [sys.executable, "-m", "bench.torch", name, "--engine", engine]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        made[engine] = float(done.stdout.split()[-1])
    return made


# -- a tiny model ---------------------------------------------------------------------------------
def tiny_calls(rounds: int = 25) -> dict[str, float]:
    """Microseconds of a call: the least of rounds in turns."""
    functions = tiny()
    best = dict.fromkeys(functions, math.inf)
    for _ in range(rounds):
        for name, (function, argument) in functions.items():
            begin = time.perf_counter()
            for _ in range(2000):
                function(argument)
            best[name] = min(best[name], (time.perf_counter() - begin) / 2000 * 1e6)
    return best


# -- the command ----------------------------------------------------------------------------------
def line(name: str, row: dict[str, Any]) -> str:
    ms = " | ".join(f"{row['ms'][k]:.3f}" for k in row["ms"])
    wrong = [k for k, e in row["error"].items() if not e <= RIGHT]
    note = f" WRONG: {', '.join(wrong)}" if wrong else ""
    if is_busy(row["other_cores"]):
        note += f" others used {row['other_cores']} cores: not saved"
    return f"| {name} | {ms} | {ratio(row, 'exported'):.2f} | {ratio(row, 'rlx'):.2f} |{note}"


def save(part: str, rows: dict[str, Any]) -> None:
    import torch

    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    facts = {"torch": torch.__version__, "threads": 2, **{p: known.get(p, {}) for p in PARTS}}
    facts[part] = {**facts[part], **rows}
    facts["note"] = known.get("note", "")
    RESULTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    RESULTS.with_suffix(".md").write_text(page(facts))


PARTS = ("calls", "first_s", "tiny_us")


def _measure(given: argparse.Namespace) -> None:
    if given.tiny:
        rows = tiny_calls()
        print("\n".join(f"{n}: {us:.2f} µs" for n, us in rows.items()))
        if given.save:
            save("tiny_us", rows)
        return
    for name in given.names or MODELS:
        if given.first:
            row = first_calls(name)
            print(name, {n: round(s, 2) for n, s in row.items()}, flush=True)
        else:
            row = measured(name, given.seconds)
            print(line(name, row), flush=True)
        if given.save and not is_busy(row.get("other_cores", 0)):
            save("first_s" if given.first else "calls", {name: row})


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--engine", choices=ENGINES, help="one first call, in this process")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    with torch.no_grad():
        if given.engine:
            print(first_call(given.names[0], given.engine))
        else:
            _measure(given)


if __name__ == "__main__":
    main()
