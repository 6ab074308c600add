"""Random torch programs of named dims: `python -m tests.torch.dim_arithmetic --count 2000`.

Sizes are pinned by weights, divided by views, strides and pools, sliced by bounds computed from
sizes, concatenated, padded, and used as numbers. A program is drawn by running it eagerly at one
choice of sizes, exported with every size open that torch leaves open, compiled once and called at
8. The exported program says what each call gives; where its guards refuse sizes nothing is asked.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import rlx
from rlx.frontends.torch.model import from_exported
from tests.differential import NUM_SIZES, Array, Judged, judged_calls, main

NAMES = ("a", "b", "c")
LARGEST = 12
MOST_ELEMENTS = 4096
Values = list[torch.Tensor]
Step = Callable[[Values], torch.Tensor]
Number = Callable[[Values], Any]


class Program(torch.nn.Module):
    """Steps on the values before them; the results are the last two."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            values.append(step(values))
        return tuple(v + 0 for v in values[-2:])


@dataclass
class Drawing:
    """A program that grows, and its values at the sizes that it is drawn for."""

    rng: random.Random
    values: Values

    def index(self) -> int:
        recent = self.rng.random() < 0.7
        return self.rng.randrange(max(0, len(self.values) - 3) if recent else 0, len(self.values))

    def axis(self, i: int) -> int:
        return self.rng.randrange(max(1, self.values[i].dim()))

    def weight(self, *dims: int) -> torch.Tensor:
        made = [self.rng.randint(-2, 2) for _ in range(int(np.prod(dims)))]
        return torch.tensor(made, dtype=torch.float32).reshape(dims)

    def number(self, depth: int = 2) -> Number:
        """What is computed of sizes."""
        if depth == 0 or self.rng.random() < 0.3:
            i = self.index()
            axis = self.axis(i)
            return lambda vs: vs[i].shape[axis]
        one, k = self.number(depth - 1), self.rng.randint(1, 5)
        other = self.number(depth - 1) if self.rng.random() < 0.4 else lambda _: k
        ways: tuple[Number, ...] = (
            lambda vs: one(vs) + other(vs),
            lambda vs: one(vs) - other(vs),
            lambda vs: one(vs) * k,
            lambda vs: one(vs) // k,
            lambda vs: one(vs) % k,
            lambda vs: torch.sym_min(one(vs), other(vs)),
            lambda vs: torch.sym_max(one(vs), other(vs)),
        )
        return self.rng.choice(ways)

    def bound(self) -> Number:
        if self.rng.random() < 0.5:
            return self.number()
        value = self.rng.choice((0, 1, 2, 3, -1, -2, -4, 7))
        return lambda _: value


def pinned(d: Drawing) -> Step:
    i = d.index()
    k = d.values[i].shape[-1]
    row, matrix = d.weight(k), d.weight(k, 3)
    return d.rng.choice((lambda vs: vs[i] + row, lambda vs: vs[i] @ matrix))


def viewed(d: Drawing) -> Step:
    i, k = d.index(), d.rng.randint(1, 4)
    axis = d.axis(i)
    ways: tuple[Step, ...] = (
        lambda vs: vs[i].unflatten(axis, (k, -1)),
        lambda vs: vs[i].unflatten(axis, (-1, k)),
        lambda vs: vs[i].reshape(-1, vs[i].shape[-1]),
        lambda vs: vs[i].flatten(0, 1),
        lambda vs: vs[i].reshape(vs[i].shape[0], -1),
        lambda vs: vs[i].reshape(*vs[i].shape[:-1], vs[i].shape[-1] // k, k),
    )
    return d.rng.choice(ways)


def sliced(d: Drawing) -> Step:
    i, start, end = d.index(), d.bound(), d.bound()
    axis, step = d.axis(i), d.rng.choice((1, 1, 2, 3))
    at = (slice(None),) * axis
    return lambda vs: vs[i][(*at, slice(start(vs), end(vs), step))]


def joined(d: Drawing) -> Step:
    i, j = d.index(), d.index()
    axis = d.axis(i)
    return lambda vs: torch.cat([vs[i], vs[j]], axis)


def met(d: Drawing) -> Step:
    i, j = d.index(), d.index()
    return d.rng.choice((lambda vs: vs[i] + vs[j], lambda vs: torch.maximum(vs[i], vs[j])))


def windowed(d: Drawing) -> Step:
    i, kernel, stride = d.index(), d.rng.randint(1, 3), d.rng.randint(1, 3)
    ways: tuple[Step, ...] = (
        lambda vs: functional.avg_pool1d(vs[i], kernel, stride),
        lambda vs: functional.max_pool1d(vs[i], kernel, stride),
        lambda vs: vs[i].unfold(-1, kernel, stride),
    )
    return d.rng.choice(ways)


def padded(d: Drawing) -> Step:
    i, low, high = d.index(), d.bound(), d.bound()
    return lambda vs: functional.pad(vs[i], (low(vs), high(vs)))


def counted(d: Drawing) -> Step:
    i, factor = d.index(), d.number()
    ways: tuple[Step, ...] = (
        lambda vs: vs[i] + torch.arange(vs[i].shape[-1], dtype=torch.float32),
        lambda vs: vs[i] * factor(vs),
        lambda vs: torch.where(torch.arange(vs[i].shape[-1]) < factor(vs), vs[i], 0.5),
    )
    return d.rng.choice(ways)


def expanded(d: Drawing) -> Step:
    i, size = d.index(), d.number()
    return lambda vs: vs[i].unsqueeze(0).expand(size(vs), *vs[i].shape)


def moved(d: Drawing) -> Step:
    i = d.index()
    axis = d.axis(i)
    ways: tuple[Step, ...] = (
        lambda vs: vs[i].transpose(0, axis),
        lambda vs: vs[i].sum(axis, keepdim=True),
        lambda vs: vs[i].flip(axis),
        lambda vs: vs[i].chunk(2, axis)[0],
    )
    return d.rng.choice(ways)


STEPS = (pinned, viewed, viewed, sliced, sliced, sliced, joined, joined, met, met, windowed, padded,
         counted, expanded, moved, moved)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program, what it takes, and the sizes that it is called at."""

    seed: int
    program: Program
    declared: tuple[tuple[Any, ...], ...]
    sizes: tuple[Mapping[str, int], ...]

    def inputs(self, number: int) -> tuple[torch.Tensor, ...]:
        sizes = self.sizes[number]
        return _inputs(self.seed, [[sizes.get(d, d) for d in dims] for dims in self.declared])


def _inputs(seed: int, shapes: Any) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    return tuple(torch.from_numpy(rng.integers(-2, 3, s).astype(np.float32)) for s in shapes)


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    base = {n: rng.randint(2, LARGEST) for n in NAMES}
    declared = tuple(
        tuple(rng.choice((*NAMES, *NAMES, 2, 3)) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    )
    inputs = _inputs(seed, [[base.get(d, d) for d in dims] for dims in declared])  # pyright: ignore
    d = Drawing(rng, list(inputs))
    steps: list[Step] = []
    for _ in range(60):
        if len(steps) > 2 and rng.random() < 0.15:
            break
        step = rng.choice(STEPS)(d)
        try:
            made = step(d.values)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue
        if made.numel() <= MOST_ELEMENTS and 0 < made.dim() < 5:
            d.values.append(made)
            steps.append(step)
    sizes = [base]
    for _ in range(NUM_SIZES - 1):
        changed = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        sizes.append(
            {**base, **{n: rng.choice((1, rng.randint(2, 2 * LARGEST), 30)) for n in changed}}
        )
    return Case(seed, Program(steps), declared, tuple(sizes))


def _exported(case: Case) -> Any:
    auto = torch.export.Dim.AUTO
    dims = tuple(
        {i: auto for i, d in enumerate(dims) if isinstance(d, str)} for dims in case.declared
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(case.program, case.inputs(0), dynamic_shapes=(dims,))


def judged(case: Case, target: str) -> Judged:
    """How many calls are right, and those that are not."""
    try:
        exported = _exported(case)
        module = exported.module()
    except Exception:
        return Counter({"not exported": 1}), []
    compiled = cache(lambda: rlx.compile(from_exported(exported), target))
    expected = [_asked(exported, module, case.inputs(i)) for i in range(len(case.sizes))]

    def run(number: int) -> list[Array]:
        return [t.numpy() for t in compiled()(*case.inputs(number))]

    return judged_calls(case.seed, case.sizes, expected, run)


def _asked(exported: Any, module: Any, inputs: tuple[torch.Tensor, ...]) -> list[Array] | None:
    """What the exported program gives; None where it refuses the sizes."""
    if not _fits(exported, inputs):
        return None
    try:
        return [t.numpy() for t in module(*inputs)]
    except Exception:
        return None


def _fits(exported: Any, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Have the inputs the sizes that torch specialised the program for? It has no guards for those
    of inputs that nothing reads."""
    fakes = [n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"]
    shapes = [f.shape for f in fakes if isinstance(f, torch.Tensor)][-len(inputs) :]
    return all(
        not isinstance(d, int) or d == size
        for shape, given in zip(shapes, inputs, strict=True)
        for d, size in zip(shape, given.shape, strict=True)
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(__doc__, lambda seed, target: judged(drawn(seed), target), 2000))
