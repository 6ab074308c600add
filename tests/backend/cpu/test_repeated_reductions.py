"""Reductions that a nest would repeat are found before code is written, as the emitter would."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlx import ops
from rlx.backends.cpu.codegen.loop.emit import emit, legal
from rlx.backends.cpu.isa import host
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.loop_schedule import choose
from rlx.backends.cpu.schedule.repeated_reductions import repeated_reduction
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import loop_kernel


def by(x: Node, axis: int) -> Node:
    return ops.div(x, ops.sum(x, axes=(axis,), keepdims=True))


def padded(x: Node) -> Node:
    return ops.pad(x, low=(1, 0), high=(0, 2), value=0.0)


CASES: dict[str, tuple[Callable[[Node], Node], bool | None]] = {
    "rows": (lambda x: by(x, 1), False),
    "columns": (lambda x: by(x, 0), False),
    "rows and columns": (lambda x: ops.add(by(x, 0), by(x, 1)), True),
    "columns of rows": (lambda x: by(by(x, 1), 0), True),
    "softmax of columns of rows": (lambda x: ops.softmax(by(x, 0), axis=1), True),
    "both at once": (lambda x: ops.sub(x, ops.sum(x, axes=(0, 1), keepdims=True)), False),
    "rows, padded": (lambda x: padded(by(x, 1)), None),
    "padded, then rows": (lambda x: by(padded(x), 1), None),
    "rows of two parts": (lambda x: ops.concat([by(x, 1), x], axis=0), None),
    "columns of two parts": (lambda x: ops.concat([by(x, 0), by(x, 1)], axis=1), None),
}
"""What is computed, and whether a nest repeats a reduction; None where only the emitter says."""


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_the_emitter_finds(name: str) -> None:
    build, expected = CASES[name]
    body, g = Graph("body"), Graph("g")
    body.set_outputs([build(body.input("x", Shape([24, 40])))])
    node = g.node("region", [g.input("x", Shape([24, 40]))], {"body": body})
    kernel = legal(loop_kernel(node))
    schedule = choose(kernel, CpuMachine.of(host()))
    found = repeated_reduction(kernel, schedule) is not None
    assert found == _is_refused(lambda: emit(kernel, schedule, host(), "k"))
    assert expected is None or found == expected


def _is_refused(write: Callable[[], object]) -> bool:
    try:
        write()
    except AssertionError:
        return True
    return False
