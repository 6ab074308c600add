"""Naming an attention changes no value: also where a query sees no key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.simplify import simplify

B, H, N, M, D = 2, 3, 5, 9, 8
INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)
RNG = np.random.default_rng(7)
QKV = {
    "q": RNG.normal(size=(B, H, N, D)).astype(np.float32),
    "k": RNG.normal(size=(B, H, M, D)).astype(np.float32),
    "v": RNG.normal(size=(B, H, M, D)).astype(np.float32),
}
SEEN = RNG.random((B, 1, N, M)) < 0.5
SEEN[0, 0, 2] = SEEN[1, 0, 0] = False
"""Two queries see no key."""
PAST = np.tri(N, M, M - N, dtype=bool)
BEFORE = np.tri(N, M, -1, dtype=bool)
"""A causal mask that is off by one: the first query sees nothing."""


def penalty(hidden: float, visible: np.ndarray = SEEN) -> np.ndarray:
    return np.where(visible, 0.0, hidden).astype(np.float32)


Spelling = tuple[Callable[[Node, Node], Node], np.ndarray, bool]
SPELLINGS: dict[str, Spelling] = {
    "added -inf": (lambda s, m: s + m, penalty(-INF), True),
    "added -1e9": (lambda s, m: s + m, penalty(-1e9), True),
    "added least number": (lambda s, m: s + m, penalty(LOWEST), True),
    "chosen -inf": (lambda s, m: ops.where(m, s, -INF), SEEN, True),
    "hidden -inf": (lambda s, m: ops.where(m, -INF, s), ~SEEN, True),
    "chosen -1e9": (lambda s, m: ops.where(m, s, -1e9), SEEN, True),
    "chosen least number": (lambda s, m: ops.where(m, s, LOWEST), SEEN, True),
    "truth as numbers": (lambda s, m: s + (1.0 - m) * -10000.0, SEEN.astype(np.float32), True),
    "constant -inf": (lambda s, m: s + penalty(-INF), SEEN, True),
    "constant chosen": (lambda s, m: ops.where(SEEN, s, -INF), SEEN, True),
    "causal with a past": (lambda s, m: ops.where(PAST, s, -INF), PAST, True),
    "causal, added least": (lambda s, m: s + penalty(LOWEST, PAST), PAST, True),
    "causal off by one": (lambda s, m: ops.where(BEFORE, s, -INF), BEFORE, True),
    "causal off by one, added": (lambda s, m: s + penalty(-INF, BEFORE), BEFORE, True),
    "causal off by one, least": (lambda s, m: s + penalty(LOWEST, BEFORE), BEFORE, True),
}  # fmt: skip


def spelled(name: str, with_weights: bool) -> tuple[Graph, dict[str, np.ndarray]]:
    """The attention, and its weights if asked for, which keeps the rule from naming it."""
    mask, given, _ = SPELLINGS[name]
    g = Graph("spelled")
    q, k, v = (g.input(n, rlx.Shape(a.shape)) for n, a in QKV.items())
    m = g.input("mask", rlx.Shape(given.shape, rlx.DType.of(given.dtype)))
    s = ops.mul(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), D**-0.5)
    p = ops.softmax(mask(s, m), axis=3)
    g.set_outputs([ops.matmul(p, v), p] if with_weights else [ops.matmul(p, v)])
    return g, {**QKV, "mask": given}


def run(g: Graph, values: dict[str, np.ndarray], target: str) -> np.ndarray:
    made = rlx.compile(g, target, cache=False)(*(values[n.attrs["name"]] for n in g.inputs))
    return made[0] if isinstance(made, (tuple, list)) else made


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_the_weights_as_an_output_change_nothing(name: str, target: str) -> None:
    alone, values = spelled(name, with_weights=False)
    found = [n.op for n in simplify(alone, Context.of("cpu")).order() if n.op == "attention"]
    assert found == ["attention"] * SPELLINGS[name][2]
    got = run(alone, values, target)
    want = run(spelled(name, with_weights=True)[0], values, target)
    plain = rlx.ir.interpret.evaluate(alone, values)[0]
    # two orders of sums of at most 9 terms, and a quotient by way of a reciprocal
    for other in (want, plain):
        np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_query_that_sees_no_key_is_not_a_number_where_the_softmax_is() -> None:
    g, values = spelled("chosen -inf", with_weights=False)
    for target in ("cpu", "cpu:avx2", "reference"):
        got = run(g, values, target)
        assert np.isnan(got).all(axis=3).tolist() == (~SEEN.any(axis=3)).repeat(H, 1).tolist()


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("masked_rows", ["zeros", "nan"])
def test_the_op_says_what_such_a_query_gives(masked_rows: str, queries: int) -> None:
    """One query is another kernel than many."""
    g, seen = Graph("op"), np.ones((2, 40), bool)
    seen[1] = False
    q = g.input("q", rlx.Shape([2, queries, 16]))
    k, v = (g.input(n, rlx.Shape([2, 40, 16])) for n in "kv")
    mask = g.input("mask", rlx.Shape(seen.shape, "bool"))
    attrs = {"num_heads": 2, "mask_kind": "custom", "masked_rows": masked_rows}
    g.set_outputs([ops.attention(q, k, v, mask, **attrs)])
    data = {n.attrs["name"]: RNG.normal(size=n.shape.static_dims).astype(np.float32)
            for n in (q, k, v)}  # fmt: skip
    for target in ("cpu", "reference"):
        got = run(g, {**data, "mask": seen}, target)
        assert np.isfinite(got[0]).all()
        assert (got[1] == 0).all() if masked_rows == "zeros" else np.isnan(got[1]).all()
