"""The fingerprint: the same on every run, another for every difference that matters."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.mir import Graph
from rlx.plan.planner import plan_module

CPU = Target.of("cpu")

SCRIPT = """
import numpy as np
from rlx.cost.target import Target
from rlx.core.dim import Dim
from rlx.ir.mir import Graph
from rlx.plan.planner import plan_module
from rlx.core.shape import Shape
g = Graph("g")
x, w = g.input("x", Shape([Dim("n", 1, 99), 8])), g.param("w", Shape([8, 8]))
y = g.matmul(g.add(x, g.constant(np.arange(8, dtype="f4"))), g.concat([w, g.neg(w)], axis=1))
g.set_outputs([g.top_k(g.exp(y), k=2, axis=-1)[1], g.transpose(y, perm=(1, 0))])
print(plan_module(g, Target.of("cuda")).fingerprint)
"""


def test_it_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }  # fmt: skip
    assert len(found) == 1
    assert int(found.pop(), 16) > 0


def graph(
    *, name: str = "g", value: float = 1.0, axis: int = 0, swap: bool = False, width: int = 4
) -> Graph:
    g = Graph(name)
    x = g.input("x", Shape([4, width]))
    y = g.add(x, g.constant(np.array([0.0] * (width - 1) + [value], "f4")))
    parts = [g.sum(y, axes=(axis,)), g.neg(y)]
    g.set_outputs(parts[::-1] if swap else parts)
    return g


def mark(built: Graph | None = None, target: Target = CPU, **how: Any) -> str:
    return plan_module(built or graph(), target, **how).fingerprint


class Options:
    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        return self._text


@pytest.mark.parametrize(
    "other",
    [
        lambda: mark(graph(value=2.0)),
        lambda: mark(graph(value=-1.0)),
        lambda: mark(graph(axis=1)),
        lambda: mark(graph(swap=True)),
        lambda: mark(graph(width=5)),
        lambda: mark(graph(name="h")),
        lambda: mark(target=Target.of("cuda")),
        lambda: mark(target=replace(CPU, views=frozenset())),
        lambda: mark(alignment=128),
        lambda: mark(options=Options("skip")),
    ],
    ids=["constant", "sign", "attribute", "outputs", "shape", "name", "target", "one number",
         "alignment", "options"],
)  # fmt: skip
def test_one_difference_changes_it(other: Any) -> None:
    assert mark() == mark()
    assert mark() != other()


def test_zero_and_minus_zero_differ() -> None:
    assert mark(graph(value=0.0)) != mark(graph(value=-0.0))


def test_the_order_of_building_does_not_count() -> None:
    def built(*, neg_first: bool) -> Graph:
        g = Graph("g")
        x = g.input("x", Shape([4]))
        made = [g.neg(x), g.exp(x)] if neg_first else [g.exp(x), g.neg(x)][::-1]
        g.set_outputs([g.add(*made)])
        return g

    assert mark(built(neg_first=True)) == mark(built(neg_first=False))
