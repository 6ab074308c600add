"""The fusion report: counts of the final graph at any depth, and misses without noise."""

from __future__ import annotations

from typing import Any

import pytest

from rlx import ops
from rlx.ir.mir import Graph
from rlx.passes.context import Context
from rlx.passes.fusion import reasons
from rlx.passes.fusion.report import COUNTED, FusionReport
from rlx.passes.options import FusionOptions
from tests.unit.fusing import fuse, inputs, params


def report(g: Graph, target: str = "cpu", options: FusionOptions | None = None) -> FusionReport:
    ctx = Context.of(target, options)
    return FusionReport.analyze(g, fuse(g, ctx), ctx.log.decisions)


def ffn() -> Graph:
    g = Graph("ffn")
    (x,) = inputs(g, x=(4, 5))
    up, gate, down = params(g, up=(5, 6), gate=(5, 6), down=(6, 5))
    h = ops.matmul(x, up) * ops.silu(ops.matmul(x, gate))
    g.set_outputs([ops.matmul(h, down) + x])
    return g


def test_counts_before_and_after() -> None:
    found = report(ffn())
    assert (found.nodes_before, found.matmul_before) == (10, 3)
    assert found.matmul_after == 2
    assert found.fused_swiglu == 1
    assert (found.silu, found.mul, found.region) == (0, 0, 1)
    assert found.is_clean


def test_what_is_inside_a_region_counts() -> None:
    """On TPUs, which have no kernel for it, the gate is part of a region, and is still a silu."""
    found = report(ffn(), "tpu")
    assert (found.fused_swiglu, found.silu, found.mul) == (0, 1, 1)
    g = Graph("block")
    (x,) = inputs(g, x=(4, 5))
    w, b = params(g, w=(5, 5), b=(5,))
    g.set_outputs([ops.relu(ops.matmul(x, w) + b) + x])
    found = report(g)
    assert (found.fused_matmul_bias_act, found.region) == (1, 1)


def test_what_was_given_fused_counts() -> None:
    g = Graph("direct")
    (cat,) = inputs(g, cat=(4, 6))
    g.set_outputs([ops.fused_swiglu(cat)])
    assert report(g).fused_swiglu == 1
    assert FusionReport.scan(g).fused_swiglu == 1


def test_what_is_inside_a_branch_counts() -> None:
    body = Graph("body")
    (a,) = inputs(body, a=(4, 6))
    body.set_outputs([ops.silu(a)])
    g = Graph("branch")
    (x,) = inputs(g, x=(4, 6))
    pred = ops.less(ops.sum(x), 0.0)
    g.set_outputs(list(ops.if_(pred, x, then=body, else_=body)))
    assert FusionReport.scan(g).silu == 2


@pytest.mark.parametrize("follow", [
    lambda m: ops.reshape(m, dims=(24,)),
    ops.rms_norm,
    ops.softmax,
    lambda m: ops.sum(m, axes=(1,)),
])  # fmt: skip
def test_a_plain_product_is_no_miss(follow: Any) -> None:
    """The original called every one of these a missed bias."""
    g = Graph("plain")
    (x,) = inputs(g, x=(4, 5))
    (w,) = params(g, w=(5, 6))
    g.set_outputs([follow(ops.matmul(x, w))])
    assert report(g).is_clean


def test_a_miss_says_where_why_and_what_next() -> None:
    g = Graph("missed")
    (x,) = inputs(g, x=(4, 5))
    w, b = params(g, w=(5, 6), b=(6,))
    product = ops.matmul(x, w)
    g.set_outputs([product, product + b])
    found = report(g)
    (miss,) = found.missed
    assert miss.pattern == "fuse_matmul_bias_act"
    assert "matmul at test_fusion_report.py" in miss.label
    assert miss.reason == reasons.IS_OUTPUT
    assert miss.hint == reasons.HINTS[reasons.IS_OUTPUT]
    assert found.missed_of("fuse_matmul_bias_act") == 1
    assert str(miss) in str(found)


def test_a_refusal_by_the_gate_is_a_miss() -> None:
    g = Graph("refused")
    (x,) = inputs(g, x=(4, 5))
    g.set_outputs([ops.softmax(ops.matmul(x, w)) for w in params(g, a=(5, 6), b=(5, 6))])
    found = report(g, "tpu")
    assert found.missed_of("fuse_shared_input_matmul") == 1
    assert "force" in found.missed[0].hint


def test_every_reason_has_a_hint() -> None:
    texts = {v for k, v in vars(reasons).items() if k.isupper() and isinstance(v, str)}
    assert texts - {reasons.REFUSED} == set(reasons.HINTS)


def test_the_summary_has_every_count_once() -> None:
    line = report(ffn()).summary_line()
    keys = [pair.split("=")[0] for pair in line.split(" ")]
    assert keys == ["nodes", "matmul", *COUNTED, "missed"]
    assert str(report(ffn())) == line


def test_equal_graphs_have_equal_reports() -> None:
    assert report(ffn(), "metal") == report(ffn(), "metal")
    off = report(ffn(), options=FusionOptions(skip_fusion=True))
    assert (off.nodes_after, off.fused_swiglu, off.is_clean) == (10, 0, True)
