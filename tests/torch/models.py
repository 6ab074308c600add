"""25 architectures through the importer: `python -m tests.torch.models [names]`.

Each is exported once, with a batch that varies and, where it has one, a length; compiled once; and
run at ten shapes against eager. Exits with 1 if one is not right.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import rlx
from tests.torch.architectures import ARCHITECTURES, Architecture, Picked

BATCHES = (2, 1, 3, 4, 5, 7, 2, 6, 3, 8)
TOLERANCE = 2e-4
"""Relative to the greatest element: f32 sums of a few layers, in another order."""


def shapes_of(found: Architecture) -> Iterator[tuple[int, int]]:
    for i, batch in enumerate(BATCHES):
        yield batch, found.lengths[i % len(found.lengths)]


def dynamic_shapes(found: Architecture) -> dict[str, Any]:
    dim = torch.export.Dim.DYNAMIC
    return {name: dict.fromkeys(axes, dim) for name, axes in found.axes.items()}


def module_of(found: Architecture) -> Any:
    torch.manual_seed(0)
    made = found.make().eval()
    if isinstance(made, Picked):
        made.names = tuple(found.axes)
    return made


def compiled(found: Architecture, module: Any, target: str) -> Any:
    batch, length = next(shapes_of(found))
    inputs = found.inputs(batch, length)
    shapes = tuple(dynamic_shapes(found)[n] for n in inputs)
    asked = (shapes,) if isinstance(module, Picked) else shapes
    return rlx.compile(module, tuple(inputs.values()), dynamic_shapes=asked, target=target)


def called(function: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return function(*inputs.values())


def error_of(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative to the greatest element."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    scale = want[want.isfinite()].abs().max().item() or 1.0
    far = (got.double() - want.double()).abs()
    return float(far[want.isfinite()].max().item() / scale)


def run(found: Architecture, target: str) -> tuple[bool, str]:
    """Was it right at all shapes, and what is to be said of it?"""
    module = module_of(found)
    start = time.perf_counter()
    try:
        exe = compiled(found, copy.deepcopy(module), target)
    except rlx.Error as error:
        return False, f"refused: {str(error)[:400]}"
    seconds, worst, wrong = time.perf_counter() - start, 0.0, []
    dims = ", ".join(str(d) for d in exe.model.graph.dynamic_symbols)
    with torch.no_grad():
        for batch, length in shapes_of(found):
            inputs = found.inputs(batch, length)
            try:
                error = error_of(called(exe, inputs), called(module, inputs))
            except rlx.Error as failed:
                return False, f"at {batch}×{length}: {str(failed)[:400]}"
            worst = max(worst, error)
            if not error <= TOLERANCE:
                wrong.append(f"{batch}×{length}: {error:.1e}")
    if wrong:
        return False, f"wrong at {'; '.join(wrong)}"
    return True, f"{worst:.1e} at most, dims [{dims}], {seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="cpu")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [a for a in ARCHITECTURES if not given.names or a.name in given.names]
    right = 0
    for found in chosen:
        is_right, text = run(found, given.target)
        right += is_right
        print(f"{found.name}: {'right' if is_right else 'NOT RIGHT'}: {text}", flush=True)
    print(f"{right} of {len(chosen)} right on {given.target}")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
