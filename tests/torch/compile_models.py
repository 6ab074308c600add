"""25 architectures through torch.compile(backend="rlx"): `python -m tests.torch.compile_models`.

Each is called at four shapes against eager, where no op may stay with torch. `--breaks` calls it
by inductor as well, and compares how often Dynamo broke graphs. Exits with 1 if one is not right,
or broke more graphs than for inductor.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any

import torch
from torch._dynamo.utils import counters

from rlx.frontends.torch.dynamo import backend
from tests.torch.architectures import ARCHITECTURES, Architecture
from tests.torch.models import TOLERANCE, called, error_of, module_of, shapes_of

NUM_SHAPES = 4
CONFIG = {"LSTM tagger": {"allow_rnn": True}}
"""By default Dynamo leaves recurrent networks of torch to eager, whatever the backend."""


def compiled(module: Any, target: str) -> Any:
    options = {"target": target, "strict": True}
    return torch.compile(module, backend=backend.rlx, options=options)


def run(found: Architecture, target: str) -> tuple[float, int, int]:
    """The greatest error at all shapes, the graphs that rlx compiled, and the breaks."""
    module = module_of(found)
    worst, made = 0.0, compiled(module, target)
    with configured(found), torch.no_grad():
        for batch, length in list(shapes_of(found))[:NUM_SHAPES]:
            inputs = found.inputs(batch, length)
            worst = max(worst, error_of(called(made, inputs), called(module, inputs)))
        return worst, num_graphs(), num_breaks()


def configured(found: Architecture) -> Any:
    """Dynamo without what it knows of earlier models."""
    torch._dynamo.reset()
    counters.clear()
    return torch._dynamo.config.patch(CONFIG.get(found.name, {}))


def num_graphs() -> int:
    return counters["stats"]["unique_graphs"]


def num_breaks() -> int:
    return sum(counters["graph_break"].values())


def breaks_of_inductor(found: Architecture) -> int:
    module = module_of(found)
    with configured(found), torch.no_grad():
        called(torch.compile(module), found.inputs(*next(shapes_of(found))))
        return num_breaks()


def verdict(found: Architecture, target: str, *, compares: bool) -> tuple[bool, str]:
    start = time.perf_counter()
    try:
        worst, graphs, breaks = run(found, target)
    except Exception as error:
        return False, f"refused: {str(error)[:400]}"
    text = f"{worst:.1e} at most, {graphs} graphs, {breaks} breaks"
    seconds = time.perf_counter() - start
    is_right = worst <= TOLERANCE and graphs > 0
    if compares:
        allowed = breaks_of_inductor(found)
        text += f", inductor {allowed} breaks"
        is_right = is_right and breaks <= allowed
    return is_right, f"{text}, {seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--breaks", action="store_true", help="count inductor's as well")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [a for a in ARCHITECTURES if not given.names or a.name in given.names]
    right = 0
    for found in chosen:
        is_right, text = verdict(found, given.target, compares=given.breaks)
        right += is_right
        print(f"{found.name}: {'right' if is_right else 'NOT RIGHT'}: {text}", flush=True)
    print(f"{right} of {len(chosen)} right through torch.compile on {given.target}")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
