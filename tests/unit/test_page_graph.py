"""The graphs of a report's page: what is folded together, and what is counted."""

from __future__ import annotations

import re

import rlx
from rlx.explain.html import facts_of
from rlx.explain.report import Report
from rlx.explain.text import kernel_lines, op_count

LAYERS = 45


def unnamed() -> Report:
    """More kernels than are shown flat, each with a weight that is prepared once, before it."""
    g = rlx.Graph("unnamed")
    x = g.input("x", rlx.Shape([8, 16]))
    for i in range(LAYERS):
        w = g.param(f"w{i}", rlx.Shape([16, 16]))
        x = g.softmax(g.matmul(x, g.softmax(w, axis=0)), axis=-1)
    g.set_outputs([x])
    return rlx.explain(g, "cpu")


def test_runs_of_kernels_are_named_by_those_of_a_call() -> None:
    report = unnamed()
    layers = facts_of(report)["graph"]["layers"]
    called = [k.id for k in report.kernels if k.phase != "prologue"]
    assert 0 < len(called) < len(report.kernels)
    for layer in set(layers):
        own = [i for i in called if layers[i] == layer]
        first, last = map(int, re.fullmatch(r"(\d+)[–…](\d+)", layer).groups())  # pyright: ignore[reportOptionalMemberAccess]
        assert (own[0], own[-1]) == (first, last)
        assert ("–" in layer) == (len(own) == last - first + 1)


def test_what_runs_once_is_in_the_layer_of_its_reader() -> None:
    facts = facts_of(unnamed())
    layers = facts["graph"]["layers"]
    once = [i for i, k in enumerate(facts["kernels"]) if k["phase"] == "prologue"]
    readers = {a: b for a, b, _ in reversed(facts["graph"]["edges"])}
    assert once
    for i in once:
        assert layers[i] == layers[int(readers[f"k{i}"][1:])]


def test_kernels_are_grouped_as_in_the_text() -> None:
    report = unnamed()
    kernels = facts_of(report)["kernels"]
    called = [k["group"] for k in kernels if k["phase"] != "prologue"]
    lines = kernel_lines(report)
    assert len(set(called)) == len(lines) < len(called)
    for line in lines:
        assert len({kernels[k.id]["group"] for k in line.kernels}) == 1
    assert not set(called) & {k["group"] for k in kernels if k["phase"] == "prologue"}


def test_ops_are_counted_as_in_the_text() -> None:
    """States are values that are given, and in the layer that reads them."""
    g = rlx.Graph("stateful")
    x = g.input("x", rlx.Shape([1, 8]))
    total = g.state("total", rlx.Shape([1, 8]))
    g.set_outputs([g.exp(total + x)])
    report = rlx.explain(g, "cpu")
    model = facts_of(report)["model"]
    assert [n["op"] for n in model["nodes"] if not n["isOp"]] == ["state"]
    assert model["ops"] == op_count(report) == sum(n["isOp"] for n in model["nodes"])
